// The Messages API, the encoder: events to server-sent events or to one body.
// https://platform.claude.com/docs/en/build-with-claude/streaming
// Invariant: message_start first, with the usage that is known by then; each event has its `event:` line; message_delta and
// message_stop once, last; a failure is one error event and nothing behind it.

import type { GenerateEvent } from '../../core/events.js'
import type { QuickResult } from '../../core/quick.js'
import { BlockSequence, type BlockStep } from './anthropic-blocks.js'
import type { AppliedEdit } from './anthropic-context.js'
import { anthropicError, anthropicUsage, diagnosticsOf } from './anthropic-shape.js'
import type { About, BodyEncoder, StreamEncoder } from './contract.js'
import { quickMember } from './quick-result.js'

export interface MessageShape {
  readonly maxTokens: number
  /** `cache_creation` is counted as this. */
  readonly lifetime: '5m' | '1h'
  readonly omitsThinking: boolean
  /** Undefined: the request asked for none. */
  readonly appliedEdits: readonly AppliedEdit[] | undefined
  /** `diagnostics.previous_message_id`; null: the first of a conversation; undefined: the request did not ask. */
  readonly previousMessage: string | null | undefined
}

type EndEvent = Extract<GenerateEvent, { type: 'end' }>
type StartEvent = Extract<GenerateEvent, { type: 'start' }>
type FinishEvent = Extract<GenerateEvent, { type: 'finish' }>

/** What the two encoders do alike. */
class Message {
  readonly about: About
  readonly shape: MessageShape
  readonly blocks: BlockSequence
  /** Answers of quick instructions: a member of the last delta, or of the body. */
  quick: readonly QuickResult[] | undefined
  #end: Pick<EndEvent, 'reason' | 'stopString'> = { reason: 'length' }
  #ended = false

  constructor(about: About, shape: MessageShape) {
    this.about = about
    this.shape = shape
    const callPrefix = `toolu_${about.id.replace(/^msg_/, '').slice(0, 20)}`
    this.blocks = new BlockSequence({ callPrefix, omitsThinking: shape.omitsThinking })
  }

  end(event: EndEvent): BlockStep[] {
    this.#end = event
    this.#ended = true
    return this.blocks.end(event.split)
  }

  /** Blocks that no end event closed. */
  rest(): BlockStep[] {
    return this.#ended ? [] : this.blocks.end()
  }

  /** `{stop_reason, stop_sequence}` */
  stop({ completionTokens }: FinishEvent) {
    const { reason, stopString } = this.#end
    if (stopString !== undefined) return { stop_reason: 'stop_sequence', stop_sequence: stopString }
    return { stop_reason: reason === 'stop' ? this.#stopped() : this.#cut(completionTokens), stop_sequence: null }
  }

  #stopped(): string {
    return this.blocks.callCount > 0 ? 'tool_use' : 'end_turn'
  }

  /** Cut before `max_tokens` were made: the window was full. */
  #cut(completionTokens: number): string {
    const isFull = completionTokens > 0 && completionTokens < this.shape.maxTokens
    return isFull ? 'model_context_window_exceeded' : 'max_tokens'
  }

  usage(event: StartEvent | FinishEvent) {
    const counts = {
      output: event.type === 'finish' ? event.completionTokens : 0,
      thinking: this.blocks.thinkingTokens,
    }
    return anthropicUsage(event, counts, this.shape.lifetime)
  }

  /** `{context_management}` where the request asked for it. */
  contextManagement() {
    const { appliedEdits } = this.shape
    return appliedEdits === undefined ? {} : { context_management: { applied_edits: appliedEdits } }
  }

  /** `{quick}` where the request asked for it. */
  quickAnswers() {
    return this.quick === undefined ? {} : { quick: quickMember(this.quick) }
  }

  /** `{diagnostics}` where the request asked for it. */
  diagnostics() {
    const { previousMessage } = this.shape
    if (previousMessage === undefined) return {}
    if (previousMessage === null) return { diagnostics: null }
    if (this.about.missReason === undefined) return { diagnostics: diagnosticsOf('unavailable') }
    const reason = this.about.missReason(previousMessage)
    return { diagnostics: reason === undefined ? null : diagnosticsOf(reason) }
  }
}

export class MessageStream implements StreamEncoder {
  readonly ending = ''
  readonly #message: Message

  constructor(about: About, shape: MessageShape) {
    this.#message = new Message(about, shape)
  }

  event(event: GenerateEvent): string {
    switch (event.type) {
      case 'start':
        return this.#start(event)
      case 'token':
        return this.#message.blocks.token(event).map(wireStep).join('')
      case 'end':
        return this.#message.end(event).map(wireStep).join('')
      case 'finish':
        return this.#message.rest().map(wireStep).join('') + this.#last(event)
      case 'quick':
        this.#message.quick = event.results ?? []
        return ''
    }
  }

  failure(error: unknown): string {
    return sse('error', anthropicError(error, requestIdOf(this.#message.about)))
  }

  /** Clients that count events, not bytes, see life. */
  keepalive(): string {
    return sse('ping', '{"type":"ping"}')
  }

  #start(event: StartEvent): string {
    const { about } = this.#message
    const message = {
      id: about.id,
      type: 'message',
      role: 'assistant',
      model: about.model,
      content: [],
      stop_reason: null,
      stop_sequence: null,
      ...this.#message.diagnostics(),
      usage: this.#message.usage(event),
    }
    return sse('message_start', JSON.stringify({ type: 'message_start', message }))
  }

  #last(event: FinishEvent): string {
    const delta = this.#message.stop(event)
    const { service_tier: _, ...usage } = this.#message.usage(event)
    const more = { ...this.#message.contextManagement(), ...this.#message.quickAnswers() }
    const last = { type: 'message_delta', delta, usage, ...more }
    return sse('message_delta', JSON.stringify(last)) + sse('message_stop', '{"type":"message_stop"}')
  }
}

export class MessageBody implements BodyEncoder {
  readonly #message: Message
  readonly #blocks: { head: string; type: string; text: string; signature: string }[] = []
  #last = ''

  constructor(about: About, shape: MessageShape) {
    this.#message = new Message(about, shape)
  }

  event(event: GenerateEvent): void {
    if (event.type === 'token') this.#add(this.#message.blocks.token(event))
    else if (event.type === 'end') this.#add(this.#message.end(event))
    else if (event.type === 'quick') this.#message.quick = event.results ?? []
    else if (event.type === 'finish') {
      this.#add(this.#message.rest())
      const rest = {
        ...this.#message.stop(event),
        ...this.#message.contextManagement(),
        ...this.#message.diagnostics(),
        usage: this.#message.usage(event),
        ...this.#message.quickAnswers(),
      }
      this.#last = JSON.stringify(rest).slice(1)
    }
  }

  /** Put together by hand: a call's input is the model's own text. */
  body(): string {
    const { id, model } = this.#message.about
    const head = JSON.stringify({ id, type: 'message', role: 'assistant', model }).slice(0, -1)
    return `${head},"content":[${this.#blocks.map(wireBlock).join(',')}],${this.#last}`
  }

  #add(steps: readonly BlockStep[]): void {
    for (const step of steps) {
      if (step.kind === 'open') {
        this.#blocks.push({
          head: JSON.stringify(step.block).slice(0, -1),
          type: step.block.type,
          text: '',
          signature: '',
        })
        continue
      }
      const block = this.#blocks[step.index]
      if (block === undefined) continue
      if (step.kind === 'delta') block.text += step.text
      else if (step.kind === 'signature') block.signature = step.signature
    }
  }
}

function wireBlock({ head, type, text, signature }: { head: string; type: string; text: string; signature: string }) {
  if (type === 'tool_use') return `${head},"input":${inputOf(text)}}`
  if (type === 'text') return `${head},"text":${JSON.stringify(text)}}`
  return `${head},"thinking":${JSON.stringify(text)},"signature":"${signature}"}`
}

/** A call that was cut off has no object for its input; its text is not lost, under the name that the API's guide gives. */
function inputOf(text: string): string {
  try {
    const value: unknown = JSON.parse(text)
    // Line breaks between tokens stay: one body is no event.
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return text
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error
  }
  return JSON.stringify({ INVALID_JSON: text })
}

/** Written by hand around what changes: this is done for every token. */
function wireStep(step: BlockStep): string {
  const { index } = step
  switch (step.kind) {
    case 'open':
      return sse(
        'content_block_start',
        `{"type":"content_block_start","index":${index},"content_block":${emptyBlock(step.block)}}`,
      )
    case 'delta':
      return deltaOf(index, `${DELTAS[step.type]}${JSON.stringify(step.text)}`)
    case 'signature':
      return deltaOf(index, `"type":"signature_delta","signature":"${step.signature}"`)
    case 'close':
      return sse('content_block_stop', `{"type":"content_block_stop","index":${index}}`)
  }
}

const DELTAS = {
  thinking: '"type":"thinking_delta","thinking":',
  text: '"type":"text_delta","text":',
  tool_use: '"type":"input_json_delta","partial_json":',
}

function deltaOf(index: number, delta: string): string {
  return sse('content_block_delta', `{"type":"content_block_delta","index":${index},"delta":{${delta}}}`)
}

function emptyBlock(block: Extract<BlockStep, { kind: 'open' }>['block']): string {
  if (block.type === 'thinking') return '{"type":"thinking","thinking":"","signature":""}'
  if (block.type === 'text') return '{"type":"text","text":""}'
  return JSON.stringify({ ...block, input: {} })
}

function sse(event: string, data: string): string {
  return `event: ${event}\ndata: ${data}\n\n`
}

function requestIdOf({ id }: About): string {
  return id.replace(/^msg_/, '')
}
