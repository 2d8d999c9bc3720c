// What a model says, told apart into the content blocks of the Messages API: for both encoders. Invariant: one block is open
// at a time, indices are contiguous, no block is empty or white space alone: clients send blocks back, and refuse
// or drop such ones.

import type { CallDelta, GenerateEvent, SplitText } from '../../core/events.js'
import { sealThinking, signatureOf } from './anthropic-shape.js'

export type OpenBlock =
  | { readonly type: 'thinking' }
  | { readonly type: 'text' }
  | { readonly type: 'tool_use'; readonly id: string; readonly name: string }

export type BlockStep =
  | { readonly kind: 'open'; readonly index: number; readonly block: OpenBlock }
  | { readonly kind: 'delta'; readonly index: number; readonly type: OpenBlock['type']; readonly text: string }
  | { readonly kind: 'signature'; readonly index: number; readonly signature: string }
  | { readonly kind: 'close'; readonly index: number }

export interface BlockOptions {
  /** Ids of calls whose form has none begin with it. */
  readonly callPrefix: string
  /** Reasoning is not shown; the signature holds it. */
  readonly omitsThinking: boolean
}

const NOTHING: SplitText = { content: '', reasoning: '', calls: [] }

/** The blocks of one answer. */
export class BlockSequence {
  readonly #options: BlockOptions
  #index = -1
  #open: OpenBlock['type'] | undefined
  /** White space that becomes text, or reasoning, when more of it follows. */
  #space = ''
  #spaceThought = ''
  #thought = ''
  #hasInput = false
  callCount = 0
  thinkingTokens = 0

  constructor(options: BlockOptions) {
    this.#options = options
  }

  token(event: Extract<GenerateEvent, { type: 'token' }>): BlockStep[] {
    const split = event.split ?? { ...NOTHING, content: event.text }
    if (split.reasoning !== '' && split.content === '') this.thinkingTokens += event.ids.length
    return this.#split(split)
  }

  /** What was held back, and the end of the open block. */
  end(split: SplitText = NOTHING): BlockStep[] {
    const steps = this.#split(split)
    this.#close(steps)
    return steps
  }

  #split({ reasoning, content, calls }: SplitText): BlockStep[] {
    const steps: BlockStep[] = []
    if (reasoning !== '') this.#think(reasoning, steps)
    if (content !== '') this.#say(content, steps)
    for (const call of calls) this.#call(call, steps)
    return steps
  }

  #think(text: string, steps: BlockStep[]): void {
    let shown = text
    if (this.#open !== 'thinking') {
      this.#spaceThought += text
      if (text.trim() === '') return
      shown = this.#spaceThought
      this.#begin({ type: 'thinking' }, steps)
      this.#thought = ''
    }
    this.#thought += shown
    if (!this.#options.omitsThinking) steps.push({ kind: 'delta', index: this.#index, type: 'thinking', text: shown })
  }

  #say(text: string, steps: BlockStep[]): void {
    if (this.#open !== 'text') {
      this.#space += text
      if (text.trim() === '') return
      const whole = this.#space
      this.#begin({ type: 'text' }, steps)
      steps.push({ kind: 'delta', index: this.#index, type: 'text', text: whole })
    } else steps.push({ kind: 'delta', index: this.#index, type: 'text', text })
  }

  #call({ index, id, name, argumentsDelta = '' }: CallDelta, steps: BlockStep[]): void {
    if (name !== undefined) {
      this.callCount++
      this.#begin({ type: 'tool_use', id: id ?? `${this.#options.callPrefix}${index}`, name }, steps)
      this.#hasInput = false
    }
    if (argumentsDelta === '') return
    this.#hasInput = true
    steps.push({ kind: 'delta', index: this.#index, type: 'tool_use', text: argumentsDelta })
  }

  #begin(block: OpenBlock, steps: BlockStep[]): void {
    this.#close(steps)
    this.#space = ''
    this.#spaceThought = ''
    this.#open = block.type
    steps.push({ kind: 'open', index: ++this.#index, block })
  }

  #close(steps: BlockStep[]): void {
    const index = this.#index
    if (this.#open === undefined) return
    if (this.#open === 'thinking') {
      const sign = this.#options.omitsThinking ? sealThinking : signatureOf
      steps.push({ kind: 'signature', index, signature: sign(this.#thought) })
    }
    // A call without arguments is a call with none, to every client.
    if (this.#open === 'tool_use' && !this.#hasInput) steps.push({ kind: 'delta', index, type: 'tool_use', text: '{}' })
    this.#open = undefined
    steps.push({ kind: 'close', index })
  }
}
