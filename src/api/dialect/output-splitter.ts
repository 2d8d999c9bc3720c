// One choice's text on its way out: reasoning first, then tool calls, told apart by the formats that the model's card
// names. Invariant: text that is neither leaves as it came, in order, nothing lost and nothing twice.

import type { OutputFormats, OutputParser, OutputPart } from './contract.js'

export class OutputSplitter implements OutputParser {
  readonly #reasoning: OutputParser | undefined
  readonly #toolCalls: OutputParser | undefined

  constructor(formats: OutputFormats) {
    this.#reasoning = formats.reasoning?.()
    this.#toolCalls = formats.toolCalls?.()
  }

  push(text: string): readonly OutputPart[] {
    if (text === '') return []
    if (this.#reasoning === undefined) return this.#calls(text)
    return this.#reasoning.push(text).flatMap((part) => this.#withCalls(part))
  }

  end(): readonly OutputPart[] {
    const rest = this.#reasoning?.end().flatMap((part) => this.#withCalls(part)) ?? []
    return [...rest, ...(this.#toolCalls?.end() ?? [])]
  }

  #withCalls(part: OutputPart): readonly OutputPart[] {
    return part.type === 'text' ? this.#calls(part.text) : [part]
  }

  #calls(text: string): readonly OutputPart[] {
    return this.#toolCalls?.push(text) ?? [{ type: 'text', text }]
  }
}
