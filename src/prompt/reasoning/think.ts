// Reasoning between <think> and </think> at the start of an answer. Invariant: the line breaks that templates put around
// the tags belong to neither part; a tag later in the text is content, for a model may speak of it.

import { Type } from 'typebox'
import { partialTag } from '../held-text.js'
import type { ReasoningFormat, ReasoningParser, SplitText } from './contract.js'

const OPEN = '<think>'
const CLOSE = '</think>'

export const think: ReasoningFormat = {
  options: Type.Object({}),
  create: (_, { prompt }) => new ThinkParser(prompt.trimEnd().endsWith(OPEN) ? 'reasoning' : 'start'),
}

type State = 'start' | 'reasoning' | 'after' | 'content'

class ThinkParser implements ReasoningParser {
  #state: State
  #held = ''
  /** Whether some of the reasoning is out, so that its line breaks count. */
  #begun = false

  constructor(state: State) {
    this.#state = state
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
    if (this.#state === 'reasoning')
      return { reasoning: trimmedEnd(this.#begun ? rest : trimmedStart(rest)), content: '' }
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
    if (text.startsWith(OPEN)) {
      this.#held = text.slice(OPEN.length)
      this.#state = 'reasoning'
      return true
    }
    if (OPEN.startsWith(text)) return false
    this.#state = 'content'
    return true
  }

  #reason(out: { reasoning: string }): boolean {
    if (!this.#begun) this.#held = trimmedStart(this.#held)
    const at = this.#held.indexOf(CLOSE)
    const text =
      at < 0 ? this.#held.slice(0, this.#held.length - partialTag(this.#held, [CLOSE])) : this.#held.slice(0, at)
    const sure = trimmedEnd(text)
    out.reasoning += sure
    if (sure !== '') this.#begun = true
    this.#held = at < 0 ? this.#held.slice(sure.length) : this.#held.slice(at + CLOSE.length)
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
