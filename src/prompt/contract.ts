// Text and tokens: what serve.ts and the engine need of a tokenizer and of a chat template. Implementations stand beside.

import type { ChatMessage, ToolDefinition } from '../core/request.js'

export interface Tokenizer {
  readonly vocabSize: number
  readonly eosTokenIds: readonly number[]
  /**
   * Token ids of `text`. `special: 'parse'` turns the spelling of special tokens into their ids (rendered templates),
   * `'text'` leaves them text. `bos: 'add'` puts BOS in front where the model wants one and the text does not start
   * with it. Memoized by segment between special tokens.
   */
  encode(text: string, options: { readonly special: 'parse' | 'text'; readonly bos: 'add' | 'none' }): Int32Array
  /** Text of whole ids; special tokens are left out unless `special: 'keep'`. */
  decode(ids: ArrayLike<number>, options?: { readonly special: 'keep' | 'skip' }): string
  /** UTF-8 bytes of one token; empty for special tokens. */
  bytesOf(id: number): Uint8Array
  /** How the token is spelled in the vocabulary file. */
  spellingOf(id: number): string
  isSpecial(id: number): boolean
  /** A fresh incremental detokenizer: never half a character. */
  stream(): Detokenizer
}

export interface Detokenizer {
  /** Text that became complete with `id`; '' while a character is incomplete. Special tokens give ''. */
  push(id: number): string
  /** What is left at the end: incomplete bytes become U+FFFD, as decoding the whole would give. */
  end(): string
}

export interface RenderOptions {
  readonly tools: readonly ToolDefinition[]
  /** True: the text ends with the assistant's header. */
  readonly addGenerationPrompt: boolean
}

export interface ChatTemplate {
  /** @throws RefrainError `template_failed` with the template's own sentence. */
  render(messages: readonly ChatMessage[], options: RenderOptions): string
}
