// OpenAI Chat Completions, the encoder: events to chunks or to one body.
// https://platform.openai.com/docs/api-reference/chat-streaming
// Invariant: one id per stream; the role in a choice's first chunk only; a call's id, type, name and arguments in one
// chunk; one finish_reason per choice; usage in exactly one chunk, the last, with no choices.

import type { CallDelta, FinishReason, GenerateEvent, SplitText, TokenLogprob } from '../../core/events.js'
import type { QuickResult } from '../../core/quick.js'
import type { About, BodyEncoder, StreamEncoder } from './contract.js'
import { errorBody, headOf, SSE_END, usageOf } from './openai-shape.js'
import { answerText, quickMember, withAdded } from './quick-result.js'

export interface ChatShape {
  readonly n: number
  readonly includeUsage: boolean
  /** The answer of the one quick instruction is the answer. */
  readonly isTask?: boolean
}

type EndEvent = Extract<GenerateEvent, { type: 'end' }>
type TokenEvent = Extract<GenerateEvent, { type: 'token' }>

/** A call's first piece has id, type and name. */
interface WireCall {
  readonly index: number
  readonly id?: string
  readonly type?: 'function'
  readonly function: { readonly name?: string; readonly arguments: string }
}

interface Delta {
  readonly content: string
  readonly reasoning: string
  readonly calls: readonly WireCall[]
}

/** What the two encoders do alike: each choice's splitter, calls and counts. */
class ChatChoices {
  readonly about: About
  readonly shape: ChatShape
  readonly #callCounts: number[]
  readonly #open: Set<number>
  reasoningTokens = 0
  /** Answers of quick instructions, once they are there. */
  quick: readonly QuickResult[] | undefined
  /** Tokens by choice that have shown nothing yet: a tag, half a character, a line break that may be cut off. */
  readonly #pending: number[]

  constructor(about: About, shape: ChatShape) {
    this.about = about
    this.#pending = Array.from({ length: shape.n }, () => 0)
    this.shape = shape
    this.#callCounts = Array.from({ length: shape.n }, () => 0)
    this.#open = new Set(this.#callCounts.keys())
  }

  /** Choices that have not ended. */
  get open(): readonly number[] {
    return [...this.#open]
  }

  /** Of the whole call where a quick instruction is all of it; else quick instructions say what they added themselves. */
  usage(finish: Extract<GenerateEvent, { type: 'finish' }>) {
    return usageOf(this.shape.isTask ? withAdded(finish, this.quick ?? []) : finish, this.reasoningTokens)
  }

  callCount(choice: number): number {
    return this.#callCounts[choice] ?? 0
  }

  token(event: TokenEvent): Delta {
    const delta = this.#delta(event.choice, event.split ?? { content: event.text, reasoning: '', calls: [] })
    this.#count(event, delta)
    return delta
  }

  end({ choice, split }: Pick<EndEvent, 'choice' | 'split'>): Delta {
    this.#open.delete(choice)
    return this.#delta(choice, split)
  }

  finishReason(choice: number, reason: FinishReason): string {
    return this.callCount(choice) > 0 && reason === 'stop' ? 'tool_calls' : reason
  }

  /** Reasoning as a chunk has it. */
  reasoning(text: string): object {
    return text === '' ? {} : { [this.about.reasoningField ?? 'reasoning_content']: text }
  }

  #count({ choice, ids }: TokenEvent, { content, reasoning, calls }: Delta): void {
    const tokens = (this.#pending[choice] ?? 0) + ids.length
    const shows = reasoning !== '' || content !== '' || calls.length > 0
    if (reasoning !== '' && content === '') this.reasoningTokens += tokens
    this.#pending[choice] = shows ? 0 : tokens
  }

  #delta(choice: number, split: SplitText = { content: '', reasoning: '', calls: [] }): Delta {
    const { content, reasoning, calls } = split
    return { content, reasoning, calls: calls.length === 0 ? [] : calls.map((call) => this.#call(choice, call)) }
  }

  #call(choice: number, { index, id, name, argumentsDelta = '' }: CallDelta): WireCall {
    if (name === undefined) return { index, function: { arguments: argumentsDelta } }
    this.#callCounts[choice] = this.callCount(choice) + 1
    const made = `call_${this.about.id.replace(/^.*-/, '')}${choice}x${index}`
    return { index, id: id ?? made, type: 'function', function: { name, arguments: argumentsDelta } }
  }
}

export class ChatStream implements StreamEncoder {
  readonly ending = SSE_END
  readonly #choices: ChatChoices
  readonly #usage: boolean
  /** A chunk's beginning up to its choices. */
  readonly #head: string

  constructor(about: About, shape: ChatShape) {
    this.#choices = new ChatChoices(about, shape)
    this.#head = headOf('chat.completion.chunk', about)
    this.#usage = shape.includeUsage || about.forceUsage
  }

  event(event: GenerateEvent): string {
    switch (event.type) {
      case 'start':
        return this.#choices.open
          .map((choice) => this.#chunk(choice, { role: 'assistant', content: '' }, { finish: null }))
          .join('')
      case 'token':
        return this.#deltas(event.choice, this.#choices.token(event), event.logprobs)
      case 'end':
        // Of a task, the answer is still to come.
        return this.#choices.shape.isTask ? '' : this.#end(event)
      case 'quick':
        return this.#quick(event.results ?? [])
      case 'finish':
        return this.#choices.open.map((choice) => this.#end({ choice, reason: 'length' })).join('') + this.#last(event)
    }
  }

  failure(error: unknown): string {
    return `data: ${errorBody(error)}\n\n`
  }

  #deltas(choice: number, delta: Delta, logprobs: TokenEvent['logprobs']): string {
    const { content, reasoning, calls } = delta
    let chunks = ''
    if (content !== '' || reasoning !== '' || logprobs !== undefined) {
      const wire = {
        ...this.#choices.reasoning(reasoning),
        ...(content === '' && reasoning !== '' ? {} : { content }),
      }
      chunks += this.#chunk(choice, wire, { finish: null, logprobs })
    }
    for (const call of calls) chunks += this.#chunk(choice, { tool_calls: [call] }, { finish: null })
    return chunks
  }

  #end(event: Pick<EndEvent, 'choice' | 'reason' | 'split'>): string {
    const { choice, reason } = event
    const rest = this.#deltas(choice, this.#choices.end(event), undefined)
    return rest + this.#chunk(choice, {}, { finish: this.#choices.finishReason(choice, reason) })
  }

  /** In a chunk without choices, as usage is: clients pass over what they do not know in it. */
  #quick(results: readonly QuickResult[]): string {
    this.#choices.quick = results
    const chunk = `data: ${this.#head},"choices":[],"quick":${JSON.stringify(quickMember(results))}}\n\n`
    if (this.#choices.shape.isTask !== true) return chunk
    const answer = this.#chunk(0, { content: answerText(results) }, { finish: null })
    return answer + this.#end({ choice: 0, reason: 'stop' }) + chunk
  }

  #last(event: Extract<GenerateEvent, { type: 'finish' }>): string {
    if (!this.#usage) return ''
    const usage = JSON.stringify(this.#choices.usage(event))
    return `data: ${this.#head},"choices":[],"usage":${usage}}\n\n`
  }

  /** Written by hand around what changes: this is done for every token. */
  #chunk(choice: number, delta: object, rest: { finish: string | null; logprobs?: TokenEvent['logprobs'] }): string {
    const logprobs = rest.logprobs === undefined ? null : { content: rest.logprobs.map(wireLogprob), refusal: null }
    const finish = rest.finish === null ? 'null' : `"${rest.finish}"`
    return (
      `data: ${this.#head},"choices":[{"index":${choice},"delta":${JSON.stringify(delta)},` +
      `"logprobs":${JSON.stringify(logprobs)},"finish_reason":${finish}}]${this.#usage ? ',"usage":null' : ''}}\n\n`
    )
  }
}

export class ChatBody implements BodyEncoder {
  readonly #choices: ChatChoices
  readonly #texts: { content: string; reasoning: string; calls: WireCall[] }[]
  readonly #logprobs: object[][]
  readonly #reasons: string[]
  #usage: object | undefined

  constructor(about: About, shape: ChatShape) {
    this.#choices = new ChatChoices(about, shape)
    this.#texts = Array.from({ length: shape.n }, () => ({ content: '', reasoning: '', calls: [] }))
    this.#logprobs = Array.from({ length: shape.n }, () => [])
    this.#reasons = Array.from({ length: shape.n }, () => 'length')
  }

  event(event: GenerateEvent): void {
    if (event.type === 'token') {
      this.#add(event.choice, this.#choices.token(event))
      if (event.logprobs !== undefined) this.#logprobs[event.choice]?.push(...event.logprobs.map(wireLogprob))
    } else if (event.type === 'end') {
      this.#add(event.choice, this.#choices.end(event))
      this.#reasons[event.choice] = this.#choices.finishReason(event.choice, event.reason)
    } else if (event.type === 'quick') {
      this.#choices.quick = event.results ?? []
      if (this.#choices.shape.isTask !== true) return
      this.#add(0, { content: answerText(this.#choices.quick), reasoning: '', calls: [] })
      this.#choices.end({ choice: 0 })
      this.#reasons[0] = 'stop'
    } else if (event.type === 'finish') {
      for (const choice of this.#choices.open) this.#add(choice, this.#choices.end({ choice }))
      this.#usage = this.#choices.usage(event)
    }
  }

  body(): string {
    const { id, created, model } = this.#choices.about
    const choices = this.#texts.map((text, index) => ({
      index,
      message: {
        role: 'assistant',
        content: text.content === '' && text.calls.length > 0 ? null : text.content,
        refusal: null,
        ...this.#choices.reasoning(text.reasoning),
        ...(text.calls.length === 0 ? {} : { tool_calls: wholeCalls(text.calls) }),
      },
      logprobs: this.#logprobs[index]?.length ? { content: this.#logprobs[index], refusal: null } : null,
      finish_reason: this.#reasons[index],
    }))
    const quick = this.#choices.quick && { quick: quickMember(this.#choices.quick) }
    return JSON.stringify({ id, object: 'chat.completion', created, model, choices, usage: this.#usage, ...quick })
  }

  #add(choice: number, delta: Delta): void {
    const text = this.#texts[choice]
    if (text === undefined) return
    text.content += delta.content
    text.reasoning += delta.reasoning
    text.calls.push(...delta.calls)
  }
}

/** The pieces of each call put together. */
function wholeCalls(pieces: readonly WireCall[]): object[] {
  const calls: { id?: string; type: 'function'; function: { name: string; arguments: string } }[] = []
  for (const { index, id, function: piece } of pieces) {
    calls[index] ??= { ...(id === undefined ? {} : { id }), type: 'function', function: { name: '', arguments: '' } }
    const whole = calls[index].function
    whole.name += piece.name ?? ''
    whole.arguments += piece.arguments
  }
  return calls.filter((call) => call !== undefined)
}

function wireLogprob(entry: TokenLogprob & { readonly top: readonly TokenLogprob[] }) {
  return { ...wireToken(entry), top_logprobs: entry.top.map(wireToken) }
}

function wireToken({ text, bytes, logprob }: TokenLogprob) {
  // JSON has no infinities; -9999 is what OpenAI's own API documents for a token that is all but impossible.
  return { token: text, logprob: Number.isFinite(logprob) ? logprob : -9999, bytes }
}
