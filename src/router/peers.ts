// A router among others of the same fleet, in other processes or on other machines: it tells them in small batches what it
// was told, and writes what they tell into its own books. Invariant: nobody waits for anybody; what is lost on the way
// costs hits, and requests of others count no longer than they are said to be under way.

import { randomBytes } from 'node:crypto'
import type { Clock } from '../core/clock.js'
import { itemText, type Level, type NewsItem, newsText, readNews, sentText, type UnderWay } from './news.js'
import type { SessionRecord } from './session-store.js'
import type { RouterPeers, SharedBooks, Turn, TurnEnd } from './turn.js'

/** Carries batches to all others, as well as it can. */
export interface NewsWire {
  /** Never throws, never waits. */
  send(text: string): void
}

/** Token buckets that others take of, too; see tenant-limits.ts. */
export interface SharedLimits {
  took(tenant: string, requests: number, tokens: number): void
  levels(): readonly Level[]
  /** Others say that no more than this is left. */
  lower(levels: readonly Level[]): void
}

/** Circuits of members, as those of others say that they are; see health.ts. */
export interface SharedCircuits {
  /** Those that are open, and how often each has opened since it closed last. */
  circuits(): readonly (readonly [member: string, nth: number])[]
  /** Another's opened, the `nth` time; 0: it closed. */
  turnCircuit(member: string, nth: number): void
}

export interface PeersParts {
  readonly wire: NewsWire
  readonly clock: Clock
  /** Of this process's own router, which is made with its peers. */
  books(): SharedBooks
  limits?(): SharedLimits | undefined
  readonly circuits?: SharedCircuits
  /** A member may have room again, by somebody else's request that is over. */
  freed?(): void
  /** A session of another's, for whoever keeps them. */
  kept?(record: SessionRecord): void
  forgotten?(keys: readonly string[]): void
  readonly origin?: string
}

export interface PeerCounts {
  told: number
  heard: number
  /** Batches and items that made no sense. */
  bad: number
}

/** Between something that happens and its telling: many are told at once, and a turn takes longer. */
export const SHARE_MS = 3
/** Between two beats: all that is under way is told anew, so that what was lost counts no longer than this. */
export const BEAT_MS = 2000
/** Whoever was not heard for so long is gone. */
const GONE_MS = 3.5 * BEAT_MS
/** A newcomer takes what others say of buckets for so long. */
const FRESH_MS = 2000
/** The same restart of a member is noticed by several. */
const SAME_EMPTYING_MS = 2000

interface Own {
  readonly seq: number
  readonly turn: Turn
  started: boolean
}

interface Other {
  heardAt: number
  readonly underWay: Map<number, string>
}

export class Peers implements RouterPeers {
  readonly origin: string
  readonly counts: PeerCounts = { told: 0, heard: 0, bad: 0 }
  readonly #parts: PeersParts
  readonly #own = new Map<string, Own>()
  readonly #others = new Map<string, Other>()
  readonly #emptiedAt = new Map<string, number>()
  #seq = 0
  #batch: string[] = []
  /** The first request of the batch that waits. */
  #firstSeq = Number.POSITIVE_INFINITY
  #cancelFlush: (() => void) | undefined
  #cancelBeat: () => void = () => undefined
  #startedAt = Number.NEGATIVE_INFINITY

  constructor(parts: PeersParts) {
    this.#parts = parts
    this.origin = parts.origin ?? randomBytes(9).toString('base64url')
  }

  /** Says hello and begins to beat. */
  start(): void {
    this.#startedAt = this.#parts.clock.now()
    this.#tell({ kind: 'hello' })
    this.#beatLater()
  }

  /** Says good-bye; what is under way is over for the others. */
  close(): void {
    this.#cancelBeat()
    this.#tell({ kind: 'gone', origin: undefined })
    this.flush()
  }

  // --- telling -------------------------------------------------------------------------------------------------------

  sent(turn: Turn): void {
    const seq = this.#seq++
    this.#own.set(turn.id, { seq, turn, started: false })
    if (this.#firstSeq > seq) this.#firstSeq = seq
    this.#add(sentText(seq, turn))
  }

  seated(turn: Turn): void {
    const own = this.#own.get(turn.id)
    if (own !== undefined) this.#tell({ kind: 'seated', seq: own.seq })
  }

  started(turn: Turn): void {
    const own = this.#own.get(turn.id)
    if (own === undefined) return
    own.started = true
    this.#tell({ kind: 'started', seq: own.seq })
  }

  ended(turn: Turn, end: TurnEnd): void {
    const own = this.#own.get(turn.id)
    if (own === undefined) return
    this.#own.delete(turn.id)
    this.#tell({ kind: 'ended', seq: own.seq, end })
    // Its client may ask again at once, and be heard by another.
    if (own.seq >= this.#firstSeq) this.flush()
  }

  released(prefix: string, keys: readonly string[]): void {
    this.#tell({ kind: 'released', prefix, keys })
    this.flush()
  }

  emptied(member: string): void {
    this.#emptiedAt.set(member, this.#parts.clock.now())
    this.#tell({ kind: 'emptied', member })
  }

  /** A member's circuit opened here, the `nth` time; 0: it closed. */
  circuit(member: string, nth: number): void {
    this.#tell({ kind: 'circuit', member, nth })
  }

  took(tenant: string, requests: number, tokens: number): void {
    this.#tell({ kind: 'took', tenant, requests, tokens })
  }

  keep(record: SessionRecord): void {
    this.#tell({ kind: 'kept', record })
  }

  #tell(item: Exclude<NewsItem, { kind: 'sent' }>): void {
    this.#add(itemText(item))
  }

  #add(text: string): void {
    this.#batch.push(text)
    this.#cancelFlush ??= this.#parts.clock.after(SHARE_MS, () => this.flush())
  }

  flush(): void {
    this.#cancelFlush?.()
    this.#cancelFlush = undefined
    this.#firstSeq = Number.POSITIVE_INFINITY
    if (this.#batch.length === 0) return
    const batch = this.#batch
    this.#batch = []
    this.counts.told += batch.length
    this.#parts.wire.send(newsText(this.origin, batch))
  }

  #beatLater(): void {
    this.#cancelBeat = this.#parts.clock.after(BEAT_MS, () => {
      this.#beat()
      this.#forgetTheSilent()
      this.#beatLater()
    })
  }

  #beat(): void {
    const underWay = [...this.#own.values()].map(
      ({ seq, turn, started }): UnderWay => [seq, turn.member, turn.newTokens, started ? 1 : 0],
    )
    this.#tell({ kind: 'beat', underWay })
  }

  // --- hearing -------------------------------------------------------------------------------------------------------

  /** One batch of another's. */
  hear(text: string): void {
    const news = readNews(text)
    if (news === undefined) {
      this.counts.bad++
      return
    }
    if (news.origin === this.origin) return
    this.counts.bad += news.bad
    this.counts.heard += news.items.length
    const other = this.#other(news.origin)
    for (const item of news.items) this.#hearOne(item, { name: news.origin, other })
  }

  #other(name: string): Other {
    let other = this.#others.get(name)
    if (other === undefined) {
      other = { heardAt: 0, underWay: new Map() }
      this.#others.set(name, other)
    }
    other.heardAt = this.#parts.clock.now()
    return other
  }

  #hearOne(item: NewsItem, from: { readonly name: string; readonly other: Other }): void {
    const { other, name } = from
    const books = this.#parts.books()
    switch (item.kind) {
      case 'sent': {
        const id = `${name}:${item.seq}`
        other.underWay.set(item.seq, id)
        books.sent({ id, ...item.turn })
        break
      }
      case 'seated':
        books.seated(`${name}:${item.seq}`)
        break
      case 'started':
        books.started(`${name}:${item.seq}`)
        break
      case 'ended':
        other.underWay.delete(item.seq)
        books.ended(`${name}:${item.seq}`, item.end)
        this.#parts.freed?.()
        break
      case 'released':
        books.released(item.prefix)
        this.#parts.forgotten?.(item.keys)
        break
      case 'kept':
        books.recall(item.record)
        this.#parts.kept?.(item.record)
        break
      case 'emptied':
        this.#hearEmptied(item.member)
        break
      case 'beat':
        this.#hearBeat(item.underWay, from)
        break
      case 'gone':
        this.gone(item.origin ?? name)
        break
      default:
        this.#hearMore(item)
    }
  }

  /** What is no business of the router's books. */
  #hearMore(item: Extract<NewsItem, { kind: 'took' | 'levels' | 'hello' | 'circuit' }>): void {
    const { clock, circuits } = this.#parts
    const limits = this.#parts.limits?.()
    switch (item.kind) {
      case 'took':
        limits?.took(item.tenant, item.requests, item.tokens)
        break
      case 'levels':
        if (clock.now() - this.#startedAt <= FRESH_MS) limits?.lower(item.levels)
        break
      case 'circuit':
        circuits?.turnCircuit(item.member, item.nth)
        break
      case 'hello':
        this.#beat()
        for (const [member, nth] of circuits?.circuits() ?? []) this.circuit(member, nth)
        if (limits !== undefined) this.#tell({ kind: 'levels', levels: limits.levels() })
        break
    }
  }

  #hearEmptied(member: string): void {
    const now = this.#parts.clock.now()
    if (now - (this.#emptiedAt.get(member) ?? Number.NEGATIVE_INFINITY) < SAME_EMPTYING_MS) return
    this.#emptiedAt.set(member, now)
    this.#parts.books().emptied(member)
  }

  /** What was lost is made up for: requests that were never told of count, those whose end was not told do not. */
  #hearBeat(said: readonly UnderWay[], { name, other }: { readonly name: string; readonly other: Other }): void {
    const books = this.#parts.books()
    const there = new Set(said.map(([seq]) => seq))
    for (const [seq, id] of other.underWay) {
      if (there.has(seq)) continue
      other.underWay.delete(seq)
      books.ended(id, { failed: false })
    }
    for (const [seq, member, newTokens, started] of said) {
      if (other.underWay.has(seq)) continue
      const id = `${name}:${seq}`
      other.underWay.set(seq, id)
      books.sent({ id, member, newTokens, ...UNTOLD })
      if (started === 1) books.started(id)
    }
  }

  /** Another router is no more: nothing of it is under way. */
  gone(name: string): void {
    const other = this.#others.get(name)
    if (other === undefined) return
    this.#others.delete(name)
    for (const id of other.underWay.values()) this.#parts.books().ended(id, { failed: true })
    this.#parts.freed?.()
  }

  #forgetTheSilent(): void {
    const since = this.#parts.clock.now() - GONE_MS
    for (const [name, { heardAt }] of this.#others) if (heardAt < since) this.gone(name)
  }
}

/** A request of which only is known that it is under way. */
const UNTOLD: Omit<Turn, 'id' | 'member' | 'newTokens'> = {
  scope: '',
  chain: { hashes: [], tokens: [], head: 0 },
  depth: 0,
  head: '',
  tail: '',
  promptTokens: 0,
  expectedTokens: 0,
  predicted: { precise: undefined, learned: 0, sticky: 0, recalled: 0 },
  isSide: true,
  session: undefined,
}
