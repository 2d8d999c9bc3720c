// OpenAI Responses, the encoder: events to the API's stream of events or to one body.
// https://platform.openai.com/docs/api-reference/responses-streaming
// Invariant: response.created first, whatever happens; numbers count up by one; exactly one of response.completed,
// response.incomplete and response.failed, last. A stream that breaks has none of the first two.

import type { GenerateEvent, SplitText } from '../../core/events.js'
import type { QuickResult } from '../../core/quick.js'
import type { About, BodyEncoder, Storing, StreamEncoder } from './contract.js'
import { type Logprobs, ResponseItems, type Tell } from './openai-responses-items.js'
import {
  failureOf,
  type ResponseParts,
  type ResponseStatus,
  responseJson,
  responsesUsage,
} from './openai-responses-shape.js'
import type { ClientTool } from './openai-responses-tools.js'
import { quickMember } from './quick-result.js'

export interface ResponsesShape {
  /** Members of the response that repeat the request. */
  readonly echo: string
  readonly byModelName: ReadonlyMap<string, ClientTool>
  /** Absent: the answer is not kept. */
  readonly stored?: Storing
  /** Whether `encrypted_content` was asked for. */
  readonly sealsReasoning: boolean
}

type TokenEvent = Extract<GenerateEvent, { type: 'token' }>

/** What both encoders do alike: items, counts, the response around them. */
class Answer {
  readonly items: ResponseItems
  readonly #about: About
  readonly #shape: ResponsesShape
  #reasoningTokens = 0
  #reason: 'stop' | 'length' = 'length'
  /** Answers of quick instructions: a member of the response that ends. */
  quick: readonly QuickResult[] | undefined

  constructor(about: About, shape: ResponsesShape, tell: Tell) {
    this.#about = about
    this.#shape = shape
    const { byModelName, sealsReasoning } = shape
    this.items = new ResponseItems({ id: about.id.replace(/^.*_/, ''), byModelName, sealsReasoning, tell })
  }

  token({ split, text, ids, logprobs }: TokenEvent): void {
    const told = split ?? { content: text, reasoning: '', calls: [] }
    if (told.reasoning !== '' && told.content === '') this.#reasoningTokens += ids.length
    this.items.add(told, logprobs)
  }

  end(reason: 'stop' | 'length', split: SplitText | undefined, logprobs?: Logprobs): void {
    if (split !== undefined) this.items.add(split, logprobs)
    this.#reason = reason
    this.items.end(reason)
  }

  /** The whole response and how it ended. */
  finish(event: Extract<GenerateEvent, { type: 'finish' }>): { status: ResponseStatus; json: string } {
    const status = this.#reason === 'stop' ? 'completed' : 'incomplete'
    const quick = this.quick && { quick: quickMember(this.quick) }
    return { status, json: this.json(status, { usage: responsesUsage(event, this.#reasoningTokens), ...quick }) }
  }

  json(status: ResponseStatus, more: Pick<ResponseParts, 'usage' | 'error' | 'quick'> = {}): string {
    const { echo, stored } = this.#shape
    return responseJson({ about: this.#about, echo, stored, status, output: this.items.output, ...more })
  }
}

export class ResponsesStream implements StreamEncoder {
  /** The last event says that it is over; there is no [DONE] in this API. */
  readonly ending = ''
  readonly #answer: Answer
  #sequence = 0
  #out = ''

  constructor(about: About, shape: ResponsesShape) {
    this.#answer = new Answer(about, shape, (type, members) => this.#tell(type, members))
  }

  event(event: GenerateEvent): string {
    if (event.type === 'start') this.#begin()
    else if (event.type === 'token') this.#answer.token(event)
    else if (event.type === 'end') this.#answer.end(event.reason, event.split)
    else if (event.type === 'quick') this.#answer.quick = event.results ?? []
    else if (event.type === 'finish') {
      const { status, json } = this.#answer.finish(event)
      this.#tell(`response.${status}`, `"response":${json}`)
    }
    return this.#taken()
  }

  failure(error: unknown): string {
    this.#begin()
    this.#tell('response.failed', `"response":${this.#answer.json('failed', { error: failureOf(error) })}`)
    return this.#taken()
  }

  /** An event in place of a comment: clients that give up after a silence count only events. */
  keepalive(): string {
    this.#begin()
    this.#tell('keepalive', '')
    return this.#taken()
  }

  /** Once: a failure or a long prefill may come in front of the first event. */
  #begin(): void {
    if (this.#sequence > 0) return
    const response = `"response":${this.#answer.json('in_progress')}`
    this.#tell('response.created', response)
    this.#tell('response.in_progress', response)
  }

  #tell(type: string, members: string): void {
    const rest = members === '' ? '' : `,${members}`
    this.#out += `event: ${type}\ndata: {"type":"${type}","sequence_number":${this.#sequence++}${rest}}\n\n`
  }

  #taken(): string {
    const out = this.#out
    this.#out = ''
    return out
  }
}

export class ResponsesBody implements BodyEncoder {
  readonly #answer: Answer
  #body = ''

  constructor(about: About, shape: ResponsesShape) {
    this.#answer = new Answer(about, shape, () => undefined)
  }

  event(event: GenerateEvent): void {
    if (event.type === 'token') this.#answer.token(event)
    else if (event.type === 'end') this.#answer.end(event.reason, event.split)
    else if (event.type === 'quick') this.#answer.quick = event.results ?? []
    else if (event.type === 'finish') this.#body = this.#answer.finish(event).json
  }

  body(): string {
    return this.#body
  }
}
