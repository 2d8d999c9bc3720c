// OpenAI Completions, the encoder: events to chunks or to one body. Invariant: one id per stream, one finish_reason per
// choice, usage in exactly one chunk, the last, with no choices; text_offset counts characters of the choice's text.

import type { GenerateEvent, TokenLogprob } from '../../core/events.js'
import type { About, BodyEncoder, StreamEncoder } from './contract.js'
import { errorBody, headOf, SSE_END, usageOf } from './openai-shape.js'

export interface CompletionShape {
  readonly choices: number
  readonly includeUsage: boolean
}

type TokenEvent = Extract<GenerateEvent, { type: 'token' }>

interface LegacyLogprobs {
  readonly tokens: string[]
  readonly token_logprobs: number[]
  readonly top_logprobs: Record<string, number>[]
  readonly text_offset: number[]
}

export class CompletionStream implements StreamEncoder {
  readonly ending = SSE_END
  readonly #usage: boolean
  readonly #head: string
  readonly #open: Set<number>
  readonly #lengths: number[]

  constructor(about: About, shape: CompletionShape) {
    this.#head = headOf('text_completion', about)
    this.#usage = shape.includeUsage || about.forceUsage
    this.#lengths = Array.from({ length: shape.choices }, () => 0)
    this.#open = new Set(this.#lengths.keys())
  }

  event(event: GenerateEvent): string {
    switch (event.type) {
      case 'start':
        return ''
      case 'token':
        return event.text === '' && event.logprobs === undefined ? '' : this.#token(event)
      case 'end':
        this.#open.delete(event.choice)
        return this.#chunk(event.choice, '', { finish: event.reason })
      case 'quick':
        return ''
      case 'finish': {
        const rest = [...this.#open].map((choice) => this.#chunk(choice, '', { finish: 'length' })).join('')
        if (!this.#usage) return rest
        return `${rest}data: ${this.#head},"choices":[],"usage":${JSON.stringify(usageOf(event, 0))}}\n\n`
      }
    }
  }

  failure(error: unknown): string {
    return `data: ${errorBody(error)}\n\n`
  }

  #token(event: TokenEvent): string {
    const offset = this.#lengths[event.choice] ?? 0
    this.#lengths[event.choice] = offset + event.text.length
    const logprobs = event.logprobs === undefined ? undefined : emptyLogprobs()
    if (logprobs !== undefined) addLogprobs(logprobs, event, offset)
    return this.#chunk(event.choice, event.text, { finish: null, ...(logprobs === undefined ? {} : { logprobs }) })
  }

  #chunk(index: number, text: string, rest: { finish: string | null; logprobs?: LegacyLogprobs }): string {
    const choice = { text, index, logprobs: rest.logprobs ?? null, finish_reason: rest.finish }
    return `data: ${this.#head},"choices":[${JSON.stringify(choice)}]${this.#usage ? ',"usage":null' : ''}}\n\n`
  }
}

export class CompletionBody implements BodyEncoder {
  readonly #about: About
  readonly #texts: string[]
  readonly #reasons: string[]
  readonly #logprobs: LegacyLogprobs[]
  #usage: object | undefined

  constructor(about: About, shape: CompletionShape) {
    this.#about = about
    this.#texts = Array.from({ length: shape.choices }, () => '')
    this.#reasons = this.#texts.map(() => 'length')
    this.#logprobs = this.#texts.map(emptyLogprobs)
  }

  event(event: GenerateEvent): void {
    if (event.type === 'token') {
      const logprobs = this.#logprobs[event.choice]
      if (logprobs !== undefined) addLogprobs(logprobs, event, this.#texts[event.choice]?.length ?? 0)
      this.#texts[event.choice] += event.text
    } else if (event.type === 'end') this.#reasons[event.choice] = event.reason
    else if (event.type === 'finish') this.#usage = usageOf(event, 0)
  }

  body(): string {
    const { id, created, model } = this.#about
    const choices = this.#texts.map((text, index) => ({
      text,
      index,
      logprobs: this.#logprobs[index]?.tokens.length ? this.#logprobs[index] : null,
      finish_reason: this.#reasons[index],
    }))
    return JSON.stringify({ id, object: 'text_completion', created, model, choices, usage: this.#usage })
  }
}

function emptyLogprobs(): LegacyLogprobs {
  return { tokens: [], token_logprobs: [], top_logprobs: [], text_offset: [] }
}

function addLogprobs(into: LegacyLogprobs, event: TokenEvent, offset: number): void {
  for (const entry of event.logprobs ?? []) {
    into.tokens.push(entry.text)
    into.token_logprobs.push(finite(entry))
    into.top_logprobs.push(Object.fromEntries([entry, ...entry.top].map((token) => [token.text, finite(token)])))
    into.text_offset.push(offset)
  }
}

function finite({ logprob }: TokenLogprob): number {
  return Number.isFinite(logprob) ? logprob : -9999
}
