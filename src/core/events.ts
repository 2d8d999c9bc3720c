// What a backend says while it generates: one ordered stream per request. Invariant: `start` first, then `token` and
// `end` events (one `end` per choice), `finish` last; or a throw in place of whatever would have come next.

import type { CacheUsage } from './block.js'

export interface TokenLogprob {
  readonly id: number
  readonly text: string
  /** UTF-8 bytes of this token alone; may be part of a character. */
  readonly bytes: readonly number[]
  /** Natural logarithm of the probability before temperature. */
  readonly logprob: number
}

export type FinishReason = 'stop' | 'length'

export type GenerateEvent =
  /** The prompt's KV is complete; sent right before the first token (or before `finish` when none is asked for). */
  | { readonly type: 'start'; readonly promptTokens: number; readonly cache: CacheUsage }
  /** `text` is visible text: whole characters, stop strings cut off; it may be empty while a character is incomplete. */
  | {
      readonly type: 'token'
      readonly choice: number
      readonly ids: readonly number[]
      readonly text: string
      readonly logprobs?: readonly (TokenLogprob & { readonly top: readonly TokenLogprob[] })[]
    }
  | { readonly type: 'end'; readonly choice: number; readonly reason: FinishReason; readonly stopString?: string }
  | {
      readonly type: 'finish'
      readonly promptTokens: number
      readonly completionTokens: number
      readonly cache: CacheUsage
      /** Tokens of the prompt that were newly committed as full blocks. */
      readonly committedTokens: number
    }
