// The contract of everything that generates: the embedded engine, remote servers, the scripted double. Values go down
// as a Job, events come up as one AsyncIterable, cancellation goes down as one AbortSignal, failure comes up as a throw.

import type { CacheErased, EraseAsk, PrefixTree, PrefixTreeAsk, TierStatus } from '../cache/contract.js'
import type { GenerateEvent } from '../core/events.js'
import type { Job } from '../core/request.js'

export interface BackendHealth {
  /** Whether a request sent now would be answered. */
  readonly ready: boolean
  /** Why not, or what is degraded (a red note): sentences. */
  readonly notes: readonly string[]
  readonly running: number
  readonly waiting: number
}

export interface CacheStatus {
  readonly tiers: readonly (TierStatus | WorkingSetStatus)[]
  readonly pins: readonly { readonly id: string; readonly blocks: number; readonly expiresInMs: number }[]
  readonly blockBytes: number
  readonly blockTokens: number
}

export interface WorkingSetStatus {
  readonly tier: 'working'
  readonly slots: number
  readonly usedSlots: number
  readonly usedBytes: number
  readonly capacityBytes: number
}

/** What a backend with a cache of its own lets operators do. */
export interface CacheControl {
  status(): Promise<CacheStatus>
  /** False: no such pin. */
  unpin(id: string): Promise<boolean>
  /** Drops all unpinned blocks; returns how many. */
  clear(): Promise<number>
  /** Removes blocks from all tiers and the working set and overwrites them on disk. End the requests that use them first. */
  erase(ask: EraseAsk): Promise<CacheErased>
  /** What is cached, the working set too, for whoever looks at it; made between the engine's steps. Absent: not known. */
  tree?(ask: PrefixTreeAsk): Promise<PrefixTree>
}

export interface Backend {
  readonly name: string
  /** The model's own name. */
  readonly model: string
  /**
   * Runs a job. Aborting `signal` stops queued, prefilling and decoding work of this job alone; the iterable then
   * throws the signal's reason. Leaving the loop early does the same. Full blocks that were computed are kept.
   * A job whose request has `pinTtlMs` pins its prompt's blocks under the request's id before `finish`.
   */
  generate(job: Job, signal: AbortSignal): AsyncIterable<GenerateEvent>
  health(): BackendHealth
  readonly cache?: CacheControl
  /** Finishes nothing: stops what runs, flushes what is dirty, frees everything. Drain first. */
  close(): Promise<void>
}
