// What is counted while somebody looks: series by tenant, quick questions, backends' overlap, sessions where nobody else
// knows them. Invariant: it lives from the first question to a while after the last; before and after that nothing listens
// and nothing is kept. What came before is taken from the turns that explain/ keeps anyway.

import { setImmediate as nextTurn } from 'node:timers/promises'
import type { CacheStatus } from '../backend/backend.js'
import {
  type AttemptSettled,
  attemptSettled,
  type CacheMoved,
  cacheMoved,
  quickAnswered,
  type RequestSettled,
  requestSettled,
} from '../core/signals.js'
import type { TurnArchive, TurnView, Viewer } from '../explain/contract.js'
import type { Overlap, QuickTally, SeriesRow, WatchedSignals } from './contract.js'
import { Series, type SeriesOptions } from './series.js'
import { SessionBoard } from './session-board.js'
import { SettledTurns } from './settled-turns.js'

/** An hour. */
export const SERIES: SeriesOptions = { bucketMs: 5000, buckets: 720 }
/** Tenants with series of their own; only tenants of the config have any. */
const TENANTS = 1000
/** Tasks and forms that are counted, of one tenant. */
const QUICK_TALLIES = 64
/** Requests whose backend is known and whose end is not. */
const UNDER_WAY = 10_000
/** Sessions whose turns are read before the thread is given back. */
const SLICE_SESSIONS = 20

const EVERYBODY: Viewer = { name: '', admin: true }

export interface WatchParts {
  readonly archive: TurnArchive | undefined
  /** Unix milliseconds. */
  readonly now: () => number
  readonly signals?: WatchedSignals
}

const HERE: WatchedSignals = { requestSettled, attemptSettled, quickAnswered }

export class Watch {
  readonly since: number
  readonly settled = new SettledTurns()
  readonly #parts: WatchParts
  readonly #all = new Series(SERIES)
  readonly #byTenant = new Map<string, Series>()
  readonly #boards = new Map<string, SessionBoard>()
  readonly #quick = new Map<string, Map<string, { -readonly [K in keyof QuickTally]: QuickTally[K] }>>()
  readonly #overlaps = new Map<string, { -readonly [K in keyof Overlap]: Overlap[K] }>()
  readonly #backendOf = new Map<string, string>()
  /** Requests that were counted, so that the past does not count them again; undefined: the past is told. */
  #counted: Set<string> | undefined = new Set()
  readonly #stops: readonly (() => void)[]

  constructor(parts: WatchParts) {
    this.#parts = parts
    this.since = parts.now()
    const { signals = HERE } = parts
    this.#stops = [
      signals.requestSettled.subscribe((request) => this.#settled(request)),
      cacheMoved.subscribe((move) => this.#moved(move)),
      signals.attemptSettled.subscribe((attempt) => this.#attempted(attempt)),
      signals.quickAnswered.subscribe(({ tenant, task, form, error, promptTokens, completionTokens }) => {
        for (const name of [tenant, ALL]) {
          const tally = this.#tallyOf(name, task, form)
          if (tally === undefined) continue
          if (error === undefined) tally.answered++
          else {
            tally.failed++
            tally.lastError = error
          }
          tally.promptTokens += promptTokens
          tally.completionTokens += completionTokens
        }
      }),
    ]
  }

  stop(): void {
    for (const stop of this.#stops) stop()
  }

  /** Counts what turns came to before anybody looked. */
  async recall(): Promise<void> {
    const { archive, now, signals } = this.#parts
    await signals?.joined?.()
    const from = now() - SERIES.bucketMs * SERIES.buckets
    let read = 0
    for (const { session, tenant, at } of archive?.sessions(EVERYBODY) ?? []) {
      if (at < from) continue
      for (const turn of archive?.turns(EVERYBODY, session, tenant) ?? []) {
        if (turn.at >= from) this.#recalled(turn, tenant)
      }
      if (++read % SLICE_SESSIONS === 0) await nextTurn()
    }
    this.#counted = undefined
  }

  series(viewer: Viewer, since: number): SeriesRow[] {
    const series = viewer.admin ? this.#all : this.#byTenant.get(viewer.name)
    return series?.since(since) ?? []
  }

  /** What has changed among the sessions that the viewer may see. */
  board(viewer: Viewer): SessionBoard {
    const name = viewer.admin ? ALL : viewer.name
    const board = this.#boards.get(name) ?? new SessionBoard()
    this.#boards.set(name, board)
    return board
  }

  quick(viewer: Viewer): readonly QuickTally[] {
    return [...(this.#quick.get(viewer.admin ? ALL : viewer.name)?.values() ?? [])]
  }

  overlap(backend: string): Overlap | undefined {
    return this.#overlaps.get(backend)
  }

  /** How full the tiers are now. */
  filled({ tiers }: CacheStatus): void {
    const bytes = tiers.map(({ tier, usedBytes }) => [`${tier}Bytes`, usedBytes])
    this.#all.set(this.#parts.now(), Object.fromEntries(bytes))
  }

  #settled(request: RequestSettled): void {
    const { tenant, route, promptTokens, status } = request
    const backend = this.#backendOf.get(request.id) ?? ''
    this.#backendOf.delete(request.id)
    // A question that was refused has no tokens; what is no generating request at all is none of ours.
    if (promptTokens === 0 && !(status >= 400 && GENERATES.test(route))) return
    this.#counted?.add(request.id)
    const { working, memory, disk, computed, completionTokens: generated, ttftMs } = request
    const now = this.#parts.now()
    this.#count(tenant, now, {
      ...{ requests: 1, failed: status < 400 ? 0 : 1 },
      ...{ working, memory, disk, computed, generated },
      ...(ttftMs !== undefined && { ttftSumMs: ttftMs, ttftCount: 1 }),
    })
    if (this.#parts.archive === undefined) this.settled.add(request, now, backend)
  }

  #recalled(turn: TurnView, tenant: string): void {
    if (turn.cache === undefined || turn.status === 'running' || this.#counted?.has(turn.requestId)) return
    const failed = turn.status === 'failed' ? 1 : 0
    this.#count(tenant, turn.at, { requests: 1, failed, ...turn.cache, generated: turn.completionTokens })
  }

  #count(tenant: string, at: number, more: Parameters<Series['add']>[1]): void {
    this.#all.add(at, more)
    let own = this.#byTenant.get(tenant)
    if (own === undefined) {
      if (this.#byTenant.size >= TENANTS) return
      own = new Series(SERIES)
      this.#byTenant.set(tenant, own)
    }
    own.add(at, more)
  }

  #moved({ what, tier, blocks }: CacheMoved): void {
    const field = what === 'evict' ? (tier === 'memory' ? 'evictedMemory' : 'evictedDisk') : MOVED[what]
    if (field !== undefined) this.#all.add(this.#parts.now(), { [field]: blocks })
  }

  #attempted(attempt: Omit<AttemptSettled, 'key'>): void {
    const { id, backend, promptTokens, predictedHitTokens, cachedTokens = 0 } = attempt
    this.#backendOf.set(id, backend)
    const [oldest] = this.#backendOf.keys()
    if (this.#backendOf.size > UNDER_WAY && oldest !== undefined) this.#backendOf.delete(oldest)
    if (promptTokens === undefined) return
    const overlap = this.#overlaps.get(backend) ?? { requests: 0, promptTokens: 0, predictedTokens: 0, cachedTokens: 0 }
    this.#overlaps.set(backend, overlap)
    overlap.requests++
    overlap.promptTokens += promptTokens
    overlap.predictedTokens += Math.min(predictedHitTokens, promptTokens)
    overlap.cachedTokens += cachedTokens
  }

  #tallyOf(tenant: string, task: string, form: string) {
    const tallies = this.#quick.get(tenant) ?? new Map()
    this.#quick.set(tenant, tallies)
    const known = tallies.get(`${task} ${form}`)
    if (known !== undefined || tallies.size >= QUICK_TALLIES) return known
    const fresh = { task, form, answered: 0, failed: 0, promptTokens: 0, completionTokens: 0 }
    tallies.set(`${task} ${form}`, fresh)
    return fresh
  }
}

/** No tenant has an empty name. */
const ALL = ''
const GENERATES = /\/(completions|messages|responses|quick)$/
const MOVED: Readonly<Record<string, 'written' | 'restored'>> = { write: 'written', restore: 'restored' }
