// Names and payloads of what the program tells to whoever listens (node:diagnostics_channel). Publishing is free when
// nobody subscribes; telemetry is the only subscriber and never a parameter.

import { type Channel, channel } from 'node:diagnostics_channel'
import type { BlockHash, CacheUsage, Root } from './block.js'

export interface RequestSettled {
  readonly id: string
  readonly tenant: string
  readonly route: string
  readonly model: string
  readonly status: number
  readonly error?: string
  readonly promptTokens: number
  readonly completionTokens: number
  readonly working: number
  readonly memory: number
  readonly disk: number
  readonly computed: number
  readonly ttftMs?: number
  readonly durationMs: number
  readonly session?: string
  /** It was sent to a second backend of a fleet as well: whether that one answered. */
  readonly hedged?: 'won' | 'lost'
}

/** One side question was answered, or failed. */
export interface QuickAnswered {
  readonly task: string
  readonly form: string
  readonly error: string | undefined
  readonly tenant: string
  /** What it added to the call. */
  readonly promptTokens: number
  readonly completionTokens: number
}

/** A generating request was let in; nothing else is told of it before. */
export interface RequestBegun {
  readonly id: string
  readonly route: string
  /** Milliseconds since its head came. */
  readonly sinceMs: number
  /** W3C trace context, as the client sent it. */
  readonly traceparent: string | undefined
  readonly tracestate: string | undefined
}

/** How one prompt of a request went through an engine, told when it is over. An absent phase was not come to. */
export interface PhasesTimed {
  readonly id: string
  /** Of its end, on the machine's monotonic clock (`machineMs`), which all threads share. */
  readonly endedAt: number
  /** Until it was admitted, or gave up. */
  readonly queueMs: number
  /** Until KV that was found stood in memory. */
  readonly restoreMs?: number
  /** Until the prompt was computed; waiting for another request that computes the same is part of it. */
  readonly prefillMs?: number
  readonly decodeMs?: number
  readonly promptTokens: number
  readonly completionTokens: number
  /** Tokens of the prompt by where their KV came from. */
  readonly cache: CacheUsage
}

/** A request of a fleet is about to go to a backend; side questions go several at once. */
export interface AttemptBegun {
  readonly id: string
  /** The same object in what is told of its end. */
  readonly key: object
  readonly model: string
  readonly backend: string
  readonly url: string
  /** Why this one. */
  readonly reason: string
  readonly predictedHitTokens: number
  /** Looking for a backend, waiting for one with room included. */
  readonly routeMs: number
  /** They go along; who listens may add some. */
  readonly headers: Record<string, string>
}

/** A backend's part of a request is over. */
export interface AttemptSettled {
  readonly id: string
  readonly key: object
  readonly backend: string
  readonly routeMs: number
  /** `left`: the client did; `lost`: the request was sent to two, and the other one was faster. */
  readonly outcome: 'answered' | 'refused' | 'failed' | 'left' | 'lost'
  /** Undefined: no whole answer came. */
  readonly status: number | undefined
  /** A failure's sentence. */
  readonly why: string | undefined
  readonly ttftMs: number | undefined
  readonly predictedHitTokens: number
  /** Undefined: the backend does not say. */
  readonly promptTokens: number | undefined
  readonly completionTokens: number | undefined
  readonly cachedTokens: number | undefined
}

/** Why a request that was late is not sent to a second backend. */
export type HedgeRefusal =
  /** As many were as may be. */
  | 'share'
  /** Requests wait for a backend with room. */
  | 'queue'
  /** No other one may take it. */
  | 'nobody'
  /** The next best one has others waiting, or is expected to take longer. */
  | 'busy'
  /** It cannot be put to the next best one. */
  | 'unfit'

/** A request of a fleet was late, and sent to a second backend, or not. */
export interface HedgeSettled {
  readonly id: string
  /** Whether the second backend answered; `refused`: none was asked. */
  readonly outcome: 'won' | 'lost' | 'refused'
  readonly why: HedgeRefusal | undefined
}

/** A session's turn computed what it could have reused. */
export interface TurnMissed {
  readonly reason: string
  readonly missedTokens: number
}

/** A session's prompts are cached worse than they should be; see session/series.ts. */
export type CacheAlarm = {
  readonly tenant: string
  /** Undefined: the whole tenant. */
  readonly session: string | undefined
  readonly turn: number | undefined
} & (
  | {
      readonly what: 'unscheduled_invalidation'
      readonly expectedTokens: number
      readonly cachedTokens: number
      /** A reason of explain/, `other_backend` or `unknown`. */
      readonly reason: string
    }
  /** A share, over the last `turns`. */
  | { readonly what: 'hit_rate'; readonly hitRate: number; readonly turns: number }
)

export interface CacheMoved {
  readonly what: 'commit' | 'evict' | 'restore' | 'write' | 'corrupt' | 'collision' | 'dropped-write' | 'expired'
  readonly tier: 'memory' | 'disk'
  readonly blocks: number
  readonly bytes: number
  readonly durationMs?: number
}

/** Blocks came to a tier of the embedded engine's cache, or left it; `cleared`: all of them did, its worker died. */
export type BlockPlaced =
  | {
      readonly what: 'stored' | 'removed'
      readonly tier: 'memory' | 'disk'
      readonly hash: BlockHash
      readonly root: Root | undefined
      readonly parent: BlockHash | Root | undefined
      /** Undefined: found on disk, and not yet read. */
      readonly tokens: Int32Array | undefined
      /** The request's `cache_salt`, where it is known. */
      readonly salt?: string
    }
  | { readonly what: 'cleared' }

/** One batch of events of a member's cache; all but the lag are counts. */
export interface KvHeard {
  readonly member: string
  /** Blocks. */
  readonly stored: number
  readonly removed: number
  /** Stored once more where a copy was known. */
  readonly duplicates: number
  /** Left out: their parent or they themselves were not known. */
  readonly orphans: number
  /** Left out: of a cache group that is not indexed. */
  readonly ignored: number
  /** Events that all blocks are cleared. */
  readonly cleared: number
  /** Events that made no sense, and those of types that are not known. */
  readonly bad: number
  readonly unknown: number
  /** Frames that end or break in the middle. */
  readonly broken: number
  /** Between the engine's clock and ours, at arrival. */
  readonly lagMs?: number
}

/** Something happened to the order of a member's events. */
export interface KvTurned {
  readonly member: string
  readonly rank: number
  readonly what: 'gap' | 'restart' | 'late-join' | 'reconnect' | 'replayed' | 'replay-failed'
}

export interface StepDone {
  readonly prefillTokens: number
  readonly decodeTokens: number
  readonly running: number
  readonly waiting: number
  readonly durationMs: number
}

export interface Note {
  readonly level: 'info' | 'warn' | 'error'
  readonly text: string
  readonly detail?: Readonly<Record<string, unknown>>
}

export interface Signal<T> {
  readonly channel: Channel
  publish(payload: T): void
  subscribe(listener: (payload: T) => void): () => void
}

function signal<T>(name: string): Signal<T> {
  const inner = channel(`refrain:${name}`)
  return {
    channel: inner,
    publish(payload) {
      if (inner.hasSubscribers) inner.publish(payload)
    },
    subscribe(listener) {
      const wrapped = (payload: unknown) => listener(payload as T)
      inner.subscribe(wrapped)
      return () => inner.unsubscribe(wrapped)
    },
  }
}

/** Milliseconds on the machine's monotonic clock; the same in every thread. */
export function machineMs(): number {
  return Number(process.hrtime.bigint()) / 1e6
}

export const requestBegun = signal<RequestBegun>('request-begun')
export const phasesTimed = signal<PhasesTimed>('phases-timed')
export const attemptBegun = signal<AttemptBegun>('attempt-begun')
export const attemptSettled = signal<AttemptSettled>('attempt-settled')
export const hedgeSettled = signal<HedgeSettled>('hedge-settled')
export const turnMissed = signal<TurnMissed>('turn-missed')
export const cacheAlarm = signal<CacheAlarm>('cache-alarm')
export const requestSettled = signal<RequestSettled>('request-settled')
export const quickAnswered = signal<QuickAnswered>('quick-answered')
export const cacheMoved = signal<CacheMoved>('cache-moved')
export const blockPlaced = signal<BlockPlaced>('block-placed')
export const kvHeard = signal<KvHeard>('kv-heard')
export const kvTurned = signal<KvTurned>('kv-turned')
export const stepDone = signal<StepDone>('step-done')
export const note = signal<Note>('note')

/** What is told of each request that a router sends on. */
export interface RouteSignals {
  readonly requestBegun: Signal<RequestBegun>
  readonly requestSettled: Signal<RequestSettled>
  readonly attemptBegun: Signal<AttemptBegun>
  readonly attemptSettled: Signal<AttemptSettled>
  readonly turnMissed: Signal<TurnMissed>
}

/** To whoever listens. */
export const routeSignals: RouteSignals = { requestBegun, requestSettled, attemptBegun, attemptSettled, turnMissed }

/** The same to nobody but who asks for them. */
export function apartSignals(): RouteSignals {
  return {
    requestBegun: signal('apart:request-begun'),
    requestSettled: signal('apart:request-settled'),
    attemptBegun: signal('apart:attempt-begun'),
    attemptSettled: signal('apart:attempt-settled'),
    turnMissed: signal('apart:turn-missed'),
  }
}
