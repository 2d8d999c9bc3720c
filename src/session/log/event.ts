// What happened in a session, as data. The log of these is the truth of a conversation: what the model sees is compiled from
// it (session/compile), and whatever changes what it sees is one of them. Invariant: events are only ever added, in order and
// without a gap, and each carries the digest of the one before it.

import type { ToolDefinition } from '../../core/request.js'

/** Tools and system text. `boundary`: waits for the next compaction or reset; `append`: told behind the history; `now`: a new series. */
export interface HeadEvent {
  readonly kind: 'head'
  readonly apply: 'append' | 'boundary' | 'now'
  readonly system?: string
  readonly tools?: readonly ToolDefinition[]
}

/** What the user said, taken down where it enters. It alone can instruct. */
export interface UserEvent {
  readonly kind: 'user'
  readonly content: string
  readonly name?: string
}

/** Its tool calls follow as events of their own, in the same append. */
export interface AssistantEvent {
  readonly kind: 'assistant'
  readonly content: string
  readonly reasoning?: string
}

export interface ToolCallEvent {
  readonly kind: 'tool_call'
  readonly id: string
  readonly name: string
  /** Raw JSON text, as the model wrote it. */
  readonly arguments: string
}

/** A tool's own error is a result like another and stays in context. */
export interface ToolResultEvent {
  readonly kind: 'tool_result'
  readonly callId: string
  readonly content: string
  readonly error?: boolean
  /** The whole lies in the result store and `content` is its stub. */
  readonly spilled?: { readonly locator: string; readonly chars: number }
}

/** Of the log alone, never in context. */
export interface AttemptEvent {
  readonly kind: 'attempt'
  readonly outcome: 'failed' | 'retried' | 'cancelled'
  readonly reason: string
  readonly turn?: number
}

/**
 * Plan, date, notices. `ephemeral` replaces the one of its label in the tail, behind everything cached ('' takes it away);
 * `kept` is a system message that stays where it was said.
 */
export interface NoteEvent {
  readonly kind: 'note'
  readonly tail: 'ephemeral' | 'kept'
  readonly label: string
  readonly content: string
}

/** `value` undefined: the block is gone. Rides in the tail until the next boundary. */
export interface MemoryEvent {
  readonly kind: 'memory'
  readonly label: string
  readonly value?: string
  readonly limitTokens?: number
  /** Id of a block that several sessions see; undefined: this session's own. */
  readonly shared?: string
}

/** One boundary: what was done to the context, in order, so that compiling is a function of the log alone. */
export interface CompactionEvent {
  readonly kind: 'compaction'
  /** `ttl`: the cached prefix had lapsed, so what waited for a boundary costs nothing now; it has no steps. */
  readonly trigger: 'pressure' | 'overflow' | 'tool' | 'api' | 'ttl'
  readonly steps: readonly CompactionStep[]
  /** Of the compiled context's messages. */
  readonly charsBefore: number
  readonly charsAfter: number
}

/** Positions are those of the log. */
export type CompactionStep =
  /** Messages of events in `[from, to]` are gone; a marker says how many. */
  | { readonly step: 'snip'; readonly from: number; readonly to: number; readonly messages: number }
  /** Results of these events show as a placeholder. */
  | { readonly step: 'micro'; readonly results: readonly number[] }
  /** Calls and results of these events are gone. */
  | { readonly step: 'discard'; readonly calls: readonly number[] }
  /** Events up to `to` are replaced by a summary. `generation` 1: written from the events themselves. */
  | {
      readonly step: 'summary'
      readonly to: number
      readonly text: string
      readonly generation: number
      /** Paths, ids and open tasks that the writer left out and the check added. */
      readonly added: readonly string[]
      /** What users said in the part that is covered, quoted apart. */
      readonly requests: readonly string[]
    }

/** Turns that rest on these sources are out of the context from here on. */
export interface RevocationEvent {
  readonly kind: 'revocation'
  readonly sources: readonly string[]
  /** The newest layer that rests on none of them. */
  readonly cleanLayer?: string
}

/** A state of the harness's sandbox; what is read from it rests on its sources and its parents'. */
export interface LayerEvent {
  readonly kind: 'layer'
  readonly id: string
  readonly parent?: string
  readonly sources: readonly string[]
}

/** The first event of a fork's own log: what comes before is the parent's, up to `at`. */
export interface ForkEvent {
  readonly kind: 'fork'
  readonly parent: string
  readonly at: number
  readonly of: number
  readonly index: number
}

/** The body begins anew; memory blocks stay, and of the rest what is named. */
export interface ResetEvent {
  readonly kind: 'reset'
  /** Locators of results that are still named. */
  readonly artifacts: readonly string[]
}

/** What the compile went by, where it is not what it was. */
export interface PolicyEvent {
  readonly kind: 'policy'
  readonly snapshot: PolicySnapshot
}

/** A request was about to be sent: what was compiled, by which compiler, under which verdicts. */
export interface TurnEvent {
  readonly kind: 'turn'
  /** From 1. */
  readonly turn: number
  readonly requestId: string
  readonly compiler: number
  /** Position of the last event that was compiled. */
  readonly upTo: number
  /** `CompiledContext.digest` */
  readonly digest: string
  /** Sources that it rests on, with what was said of each. */
  readonly verdicts: Readonly<Record<string, 'granted' | 'revoked'>>
  /** What the rendering rests on beside the messages, as JSON: date, thinking, retention, template. */
  readonly rendering: string
  /** SHA-256 of the rendered prompt. */
  readonly promptDigest: string
}

/** What became of a turn. */
export interface UsageEvent {
  readonly kind: 'usage'
  readonly turn: number
  readonly promptTokens: number
  readonly completionTokens: number
  readonly cachedTokens: number
  /** Of the prompt, without the tail. */
  readonly stableTokens: number
  readonly backend: string
}

export type EventBody =
  | HeadEvent
  | UserEvent
  | AssistantEvent
  | ToolCallEvent
  | ToolResultEvent
  | AttemptEvent
  | NoteEvent
  | MemoryEvent
  | CompactionEvent
  | RevocationEvent
  | LayerEvent
  | ForkEvent
  | ResetEvent
  | PolicyEvent
  | TurnEvent
  | UsageEvent

export type EventKind = EventBody['kind']

/** A client's own name for an event, stored with its body: a second one of that name is the first. */
export interface Keyed {
  readonly key?: string
}

/** An event before it has a place. */
export interface NewEvent {
  readonly body: EventBody & Keyed
  /** `contributing_source_ids`: what it was derived from, sorted, each once. The log adds those of what came before it. */
  readonly sources?: readonly string[]
  /** The layer that it was read from. */
  readonly layer?: string
}

export interface SessionEvent extends NewEvent {
  /** Unique. */
  readonly id: string
  readonly session: string
  readonly tenant: string
  /** From 1, without a gap; a fork's go on where its parent's part ends. */
  readonly position: number
  /** Unix milliseconds. */
  readonly at: number
  readonly sources: readonly string[]
  /** SHA-256 in hex, over the one before, the place and the stored bytes: it stands when the content is erased. */
  readonly digest: string
  /** `digest` of the event before; of the first, 64 zeros. */
  readonly previous: string
  /** Its content was erased: `body` is of its kind, and empty but for what pairs it (a call's id). */
  readonly erased?: true
}

/** What compiling goes by, beside the log. Plain data, digestible. */
export interface PolicySnapshot {
  /** Name of the retention rule; see prompt/retention. */
  readonly retention: string
  /** Sources that may not be seen. Sorted. */
  readonly revoked: readonly string[]
  /** Values of memory blocks that are shared between sessions, as of now; by id. */
  readonly shared: Readonly<
    Record<string, { readonly label: string; readonly value: string; readonly sources?: readonly string[] }>
  >
}
