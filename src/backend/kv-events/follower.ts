// Follows what one member's cache does, over all its ranks, and tells the sink. Joined here: sockets hear, streams order,
// batches decode, holdings count. Invariant: nothing that a publisher sends is an error of ours; what is wrong with it is
// counted, told as a signal, and costs hits.

import { type Clock, systemClock } from '../../core/clock.js'
import { kvHeard, kvTurned } from '../../core/signals.js'
import type { EventSink, EventsOptions, FollowState } from './contract.js'
import { decodeBatch } from './event-batch.js'
import { EventStream, type ReplaySource, type StreamEvent } from './event-stream.js'
import { type Applied, MemberHoldings, RankHoldings } from './holdings.js'
import { createReplay, type SubscriptionHearing, type SubscriptionOptions, subscribe } from './sockets.js'

export interface FollowOptions {
  /** `Member.id`. */
  readonly member: string
  readonly events: EventsOptions
  /** The first rank; undefined: 0. */
  readonly rank?: number
}

export interface FollowDeps {
  readonly sink: EventSink
  readonly clock?: Clock
  /** In place of sockets, for tests. */
  readonly open?: (options: SubscriptionOptions, hearing: SubscriptionHearing) => Promise<() => void>
  readonly replay?: (endpoint: string) => ReplaySource
  /** Milliseconds since 1970. */
  readonly wallClock?: () => number
}

export interface FollowCounts {
  readonly batches: number
  readonly aliases: number
  readonly keys: number
  /** Memory of both tables. */
  readonly bytes: number
}

export interface Follower {
  readonly state: FollowState
  readonly counts: FollowCounts
  close(): void
}

/** @throws Error where an endpoint is no address, or can't be bound. */
export async function followMember(options: FollowOptions, deps: FollowDeps): Promise<Follower> {
  const follower = new MemberFollower(options, deps)
  await follower.open()
  return follower
}

/** Rank r publishes at the port + r, or, where there is no port, under a name with a suffix. */
export function endpointOf(endpoint: string, rank: number): string {
  if (rank === 0) return endpoint
  const port = /^(tcp:\/\/.*:)(\d+)$/.exec(endpoint)
  return port === null ? `${endpoint}_dp${rank}` : `${port[1]}${Number(port[2]) + rank}`
}

interface Rank {
  readonly holdings: RankHoldings
  readonly stream: EventStream
  isConnected: boolean
}

class MemberFollower implements Follower {
  readonly #options: FollowOptions
  readonly #deps: FollowDeps
  readonly #shared: MemberHoldings
  readonly #ranks: Rank[] = []
  readonly #closes: (() => void)[] = []
  #batches = 0
  #told = ''

  constructor(options: FollowOptions, deps: FollowDeps) {
    this.#options = options
    this.#deps = deps
    this.#shared = new MemberHoldings(options.member, deps.sink)
  }

  async open(): Promise<void> {
    const { events, rank: first = 0 } = this.#options
    try {
      for (let rank = first; rank < first + events.ranks; rank++) await this.#openRank(rank)
    } catch (fault) {
      this.close()
      throw fault
    }
  }

  get state(): FollowState {
    return {
      connected: this.#ranks.length > 0 && this.#ranks.every(({ isConnected }) => isConnected),
      complete: this.#ranks.length > 0 && this.#ranks.every(({ stream }) => stream.complete),
      blockTokens: this.#shared.blockTokens,
      salted: this.#ranks.every(({ holdings }) => holdings.tellsSalt !== false),
    }
  }

  get counts(): FollowCounts {
    const sum = (of: (holdings: RankHoldings) => number) =>
      this.#ranks.reduce((all, { holdings }) => all + of(holdings), 0)
    return {
      batches: this.#batches,
      aliases: sum(({ aliases }) => aliases),
      keys: this.#shared.size,
      bytes: this.#shared.bytes + sum(({ bytes }) => bytes),
    }
  }

  close(): void {
    for (const close of this.#closes.splice(0)) close()
  }

  async #openRank(rank: number): Promise<void> {
    const { events } = this.#options
    const { clock = systemClock, open = subscribe, replay: openReplay = createReplay } = this.#deps
    const { endpoint, topic, replay: replayAt, aliases, ranks } = events
    const holdings = new RankHoldings(this.#shared, { aliases, isOnly: ranks === 1 })
    const replay = replayAt === undefined ? undefined : openReplay(endpointOf(replayAt, rank))
    const stream = new EventStream({
      clock,
      replay,
      apply: (payload) => this.#apply(holdings, payload),
      drop: () => holdings.forget(undefined, 'lost'),
      tell: (what) => this.#turned(rank, what),
    })
    const state: Rank = { holdings, stream, isConnected: false }
    this.#ranks.push(state)
    this.#closes.push(() => stream.close())
    const bind = events.bind || /\*|\[::\]/.test(endpoint)
    const close = await open(
      { endpoint: endpointOf(endpoint, rank), bind, topic },
      {
        connected: () => {
          state.isConnected = true
          stream.connected()
          this.#tell()
        },
        disconnected: () => {
          state.isConnected = false
          this.#tell()
        },
        message: (seq, payload) => stream.receive(seq, payload),
        stray: () => this.#heard({ ...NOTHING, broken: 1 }),
      },
    )
    this.#closes.push(close)
    this.#tell()
  }

  /** True: all that the rank held is cleared. */
  #apply(holdings: RankHoldings, payload: Uint8Array): boolean {
    const { at, events, bad, unknown, broken } = decodeBatch(payload)
    const applied: Applied = { stored: 0, removed: 0, duplicates: 0, orphans: 0, ignored: 0 }
    let cleared = 0
    for (const event of events) {
      if (event.type === 'cleared' && event.medium === undefined) cleared++
      holdings.apply(event, applied)
    }
    this.#batches++
    const lagMs = at === undefined ? undefined : (this.#deps.wallClock ?? Date.now)() - at * 1000
    this.#heard({
      ...applied,
      ...{ cleared, bad, unknown, broken: broken ? 1 : 0 },
      ...(lagMs !== undefined && { lagMs }),
    })
    this.#tell()
    return cleared > 0
  }

  #heard(counts: typeof NOTHING & { readonly lagMs?: number }): void {
    kvHeard.publish({ member: this.#options.member, ...counts })
  }

  #turned(rank: number, what: StreamEvent | undefined): void {
    if (what !== undefined) kvTurned.publish({ member: this.#options.member, rank, what })
    this.#tell()
  }

  /** Once for every change. */
  #tell(): void {
    const { state } = this
    const text = JSON.stringify(state)
    if (text === this.#told) return
    this.#told = text
    this.#deps.sink.followed(this.#options.member, state)
  }
}

const NOTHING = {
  ...{ stored: 0, removed: 0, duplicates: 0, orphans: 0, ignored: 0 },
  ...{ cleared: 0, bad: 0, unknown: 0, broken: 0 },
}
