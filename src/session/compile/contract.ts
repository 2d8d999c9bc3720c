// What a log compiles to. Invariant: the same events, policy and version give the same bytes, on any machine, at any time;
// compiling what was appended gives what compiling everything from scratch gives.

import type { ChatMessage, ToolDefinition } from '../../core/request.js'
import type { EventBody, PolicySnapshot, SessionEvent } from '../log/event.js'

/** A stretch of the context that is as it is, or changes, as one. In order; `digest` chains over those before. */
export interface ContextSegment {
  readonly kind: 'tools' | 'system' | 'memory' | 'message' | 'tail'
  /** Positions of the first and last event that it is made from. */
  readonly from: number
  readonly to: number
  /** Index of its message in `messages`; of the head's and the tail's: undefined. */
  readonly message?: number
  readonly digest: string
}

/** What a message is that no single event says: written by the compiler in place of others. */
export type MadeBy = 'head' | 'told' | 'summary' | 'marker' | 'placeholder' | 'missing' | 'late' | 'artifacts'

export interface Origin {
  readonly from: number
  readonly to: number
  /** Undefined: it says what its events say. */
  readonly made?: MadeBy | undefined
}

/**
 * tools | system | memory blocks | body | tail. The leading system message holds system text and memory blocks; the tail's
 * messages come last and are no part of the stable prefix.
 */
export interface CompiledContext {
  readonly version: number
  readonly tools: readonly ToolDefinition[]
  /** What may be called: `tools`, and with them what was told behind the history. */
  readonly callable: readonly ToolDefinition[]
  readonly messages: readonly ChatMessage[]
  readonly tail: readonly ChatMessage[]
  /** Of each message in `messages`, the positions of its events. */
  readonly origins: readonly Origin[]
  readonly segments: readonly ContextSegment[]
  /** Of the last segment that is not the tail's: names the stable prefix. */
  readonly stableDigest: string
  /** Of everything, tail included. SHA-256 in hex. */
  readonly digest: string
  /** Rises where a head with `now`, a compaction, a reset or a revocation took effect. */
  readonly series: number
  /** Events that the policy keeps out. */
  readonly withheld: readonly number[]
  /** Sources that what is shown rests on. Sorted. */
  readonly sources: readonly string[]
  /** UTF-16 units of all messages' content and calls, tail excluded. */
  readonly chars: number
}

/** @throws Error where the version is unknown or the log is no log. */
export type CompileContext = (
  events: readonly SessionEvent[],
  policy: PolicySnapshot,
  version: number,
) => CompiledContext

/** The same, a few events at a time: costs what is new. */
export interface IncrementalCompiler {
  readonly position: number
  append(events: readonly SessionEvent[]): void
  compile(policy: PolicySnapshot): CompiledContext
  /** What would be seen if these events, which rest on nothing, stood behind the log. Costs what is shown. */
  trial(events: readonly EventBody[], policy: PolicySnapshot): CompiledContext
}
