// What a backend says while it generates: one ordered stream per request. Invariant: `start` first, then `token` and
// `end` events (one `end` per choice), `finish` last; or a throw in place of whatever would have come next.

import type { CacheUsage } from './block.js'
import type { BranchAnswer, QuickResult } from './quick.js'

export interface TokenLogprob {
  readonly id: number
  readonly text: string
  /** UTF-8 bytes of this token alone; may be part of a character. */
  readonly bytes: readonly number[]
  /** Natural logarithm of the probability before temperature. */
  readonly logprob: number
}

export type FinishReason = 'stop' | 'length'

/** A piece of a tool call that the model is making. */
export interface CallDelta {
  /** Counts the calls of one answer from 0. */
  readonly index: number
  /** In the first delta of a call, with its name. The same call text at the same index has the same id. */
  readonly id?: string
  readonly name?: string
  /** A further piece of the raw JSON text of the arguments. */
  readonly argumentsDelta?: string
}

/** What a piece of a chat's answer turned out to be; the parsers of the model's formats tell it apart. */
export interface SplitText {
  readonly content: string
  readonly reasoning: string
  readonly calls: readonly CallDelta[]
}

export type GenerateEvent =
  /** The prompt's KV is complete; sent right before the first token (or before `finish` when none is asked for). */
  | {
      readonly type: 'start'
      readonly promptTokens: number
      readonly cache: CacheUsage
      /** Tokens of the prompt that were newly committed as full blocks. */
      readonly committedTokens: number
    }
  /**
   * `text` is visible text: whole characters, stop strings cut off; it may be empty while a character is incomplete.
   * `split` is the same text told apart; serve.ts adds it to a chat's events. Absent: all of it is content.
   */
  | {
      readonly type: 'token'
      readonly choice: number
      readonly ids: readonly number[]
      readonly text: string
      readonly split?: SplitText
      readonly logprobs?: readonly (TokenLogprob & { readonly top: readonly TokenLogprob[] })[]
    }
  /** `split`: what the parsers had held back. */
  | {
      readonly type: 'end'
      readonly choice: number
      readonly reason: FinishReason
      readonly stopString?: string
      readonly split?: SplitText
    }
  /** The job's branches are answered, all of them; right before `finish`. serve.ts adds what the client asked. */
  | { readonly type: 'quick'; readonly answers: readonly BranchAnswer[]; readonly results?: readonly QuickResult[] }
  | {
      readonly type: 'finish'
      readonly promptTokens: number
      readonly completionTokens: number
      readonly cache: CacheUsage
      /** Tokens of the prompt that were newly committed as full blocks. */
      readonly committedTokens: number
    }
