// How a context is made shorter: steps and strategies as pure functions over what a log compiles to, the plan that puts them
// together at one boundary, and the lifecycle policy that says which. Invariant: a call and its result are never parted,
// recent turns stay, and what does not shrink the context is not applied.

import type { ChatMessage, ToolDefinition } from '../../core/request.js'
import type { CompiledContext, IncrementalCompiler, MadeBy } from '../compile/contract.js'
import type { CompactionEvent, CompactionStep, PolicySnapshot, SessionEvent } from '../log/event.js'

/** What a model card says of contexts' lives. Plain data. */
export interface Lifecycle {
  /** Pressure: the context has this share of the window, or (where given) its body this many characters. */
  readonly trigger: { readonly share: number; readonly chars?: number }
  /** It is gone once the context has this share of the window, and its body no more characters than the trigger allows. */
  readonly relief: number
  /** Room that is left free besides, in tokens: for the next tool result and the next answer. */
  readonly headroom: { readonly resultTokens: number; readonly outputTokens: number }
  /** Messages at the end that stay in any case. */
  readonly keep: number
  /** Names of steps that come before a strategy; the cheap and restorable ones go first, in whatever order they are named. */
  readonly steps: readonly string[]
  /** What is done where the steps do not suffice. */
  readonly strategy: string
  /** Strategies to go on with where the one before was rejected; empty: none. */
  readonly next: readonly string[]
  /** More than `over` messages: the `first` and the `last` stay. */
  readonly snip: { readonly over: number; readonly first: number; readonly last: number }
  /** The latest `keep` results stay, earlier ones of more than `chars` become placeholders. */
  readonly micro: { readonly keep: number; readonly chars: number }
  /** Characters of history that are too many by themselves; undefined: only pressure counts. */
  readonly history: { readonly chars?: number }
  readonly results: ResultLimits
  readonly summary: SummaryLimits
}

/** What may enter the context as it comes. In characters, `capTokens` in tokens; undefined: no cap per result. */
export interface ResultLimits {
  readonly batchChars: number
  readonly singleChars: number
  readonly previewChars: number
  readonly capTokens?: number
}

export interface SummaryLimits {
  readonly maxTokens: number
  /** Of one request that is quoted; the middle of a longer one is left out. */
  readonly requestChars: number
  /** Of all that the check may add. */
  readonly addedChars: number
}

/** Messages that stand or fall together: one, or an answer with the results of its calls. */
export interface Unit {
  /** Positions of its first and last event. */
  readonly from: number
  readonly to: number
  readonly messages: number
  readonly chars: number
  readonly role: 'system' | 'user' | 'assistant'
  readonly made: MadeBy | undefined
  readonly calls: readonly UnitCall[]
}

export interface UnitCall {
  /** Positions of the call and its result; `result` undefined: there is none yet. */
  readonly call: number
  readonly result: number | undefined
  readonly resultChars: number
  /** A placeholder stands for the result already. */
  readonly isPlaceholder: boolean
}

/** What a step goes by. */
export interface StepInput {
  readonly events: readonly SessionEvent[]
  readonly context: CompiledContext
  readonly units: readonly Unit[]
  /** Index of the first unit that stays because it is recent, and of the first that nobody has answered yet. */
  readonly recentFrom: number
  readonly unreadFrom: number
  readonly lifecycle: Lifecycle
}

/** One way to shorten. `plan` gives nothing where there is nothing to do. */
export interface StepKind {
  /** In the order in which they run: what can be got back first, then what costs no model, then the rest. */
  readonly rank: 'restorable' | 'cheap' | 'lossy'
  plan(input: StepInput): CompactionStep | SummaryWish | undefined
}

/** A summary has to be written of everything up to `to`. */
export interface SummaryWish {
  readonly step: 'write'
  readonly to: number
}

/** How a model is asked for a summary. */
export interface SummaryRequest {
  readonly tools: readonly ToolDefinition[]
  /** Stand in front, without the context's tail. Where `isWarm`, they are what the backend has cached. */
  readonly messages: readonly ChatMessage[]
  readonly isWarm: boolean
  /** The user's message behind it. */
  readonly instruction: string
  readonly maxTokens: number
  /** 1: the messages show the events themselves. */
  readonly generation: number
}

export interface CompactionInput {
  readonly events: readonly SessionEvent[]
  readonly policy: PolicySnapshot
  readonly compiler: number
  /** One that was told `events`, and no more; undefined: they are compiled from scratch. */
  readonly compiled?: IncrementalCompiler
  readonly lifecycle: Lifecycle
  readonly trigger: Exclude<CompactionEvent['trigger'], 'ttl'>
  /** In tokens. */
  readonly window: number
  /** Tokens of the context now, by the backend's own count. */
  readonly usedTokens: number
  countTokens(text: string): number
  /** Tokens of a context; undefined: in proportion to `usedTokens`, by characters. */
  measure?(context: CompiledContext): number
  /** Instead of the lifecycle's. */
  readonly strategy?: string
}

export type CompactionPlan =
  /** To be logged as it is. `rejected`: what was wrong with summaries on the way. */
  | {
      readonly kind: 'apply'
      readonly event: CompactionEvent
      readonly tokensBefore: number
      readonly tokensAfter: number
      readonly rejected: readonly string[]
    }
  | { readonly kind: 'nothing'; readonly reason: 'no-pressure' | 'too-soon' | 'nothing-to-do' | 'not-smaller' }
  /** A summary is needed: `accept` goes on with its text, `refuse` where there is none to be had. */
  | {
      readonly kind: 'summary'
      readonly request: SummaryRequest
      accept(text: string): CompactionPlan
      refuse(why: string): CompactionPlan
    }
  /** `compaction_rejected`: an alarm. `partial`: what the steps before it came to; it may be applied. */
  | { readonly kind: 'rejected'; readonly problems: readonly string[]; readonly partial: CompactionEvent | undefined }

/** One try of the same task, as a fork. */
export interface ForkOutcome {
  readonly id: string
  /** It came to an end that counts. */
  readonly finished: boolean
  readonly steps: number
  readonly tokens: number
}
