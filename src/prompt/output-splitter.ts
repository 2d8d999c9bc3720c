// One choice's text on its way out: reasoning first, then tool calls, told apart by the formats that the model's card
// names. Invariant: text that is neither leaves as it came, in order, nothing lost and nothing twice.

import type { CallDelta, SplitText } from '../core/events.js'
import type { ReasoningParser } from './reasoning/contract.js'
import type { ToolCallParser } from './tool-calls/contract.js'

const NONE: readonly CallDelta[] = []

export class OutputSplitter {
  readonly #reasoning: ReasoningParser | undefined
  readonly #toolCalls: ToolCallParser | undefined

  constructor(parsers: { readonly reasoning?: ReasoningParser; readonly toolCalls?: ToolCallParser }) {
    this.#reasoning = parsers.reasoning
    this.#toolCalls = parsers.toolCalls
  }

  push(text: string): SplitText {
    const { reasoning, content } = this.#reasoning?.push(text) ?? { reasoning: '', content: text }
    return { reasoning, ...(this.#toolCalls?.push(content) ?? { content, calls: NONE }) }
  }

  /** The text is over: what was held back comes out. */
  end(): SplitText {
    const { reasoning, content } = this.#reasoning?.end() ?? { reasoning: '', content: '' }
    if (this.#toolCalls === undefined) return { reasoning, content, calls: NONE }
    const last = this.#toolCalls.push(content)
    const held = this.#toolCalls.end()
    return { reasoning, content: last.content + held.content, calls: [...last.calls, ...held.calls] }
  }
}
