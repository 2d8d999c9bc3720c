// Events in the database: written in their place, read with the chain of their digests checked, their content erased.
// Invariant: what is read is what was written there, or it is an error; nothing is written before everything has its place.

import { RefrainError } from '../../core/errors.js'
import type { Append } from './contract.js'
import type { NamedSources, Sources } from './contributing.js'
import { erasedBody } from './erased-body.js'
import type { EventBody, EventKind, SessionEvent } from './event.js'
import { type EventPlace, eventDigest, NO_DIGEST, placeLine } from './event-digest.js'
import { stretchesOf } from './lineage.js'
import {
  type AppendLimits,
  type EventName,
  type NameKind,
  type Placed,
  placeEvents,
  type StoredContent,
} from './place-events.js'
import { blindName, open, seal } from './sealing.js'
import { blobs, numbers, type Row, type SqliteDatabase } from './sqlite-database.js'
import { type HeldSession, hexOf, restsAad, type SqliteSessions, setAad, textOf } from './sqlite-sessions.js'

/** As it lies in an event's content: `s` is the number of its set of sources. */
interface Content {
  readonly b: EventBody
  readonly s?: number
  readonly l?: string
}

const EVENT = [numbers('event.position', 'at', 'erased'), blobs('id', 'kind', 'digest', 'content')].join()

export class SqliteEvents {
  readonly #db: SqliteDatabase
  readonly #sessions: SqliteSessions
  readonly #limits: AppendLimits

  constructor(db: SqliteDatabase, sessions: SqliteSessions, limits: AppendLimits) {
    this.#db = db
    this.#sessions = sessions
    this.#limits = limits
  }

  /** Where the events would stand; nothing is written. @throws RefrainError `conflict`, `session_limit`, `invalid_request`. */
  place(session: HeldSession, append: Append): Placed {
    const named = (kind: NameKind) => (name: string) => this.#named(session, kind, name)
    try {
      return placeEvents(session.standing, append, {
        named: { call: named('call'), layer: named('layer'), artifact: named('artifact') } satisfies NamedSources,
        limits: this.#limits,
        now: Date.now(),
        seal: (place, content) => this.#seal(session, place, content),
      })
    } catch (error) {
      session.sets.forget()
      throw error
    }
  }

  write(session: HeldSession, { events, names, turns, after }: Placed): void {
    const { row, sets, tenant } = session
    for (const { event, bytes } of events) {
      this.#db.run(
        'INSERT INTO event (session, position, id, at, kind, digest, erased, content) VALUES (?, ?, ?, ?, ?, ?, 0, ?)',
        ...[row, event.position, idBytes(event.id), event.at, event.body.kind, Buffer.from(event.digest, 'hex'), bytes],
      )
      this.#touch(session, event)
    }
    for (const { position, rests } of turns) {
      const sealed = seal(session.key, restsAad(session, position), Buffer.from(sets.encode(rests)))
      this.#db.run('INSERT INTO rests (session, position, content) VALUES (?, ?, ?)', row, position, sealed)
    }
    for (const { kind, name, position, sources } of names) {
      const mac = nameMac(session, kind, name)
      const number = sets.number(sources)
      this.#db.run('INSERT INTO name (session, mac, position, number) VALUES (?, ?, ?, ?)', row, mac, position, number)
    }
    for (const { number, stored } of sets.keep()) {
      const sealed = seal(session.key, setAad(session.record.id, tenant, number), Buffer.from(stored))
      this.#db.run('INSERT INTO sources (session, number, content) VALUES (?, ?, ?)', row, number, sealed)
    }
    this.#sessions.stand(session, after)
    // What it weighs may have changed.
    this.#sessions.hold(session)
  }

  /** Positions `from` to `to`, both included, as far as there are any. @throws RefrainError `log_damaged`. */
  read(session: HeldSession, from: number, to: number): SessionEvent[] {
    const first = Math.max(1, from)
    const last = Math.min(to, session.standing.position)
    if (first > last) return []
    const events: SessionEvent[] = []
    let previous = first === 1 ? NO_DIGEST : this.digestAt(session, first - 1)
    for (const stretch of stretchesOf(session.lineage, first, last)) {
      const owner = this.#owner(session, stretch.session)
      const rows = this.#db.all(
        `SELECT ${EVENT} FROM event WHERE session = ? AND event.position BETWEEN ? AND ? ORDER BY event.position`,
        ...[owner.row, stretch.from, stretch.to],
      )
      if (rows.length !== stretch.to - stretch.from + 1) throw damaged(owner, stretch.from, 'events are missing')
      for (const row of rows) {
        const event = this.#event(owner, row, previous)
        events.push(event)
        previous = event.digest
      }
    }
    return events
  }

  digestAt(session: HeldSession, position: number): string {
    const [stretch] = stretchesOf(session.lineage, position, position)
    if (stretch === undefined) return NO_DIGEST
    const owner = this.#owner(session, stretch.session)
    const row = this.#db.get(
      `SELECT ${blobs('digest')} FROM event WHERE session = ? AND position = ?`,
      owner.row,
      position,
    )
    if (row === undefined) throw damaged(owner, position, 'the event is missing')
    return hexOf(row['digest'])
  }

  erase(session: HeldSession, positions: readonly number[]): void {
    for (const position of positions) {
      const [event] = this.read(session, position, position)
      if (event === undefined || event.erased) continue
      const owner = this.#owner(session, event.session)
      const { body, layer, sources } = event
      const content = { body: erasedBody(body), sources, ...(layer !== undefined && { layer }), erased: true } as const
      const bytes = this.#seal(owner, { ...event, kind: body.kind }, content)
      const where = 'session = ? AND position = ?'
      this.#db.run(`UPDATE event SET erased = 1, content = ? WHERE ${where}`, bytes, owner.row, position)
    }
  }

  #seal(session: HeldSession, place: EventPlace, { body, sources, layer, erased }: StoredContent): Buffer {
    const set = session.sets.number(sources)
    const content: Content = { b: body, ...(set !== 0 && { s: set }), ...(layer !== undefined && { l: layer }) }
    return seal(session.key, contentAad(session, place, erased), Buffer.from(JSON.stringify(content)))
  }

  #event(owner: HeldSession, row: Row, previous: string): SessionEvent {
    const { id: session, tenant } = owner.record
    const position = row['position'] as number
    const place: EventPlace = {
      ...{ session, position, id: `evt_${hexOf(row['id'])}` },
      ...{ at: row['at'] as number, kind: textOf(row['kind']) as EventKind },
    }
    const sealed = row['content'] as Uint8Array
    const digest = hexOf(row['digest'])
    const erased = row['erased'] === 1 ? true : undefined
    if (erased === undefined && eventDigest(previous, place, sealed) !== digest)
      throw damaged(owner, position, 'its digest does not follow from the one before')
    const plain = open(owner.key, contentAad(owner, place, erased), sealed).toString()
    const { b: body, s = 0, l: layer } = JSON.parse(plain) as Content
    return {
      ...{ id: place.id, session, tenant, position, at: place.at, body, sources: owner.sets.of(s) },
      ...(layer !== undefined && { layer }),
      ...{ digest, previous, ...(erased && { erased }) },
    }
  }

  #named(session: HeldSession, kind: NameKind, name: string): Sources | undefined {
    const mac = nameMac(session, kind, name)
    for (const { session: id, to } of session.lineage.toReversed()) {
      // One that is being made has no names, and no row.
      if (id === session.record.id && session.row === 0) continue
      const owner = this.#owner(session, id)
      const row = this.#db.get(
        `SELECT ${numbers('number')} FROM name WHERE session = ? AND mac = ? AND position <= ? ORDER BY position DESC LIMIT 1`,
        ...[owner.row, mac, to],
      )
      if (row !== undefined) return owner.sets.of(row['number'] as number)
    }
    return undefined
  }

  #touch(session: HeldSession, { sources, position }: SessionEvent): void {
    const { touched, tenant, row } = session
    for (const source of sources) {
      const mac = sourceMac(session, source)
      const hex = mac.toString('hex')
      if (touched.has(hex)) continue
      touched.add(hex)
      this.#db.run(
        'INSERT INTO touched (tenant, source, session, position) VALUES (?, ?, ?, ?)',
        ...[tenant.id, mac, row, position],
      )
    }
  }

  #owner(session: HeldSession, id: string): HeldSession {
    return id === session.record.id ? session : this.#sessions.of(session.record.tenant, id)
  }
}

function contentAad({ record }: HeldSession, place: EventPlace, erased: true | undefined): string {
  return `${erased ? 'erased event' : 'event'} ${placeLine(place)} of ${record.tenant}`
}

function nameMac({ tenant }: HeldSession, kind: EventName['kind'], name: string): Buffer {
  return blindName(tenant.names, `${kind} ${name}`)
}

export function sourceMac({ tenant }: Pick<HeldSession, 'tenant'>, source: string): Buffer {
  return blindName(tenant.names, `source ${source}`)
}

export function resultMac({ tenant }: HeldSession, locator: string): Buffer {
  return blindName(tenant.names, `result ${locator}`)
}

function idBytes(id: string): Buffer {
  return Buffer.from(id.slice('evt_'.length), 'hex')
}

function damaged({ record }: HeldSession, position: number, why: string): RefrainError {
  return new RefrainError('log_damaged', `session '${record.id}' at position ${position}: ${why}`)
}
