// Turns of a session: what is new goes out, the answer comes back whole or in pieces. Invariant: pieces put together are the
// whole, and a tool call is told once it is all there; a turn that is asked for twice under one key is one turn.

import { RefrainError, saidIn } from './error.js'
import { dataOf } from './sse.js'
import type { Call, CallOptions, Transport } from './transport.js'
import type { AssistantMessage, Message, QuickResult, QuickTask, ToolCall, ToolDefinition, Usage } from './types.js'

/** Members of a chat body that a turn may have; others go into `more`. */
export interface TurnOptions {
  readonly max_tokens?: number
  readonly temperature?: number
  readonly top_p?: number
  readonly seed?: number
  readonly stop?: string | readonly string[]
  readonly tool_choice?:
    | 'auto'
    | 'none'
    | 'required'
    | { readonly type: 'function'; readonly function: { name: string } }
  readonly response_format?: object
  /** Where the session's log must stand; else it is a conflict, and nothing is appended. */
  readonly expected_position?: number
  /** Tools and leading system messages that are not the session's: what becomes of them. */
  readonly tools?: readonly ToolDefinition[]
  readonly apply?: 'append' | 'boundary' | 'now'
  /** Side questions beside the answer. */
  readonly quick?: { readonly tasks: readonly QuickTask[]; readonly at?: 'user' | 'reply' }
  /** Any other member of the body. */
  readonly more?: Readonly<Record<string, unknown>>
}

export interface TurnCallOptions extends CallOptions {
  /** The turn's name: asked for again, it is answered with what it was answered. Absent: a random one. */
  readonly key?: string
}

export interface Reply {
  readonly id: string
  readonly model: string
  readonly message: AssistantMessage
  /** Those of the message, or none. */
  readonly tool_calls: readonly ToolCall[]
  readonly finish_reason: 'stop' | 'length' | 'tool_calls' | (string & {})
  readonly usage: Usage
  /** What side questions came to. */
  readonly quick: readonly QuickResult[]
}

export type Delta =
  | { readonly type: 'content' | 'reasoning'; readonly text: string }
  /** Whole. */
  | { readonly type: 'tool_call'; readonly call: ToolCall }
  /** The last: all of it. */
  | { readonly type: 'reply'; readonly reply: Reply }

/** Generating may take minutes. */
const WHOLE_MS = 600_000

export interface TurnAsk {
  readonly session: string
  readonly messages: string | readonly Message[]
  readonly options: TurnOptions
  readonly call: TurnCallOptions
}

export async function wholeTurn(transport: Transport, ask: TurnAsk): Promise<Reply> {
  const call = callOf(ask, {})
  const body = await transport.json<WireBody>({ timeoutMs: WHOLE_MS, ...call })
  const [choice] = body.choices
  if (choice === undefined || body.usage == null) throw notUnderstood('a chat answer without choices or usage')
  const { content, tool_calls: calls = [], ...rest } = choice.message
  return replyOf(body, {
    content: content ?? '',
    reasoning: rest.reasoning_content ?? rest.reasoning ?? '',
    calls,
    finish: choice.finish_reason ?? 'stop',
    usage: body.usage,
    quick: body.quick?.results ?? [],
  })
}

/** @throws RefrainError from the loop: of the server's, also in the middle; `cut_off` where the end is missing. */
export async function* streamedTurn(transport: Transport, ask: TurnAsk): AsyncGenerator<Delta, void> {
  const answer = new Answer()
  const call = callOf(ask, { stream: true, stream_options: { include_usage: true } })
  for await (const data of dataOf(transport.bytes(call))) {
    if (data === '[DONE]') {
      yield { type: 'reply', reply: answer.reply() }
      return
    }
    yield* answer.add(chunkOf(data))
  }
  throw new RefrainError({ status: 0, code: 'cut_off', message: 'the stream ended before its end' })
}

function callOf({ session, messages, options, call }: TurnAsk, how: object): Call {
  const { more, ...known } = options
  const { key = randomKey(), ...limits } = call
  const list = typeof messages === 'string' ? [{ role: 'user', content: messages } as const] : messages
  // A key is kept with the first new event: a turn that brings none cannot be told from its repetition.
  const isNamed = list.some(({ role }) => role !== 'system')
  return {
    ...limits,
    method: 'POST',
    path: '/v1/chat/completions',
    headers: { 'idempotency-key': key },
    body: { ...more, ...known, ...how, session, messages: list },
    again: isNamed ? 'twice' : 'refused',
  }
}

/** Also where `crypto.randomUUID` is not to be had: in pages without TLS. */
export function randomKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16))
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('')
}

interface WireMessage {
  readonly content?: string | null
  readonly reasoning_content?: string
  readonly reasoning?: string
}

interface WireCall {
  readonly index: number
  readonly id?: string
  readonly function?: { readonly name?: string; readonly arguments?: string }
}

interface Wire<M> {
  readonly id: string
  readonly model: string
  readonly choices: readonly M[]
  readonly usage?: Usage | null
  readonly quick?: { readonly results: readonly QuickResult[] }
}

type WireBody = Wire<{
  readonly message: WireMessage & { readonly tool_calls?: readonly ToolCall[] }
  readonly finish_reason: string | null
}>

type WireChunk = Wire<{
  readonly delta: WireMessage & { readonly tool_calls?: readonly WireCall[] }
  readonly finish_reason: string | null
}>

/** @throws RefrainError where it says that something failed. */
function chunkOf(data: string): WireChunk {
  let chunk: unknown
  try {
    chunk = JSON.parse(data)
  } catch (cause) {
    throw notUnderstood(`a chunk that is no JSON: ${data.slice(0, 200)}`, cause)
  }
  const said = saidIn(chunk)
  if (said === undefined) return chunk as WireChunk
  const { code = 'not_understood', message, param } = said
  throw new RefrainError({ status: 0, code, message, ...(param && { param }) })
}

function notUnderstood(message: string, cause?: unknown): RefrainError {
  return new RefrainError({ status: 0, code: 'not_understood', message, cause })
}

interface Parts {
  readonly content: string
  readonly reasoning: string
  readonly calls: readonly ToolCall[]
  readonly finish: string
  readonly usage: Usage
  readonly quick: readonly QuickResult[]
}

function replyOf({ id, model }: Pick<WireBody, 'id' | 'model'>, parts: Parts): Reply {
  const { content, reasoning, calls, finish, usage, quick } = parts
  return {
    id,
    model,
    message: {
      role: 'assistant',
      content: content === '' && calls.length > 0 ? null : content,
      ...(reasoning !== '' && { reasoning_content: reasoning }),
      ...(calls.length > 0 && { tool_calls: calls }),
    },
    tool_calls: calls,
    finish_reason: finish,
    usage,
    quick,
  }
}

/** An answer as its chunks come. */
class Answer {
  #about = { id: '', model: '' }
  #content = ''
  #reasoning = ''
  #finish = 'stop'
  #usage: Usage | undefined
  #quick: readonly QuickResult[] = []
  readonly #calls: ToolCall[] = []
  /** The one that is being written; calls follow each other. */
  #open: { index: number; id: string; name: string; arguments: string } | undefined;

  *add({ id, model, choices, usage, quick }: WireChunk): Generator<Delta, void> {
    this.#about = { id, model }
    this.#usage = usage ?? this.#usage
    this.#quick = quick?.results ?? this.#quick
    const [choice] = choices
    if (choice === undefined) return
    const { content, tool_calls: calls = [], ...rest } = choice.delta
    const reasoning = rest.reasoning_content ?? rest.reasoning ?? ''
    this.#reasoning += reasoning
    this.#content += content ?? ''
    if (reasoning !== '') yield { type: 'reasoning', text: reasoning }
    if (content) yield { type: 'content', text: content }
    for (const call of calls) yield* this.#call(call)
    if (choice.finish_reason === null) return
    this.#finish = choice.finish_reason
    yield* this.#close()
  }

  /** @throws RefrainError where it has no usage: its end is missing. */
  reply(): Reply {
    const usage = this.#usage
    if (usage === undefined) throw notUnderstood('a stream without usage')
    const [content, reasoning, calls] = [this.#content, this.#reasoning, this.#calls]
    return replyOf(this.#about, { content, reasoning, calls, finish: this.#finish, usage, quick: this.#quick })
  }

  *#call({ index, id, function: piece }: WireCall): Generator<Delta, void> {
    if (this.#open?.index !== index) {
      yield* this.#close()
      this.#open = { index, id: '', name: '', arguments: '' }
    }
    const open = this.#open
    open.id = id ?? open.id
    open.name += piece?.name ?? ''
    open.arguments += piece?.arguments ?? ''
  }

  *#close(): Generator<Delta, void> {
    if (this.#open === undefined) return
    const { id, name, arguments: json } = this.#open
    const call: ToolCall = { id, type: 'function', function: { name, arguments: json } }
    this.#open = undefined
    this.#calls.push(call)
    yield { type: 'tool_call', call }
  }
}
