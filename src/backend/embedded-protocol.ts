// What crosses between the embedded backend and its worker. Every request has a port of its own: events come up through
// it in batches, an abort goes down through it, and its closing is the end of both sides. No ids, no table of requests.

import type { MessagePort } from 'node:worker_threads'
import type { EraseAsk, PrefixTreeAsk } from '../cache/contract.js'
import type { KvLayout } from '../core/block.js'
import { type ErrorCode, RefrainError } from '../core/errors.js'
import type { GenerateEvent } from '../core/events.js'
import type { Job } from '../core/request.js'
import type { BlockPlaced } from '../core/signals.js'

/** What the worker is started with. Plain data. */
export interface WorkerSetup {
  /** Folder of the imported model. */
  readonly modelDirectory: string
  readonly layout: KvLayout
  readonly contextLength: number
  readonly engine: EngineSetup
  readonly cache: CacheSetup
  readonly limits: { readonly queuedRequests: number; readonly queueMs: number; readonly sideRequestMs: number }
  /** Whether it tells of blocks that come and go. */
  readonly tellsBlocks?: boolean
}

export interface EngineSetup {
  readonly threads: number
  /** What computes; see src/provider.ts. */
  readonly provider: 'native' | 'onnx-cpu'
  readonly maxRunning: number
  readonly workingSetBytes: number
  /** Which kernels pack blocks; `auto` in service. */
  readonly kernels: 'auto' | 'native' | 'fallback'
  /** Whether branches are computed. */
  readonly trees: boolean
}

/** `enabled: false` is the baseline: nothing is kept between requests, not even the working set. */
export interface CacheSetup {
  readonly enabled: boolean
  readonly memoryBytes: number
  readonly evictor: string
  readonly restore: 'cost' | 'always'
  /** Share of the memory's blocks that pins may hold. */
  readonly pinnedShare: number
  /** Absent: blocks are not dropped for being idle. */
  readonly idleMs?: number
  readonly disk?: { readonly folder: string; readonly capacityBytes: number }
}

export type ToWorker =
  | { readonly type: 'generate'; readonly job: Job; readonly port: MessagePort }
  | { readonly type: 'cache'; readonly call: CacheCall; readonly port: MessagePort }
  | { readonly type: 'close'; readonly port: MessagePort }

export type CacheCall =
  | { readonly name: 'status' }
  | { readonly name: 'unpin'; readonly id: string }
  | { readonly name: 'clear' }
  | { readonly name: 'erase'; readonly ask: EraseAsk }
  | { readonly name: 'tree'; readonly ask: PrefixTreeAsk }

/** Down a request's port. */
export type ToJob = { readonly type: 'abort' }

/** Up a request's port: events in order, then `end` or `failure`. */
export type FromJob =
  | { readonly type: 'events'; readonly events: readonly GenerateEvent[] }
  | { readonly type: 'end' }
  | { readonly type: 'failure'; readonly error: WireError }

/** The answer to a `cache` or `close` message. */
export type FromCall =
  | { readonly type: 'value'; readonly value: unknown }
  | { readonly type: 'failure'; readonly error: WireError }

/** Up the worker's own port. */
export type FromWorker =
  | { readonly type: 'ready' }
  | { readonly type: 'refused'; readonly message: string }
  | { readonly type: 'state'; readonly running: number; readonly waiting: number; readonly notes: readonly string[] }
  | { readonly type: 'blocks'; readonly blocks: readonly BlockPlaced[] }
  | { readonly type: 'signals'; readonly signals: readonly (readonly [name: SignalName, payload: unknown])[] }

/** Salts of roots that the worker remembers, to tell them of blocks. */
export const KNOWN_SALTS = 10_000

export type SignalName = 'stepDone' | 'cacheMoved' | 'phasesTimed' | 'note'

export interface WireError {
  readonly code: ErrorCode | undefined
  readonly message: string
  readonly param?: string
  readonly retryAfterMs?: number
}

export function encodeError(error: unknown): WireError {
  if (!(error instanceof RefrainError)) return { code: undefined, message: String(error) }
  const { code, message, param, retryAfterMs } = error
  return { code, message, ...(param !== undefined && { param }), ...(retryAfterMs !== undefined && { retryAfterMs }) }
}

export function decodeError(error: WireError): Error {
  const { code, message, param, retryAfterMs } = error
  if (code === undefined) return new Error(message)
  return new RefrainError(code, message, { ...(param && { param }), ...(retryAfterMs && { retryAfterMs }) })
}
