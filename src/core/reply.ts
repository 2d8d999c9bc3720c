// What a model answered, as it was sampled: kept so that the next turn's prompt begins with the very tokens whose KV is
// there, whatever spelling the client sends the answer back in. Made from the events of a request, used by the next one.

import type { ToolCall } from './request.js'

export interface Reply {
  /** Digest of what was sampled behind what: two replies with the same id are the same. */
  readonly id: string
  /** What of the prompt belongs to the answer already: the generation prompt, or all of a message that was continued. */
  readonly opening: string
  /** The sampled tokens, without the token that ended the turn: it was never fed, so it has no KV. */
  readonly ids: Int32Array
  /** Visible text behind `ids`: a stop string cut a token in two. Mostly empty. */
  readonly rest: string
  readonly message: ReplyMessage
}

/** The answer as it was told apart, byte for byte. */
export interface ReplyMessage {
  readonly content: string
  readonly reasoning?: string
  readonly toolCalls?: readonly ToolCall[]
}
