// Reasoning between two tags at the start of an answer. Invariant: the line breaks that templates put around the tags
// belong to neither part; a tag later in the text is content, for a model may speak of it.

import { Type } from 'typebox'
import { partialTag } from '../held-text.js'
import type { ReasoningFormat, ReasoningParser, SplitText } from './contract.js'

export interface ReasoningTags {
  readonly open: string
  readonly close: string
  /** True: the model may leave the open tag out, so an answer begins inside unless the prompt closed the reasoning. */
  readonly implied?: boolean
}

export function taggedReasoning(tags: ReasoningTags): ReasoningFormat {
  const begins: ReasoningFormat['begins'] = (prompt) => {
    const end = prompt.trimEnd()
    if (end.endsWith(tags.close)) return 'behind'
    return tags.implied === true || end.endsWith(tags.open) ? 'inside' : 'before'
  }
  return {
    options: Type.Object({}),
    specials: [tags.open, tags.close],
    opening: tags.open,
    ending: tags.close,
    begins,
    // A model may think although the prompt closed the reasoning.
    create: (_, { prompt }) => new TaggedParser(tags, begins(prompt) === 'inside'),
  }
}

export const think = taggedReasoning({ open: '<think>', close: '</think>' })

/** DeepSeek-R1 with templates that leave the open tag to the model, which it may forget. */
export const thinkImplied = taggedReasoning({ open: '<think>', close: '</think>', implied: true })

type State = 'start' | 'reasoning' | 'after' | 'content'

class TaggedParser implements ReasoningParser {
  readonly #tags: ReasoningTags
  /** What has no open tag is reasoning, too; a model may write the tag once more. */
  readonly #inside: boolean
  #state: State = 'start'
  #held = ''
  /** Whether some of the reasoning is out, so that its line breaks count. */
  #begun = false

  constructor(tags: ReasoningTags, inside: boolean) {
    this.#tags = tags
    this.#inside = inside
  }

  push(text: string): SplitText {
    this.#held += text
    const out = { reasoning: '', content: '' }
    while (this.#step(out)) {
      // Each round settles one state.
    }
    return out
  }

  end(): SplitText {
    const rest = this.#held
    this.#held = ''
    if (this.#state === 'reasoning' || (this.#state === 'start' && this.#inside)) {
      return { reasoning: trimmedEnd(this.#begun ? rest : trimmedStart(rest)), content: '' }
    }
    return { reasoning: '', content: this.#state === 'after' ? trimmedStart(rest) : rest }
  }

  // True: the state changed and what is held has to be looked at again.
  #step(out: { reasoning: string; content: string }): boolean {
    switch (this.#state) {
      case 'start':
        return this.#start()
      case 'reasoning':
        return this.#reason(out)
      case 'after':
        this.#held = trimmedStart(this.#held)
        if (this.#held === '') return false
        this.#state = 'content'
        return true
      case 'content':
        out.content += this.#held
        this.#held = ''
        return false
    }
  }

  #start(): boolean {
    const text = this.#held.trimStart()
    const { open } = this.#tags
    if (text.startsWith(open)) {
      this.#held = text.slice(open.length)
      this.#state = 'reasoning'
      return true
    }
    if (open.startsWith(text)) return false
    this.#state = this.#inside ? 'reasoning' : 'content'
    return true
  }

  #reason(out: { reasoning: string }): boolean {
    const { close } = this.#tags
    if (!this.#begun) this.#held = trimmedStart(this.#held)
    const at = this.#held.indexOf(close)
    const text =
      at < 0 ? this.#held.slice(0, this.#held.length - partialTag(this.#held, [close])) : this.#held.slice(0, at)
    const sure = trimmedEnd(text)
    out.reasoning += sure
    if (sure !== '') this.#begun = true
    this.#held = at < 0 ? this.#held.slice(sure.length) : this.#held.slice(at + close.length)
    if (at >= 0) this.#state = 'after'
    return at >= 0
  }
}

const trimmedStart = (text: string): string => text.replace(/^\n+/, '')

function trimmedEnd(text: string): string {
  let end = text.length
  while (text[end - 1] === '\n') end--
  return text.slice(0, end)
}
