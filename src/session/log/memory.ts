// The log in memory: the baseline of the family, and `sessions.log.store: memory`. It promises what the contract does but to
// outlive the process. Invariant: what is handed out is never changed; an append that throws has changed nothing.

import { RefrainError } from '../../core/errors.js'
import type { Append, Page, SessionLog, SessionRecord, SharedMemory, SourceGrant, StoredResult } from './contract.js'
import { RESTS_ON_NOTHING, type Rests, type Sources } from './contributing.js'
import { erasedBody } from './erased-body.js'
import type { NewEvent, SessionEvent } from './event.js'
import { NO_DIGEST } from './event-digest.js'
import { type Lineage, lineageOf, stretchesOf } from './lineage.js'
import { forksStand, noSuchPlace, TOMBS, wasErased } from './log-faults.js'
import {
  type AppendLimits,
  type EventName,
  type NameKind,
  placeEvents,
  type RestsAt,
  type Standing,
} from './place-events.js'

export interface MemoryLogOptions {
  readonly limits: AppendLimits
  /** Of all sessions together, in JSON. */
  readonly maxBytes: number
  /** Unix milliseconds. */
  readonly now?: () => number
}

interface Session {
  record: SessionRecord
  readonly lineage: Lineage
  standing: Standing
  /** Rises. */
  readonly rests: RestsAt[]
  readonly events: SessionEvent[]
  readonly names: EventName[]
  readonly results: Map<string, StoredResult>
  readonly blocks: Map<string, Uint8Array>
}

type Whose = { readonly tenant: string; readonly session: string }

export function createMemoryLog(options: MemoryLogOptions): SessionLog {
  return new MemoryLog(options)
}

class MemoryLog implements SessionLog {
  readonly #limits: AppendLimits
  readonly #maxBytes: number
  readonly #now: () => number
  readonly #sessions = new Map<string, Session>()
  /** Tenant -> erased sessions, the latest last. */
  readonly #erased = new Map<string, Set<string>>()
  /** Tenant -> source -> grant. */
  readonly #grants = new Map<string, Map<string, SourceGrant>>()
  readonly #shared = new Map<string, Map<string, SharedMemory>>()
  #createdAt = 0
  #bytes = 0

  constructor({ limits, maxBytes, now = Date.now }: MemoryLogOptions) {
    this.#limits = limits
    this.#maxBytes = maxBytes
    this.#now = now
  }

  async create(
    fresh: Pick<SessionRecord, 'id' | 'tenant' | 'model' | 'metadata' | 'parent'>,
    events: readonly NewEvent[],
  ): Promise<SessionRecord> {
    const { id, tenant, parent } = fresh
    if (this.#sessions.has(id) || this.#erased.get(tenant)?.has(id))
      throw new RefrainError('conflict', `session '${id}' exists already`, { param: 'id' })
    const above = parent === undefined ? undefined : this.#parent(tenant, parent)
    const createdAt = Math.max(this.#now(), this.#createdAt + 1)
    const at = parent?.at ?? 0
    const rests = above === undefined ? RESTS_ON_NOTHING : this.#restsAt(above, at)
    const digest = above === undefined ? NO_DIGEST : (this.#eventsOf(above, at, at)[0]?.digest ?? NO_DIGEST)
    const session: Session = {
      record: { ...fresh, createdAt, usedAt: createdAt, position: at },
      lineage: lineageOf(id, above && { lineage: above.lineage, at }),
      standing: { tenant, session: id, position: at, digest, at: createdAt, bytes: 0, rests },
      rests: [{ position: at, rests }],
      events: [],
      names: [],
      results: new Map(),
      blocks: new Map(),
    }
    this.#add(session, { tenant, session: id, events })
    this.#createdAt = createdAt
    this.#sessions.set(id, session)
    return session.record
  }

  async append(append: Append): Promise<readonly SessionEvent[]> {
    return this.#add(this.#of(append), append)
  }

  async session(tenant: string, id: string): Promise<SessionRecord | undefined> {
    const session = this.#sessions.get(id)
    return session?.record.tenant === tenant ? session.record : undefined
  }

  async sessions(tenant: string, { before = Number.POSITIVE_INFINITY, limit }: { before?: number; limit: number }) {
    return this.#ofTenant(tenant)
      .map(({ record }) => record)
      .filter(({ createdAt }) => createdAt < before)
      .sort((a, b) => b.createdAt - a.createdAt)
      .slice(0, limit)
  }

  async read(tenant: string, session: string, { from, limit }: Page): Promise<readonly SessionEvent[]> {
    return this.#eventsOf(this.#of({ tenant, session }), from, from + limit - 1)
  }

  async keepResult(whose: Whose, result: StoredResult): Promise<void> {
    const session = this.#of(whose)
    this.#take(result.text.length)
    session.results.set(result.locator, result)
  }

  async result(whose: Whose, locator: string): Promise<StoredResult | undefined> {
    const { lineage } = this.#of(whose)
    return lineage.map(({ session }) => this.#sessions.get(session)?.results.get(locator)).findLast(Boolean)
  }

  async noteBlocks(whose: Whose, hashes: readonly Uint8Array[]): Promise<void> {
    const { blocks } = this.#of(whose)
    for (const hash of hashes) blocks.set(Buffer.from(hash).toString('hex'), hash)
  }

  async blocksOf({ tenant, session, which = 'own' }: Parameters<SessionLog['blocksOf']>[0]) {
    const all = this.#ofTenant(tenant)
    if (session === undefined) return [...new Map(all.flatMap(({ blocks }) => [...blocks])).values()]
    const own = this.#of({ tenant, session })
    if (which === 'all') return [...own.blocks.values()]
    const others = all.filter((each) => each !== own)
    return [...own.blocks].filter(([hex]) => !others.some(({ blocks }) => blocks.has(hex))).map(([, hash]) => hash)
  }

  async grants(tenant: string): Promise<readonly SourceGrant[]> {
    return [...(this.#grants.get(tenant)?.values() ?? [])].sort((a, b) => (a.source < b.source ? -1 : 1))
  }

  async setGrant(tenant: string, grant: SourceGrant): Promise<readonly string[]> {
    const grants = this.#grants.get(tenant) ?? new Map<string, SourceGrant>()
    this.#grants.set(tenant, grants.set(grant.source, grant))
    const rests = (session: Session) =>
      this.#eventsOf(session, 1, session.record.position).some(({ sources }) => sources.includes(grant.source))
    return this.#ofTenant(tenant)
      .filter(rests)
      .map(({ record }) => record.id)
      .sort()
  }

  async sharedMemory(tenant: string): Promise<readonly SharedMemory[]> {
    return [...(this.#shared.get(tenant)?.values() ?? [])].sort((a, b) => (a.id < b.id ? -1 : 1))
  }

  async setSharedMemory(tenant: string, block: SharedMemory): Promise<void> {
    const blocks = this.#shared.get(tenant) ?? new Map<string, SharedMemory>()
    this.#shared.set(tenant, blocks.set(block.id, block))
  }

  async forksOf(tenant: string, session: string): Promise<readonly string[]> {
    this.#of({ tenant, session })
    return this.#ofTenant(tenant)
      .filter(({ record }) => record.parent?.session === session)
      .map(({ record }) => record.id)
      .sort()
  }

  async erase({ tenant, session }: { tenant: string; session?: string }): Promise<void> {
    if (session !== undefined) {
      this.#of({ tenant, session })
      const forks = await this.forksOf(tenant, session)
      if (forks.length > 0) throw forksStand(session, forks)
    }
    for (const each of session === undefined ? this.#ofTenant(tenant) : [this.#of({ tenant, session })]) {
      this.#bytes -= each.standing.bytes
      for (const { text } of each.results.values()) this.#bytes -= text.length
      this.#sessions.delete(each.record.id)
    }
    if (session !== undefined) {
      this.#bury(tenant, session)
      return
    }
    this.#erased.delete(tenant)
    this.#grants.delete(tenant)
    this.#shared.delete(tenant)
  }

  async eraseEvents(whose: Whose, what: { positions: readonly number[]; locators: readonly string[] }): Promise<void> {
    const { lineage } = this.#of(whose)
    for (const position of what.positions) {
      const [stretch] = stretchesOf(lineage, position, position)
      const { events } = this.#sessions.get(stretch?.session ?? '') ?? { events: [] }
      const i = position - (events[0]?.position ?? 0)
      const event = events[i]
      if (event !== undefined) events[i] = { ...event, body: erasedBody(event.body), erased: true }
    }
    for (const { session } of lineage) {
      const { results } = this.#sessions.get(session) as Session
      for (const locator of what.locators) {
        this.#bytes -= results.get(locator)?.text.length ?? 0
        results.delete(locator)
      }
    }
  }

  async status() {
    const events = [...this.#sessions.values()].reduce((sum, session) => sum + session.events.length, 0)
    return { sessions: this.#sessions.size, events, bytes: this.#bytes }
  }

  async close(): Promise<void> {
    this.#sessions.clear()
  }

  #add(session: Session, append: Append): readonly SessionEvent[] {
    const named = (kind: NameKind) => (name: string) => this.#named(session, kind, name)
    const { events, names, turns, after } = placeEvents(session.standing, append, {
      named: { call: named('call'), layer: named('layer'), artifact: named('artifact') },
      limits: this.#limits,
      now: this.#now(),
      seal: (_, content) => Buffer.from(JSON.stringify(content)),
    })
    this.#take(after.bytes - session.standing.bytes)
    for (const { event } of events) session.events.push(event)
    session.names.push(...names)
    session.rests.push(...turns)
    session.standing = after
    session.record = { ...session.record, position: after.position, usedAt: after.at }
    return events.map(({ event }) => event)
  }

  #named(session: Session, kind: NameKind, name: string): Sources | undefined {
    for (const { session: id, to } of session.lineage.toReversed()) {
      const names = id === session.record.id ? session.names : (this.#sessions.get(id)?.names ?? [])
      const found = names.findLast((each) => each.kind === kind && each.name === name && each.position <= to)
      if (found !== undefined) return found.sources
    }
    return undefined
  }

  #restsAt(session: Session, at: number): Rests {
    for (const { session: id, to } of session.lineage.toReversed()) {
      const found = this.#sessions.get(id)?.rests.findLast(({ position }) => position <= Math.min(to, at))
      if (found !== undefined) return found.rests
    }
    return RESTS_ON_NOTHING
  }

  #eventsOf(session: Session, from: number, to: number): SessionEvent[] {
    return stretchesOf(session.lineage, from, to).flatMap((stretch) => {
      const { events } = this.#sessions.get(stretch.session) as Session
      const first = events[0]?.position ?? 0
      return events.slice(Math.max(0, stretch.from - first), Math.max(0, stretch.to - first + 1))
    })
  }

  #parent(tenant: string, { session, at }: { readonly session: string; readonly at: number }): Session {
    const parent = this.#of({ tenant, session })
    if (at >= 0 && at <= parent.record.position) return parent
    throw noSuchPlace(session, parent.record.position, at)
  }

  #of({ tenant, session: id }: Whose): Session {
    const session = this.#sessions.get(id)
    if (session?.record.tenant === tenant) return session
    if (this.#erased.get(tenant)?.has(id)) throw wasErased(id)
    throw new RefrainError('not_found', `there is no session '${id}'`)
  }

  #bury(tenant: string, id: string): void {
    const erased = this.#erased.get(tenant) ?? new Set<string>()
    this.#erased.set(tenant, erased.add(id))
    const [first] = erased
    if (erased.size > TOMBS && first !== undefined) erased.delete(first)
  }

  #ofTenant(tenant: string): Session[] {
    return [...this.#sessions.values()].filter(({ record }) => record.tenant === tenant)
  }

  #take(bytes: number): void {
    if (this.#bytes + bytes > this.#maxBytes)
      throw new RefrainError('storage_failed', `the log holds ${this.#maxBytes} bytes already (sessions.log.maxBytes)`)
    this.#bytes += bytes
  }
}
