// Names and payloads of what the program tells to whoever listens (node:diagnostics_channel). Publishing is free when
// nobody subscribes; telemetry is the only subscriber and never a parameter.

import { type Channel, channel } from 'node:diagnostics_channel'
import type { BlockHash, Root } from './block.js'

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
}

/** One side question was answered, or failed. */
export interface QuickAnswered {
  readonly task: string
  readonly form: string
  readonly error: string | undefined
}

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

interface Signal<T> {
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

export const requestSettled = signal<RequestSettled>('request-settled')
export const quickAnswered = signal<QuickAnswered>('quick-answered')
export const cacheMoved = signal<CacheMoved>('cache-moved')
export const blockPlaced = signal<BlockPlaced>('block-placed')
export const kvHeard = signal<KvHeard>('kv-heard')
export const kvTurned = signal<KvTurned>('kv-turned')
export const stepDone = signal<StepDone>('step-done')
export const note = signal<Note>('note')
