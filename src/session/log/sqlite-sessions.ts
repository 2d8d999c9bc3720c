// Sessions of the log as they stand in the database: found, made, and held while they are used. Invariant: what is held is
// what the last committed transaction left; after one that was taken back nothing is held (`forget`).

import { LRUCache } from 'lru-cache'
import { RefrainError } from '../../core/errors.js'
import type { SessionRecord } from './contract.js'
import { RESTS_ON_NOTHING, type Rests } from './contributing.js'
import { NO_DIGEST } from './event-digest.js'
import { type Lineage, lineageOf } from './lineage.js'
import { TOMBS, wasErased } from './log-faults.js'
import type { Standing } from './place-events.js'
import { blindName, derivedKey, newKey, open, seal } from './sealing.js'
import { SourceSets } from './source-sets.js'
import { blobs, numbers, type Row, type SqliteDatabase } from './sqlite-database.js'
import type { TenantKey, TenantKeys } from './tenant-keys.js'

/** One session, with what an append to it needs. */
export interface HeldSession {
  readonly row: number
  readonly tenant: TenantKey
  readonly record: Omit<SessionRecord, 'usedAt' | 'position'>
  readonly key: Buffer
  /** What marks where it stands; derived from `key`. */
  readonly marks: Buffer
  readonly lineage: Lineage
  readonly sets: SourceSets
  /** Hex of the blinded names of sources that its events rest on, its parents' included. */
  readonly touched: Set<string>
  standing: Standing
}

export type NewSession = Pick<SessionRecord, 'id' | 'tenant' | 'model' | 'metadata' | 'parent'>

const HELD_BYTES = 64 * 1024 * 1024
const COLUMNS = [
  numbers('row', 'tenant', 'session.created', 'used', 'parent', 'at', 'position', 'bytes'),
  blobs('id', 'digest', 'mark', 'wrapped', 'about'),
].join()

export class SqliteSessions {
  readonly #db: SqliteDatabase
  readonly #tenants: TenantKeys
  readonly #held = new LRUCache<string, HeldSession>({
    maxSize: HELD_BYTES,
    sizeCalculation: ({ sets, touched }) => 2048 + sets.bytes + 100 * touched.size,
  })
  #createdAt: number

  constructor(db: SqliteDatabase, tenants: TenantKeys) {
    this.#db = db
    this.#tenants = tenants
    this.#createdAt = this.#lastCreated()
  }

  /** @throws RefrainError `not_found`, `erased`. */
  of(tenant: string, id: string): HeldSession {
    const held = this.find(tenant, id)
    if (held !== undefined) return held
    throw this.#isErased(tenant, id) ? wasErased(id) : new RefrainError('not_found', `there is no session '${id}'`)
  }

  find(tenant: string, id: string): HeldSession | undefined {
    const held = this.#held.get(id)
    if (held !== undefined) return held.record.tenant === tenant ? held : undefined
    const row = this.#db.get(`SELECT ${COLUMNS} FROM session WHERE id = ?`, id)
    const key = row && this.#tenants.of(tenant)
    if (row === undefined || key === undefined || key.id !== row['tenant']) return undefined
    return this.hold(this.#load(row, key))
  }

  /** As one that is used now. */
  hold(session: HeldSession): HeldSession {
    this.#held.set(session.record.id, session)
    return session
  }

  /** Whether a session of `tenant` cannot be made under `id`. */
  exists(tenant: string, id: string): boolean {
    return this.#db.get('SELECT 1 FROM session WHERE id = ?', id) !== undefined || this.#isErased(tenant, id)
  }

  /** What says of an erased session that it was there: a name that its tenant's key blinds. The latest are kept. */
  bury({ id: tenant, names }: TenantKey, id: string): void {
    this.#db.run('INSERT INTO tombstone (tenant, mac) VALUES (?, ?)', tenant, tombOf(names, id))
    this.#db.run(
      `DELETE FROM tombstone WHERE tenant = ? AND number <= (
         SELECT number FROM tombstone WHERE tenant = ? ORDER BY number DESC LIMIT 1 OFFSET ?)`,
      ...[tenant, tenant, TOMBS],
    )
  }

  #isErased(tenant: string, id: string): boolean {
    const key = this.#tenants.of(tenant)
    if (key === undefined) return false
    const found = 'SELECT 1 FROM tombstone WHERE tenant = ? AND mac = ?'
    return this.#db.get(found, key.id, tombOf(key.names, id)) !== undefined
  }

  /** Not in the database yet: `add` puts it there, once its first events have their place. */
  make(fresh: NewSession, parent: { readonly of: HeldSession; readonly digest: string } | undefined): HeldSession {
    const at = fresh.parent?.at ?? 0
    const createdAt = Math.max(Date.now(), this.#createdAt + 1)
    const lineage = lineageOf(fresh.id, parent && { lineage: parent.of.lineage, at })
    const rests = parent === undefined ? RESTS_ON_NOTHING : this.restsAt(parent.of, at)
    const digest = parent?.digest ?? NO_DIGEST
    const key = newKey()
    return {
      row: 0,
      tenant: this.#tenants.make(fresh.tenant),
      record: { ...fresh, createdAt },
      key,
      marks: marksOf(key),
      lineage,
      sets: new SourceSets(),
      touched: new Set(),
      standing: { tenant: fresh.tenant, session: fresh.id, position: at, digest, at: createdAt, bytes: 0, rests },
    }
  }

  add(made: HeldSession, parent: HeldSession | undefined): HeldSession {
    const { record, tenant, key, marks, standing } = made
    const { model, metadata, id, createdAt } = record
    const wrapped = seal(tenant.key, `key of session ${id} of ${tenant.name}`, key)
    const about = seal(key, `session ${id} of ${tenant.name}`, Buffer.from(JSON.stringify({ model, metadata })))
    const row = this.#db.insert(
      `INSERT INTO session (id, tenant, created, used, parent, at, position, digest, bytes, mark, wrapped, about)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?)`,
      ...[id, tenant.id, createdAt, standing.at, parent?.row ?? null, record.parent?.at ?? 0],
      ...[standing.position, Buffer.from(standing.digest, 'hex'), markOf(marks, standing), wrapped, about],
    )
    this.#createdAt = createdAt
    if (parent !== undefined)
      this.#db.run(
        `INSERT INTO touched (tenant, source, session, position)
         SELECT tenant, source, ?, position FROM touched WHERE session = ? AND position <= ?`,
        ...[row, parent.row, record.parent?.at ?? 0],
      )
    return { ...made, row, touched: this.#touched(row) }
  }

  /** Writes where it stands now. */
  stand(session: HeldSession, standing: Standing): void {
    const { position, digest, at, bytes } = standing
    this.#db.run(
      'UPDATE session SET position = ?, digest = ?, used = ?, bytes = ?, mark = ? WHERE row = ?',
      ...[position, Buffer.from(digest, 'hex'), at, bytes, markOf(session.marks, standing), session.row],
    )
    session.standing = standing
  }

  /** The state of the context after the event at `at`. */
  restsAt(session: HeldSession, at: number): Rests {
    for (const { session: id, to } of session.lineage.toReversed()) {
      const owner = id === session.record.id ? session : this.of(session.record.tenant, id)
      const row = this.#db.get(
        `SELECT ${numbers('rests.position')}, ${blobs('content')} FROM rests
         WHERE session = ? AND rests.position <= ? ORDER BY rests.position DESC LIMIT 1`,
        ...[owner.row, Math.min(to, at)],
      )
      if (row === undefined) continue
      const aad = restsAad(owner, row['position'] as number)
      return owner.sets.decode(open(owner.key, aad, row['content'] as Uint8Array).toString())
    }
    return RESTS_ON_NOTHING
  }

  /** The latest first. */
  list(tenant: string, { before, limit }: { readonly before?: number; readonly limit: number }): SessionRecord[] {
    const key = this.#tenants.of(tenant)
    if (key === undefined) return []
    return this.#db
      .all(
        `SELECT ${COLUMNS} FROM session WHERE session.tenant = ? AND session.created < ?
         ORDER BY session.created DESC LIMIT ?`,
        ...[key.id, before ?? Number.MAX_SAFE_INTEGER, limit],
      )
      .map((row) => {
        const held = this.#held.peek(textOf(row['id'])) ?? this.#opened(row, key)
        return {
          ...held.record,
          usedAt: row['used'] as number,
          position: row['position'] as number,
        }
      })
  }

  drop(id: string): void {
    this.#held.delete(id)
  }

  forget(): void {
    this.#held.clear()
    this.#tenants.forget()
    this.#createdAt = this.#lastCreated()
  }

  #load(row: Row, tenant: TenantKey): HeldSession {
    const { key, record } = this.#opened(row, tenant)
    const above = record.parent && this.of(tenant.name, record.parent.session)
    const lineage = lineageOf(record.id, above && { lineage: above.lineage, at: row['at'] as number })
    const sets = new SourceSets()
    const id = row['row'] as number
    const numbered = this.#db.all(
      `SELECT ${numbers('sources.number')}, ${blobs('content')} FROM sources WHERE session = ? ORDER BY sources.number`,
      id,
    )
    sets.load(
      numbered.map((set) =>
        open(key, setAad(record.id, tenant, set['number'] as number), set['content'] as Uint8Array).toString(),
      ),
    )
    const standing: Standing = {
      ...{ tenant: tenant.name, session: record.id, position: row['position'] as number, rests: RESTS_ON_NOTHING },
      ...{ digest: hexOf(row['digest']), at: row['used'] as number, bytes: row['bytes'] as number },
    }
    const marks = marksOf(key)
    if (!markOf(marks, standing).equals(Buffer.from(row['mark'] as Uint8Array)))
      throw new RefrainError('log_damaged', `where session '${record.id}' stands is not what was written`)
    const held = { row: id, tenant, record, key, marks, lineage, sets, touched: this.#touched(id), standing }
    held.standing = { ...standing, rests: this.restsAt(held, standing.position) }
    return held
  }

  #opened(row: Row, tenant: TenantKey): Pick<HeldSession, 'key' | 'record'> {
    const id = textOf(row['id'])
    const key = open(tenant.key, `key of session ${id} of ${tenant.name}`, row['wrapped'] as Uint8Array)
    const plain = open(key, `session ${id} of ${tenant.name}`, row['about'] as Uint8Array).toString()
    const { model, metadata } = JSON.parse(plain) as { model: string; metadata?: string }
    const parent = row['parent'] === null ? undefined : this.#idOf(row['parent'] as number)
    const record = {
      ...{ id, tenant: tenant.name, model, createdAt: row['created'] as number },
      ...(metadata !== undefined && { metadata }),
      ...(parent !== undefined && { parent: { session: parent, at: row['at'] as number } }),
    }
    return { key, record }
  }

  #idOf(row: number): string {
    return textOf(this.#db.get(`SELECT ${blobs('id')} FROM session WHERE row = ?`, row)?.['id'])
  }

  #touched(row: number): Set<string> {
    return new Set(
      this.#db
        .all(`SELECT ${blobs('source')} FROM touched WHERE session = ?`, row)
        .map((each) => hexOf(each['source'])),
    )
  }

  #lastCreated(): number {
    return Number(this.#db.get('SELECT CAST(max(created) AS INTEGER) AS last FROM session')?.['last'] ?? 0)
  }
}

export function recordOf({ record, standing }: HeldSession): SessionRecord {
  return { ...record, usedAt: standing.at, position: standing.position }
}

export function restsAad({ record }: HeldSession, position: number): string {
  return `context after ${record.id} ${position} of ${record.tenant}`
}

export function setAad(session: string, tenant: TenantKey, number: number): string {
  return `sources of ${session} ${number} of ${tenant.name}`
}

function tombOf(names: Buffer, id: string): Buffer {
  return blindName(names, `erased session ${id}`)
}

export function hexOf(value: Row[string] | undefined): string {
  return Buffer.from(value as Uint8Array).toString('hex')
}

export function textOf(value: Row[string] | undefined): string {
  return Buffer.from(value as Uint8Array).toString()
}

function marksOf(key: Buffer): Buffer {
  return derivedKey(key, 'where it stands')
}

/** Nobody without the key can say that a log ends elsewhere than it does. */
function markOf(marks: Buffer, { session, position, digest, at, bytes }: Standing): Buffer {
  return blindName(marks, `${session} ${position} ${digest} ${at} ${bytes}`)
}
