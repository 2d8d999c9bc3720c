// One choice's text on its way out: reasoning first, then tool calls, told apart by the formats that the model's card
// names. Invariant: text that is neither leaves as it came, in order, nothing lost and nothing twice.

import type { CallDelta } from '../../prompt/tool-calls/contract.js'
import type { OutputFormats } from './contract.js'

/** What a piece of text turned out to be. */
export interface SplitOutput {
  readonly content: string
  readonly reasoning: string
  readonly calls: readonly CallDelta[]
}

const NONE: readonly CallDelta[] = []

export class OutputSplitter {
  readonly #reasoning: ReturnType<NonNullable<OutputFormats['reasoning']>> | undefined
  readonly #toolCalls: ReturnType<NonNullable<OutputFormats['toolCalls']>> | undefined

  readonly #plain: boolean

  constructor(formats: OutputFormats) {
    this.#reasoning = formats.reasoning?.()
    this.#toolCalls = formats.toolCalls?.()
    this.#plain = this.#reasoning === undefined && this.#toolCalls === undefined
  }

  push(text: string): SplitOutput {
    if (this.#plain) return { content: text, reasoning: '', calls: NONE }
    const { reasoning, content } = this.#reasoning?.push(text) ?? { reasoning: '', content: text }
    return { reasoning, ...(this.#toolCalls?.push(content) ?? { content, calls: [] }) }
  }

  /** The text is over: what was held back comes out. */
  end(): SplitOutput {
    const { reasoning, content } = this.#reasoning?.end() ?? { reasoning: '', content: '' }
    if (this.#toolCalls === undefined) return { reasoning, content, calls: [] }
    const last = this.#toolCalls.push(content)
    const held = this.#toolCalls.end()
    return { reasoning, content: last.content + held.content, calls: [...last.calls, ...held.calls] }
  }
}
