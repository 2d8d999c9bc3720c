// Why a turn could not reuse what the one before it left: what serve.ts tells of each turn, and what routes read. The face
// of explain/. Invariant: a turn is taken down, never changed; of its text nothing is kept but two excerpts, and those only
// where config `explain.keepText` says so.

import type { CacheUsage, Chain } from '../core/block.js'
import type { GenerateEvent } from '../core/events.js'
import type { GenerateRequest, RequestClass } from '../core/request.js'
import type { ChatTemplate, Rendered, Tokenizer } from '../prompt/contract.js'

export type Reason =
  /** Nothing is known before it. */
  | 'first_seen'
  | 'model_changed'
  /** The template, its options, or what it prints of itself (a date). */
  | 'template_changed'
  | 'tools_changed'
  | 'system_changed'
  | 'messages_changed'
  /** Reasoning that was there before is not there now. */
  | 'reasoning_dropped'
  /** The same text in other tokens. */
  | 'retokenized'
  /** The prompt is what it was, the blocks are gone: by age, for others, or slower to bring up than to compute. */
  | 'expired'
  | 'evicted'
  | 'restored_slower_than_recomputed'
  | 'other_backend'
  /** The same prompt of another tenant, or with another `cache_salt`. */
  | 'tenant'
  /** The client, or the server, rewrote the conversation on purpose. */
  | 'compaction'
  | 'revocation'

/** What is told of a turn once its prompt is hashed and placed. */
export interface TurnFacts {
  /** As it was rendered: answers recalled, reasoning retained. */
  readonly request: GenerateRequest
  /** For each message as the client sent it, its index in `request`'s; undefined: the same. */
  readonly places?: readonly number[]
  /** The model's own name. */
  readonly model: string
  /** Where it was sent. */
  readonly backend: string
  readonly tokenizer: Pick<Tokenizer, 'bytesOf' | 'isSpecial' | 'spellingOf'>
  readonly template: ChatTemplate
  /** Undefined: token ids were sent. */
  readonly rendered: Rendered | undefined
  /** Held on to, so nobody may change them. */
  readonly tokens: Int32Array
  readonly chain: Chain
  /** Tokens of the prompt that the next turn is to have too; what stands behind them is written anew. Undefined: all. */
  readonly stableTokens?: number
  /** The log of its session says that the context was rewritten since the turn before, its head too. */
  readonly boundary?: 'compaction' | 'revocation'
}

/** A main turn of which it is known what it reused; for whoever watches over caches. */
export interface TurnConcluded {
  readonly tenant: string
  readonly session: string
  readonly turn: number
  readonly promptTokens: number
  readonly cachedTokens: number
  /** Of the prompt, what the next turn should begin with too. */
  readonly stableTokens: number
  readonly backend: string
  /** Undefined: nothing was missed. */
  readonly reason: Reason | undefined
  /** Its session's log is kept. */
  readonly isLogged: boolean
}

/** What serve.ts holds. */
export interface TurnRecorder {
  /**
   * Takes down a turn: costs a comparison. The events of its answer go through what comes back, as they are. Undefined: nothing is taken down.
   */
  record(facts: TurnFacts): ((events: AsyncIterable<GenerateEvent>) => AsyncIterable<GenerateEvent>) | undefined
  /** Sources of the session were revoked: its next turn is another by intent, texts and token ids are dropped. */
  revoked(scope: { readonly tenant: string; readonly session: string }): void
  /** Drops all that is known of a session, and with `session` undefined of a tenant. */
  forget(scope: { readonly tenant: string; readonly session?: string }): void
}

/** A message, tool or system text of a prompt, as it can be told without its text. */
export interface SegmentView {
  readonly kind: 'tool' | 'system' | 'message'
  /** Of the tool among tools, of the message among all messages. */
  readonly index: number
  readonly role?: string
  readonly name?: string
  /** Keyed: equal in one process for equal text. */
  readonly digest: string
  /** Of its text in UTF-8. */
  readonly bytes: number
  /** Where it begins in the rendered prompt; a tool has no place that is known. */
  readonly byteAt?: number
  readonly tokenAt?: number
  readonly tokens?: number
}

/** Where two prompts part. */
export interface DifferenceView {
  /** Of this turn's prompt. */
  readonly token: number
  /** Of the rendered prompt in UTF-8. */
  readonly byte: number
  readonly message?: {
    /** Among this turn's messages as the client sent them, system messages counted. */
    readonly index: number
    readonly role: string
    readonly part: 'content' | 'reasoning' | 'tool_calls' | 'frame'
    /** Within that part. */
    readonly byte: number
    readonly change: 'edited' | 'inserted' | 'removed' | 'unchanged'
  }
  /** The tools that are not what they were. */
  readonly tools?: readonly {
    readonly name: string
    readonly change: 'added' | 'removed' | 'moved' | 'edited'
    readonly index: number
  }[]
  /** White space alone. */
  readonly whitespace?: true
  /** The two texts around it, where text is kept. */
  readonly before?: string
  readonly after?: string
}

export interface CauseView {
  readonly reason: Reason
  /** Tokens that were computed and, but for this, would not have been. */
  readonly missedTokens: number
}

export interface MissView extends CauseView {
  readonly sentence: string
  /** The turn that it was compared with. */
  readonly comparedWith?: number
  readonly difference?: DifferenceView
  /** The dearest is the reason. */
  readonly causes: readonly CauseView[]
  /** The same cause in earlier turns. */
  readonly repeats?: { readonly changed: number; readonly compared: number; readonly sentence: string }
}

export interface TurnView {
  /** From 1. */
  readonly turn: number
  readonly requestId: string
  /** Unix milliseconds. */
  readonly at: number
  readonly requestClass: RequestClass
  readonly model: string
  readonly backend: string
  readonly template: string
  readonly status: 'running' | 'done' | 'failed'
  readonly promptTokens: number
  readonly completionTokens: number
  /** Undefined: the prompt is not computed yet. */
  readonly cache?: CacheUsage
  readonly committedTokens: number
  /** Undefined: all that could be reused was. */
  readonly miss?: MissView
  /** Of a side request: tokens that its question would have computed as a quick task, about. */
  readonly quickTokens?: number
}

/** Side requests of a session: titles, tags, suggestions. */
export interface SideView {
  readonly requests: number
  readonly promptTokens: number
  readonly computedTokens: number
  /** What they would have computed as quick tasks, about. */
  readonly quickTokens: number
  readonly sentence: string
}

export interface SessionView {
  readonly session: string
  readonly tenant: string
  /** Followed by what it says, for want of a key. */
  readonly byContent: boolean
  /** All turns, those that are no longer kept too. */
  readonly turns: number
  readonly at: number
  readonly promptTokens: number
  readonly reusedTokens: number
  readonly missedTokens: number
  /** Undefined: there were none. */
  readonly side?: SideView
  /** Causes that came back, most frequent first. */
  readonly repeats: readonly { readonly reason: Reason; readonly changed: number; readonly sentence: string }[]
}

/** Who asks: a tenant sees its own, an admin all. */
export interface Viewer {
  readonly name: string
  readonly admin: boolean
}

/** What routes read. */
export interface TurnArchive {
  sessions(viewer: Viewer): readonly SessionView[]
  /** Undefined: no such session. `tenant`: whose, for an admin; undefined: its own, then anybody's. */
  session(viewer: Viewer, key: string, tenant?: string): SessionView | undefined
  turns(viewer: Viewer, key: string, tenant?: string): readonly TurnView[] | undefined
  /** The blocks of each session's last prompt, for whoever draws who shares what. */
  prefixes(viewer: Viewer): Iterable<{ readonly session: string; readonly tenant: string; readonly chain: Chain }>
  /** Undefined: no such turn, or no longer. */
  turn(
    viewer: Viewer,
    key: string,
    which: { readonly turn: number; readonly tenant?: string },
  ): { readonly turn: TurnView; readonly segments: readonly SegmentView[] } | undefined
  /**
   * Why the request `id` could not reuse what the request `previousId` left. 'none': nothing was missed. Both are the
   * tenant's own.
   */
  compare(
    tenant: string,
    ids: { readonly id: string; readonly previousId: string },
  ): { readonly reason: Reason; readonly missedTokens: number } | 'none' | 'previous_not_found' | 'unknown'
}

/** What several router processes came to. */
export interface Joined<T> {
  readonly value: T
  /** Those that did not answer in time, in words; what came to them since is not in `value`. */
  readonly missing: readonly string[]
}

export interface SessionTold {
  readonly session: SessionView
  readonly turns: readonly TurnView[]
}

export interface TurnTold {
  readonly session: SessionView
  /** Undefined: no such turn, or no longer. */
  readonly found: { readonly turn: TurnView; readonly segments: readonly SegmentView[] } | undefined
}

/** What routes ask of turns, wherever they are kept. `value` undefined: no such session. See `TurnArchive`. */
export interface TurnDesk {
  sessions(viewer: Viewer): Promise<Joined<readonly SessionView[]>>
  turns(viewer: Viewer, key: string, tenant?: string): Promise<Joined<SessionTold | undefined>>
  turn(
    viewer: Viewer,
    key: string,
    which: { readonly turn: number; readonly tenant?: string },
  ): Promise<Joined<TurnTold | undefined>>
}

export interface ExplainOptions {
  /** Turns of a session; 0: nothing is taken down. */
  readonly turns: number
  /** Sessions of a tenant. */
  readonly sessions: number
  /** Of all that is kept of a tenant, about. */
  readonly memoryBytes: number
  readonly keepText: boolean
}
