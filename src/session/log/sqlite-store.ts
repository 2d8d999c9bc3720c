// What the log does, over the database, one call after the other; the thread (sqlite-worker.ts) runs it and groups its writes
// into transactions. Invariant: a RefrainError is thrown before anything is written, so that the others of a transaction stand.

import { RefrainError } from '../../core/errors.js'
import type { Append, Page, SessionRecord, SharedMemory, SourceGrant, StoredResult } from './contract.js'
import type { NewEvent, SessionEvent } from './event.js'
import { forksStand, noSuchPlace } from './log-faults.js'
import type { MasterKeys } from './master-key.js'
import type { AppendLimits } from './place-events.js'
import { blindName, open, seal } from './sealing.js'
import { blobs, numbers, type SqliteDatabase } from './sqlite-database.js'
import { resultMac, SqliteEvents, sourceMac } from './sqlite-events.js'
import { type HeldSession, hexOf, type NewSession, recordOf, SqliteSessions, textOf } from './sqlite-sessions.js'
import { type TenantKey, TenantKeys } from './tenant-keys.js'

export type Whose = { readonly tenant: string; readonly session: string }
export type WhoseAll = { readonly tenant: string; readonly session?: string }
export type WhoseBlocks = WhoseAll & { readonly which?: 'own' | 'all' }

/** What the caller of an append does not know of its events. */
export type PlacedPart = Omit<SessionEvent, 'body' | 'layer' | 'session' | 'tenant'>

export class SqliteStore {
  readonly #db: SqliteDatabase
  readonly #tenants: TenantKeys
  readonly #sessions: SqliteSessions
  readonly #events: SqliteEvents

  /** @throws UsageError where the master key is not the log's. */
  constructor(db: SqliteDatabase, keys: MasterKeys, limits: AppendLimits) {
    this.#db = db
    this.#tenants = new TenantKeys(db, keys)
    this.#sessions = new SqliteSessions(db, this.#tenants)
    this.#events = new SqliteEvents(db, this.#sessions, limits)
  }

  /** After a transaction that was taken back: nothing that was held counts. */
  forget(): void {
    this.#sessions.forget()
  }

  // --- writing -------------------------------------------------------------------------------------------------------

  create(fresh: NewSession, events: readonly NewEvent[]): SessionRecord {
    const { id, tenant, parent: from } = fresh
    if (this.#sessions.exists(tenant, id))
      throw new RefrainError('conflict', `session '${id}' exists already`, { param: 'id' })
    const parent = from && this.#sessions.of(tenant, from.session)
    if (parent !== undefined && (from!.at < 0 || from!.at > parent.standing.position))
      throw noSuchPlace(from!.session, parent.standing.position, from!.at)
    const made = this.#sessions.make(fresh, parent && { of: parent, digest: this.#events.digestAt(parent, from!.at) })
    const placed = this.#events.place(made, { tenant, session: id, events })
    const added = this.#sessions.add(made, parent)
    this.#events.write(added, placed)
    return recordOf(added)
  }

  append(append: Append): PlacedPart[] {
    const session = this.#sessions.of(append.tenant, append.session)
    const placed = this.#events.place(session, append)
    if (placed.events.length > 0) this.#events.write(session, placed)
    return placed.events.map(({ event: { id, position, at, sources, digest, previous } }) => ({
      ...{ id, position, at, sources, digest, previous },
    }))
  }

  keepResult(whose: Whose, result: StoredResult): void {
    const session = this.#sessions.of(whose.tenant, whose.session)
    const content = seal(session.key, resultAad(session, result.locator), Buffer.from(JSON.stringify(result)))
    this.#db.run(
      'INSERT OR REPLACE INTO result (session, mac, content) VALUES (?, ?, ?)',
      ...[session.row, resultMac(session, result.locator), content],
    )
  }

  noteBlocks(whose: Whose, hashes: readonly Uint8Array[]): void {
    const { row } = this.#sessions.of(whose.tenant, whose.session)
    for (const hash of hashes) this.#db.run('INSERT OR IGNORE INTO block (session, hash) VALUES (?, ?)', row, hash)
  }

  setGrant(tenant: string, grant: SourceGrant): string[] {
    const key = this.#tenants.make(tenant)
    const mac = sourceMac({ tenant: key }, grant.source)
    this.#keep('source_grant', key, mac, grant)
    return this.#db
      .all(
        `SELECT ${blobs('session.id')} FROM touched JOIN session ON session.row = touched.session
         WHERE touched.tenant = ? AND touched.source = ? ORDER BY session.id`,
        ...[key.id, mac],
      )
      .map((row) => textOf(row['id']))
  }

  setSharedMemory(tenant: string, block: SharedMemory): void {
    const key = this.#tenants.make(tenant)
    this.#keep('shared', key, blindName(key.names, `memory ${block.id}`), block)
  }

  // --- reading -------------------------------------------------------------------------------------------------------

  session(tenant: string, id: string): SessionRecord | undefined {
    const session = this.#sessions.find(tenant, id)
    return session && recordOf(session)
  }

  sessions(tenant: string, page: { readonly before?: number; readonly limit: number }): SessionRecord[] {
    return this.#sessions.list(tenant, page)
  }

  read(tenant: string, session: string, { from, limit }: Page): SessionEvent[] {
    return this.#events.read(this.#sessions.of(tenant, session), from, from + limit - 1)
  }

  result(whose: Whose, locator: string): StoredResult | undefined {
    const session = this.#sessions.of(whose.tenant, whose.session)
    const mac = resultMac(session, locator)
    for (const owner of this.#line(session).reverse()) {
      const row = this.#db.get(`SELECT ${blobs('content')} FROM result WHERE session = ? AND mac = ?`, owner.row, mac)
      if (row === undefined) continue
      return JSON.parse(open(owner.key, resultAad(owner, locator), row['content'] as Uint8Array).toString())
    }
    return undefined
  }

  blocksOf({ tenant, session: id, which = 'own' }: WhoseBlocks): Uint8Array[] {
    const key = this.#tenants.of(tenant)
    const hashes = (sql: string, ...values: number[]) =>
      this.#db.all(sql, ...values).map((row) => new Uint8Array(row['hash'] as Uint8Array))
    if (id === undefined)
      return key === undefined
        ? []
        : hashes(
            `SELECT DISTINCT ${blobs('hash')} FROM block JOIN session ON session.row = block.session WHERE session.tenant = ?`,
            key.id,
          )
    const session = this.#sessions.of(tenant, id)
    if (which === 'all') return hashes(`SELECT ${blobs('hash')} FROM block WHERE session = ?`, session.row)
    return hashes(
      `SELECT ${blobs('hash')} FROM block WHERE session = ? AND NOT EXISTS (
         SELECT 1 FROM block AS other JOIN session ON session.row = other.session
         WHERE other.hash = block.hash AND other.session <> block.session AND session.tenant = ?)`,
      ...[session.row, session.tenant.id],
    )
  }

  grants(tenant: string): SourceGrant[] {
    return this.#kept<SourceGrant>('source_grant', tenant).sort((a, b) => (a.source < b.source ? -1 : 1))
  }

  sharedMemory(tenant: string): SharedMemory[] {
    return this.#kept<SharedMemory>('shared', tenant).sort((a, b) => (a.id < b.id ? -1 : 1))
  }

  forksOf(tenant: string, session: string): string[] {
    const { row } = this.#sessions.of(tenant, session)
    return this.#db
      .all(`SELECT ${blobs('session.id')} FROM session WHERE parent = ? ORDER BY session.id`, row)
      .map((fork) => textOf(fork['id']))
  }

  status(): { sessions: number; events: number; bytes: number } {
    const row = this.#db.get('SELECT count(*) AS sessions, coalesce(sum(position - at), 0) AS events FROM session')
    return { sessions: row?.['sessions'] as number, events: row?.['events'] as number, bytes: this.#db.bytes }
  }

  // --- erasing: each in a transaction of its own, scrubbed before it is answered ----------------------------------------

  erase({ tenant, session: id }: WhoseAll): void {
    if (id !== undefined) {
      const session = this.#sessions.of(tenant, id)
      const forks = this.forksOf(tenant, id)
      if (forks.length > 0) throw forksStand(id, forks)
      this.#eraseSession({ row: session.row, id })
      this.#sessions.bury(session.tenant, id)
      return
    }
    const key = this.#tenants.of(tenant)
    if (key === undefined) return
    const all = this.#db.all(`SELECT ${numbers('row')}, ${blobs('id')} FROM session WHERE tenant = ?`, key.id)
    for (const row of all) this.#eraseSession({ row: row['row'] as number, id: textOf(row['id']) })
    for (const table of ['source_grant', 'shared', 'touched', 'tombstone'])
      this.#db.run(`DELETE FROM ${table} WHERE tenant = ?`, key.id)
    this.#tenants.erase(key)
  }

  eraseEvents(
    whose: Whose,
    what: { readonly positions: readonly number[]; readonly locators: readonly string[] },
  ): void {
    const session = this.#sessions.of(whose.tenant, whose.session)
    this.#events.erase(session, what.positions)
    for (const owner of this.#line(session)) {
      for (const locator of what.locators)
        this.#db.run('DELETE FROM result WHERE session = ? AND mac = ?', owner.row, resultMac(owner, locator))
    }
  }

  #eraseSession({ row, id }: { readonly row: number; readonly id: string }): void {
    for (const table of ['event', 'name', 'sources', 'rests', 'touched', 'result', 'block'])
      this.#db.run(`DELETE FROM ${table} WHERE session = ?`, row)
    this.#db.run('DELETE FROM session WHERE row = ?', row)
    this.#sessions.drop(id)
  }

  // --- what a tenant keeps by name -------------------------------------------------------------------------------------

  #keep(table: 'source_grant' | 'shared', { id, key, name }: TenantKey, mac: Buffer, value: object): void {
    const content = seal(key, tableAad(table, name, mac), Buffer.from(JSON.stringify(value)))
    this.#db.run(`INSERT OR REPLACE INTO ${table} (tenant, mac, content) VALUES (?, ?, ?)`, id, mac, content)
  }

  #kept<T>(table: 'source_grant' | 'shared', tenant: string): T[] {
    const key = this.#tenants.of(tenant)
    if (key === undefined) return []
    return this.#db.all(`SELECT ${blobs('mac', 'content')} FROM ${table} WHERE tenant = ?`, key.id).map((row) => {
      const aad = tableAad(table, tenant, row['mac'] as Uint8Array)
      return JSON.parse(open(key.key, aad, row['content'] as Uint8Array).toString()) as T
    })
  }

  /** The session and those that it was forked from, the oldest first. */
  #line({ lineage, record }: HeldSession): HeldSession[] {
    return lineage.map(({ session }) => this.#sessions.of(record.tenant, session))
  }
}

function resultAad({ record }: HeldSession, locator: string): string {
  return `result ${locator} of ${record.id} of ${record.tenant}`
}

function tableAad(table: string, tenant: string, mac: Uint8Array): string {
  return `${table} ${hexOf(mac)} of ${tenant}`
}
