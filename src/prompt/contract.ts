// Text and tokens: what serve.ts and the engine need of a tokenizer and of a chat template. Implementations stand beside.

import type { ChatMessage, Structure, Thinking, ToolDefinition } from '../core/request.js'
import type { ReasoningParser } from './reasoning/contract.js'
import type { Retention } from './retention/retention.js'
import type { CallableTool, ToolCallParser } from './tool-calls/contract.js'

export interface EncodeOptions {
  readonly special: 'parse' | 'text'
  readonly bos: 'add' | 'none'
}

export interface Tokenizer {
  readonly vocabSize: number
  readonly eosTokenIds: readonly number[]
  /**
   * Token ids of `text`. `special: 'parse'` turns the spelling of special tokens into their ids (rendered templates),
   * `'text'` leaves them text. `bos: 'add'` puts BOS in front where the model wants one and the text does not start
   * with it. Memoized by segment between special tokens.
   */
  encode(text: string, options: EncodeOptions): Int32Array
  /**
   * Sees to it that `encode` of each of `texts` is quick: where much of them is new (over 16 KB), another thread works it
   * out. Undefined: `encode` never takes long. It never fails: what the thread cannot do, `encode` does.
   */
  prepare?(texts: readonly string[], options: EncodeOptions): Promise<void> | undefined
  /** `encode` behind `prepare`. */
  encodeAsync?(text: string, options: EncodeOptions): Int32Array | Promise<Int32Array>
  /** Ends the thread. */
  close?(): Promise<void>
  /** Text of whole ids; special tokens are left out unless `special: 'keep'`. */
  decode(ids: ArrayLike<number>, options?: { readonly special: 'keep' | 'skip' }): string
  /** The special token that is spelled so; undefined: there is none. */
  specialId(spelling: string): number | undefined
  /** UTF-8 bytes of one token; empty for special tokens. */
  bytesOf(id: number): Uint8Array
  /** How the token is spelled in the vocabulary file. */
  spellingOf(id: number): string
  isSpecial(id: number): boolean
  /** A fresh incremental detokenizer: never half a character. `visible` special tokens are spelled out. */
  stream(visible?: readonly number[]): Detokenizer
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
  /** The last message is the assistant's and is continued. */
  readonly continueFinal?: boolean
  readonly thinking?: Thinking
  /** Show the reasoning of earlier turns where the template drops it of itself and can be told not to. */
  readonly keepReasoning?: boolean
  /** Raw JSON text of an object: further names for the template. */
  readonly values?: string
  /** What `strftime_now` prints; a session's is frozen. Undefined: now. */
  readonly date?: Date
  /**
   * Definitions to render where `tools` is empty: the session's earlier ones, so that its prefix stays what it was. The
   * caller sees to it that nothing is called.
   */
  readonly keepTools?: readonly ToolDefinition[]
}

/** Where a message stands in the rendered text, its header and end included: `[start, end)` in UTF-16 units. */
export interface MessageSpan {
  /** Index into the messages that were given. */
  readonly message: number
  readonly start: number
  readonly end: number
}

export interface Rendered {
  readonly text: string
  /** In the order of the text, not overlapping; a message without a place of its own has none. */
  readonly spans: readonly MessageSpan[]
  /** Where what stands behind the last message begins: the generation prompt. */
  readonly tail: number
}

/** What a template does of itself, found by rendering small chats. */
export interface ChatTraits {
  /** Which reasoning of earlier turns it shows: all, that since the last user message, none. */
  readonly keepsReasoning: 'all' | 'since-user' | 'none'
  /** Where definitions of tools stand: in front of the messages, further behind (the place moves as a chat grows), nowhere. */
  readonly toolsAt: 'head' | 'later' | 'nowhere'
  /** Options that have names in the template; the others change nothing. */
  readonly options: readonly ('thinking' | 'effort' | 'keepReasoning')[]
}

export interface ChatTemplate {
  /** Undefined: shows all reasoning, tools in front. */
  readonly traits?: ChatTraits
  /**
   * @throws RefrainError `template_failed` with the template's own sentence, or where the last message cannot be continued;
   * `invalid_request` for `values` that are no object or override what a template is given anyway.
   */
  render(messages: readonly ChatMessage[], options: RenderOptions): Rendered
}

/** How a model writes what is not plain text; made once a model, parsers once a choice. */
export interface ModelFormats {
  /** `prompt` is the end of the rendered prompt: some templates open the reasoning there. */
  readonly reasoning?: (prompt: string) => ReasoningParser
  /** What a model begins to reason with where the prompt has not, e.g. `<think>`. */
  readonly reasoningStart?: string
  /** What ends the reasoning, e.g. `</think>`; a constraint begins behind it. */
  readonly reasoningEnd?: string
  /** Where an answer to `prompt` begins: in the reasoning, before it (a model may or may not reason), behind it. */
  readonly reasoningPlace?: (prompt: string) => 'inside' | 'before' | 'behind'
  /** What stands in front of a plain answer, as the header of a channel. */
  readonly answerStart?: string
  /** Which reasoning of earlier turns the model is shown; undefined: as sent. */
  readonly retention?: Retention
  /** True: with tools, reasoning that did not come back and is not kept here is an error of the client's. */
  readonly strictReasoning?: boolean
  readonly toolCalls?: (tools: readonly ToolDefinition[]) => ToolCallParser
  readonly callStructure?: (
    tools: readonly CallableTool[],
    count: { readonly min: number; readonly max?: number },
  ) => Structure
  readonly callTrigger?: string
  /** Spellings of special tokens that these forms are written with. */
  readonly specials: readonly string[]
}
