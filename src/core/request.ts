// What a client asks for, after a dialect has decoded it and before anything is rendered. Plain data: it crosses
// thread borders by structured clone. A dialect fills it, serve.ts turns it into a Job, backends take the Job.

import type { Chain } from './block.js'

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
  | { readonly kind: 'chat'; readonly messages: readonly ChatMessage[]; readonly tools: readonly ToolDefinition[] }
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'tokens'; readonly ids: readonly number[] }

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

/** What the output must match. */
export type Constraint =
  | { readonly kind: 'json' }
  | { readonly kind: 'json-schema'; readonly schema: string }
  | { readonly kind: 'regex'; readonly regex: string }

export interface GenerateRequest {
  readonly id: string
  /** As the client named it; aliases are resolved by serve.ts. */
  readonly model: string
  readonly tenant: Tenant
  readonly session?: string
  readonly prompt: Prompt
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
}

/** A request that is complete: rendered once, tokenized once, hashed once. Frozen; what backends take. */
export interface Job {
  readonly request: GenerateRequest
  /** The model's own name, after aliases. */
  readonly model: string
  readonly tokens: Int32Array
  readonly chain: Chain
  /** Upper bound of generated tokens per choice: `maxTokens` cut to what the window leaves. */
  readonly maxTokens: number
}
