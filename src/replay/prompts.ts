// A planned request as the body that is sent: recorded messages as they are, or text in place of blocks. Invariant: prompts
// that share blocks in the trace share their beginning here, borders of messages included, because a border depends on
// the blocks before it alone.
//
//   chat:         system | user | assistant | user      a border after about 1,000 tokens, by the block's name
//   completions:  one text                              tokens: the ids themselves, as long as the trace says

import type { TraceRequest } from '../trace/trace.js'
import type { Plan, PlannedRequest } from './plan.js'
import { numbersOf, WordText } from './words.js'

export type Api = 'chat' | 'completions' | 'tokens'

/** How a target is spoken to. */
export interface Speech {
  readonly api: Api
  readonly model: string
  /** Words for a token of the trace, in the target's own tokenizer. */
  readonly wordsPerToken: number
  /** Ids that prompts of `tokens` are made of. */
  readonly tokenIds: readonly [number, number]
  /** Other salts, other texts: a server that has seen the trace knows nothing of them. */
  readonly salt: string
  /** Tokens of the trace that one token here stands for. */
  readonly shrink: number
  /** Tokens of an answer, at most. */
  readonly mostOutput: number
  readonly ignoreEos: boolean
}

export interface Sent {
  readonly path: string
  readonly body: Readonly<Record<string, unknown>>
}

const MESSAGE_TOKENS = 1024
const ROLES = ['user', 'assistant'] as const

export class Prompts {
  readonly #plan: Plan
  readonly #words = new WordText()
  /** Of a conversation's request, the next one of it, for blocks. */
  readonly #next = new Map<number, TraceRequest>()

  constructor(plan: Plan) {
    this.#plan = plan
    if (plan.texts.kind === 'messages') return
    const last = new Map<string, number>()
    for (const [i, request] of plan.texts.requests.entries()) {
      const key = `${request.scope} ${request.session ?? `#${i}`}`
      const before = last.get(key)
      if (before !== undefined) this.#next.set(before, request)
      last.set(key, i)
    }
  }

  of({ index, outputTokens }: PlannedRequest, speech: Speech): Sent {
    const { model, mostOutput, ignoreEos } = speech
    const common = {
      model,
      max_tokens: Math.max(1, Math.min(mostOutput, Math.ceil((outputTokens ?? mostOutput) / speech.shrink))),
      temperature: 0,
      stream: true,
      stream_options: { include_usage: true },
      ...(ignoreEos && { ignore_eos: true }),
    }
    const { texts } = this.#plan
    if (texts.kind === 'messages') {
      const { messages, tools } = texts.requests[index]!
      // Servers refuse an answer without content that is not there at all.
      const sent = messages.map((message) => ({ ...message, content: message.content ?? '' }))
      return { path: '/v1/chat/completions', body: { ...common, messages: sent, ...(tools && { tools }) } }
    }
    const parts = this.#partsOf(index, texts.blockTokens, speech.salt)
    if (speech.api === 'chat') {
      return { path: '/v1/chat/completions', body: { ...common, messages: this.#messages(parts, speech) } }
    }
    const prompt =
      speech.api === 'tokens'
        ? parts.flatMap((part) => idsOf(part.name, lengthOf(part, speech), speech.tokenIds))
        : parts.map((part) => this.#textOf(part, speech)).join('')
    return { path: '/v1/completions', body: { ...common, prompt } }
  }

  /** What a prompt is made of; the last part is what lies behind its full blocks. */
  #partsOf(index: number, blockTokens: number, salt: string): Part[] {
    const { texts } = this.#plan
    if (texts.kind === 'messages') return []
    const request = texts.requests[index]!
    const { blocks, promptTokens, scope } = request
    const full = Math.min(blocks.length, Math.floor(promptTokens / blockTokens))
    const parts: Part[] = blocks
      .slice(0, full)
      .map((block) => ({ name: `${salt}${scope} ${block}`, tokens: blockTokens }))
    const rest = promptTokens - full * blockTokens
    if (rest > 0) parts.push({ name: `${salt}${this.#restName(index, request, full)}`, tokens: rest })
    return parts
  }

  /** The block that the rest is the beginning of, as the next turn shows; else a name of its own. */
  #restName(index: number, request: TraceRequest, full: number): string {
    const { blocks, scope } = request
    if (blocks.length > full) return `${scope} ${blocks[full]}`
    const next = this.#next.get(index)
    const goesOn = next !== undefined && next.blocks.length > full && blocks.every((name, i) => name === next.blocks[i])
    return goesOn ? `${scope} ${next.blocks[full]}` : `rest of ${index}`
  }

  #messages(parts: readonly Part[], speech: Speech): { role: string; content: string }[] {
    const messages = [{ role: 'system', content: '' }]
    let isFull = false
    for (const part of parts) {
      if (isFull) messages.push({ role: ROLES[(messages.length - 1) % 2]!, content: '' })
      messages.at(-1)!.content += this.#textOf(part, speech)
      const every = Math.max(1, Math.round(MESSAGE_TOKENS / (part.tokens / speech.shrink)))
      isFull = [...numbersOf(`border ${part.name}`, 1)][0]! % every === 0
    }
    // Models answer users; a message that goes on in the next turn stays as it is.
    if (messages.at(-1)!.role !== 'user') messages.push({ role: 'user', content: 'Go on.' })
    return messages
  }

  #textOf(part: Part, speech: Speech): string {
    return this.#words.of(part.name, Math.max(1, Math.round(lengthOf(part, speech) * speech.wordsPerToken)))
  }
}

interface Part {
  readonly name: string
  /** As the trace counts. */
  readonly tokens: number
}

function lengthOf({ tokens }: Part, { shrink }: Speech): number {
  return Math.max(1, Math.round(tokens / shrink))
}

function idsOf(name: string, count: number, [low, high]: readonly [number, number]): number[] {
  return [...numbersOf(name, count)].map((number) => low + (number % (high - low + 1)))
}
