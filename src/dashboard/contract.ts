// What the page is told and by whom: the sources that a composition root joins, and the face that routes answer from.
// Invariant: whoever looks sees its own tenant, an admin all; counts, names and sentences only, never a prompt's text.

import type { CacheStatus } from '../backend/backend.js'
import type { PrefixTree, PrefixTreeAsk } from '../cache/contract.js'
import type { Root, TierName } from '../core/block.js'
import type { Clock } from '../core/clock.js'
import type { AttemptSettled, QuickAnswered, RequestSettled } from '../core/signals.js'
import type { SessionTold, SessionView, TurnArchive, Viewer } from '../explain/contract.js'

/** Something that a person should look at. */
export interface Alarm {
  /** Unix milliseconds. */
  readonly at: number
  readonly tenant: string
  readonly session?: string
  readonly kind: string
  readonly sentence: string
}

/** A backend as operators see it: the engine of this process, or a server elsewhere. */
export interface BackendState {
  readonly id: string
  readonly kind: string
  /** `up`, or what it is instead. */
  readonly state: string
  /** Why it is not up, what is degraded: sentences. */
  readonly notes: readonly string[]
  readonly models: readonly string[]
  readonly running: number
  readonly waiting: number
  /** Tokens that are still to be computed there, by prediction. */
  readonly queuedPrefillTokens?: number
  readonly sessions?: number
  /** How much is known of its cache. */
  readonly knowledge?: string
  /** Mean |predicted - reported hit| as a share of the prompt. */
  readonly predictionError?: number
  readonly capacityTokens?: number
}

/** Requests that a backend got since the page is watched, and how much of them it had. */
export interface Overlap {
  readonly requests: number
  readonly promptTokens: number
  readonly predictedTokens: number
  /** Of those that it told of. */
  readonly cachedTokens: number
}

/** What a composition root joins. An absent part is not shown, and the page says why. */
export interface DashboardSources {
  readonly version: string
  readonly kind: 'engine' | 'fleet'
  readonly clock: Clock
  /** As many are behind one port; `signals` are those of all. Absent: this is the only one. */
  readonly processes?: number | undefined
  /** What is said of requests; absent: in this process. */
  readonly signals?: WatchedSignals | undefined
  models(): readonly string[]
  /** Undefined: turns are put together from what requests came to, without reasons. */
  readonly turns?: TurnArchive | undefined
  /** Newest first; absent: those that were told since the start (`cacheAlarm`), some of each tenant. */
  alarms?(viewer: Viewer): readonly Alarm[]
  /** Shown to admins. */
  backends(): readonly BackendState[]
  /** The engine's own cache. */
  readonly cache?:
    | {
        status(): Promise<CacheStatus>
        tree?(ask: PrefixTreeAsk): Promise<PrefixTree>
      }
    | undefined
  /** Whose blocks are whose: a tenant's roots without a salt, and the tenants that a root is of. */
  readonly roots?: { of(tenant: string): readonly Root[]; ownersOf(root: Root): readonly string[] }
}

/** What is said of requests, while somebody looks. */
export interface WatchedSignals {
  readonly requestSettled: Heard<RequestSettled>
  readonly attemptSettled: Heard<Omit<AttemptSettled, 'key'>>
  readonly quickAnswered: Heard<QuickAnswered>
  /** From now on all that is said is heard, and what was said before is known to whoever keeps turns. */
  joined?(): Promise<unknown>
}

interface Heard<T> {
  /** Returns what ends it. */
  subscribe(listener: (payload: T) => void): () => void
}

/** Of one bucket of time; `at` is its start. Places in the array: see `SERIES_FIELDS`. */
export type SeriesRow = readonly (number | null)[]

export const SERIES_FIELDS = [
  'at',
  'requests',
  'failed',
  'working',
  'memory',
  'disk',
  'computed',
  'generated',
  'ttftSumMs',
  'ttftCount',
  // For admins: blocks that moved, and bytes that tiers held, null where nobody looked.
  'evictedMemory',
  'evictedDisk',
  'written',
  'restored',
  'workingBytes',
  'memoryBytes',
  'diskBytes',
] as const

export interface QuickTally {
  readonly task: string
  readonly form: string
  readonly answered: number
  readonly failed: number
  readonly promptTokens: number
  readonly completionTokens: number
  readonly lastError?: string
}

/** What has changed since a cursor. */
export interface FeedPage {
  /** Given back, it asks for what comes after. */
  readonly cursor: string
  /** What came with earlier pages does not hold any more. */
  readonly reset: boolean
  /** Unix milliseconds. */
  readonly at: number
  readonly watchedSince: number
  readonly server: {
    readonly version: string
    readonly kind: 'engine' | 'fleet'
    readonly models: readonly string[]
    readonly processes: number
    readonly explains: boolean
    readonly hasTree: boolean
  }
  /** Processes that did not answer in time, in words: what came to them since is not in it. */
  readonly missing: readonly string[]
  readonly viewer: { readonly tenant: string; readonly admin: boolean }
  readonly bucketMs: number
  readonly series: readonly SeriesRow[]
  /** The latest sessions that changed. */
  readonly sessions: readonly SessionView[]
  /** Those that are no longer known. */
  readonly gone: readonly { readonly tenant: string; readonly session: string }[]
  readonly quick: readonly QuickTally[]
  readonly alarms: readonly Alarm[]
  /** For admins. */
  readonly cache?: Pick<CacheStatus, 'tiers' | 'blockBytes' | 'blockTokens'> & { readonly pins: number }
  readonly backends?: readonly (BackendState & { readonly overlap?: Overlap })[]
}

export interface TreeNode {
  readonly id: string
  readonly parent?: string
  /** For admins, of a node at the root: whose it is; undefined: nobody's that is known. */
  readonly tenant?: string
  /** Tokens in front of it. */
  readonly from: number
  readonly tokens: number
  /** Front to back. */
  readonly tiers: readonly { readonly tier: TierName; readonly tokens: number }[]
  readonly uses: number
  readonly belowTokens: number
  readonly hidden: { readonly branches: number; readonly tokens: number }
  /** Sessions whose last prompt goes through it, a few of them by name. */
  readonly sessions: number
  readonly names: readonly string[]
}

export interface TreePage {
  readonly at: number
  readonly nodes: readonly TreeNode[]
  /** Of all, shown or not. */
  readonly tokens: number
  readonly detachedTokens: number
  /** False: only a part of the cache was looked at. */
  readonly complete: boolean
}

export interface Asset {
  readonly type: string
  readonly etag: string
  readonly bytes: Buffer
  readonly gzip: Buffer
}

/** What routes answer from. Asking is watching: nothing is counted while nobody asks. */
export interface Dashboard {
  feed(viewer: Viewer, cursor: string | undefined): Promise<FeedPage>
  /** Undefined: there is no cache of our own to look at. */
  tree(viewer: Viewer): Promise<TreePage | undefined>
  /** Undefined: no such session. */
  turns(viewer: Viewer, session: string, tenant?: string): SessionTold | undefined | Promise<SessionTold | undefined>
  /** A file of the page; '' is the page itself. Undefined: there is none. */
  asset(path: string): Asset | undefined
  close(): void
}
