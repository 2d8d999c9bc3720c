// What a client asks for, after a dialect has decoded it and before anything is rendered. Plain data: it crosses
// thread borders by structured clone. A dialect fills it, serve.ts turns it into a Job, backends take the Job.

import type { BlockHash, Chain } from './block.js'
import type { BranchPlan, QuickAsk } from './quick.js'

/** Who asks. `salt` keeps tenants' chains apart; the default tenant of a loopback server is `default`. */
export interface Tenant {
  readonly name: string
  readonly salt: string
  readonly admin: boolean
}

/** Scheduling class, most urgent first. */
export type Priority = 'interactive' | 'auxiliary' | 'background'

export interface ToolCall {
  readonly id: string
  readonly name: string
  /** The raw JSON text, as sent. */
  readonly arguments: string
}

export interface ChatMessage {
  readonly role: 'system' | 'user' | 'assistant' | 'tool'
  readonly content: string
  readonly name?: string
  readonly toolCalls?: readonly ToolCall[]
  readonly toolCallId?: string
  readonly reasoning?: string
}

/** A tool as the client defined it. `json` is the raw text of the whole definition object, in the client's order. */
export interface ToolDefinition {
  readonly name: string
  readonly json: string
}

export type Prompt =
  | {
      readonly kind: 'chat'
      readonly messages: readonly ChatMessage[]
      readonly tools: readonly ToolDefinition[]
      /** The last message is the assistant's and is continued: no end of turn after it, no header of a new one. */
      readonly continueFinal?: boolean
      /** Undefined: as the template does by itself. */
      readonly thinking?: Thinking
      /** Further names that the template reads (`chat_template_kwargs`); raw JSON text of an object. */
      readonly templateValues?: string
    }
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'tokens'; readonly ids: readonly number[] }

/** What the client asks of the model's reasoning; mapped to the template's own switches. */
export interface Thinking {
  readonly enabled?: boolean
  readonly effort?: 'minimal' | 'low' | 'medium' | 'high' | 'xhigh' | 'max'
}

/** What may be called. Definitions, and so the prefix, are the same whatever is chosen: the decoder is constrained. */
export interface ToolChoice {
  readonly mode: 'auto' | 'none' | 'required'
  /** Names, or patterns with `*`, that may be called; undefined: all. One exact name with `required` is a named choice. */
  readonly allowed?: readonly string[]
  /** False: one call at most. */
  readonly parallel?: boolean
}

/** What a request is for. Auxiliary and compaction requests persist nothing and evict nothing of the others. */
export type RequestClass = 'main' | 'subagent' | 'auxiliary' | 'compaction'

/** A prefix that the client wants kept: everything up to the end of a message, or the head (tools and system) alone. */
export interface Checkpoint {
  /** Index of the message that it ends with; `head`: right behind tools and leading system messages. */
  readonly after: number | 'head'
  readonly ttlMs: number
}

/** Greedy when `temperature` is 0. Absent means the neutral value. */
export interface Sampling {
  readonly temperature: number
  /** 1 = off. */
  readonly topP: number
  /** 0 = off. */
  readonly topK: number
  /** 0 = off. */
  readonly minP: number
  /** 1 = off; divides or multiplies the logits of tokens already in prompt or output. */
  readonly repetitionPenalty: number
  /** 0 = off; over generated tokens. */
  readonly presencePenalty: number
  /** 0 = off; over generated tokens. */
  readonly frequencyPenalty: number
  /** Token id -> added to its logit, in [-100, 100]. */
  readonly logitBias: Readonly<Record<number, number>>
  readonly seed?: number
}

/**
 * A form of text, put together from smaller ones: how a tool call, or reasoning before JSON, is told to the decoder.
 * `until` is any text without `stop`, and then `stop` itself; `free` is any text without any of `without` in it.
 */
export type Structure =
  | { readonly kind: 'literal'; readonly text: string }
  | { readonly kind: 'json' }
  | {
      readonly kind: 'json-schema'
      readonly schema: string
      /** What cannot be written as a grammar is any JSON in its place, not an error. */
      readonly lenient?: true
      /** The field that complaints name. */
      readonly param?: string
    }
  | { readonly kind: 'regex'; readonly regex: string }
  | { readonly kind: 'free'; readonly without: readonly string[] }
  | { readonly kind: 'until'; readonly stop: string }
  | { readonly kind: 'sequence'; readonly parts: readonly Structure[] }
  | { readonly kind: 'choice'; readonly parts: readonly Structure[] }
  /** `min` to `max` (undefined: any number of) times, `separator` between. */
  | {
      readonly kind: 'repeat'
      readonly part: Structure
      readonly min: number
      readonly max?: number
      readonly separator?: string
    }

/** What the output must match. */
export type Constraint =
  | { readonly kind: 'structure'; readonly structure: Structure }
  | { readonly kind: 'json' }
  | { readonly kind: 'json-schema'; readonly schema: string }
  | { readonly kind: 'regex'; readonly regex: string }

/** A turn of a session whose log the server keeps: the prompt's messages are only those that are new. */
export interface LoggedAsk {
  /** Where the client thinks that the log stands. */
  readonly expected?: number
  /** What becomes of tools and system text that are not the session's; undefined: they are refused. */
  readonly apply?: 'append' | 'boundary' | 'now'
  /** The client's own name for this turn: asked again, it is the same turn. */
  readonly key?: string
  /** Nothing of it is logged: its messages stand behind the context this once, or are the whole of what is asked with. */
  readonly aside?: 'behind' | 'whole'
  /** The head is what the request says, and nothing where it says nothing. */
  readonly wholeHead?: true
}

export interface GenerateRequest {
  readonly id: string
  /** As the client named it; aliases are resolved by serve.ts. */
  readonly model: string
  readonly tenant: Tenant
  /** The session's key, from whichever signal gave it; scoped by tenant and model where it is used. */
  readonly session?: string
  /** Present: `session` is the id of one whose log is kept here, and this is a turn of it. */
  readonly logged?: LoggedAsk
  /** The session whose prefix a sub-agent starts from. */
  readonly parentSession?: string
  /** Undefined: main. */
  readonly requestClass?: RequestClass
  /**
   * How often the client rewrote this session's context, as it counts; 'new': it just did. One that grew means that
   * the session's old branch is dead.
   */
  readonly contextEpoch?: number | 'new'
  readonly prompt: Prompt
  /** Undefined: auto. */
  readonly toolChoice?: ToolChoice
  /** Prefixes to keep; from `cache_control`. */
  readonly checkpoints?: readonly Checkpoint[]
  readonly sampling: Sampling
  /** Undefined: as many as fit the window. 0: prefill only. */
  readonly maxTokens?: number
  readonly stop: readonly string[]
  readonly stopTokenIds: readonly number[]
  readonly ignoreEos: boolean
  /** Choices; they share one prefill. */
  readonly n: number
  /** Undefined: none. Otherwise the number of alternatives (0 to 20) reported beside each sampled token. */
  readonly logprobs?: number
  /** Completions' `echo`: the prompt's text stands before the answer. */
  readonly echo: boolean
  readonly constraint?: Constraint
  readonly priority: Priority
  readonly cacheSalt?: string
  /** Keep the prompt's blocks pinned for this long after the prefill; from `POST /v1/cache/warm`. */
  readonly pinTtlMs?: number
  /** Side questions beside the answer; with `maxTokens` 0 they are all that is asked. */
  readonly quick?: QuickAsk
}

/** A request that is complete: rendered once, tokenized once, hashed once. Frozen; what backends take. */
export interface Job {
  readonly request: GenerateRequest
  /** The model's own name, after aliases. */
  readonly model: string
  readonly tokens: Int32Array
  readonly chain: Chain
  /** Special tokens that show up in the text: the model's formats are written with them. */
  readonly visibleSpecials?: readonly number[]
  /** Where checkpoints lie: the first `tokens` of the prompt are pinned for `ttlMs` once they are computed. */
  readonly pins?: readonly { readonly tokens: number; readonly ttlMs: number }[]
  /** Nothing of it is kept once it is over, and nothing of others is evicted for it. */
  readonly transient?: boolean
  /** Blocks that the session left behind for good: they and what follows them are the first to go. */
  readonly deadBranch?: readonly BlockHash[]
  /** What the output must match, after the tool choice was worked in; goes before the request's own. */
  readonly constraint?: Constraint
  /** Side questions, as forks of the prompt. */
  readonly branches?: readonly BranchPlan[]
  /** Upper bound of generated tokens per choice: `maxTokens` cut to what the window leaves. */
  readonly maxTokens: number
}
