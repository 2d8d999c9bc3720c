// One choice of the scripted backend while it is being written: the next token, the text that it makes visible, and why
// it ends. Invariant: text is whole characters, and nothing of a stop string or after it is ever shown.

import type { FinishReason, GenerateEvent } from '../core/events.js'
import type { GenerateRequest } from '../core/request.js'
import type { Detokenizer, Tokenizer } from '../prompt/contract.js'
import { END_ID } from './scripted-tokenizer.js'

type TokenEvent = Extract<GenerateEvent, { type: 'token' }>
type EndEvent = Extract<GenerateEvent, { type: 'end' }>

export class ScriptedAnswer {
  readonly #script: Int32Array
  readonly #request: GenerateRequest
  readonly #tokenizer: Tokenizer
  readonly #detokenizer: Detokenizer
  readonly #choice: number
  readonly #maxTokens: number
  #held = ''
  #ended = false
  /** Tokens written so far; the end token counts, as a model's does. */
  readonly ids: number[] = []

  constructor(options: {
    /** Ids are written as they are. */
    readonly text: string | readonly number[]
    readonly choice: number
    readonly request: GenerateRequest
    readonly maxTokens: number
    readonly tokenizer: Tokenizer
    readonly visibleSpecials?: readonly number[] | undefined
  }) {
    const { text, tokenizer } = options
    this.#script =
      typeof text === 'string' ? tokenizer.encode(text, { special: 'text', bos: 'none' }) : Int32Array.from(text)
    this.#request = options.request
    this.#tokenizer = options.tokenizer
    this.#detokenizer = options.tokenizer.stream(options.visibleSpecials)
    this.#choice = options.choice
    this.#maxTokens = options.maxTokens
  }

  get ended(): boolean {
    return this.#ended
  }

  /** Writes one token and returns what it leads to: a token event, and the end event when that was the last. */
  step(): (TokenEvent | EndEvent)[] {
    if (this.#maxTokens === 0) return [this.#end('length')]
    const id = this.#next()
    this.ids.push(id)
    const isStop = (id === END_ID && !this.#request.ignoreEos) || this.#request.stopTokenIds.includes(id)
    if (isStop) return this.#finish(id, this.#detokenizer.end(), 'stop')
    const pushed = this.#detokenizer.push(id)
    if (this.ids.length < this.#maxTokens) {
      const shown = this.#show(pushed)
      if (shown.stopString === undefined) return [this.#token(id, shown.text)]
      return [this.#token(id, shown.text), this.#end('stop', shown.stopString)]
    }
    return this.#finish(id, pushed + this.#detokenizer.end(), 'length')
  }

  #next(): number {
    const at = this.ids.length
    if (this.#request.ignoreEos && this.#script.length > 0) return this.#script[at % this.#script.length] as number
    return this.#script[at] ?? END_ID
  }

  #finish(id: number, text: string, reason: FinishReason): (TokenEvent | EndEvent)[] {
    const shown = this.#show(text)
    if (shown.stopString !== undefined) return [this.#token(id, shown.text), this.#end('stop', shown.stopString)]
    return [this.#token(id, shown.text + this.#held), this.#end(reason)]
  }

  /** Text that is certain not to belong to a stop string; a possible beginning of one is held back. */
  #show(text: string): { text: string; stopString?: string } {
    const { stop } = this.#request
    if (stop.length === 0) return { text }
    const all = this.#held + text
    const found = stop
      .map((stopString) => ({ at: all.indexOf(stopString), stopString }))
      .filter((hit) => hit.at >= 0)
      .sort((a, b) => a.at - b.at)[0]
    if (found !== undefined) {
      this.#held = ''
      return { text: all.slice(0, found.at), stopString: found.stopString }
    }
    const keep = Math.max(0, ...stop.map((stopString) => overlap(all, stopString)))
    this.#held = all.slice(all.length - keep)
    return { text: all.slice(0, all.length - keep) }
  }

  #token(id: number, text: string): TokenEvent {
    const event = { type: 'token', choice: this.#choice, ids: [id], text } as const
    if (this.#request.logprobs === undefined) return event
    const certain = { id, text: this.#spell(id), bytes: [...this.#tokenizer.bytesOf(id)], logprob: 0 }
    return { ...event, logprobs: [{ ...certain, top: this.#request.logprobs > 0 ? [certain] : [] }] }
  }

  #spell(id: number): string {
    return this.#tokenizer.decode([id], { special: 'keep' })
  }

  #end(reason: FinishReason, stopString?: string): EndEvent {
    this.#ended = true
    return { type: 'end', choice: this.#choice, reason, ...(stopString === undefined ? {} : { stopString }) }
  }
}

/** Length of the longest proper beginning of `stopString` that `text` ends with. */
function overlap(text: string, stopString: string): number {
  for (let length = Math.min(stopString.length - 1, text.length); length > 0; length--) {
    if (text.endsWith(stopString.slice(0, length))) return length
  }
  return 0
}
