// What the HTTP side needs of the rest, and nothing of how it is made: the service (serve.ts implements it) and the
// options that compose.ts hands over. Invariant: no route sees a block, a chain or a backend's name but in /v1/cache.

import type { Backend } from '../backend/backend.js'
import type { Clock } from '../core/clock.js'
import type { GenerateEvent } from '../core/events.js'
import type { ChatMessage, GenerateRequest, Tenant, ToolDefinition } from '../core/request.js'

/** A model as clients see it. */
export interface ServedModel {
  readonly name: string
  readonly contextLength: number
  /** Unix seconds. */
  readonly created: number
}

export interface Service {
  /** The first is the default. */
  readonly models: readonly ServedModel[]
  /**
   * The model that `name` or an alias pattern means; undefined: the default.
   * @throws RefrainError `model_not_found`.
   */
  resolve(name: string | undefined): ServedModel
  /**
   * Runs one request; see `Backend.generate` for the events, the signal and leaving early.
   * @throws RefrainError from the loop.
   */
  generate(request: GenerateRequest, signal: AbortSignal): AsyncIterable<GenerateEvent>
  /** Token ids of plain text, or of a chat as it would be rendered for an answer. */
  tokenize(model: ServedModel, input: TokenizeInput): Int32Array
  detokenize(model: ServedModel, ids: readonly number[]): string
  /** How one token is spelled in the vocabulary. */
  spellingOf(model: ServedModel, id: number): string
}

export type TokenizeInput =
  | { readonly kind: 'text'; readonly text: string; readonly bos: 'add' | 'none' }
  | { readonly kind: 'chat'; readonly messages: readonly ChatMessage[]; readonly tools: readonly ToolDefinition[] }

/** The slice of config `limits` that the HTTP side holds. */
export interface ApiLimits {
  readonly bodyBytes: number
  readonly receiveMs: number
  readonly unsentBytes: number
  readonly n: number
  readonly prompts: number
  readonly stopStrings: number
  readonly stopChars: number
  readonly logitBias: number
  readonly jsonDepth: number
  readonly pinMs: number
}

/** Who may come in: keys by tenant; none means that everybody is `default`. */
export interface ApiAccess {
  readonly tenants: readonly (Tenant & { readonly key: string })[]
  /** The address that is listened on: decides the loopback rules. */
  readonly host: string
}

export interface ApiOptions {
  readonly service: Service
  readonly fleet: readonly Backend[]
  readonly limits: ApiLimits
  readonly access: ApiAccess
  readonly clock: Clock
  /** Silence after which a status line, then a comment is sent. */
  readonly keepaliveMs: number
  /** Where a session's key is looked for, in this order; see session-signal.ts. */
  readonly sessionSignals: readonly string[]
  /** Usage in streams that did not ask for it. */
  readonly forceUsage: boolean
  /** server.reasoningField */
  readonly reasoningField?: 'reasoning_content' | 'reasoning'
  readonly version: string
  /** The text of /metrics and its content type. */
  readonly metrics: () => Promise<{ readonly type: string; readonly text: string }>
}
