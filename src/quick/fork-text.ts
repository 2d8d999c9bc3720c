// What a question looks like behind a conversation, in the words of the model's template: the template renders the chat
// with a mark in the place of the instruction, once for all tasks, and what it writes around the mark is the suffix.
//
//   at the prompt    ... conversation | opening  INSTRUCTION  closing, header of an answer
//   at the reply     ... conversation, header | answer | its end, opening  INSTRUCTION  closing, header
//   native           ... conversation | before, TOKEN

import { RefrainError } from '../core/errors.js'
import type { ChatMessage, Thinking } from '../core/request.js'
import type { ModelFormats, Rendered, Tokenizer } from '../prompt/contract.js'
import type { NativePlace } from './catalogue.js'

export interface TextParts {
  readonly ask: { readonly at: 'user' | 'reply' }
  readonly messages: readonly ChatMessage[]
  /** The answer goes on with the last message. */
  readonly continues: boolean
  readonly rendered: Rendered
  /** Renders other messages just as the prompt was, but for what is said here. */
  render(messages: readonly ChatMessage[], more: RenderChange): Rendered
  readonly formats: ModelFormats
  readonly tokenizer: Tokenizer
  readonly tokens: Int32Array
  readonly prefixTokens: number
}

export interface RenderChange {
  readonly addGenerationPrompt: boolean
  readonly thinking?: Thinking
}

export interface Suffix {
  readonly shares: number | 'reply'
  readonly ids: Int32Array
}

interface Frame {
  readonly before: string
  readonly after: string
}

const MARK = 'refrain-quick-instruction'
const REPLY_MARK = 'refrain-quick-reply'

const CHAT = { special: 'parse', bos: 'none' } as const

/** Side questions are answered at once, where the template can be told so. */
const ASIDE: RenderChange = { addGenerationPrompt: true, thinking: { enabled: false } }

export class ForkTexts {
  readonly #parts: TextParts
  #frame: Frame | undefined

  constructor(parts: TextParts) {
    this.#parts = parts
  }

  /** Whether a native token of this place can stand where the tasks are asked. */
  fits(place: NativePlace): boolean {
    const { ask, messages } = this.#parts
    const isBehindReply = ask.at === 'reply' || messages.at(-1)?.role === 'assistant'
    return (place === 'reply') === isBehindReply
  }

  native(place: NativePlace, text: string): Suffix {
    const { ask, rendered } = this.#parts
    if (ask.at === 'reply') {
      const { after } = this.#behindReply([])
      return this.#reply(after + text)
    }
    const end = place === 'header' ? rendered.text.length : rendered.tail
    return this.#behind(rendered.text.slice(0, end), text)
  }

  instruction(instruction: string): Suffix {
    const { ask, rendered } = this.#parts
    this.#frame ??= this.#makeFrame()
    const { before, after } = this.#frame
    const text = instruction.trim() + after
    if (ask.at === 'reply') return this.#reply(before + text)
    const prefix = rendered.text.slice(0, rendered.tail)
    return before.startsWith(prefix)
      ? this.#behind(prefix, before.slice(prefix.length) + text)
      : this.#whole(before + text)
  }

  #makeFrame(): Frame {
    const { ask, messages } = this.#parts
    const question: ChatMessage = { role: 'user', content: MARK }
    if (ask.at === 'reply') {
      const { after } = this.#behindReply([question])
      return this.#cut(after)
    }
    try {
      return this.#cut(this.#parts.render([...messages, question], ASIDE).text)
    } catch (fault) {
      const last = messages.at(-1)
      if (!(fault instanceof RefrainError) || fault.code !== 'template_failed' || last?.role !== 'user') throw fault
      // A template that takes no two messages of the user's in a row: the question ends the one that is there.
      const joined = { ...last, content: `${last.content}\n\n${MARK}` }
      return this.#cut(this.#parts.render([...messages.slice(0, -1), joined], ASIDE).text)
    }
  }

  /** What stands behind an answer that is not there yet, with `more` messages behind it. */
  #behindReply(more: readonly ChatMessage[]): { after: string } {
    const { messages, render, continues } = this.#parts
    const [begun] = continues ? messages.slice(-1) : []
    const opened: ChatMessage = begun ?? { role: 'assistant', content: '' }
    const answered = { ...opened, content: opened.content + REPLY_MARK }
    const before = begun === undefined ? messages : messages.slice(0, -1)
    const how = more.length > 0 ? ASIDE : { addGenerationPrompt: false }
    const { text } = render([...before, answered, ...more], how)
    const at = text.lastIndexOf(REPLY_MARK)
    if (at < 0) throw lost()
    return { after: text.slice(at + REPLY_MARK.length) }
  }

  #cut(text: string): Frame {
    const at = text.lastIndexOf(MARK)
    if (at < 0) throw lost()
    const after = text.slice(at + MARK.length)
    return { before: text.slice(0, at), after: after + this.#pastReasoning(after) }
  }

  /** What brings the model to its answer where the header alone would have it reason first. */
  #pastReasoning(after: string): string {
    const { reasoningPlace, reasoningStart, reasoningEnd, answerStart } = this.#parts.formats
    const place = reasoningPlace?.(after) ?? 'behind'
    if (place === 'behind') return ''
    if (place === 'inside') return reasoningEnd === undefined ? '' : `\n${reasoningEnd}\n\n`
    if (answerStart !== undefined) return answerStart
    if (reasoningStart === undefined || reasoningEnd === undefined) return ''
    return `${reasoningStart}\n\n${reasoningEnd}\n\n`
  }

  /** `text` behind `prefix`, the prompt's text up to its header or to its end. */
  #behind(prefix: string, text: string): Suffix {
    const { tokenizer, tokens, prefixTokens, rendered } = this.#parts
    const ids = tokenizer.encode(text, CHAT)
    const shares = prefix.length === rendered.text.length ? tokens.length : prefixTokens
    // Text is cut at special tokens first: from one of them on, it is tokenized as if nothing stood before it.
    const [first] = ids
    if (first !== undefined && tokenizer.isSpecial(first)) return { shares, ids }
    return this.#whole(prefix + text)
  }

  /** A text that shares with the prompt what it shares. */
  #whole(text: string): Suffix {
    const { tokenizer, tokens } = this.#parts
    const ids = tokenizer.encode(text, CHAT)
    const most = Math.min(tokens.length, ids.length - 1)
    let shares = 0
    while (shares < most && tokens[shares] === ids[shares]) shares++
    return { shares, ids: ids.subarray(shares) }
  }

  #reply(text: string): Suffix {
    return { shares: 'reply', ids: this.#parts.tokenizer.encode(text, CHAT) }
  }
}

function lost(): RefrainError {
  return new RefrainError(
    'template_failed',
    "the model's chat template does not show the last message as it was given",
    {
      param: 'messages',
    },
  )
}
