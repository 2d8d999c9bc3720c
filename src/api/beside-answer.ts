// An answer of a server elsewhere, as it passes on to the client: what it says is read for questions that follow it, and
// what side questions came to is put in before its end, where an engine of our own puts it. Invariant: every other byte
// goes on as it came, in order; nothing behind the first event of the end goes on before the results are there.

import type { QuickResult } from '../core/quick.js'
import { type BodyMember, membersIn } from './body-scan.js'
import type { BesideAnswer } from './contract.js'
import { quickMember } from './dialect/quick-result.js'

type Json = Readonly<Record<string, unknown>>

/** What an assistant said. */
interface Reply {
  content: string
  reasoning: string
  readonly calls: { id: string; name: string; arguments: string }[]
}

/** How a dialect writes its answers. */
interface Reader {
  readonly reply: Reply
  /** Takes the data of an event in. True: the end begins with it. */
  ends(data: string): boolean
  /** The events of the end, with the results in them. */
  rest(held: readonly Buffer[], quick: string): Buffer[]
  /** Takes a whole body in. */
  read(body: Json): void
}

/** `choices`: how many the stream must complete. */
export function besideAnswer(path: string, choices: number): BesideAnswer {
  if (path === '/v1/messages') return new Answer(new MessageReader())
  return new Answer(path === '/v1/responses' ? new ResponseReader() : new ChatReader(choices))
}

class Answer implements BesideAnswer {
  readonly #reader: Reader
  readonly #held: Buffer[] = []

  constructor(reader: Reader) {
    this.#reader = reader
  }

  pass(bytes: Buffer): Buffer {
    let gone = 0
    for (const end of eventEnds(bytes)) {
      const event = bytes.subarray(gone, end)
      if (this.#held.length === 0 && !this.#reader.ends(dataIn(event))) {
        gone = end
        continue
      }
      this.#held.push(bytes.subarray(gone))
      break
    }
    return bytes.subarray(0, this.#held.length === 0 ? bytes.length : gone)
  }

  rest(results: readonly QuickResult[]): Buffer {
    const held = Buffer.concat(this.#held)
    const ends = eventEnds(held)
    const events = ends.map((end, i) => held.subarray(ends[i - 1] ?? 0, end))
    return Buffer.concat(this.#reader.rest(events, JSON.stringify(quickMember(results))))
  }

  whole(body: Buffer, results: readonly QuickResult[]): Buffer {
    return withQuick(body, body.length, JSON.stringify(quickMember(results)))
  }

  reply(body?: Buffer): string {
    if (body !== undefined) this.#reader.read(jsonOf(body.toString('utf8')))
    const { content, reasoning, calls } = this.#reader.reply
    const toolCalls = calls.map((call) => ({
      ...{ id: call.id, type: 'function' },
      function: { name: call.name, arguments: call.arguments || '{}' },
    }))
    return JSON.stringify({
      role: 'assistant',
      content: content === '' && calls.length > 0 ? null : content,
      ...(reasoning !== '' && { reasoning_content: reasoning }),
      ...(calls.length > 0 && { tool_calls: toolCalls }),
    })
  }
}

// --- Chat Completions ------------------------------------------------------------------------------------------------

class ChatReader implements Reader {
  readonly reply: Reply = { content: '', reasoning: '', calls: [] }
  /** What every chunk repeats. */
  #head: Json | undefined
  #left: number

  constructor(choices: number) {
    this.#left = choices
  }

  ends(data: string): boolean {
    const chunk = jsonOf(data)
    const choices = listOf(chunk['choices'])
    if (data === '[DONE]' || (this.#left <= 0 && choices.length === 0)) return true
    if (choices.length > 0) this.#head ??= chunk
    for (const choice of choices) {
      if (typeof choice['finish_reason'] === 'string') this.#left--
      // Of several answers, the first one.
      if ((choice['index'] ?? 0) === 0) this.#said(asJson(choice['delta']))
    }
    return false
  }

  /** In a chunk of its own, without choices, as usage is. */
  rest(held: readonly Buffer[], quick: string): Buffer[] {
    const { id, created, model } = this.#head ?? {}
    const head = JSON.stringify({ id, object: 'chat.completion.chunk', created, model, choices: [] })
    return [Buffer.from(`data: ${head.slice(0, -1)},"quick":${quick}}\n\n`), ...held]
  }

  read(body: Json): void {
    const choices = listOf(body['choices'])
    this.#said(asJson((choices.find(({ index }) => index === 0) ?? choices[0])?.['message']))
  }

  #said(delta: Json): void {
    const { reply } = this
    reply.content += textOf(delta['content']) || textOf(delta['refusal'])
    reply.reasoning +=
      textOf(delta['reasoning_content']) || textOf(delta['reasoning']) || textOf(delta['reasoning_text'])
    for (const [i, call] of listOf(delta['tool_calls']).entries()) {
      const { name, arguments: args } = asJson(call['function'])
      const index = typeof call['index'] === 'number' ? call['index'] : i
      reply.calls[index] ??= { id: '', name: '', arguments: '' }
      const whole = reply.calls[index]
      whole.id ||= textOf(call['id'])
      whole.name += textOf(name)
      whole.arguments += textOf(args)
    }
  }
}

// --- Messages --------------------------------------------------------------------------------------------------------

class MessageReader implements Reader {
  readonly reply: Reply = { content: '', reasoning: '', calls: [] }

  ends(data: string): boolean {
    const { type, content_block: block, delta } = jsonOf(data)
    if (type === 'content_block_start') this.#begun(asJson(block))
    if (type === 'content_block_delta') this.#said(asJson(delta))
    return type === 'message_delta' || type === 'message_stop'
  }

  rest(held: readonly Buffer[], quick: string): Buffer[] {
    const at = held.findLastIndex((event) => jsonOf(dataIn(event))['type'] === 'message_delta')
    return held.map((event, i) => (i === at ? withQuick(event, event.length, quick) : event))
  }

  read(body: Json): void {
    for (const block of listOf(body['content'])) {
      this.#begun(block)
      const call = this.reply.calls.at(-1)
      if (block['type'] === 'tool_use' && call !== undefined) call.arguments = JSON.stringify(block['input'] ?? {})
    }
  }

  #begun(block: Json): void {
    if (block['type'] === 'tool_use') {
      this.reply.calls.push({ id: textOf(block['id']), name: textOf(block['name']), arguments: '' })
    } else this.#said(block)
  }

  #said(piece: Json): void {
    const { reply } = this
    reply.content += textOf(piece['text'])
    reply.reasoning += textOf(piece['thinking'])
    const call = reply.calls.at(-1)
    if (call !== undefined) call.arguments += textOf(piece['partial_json'])
  }
}

// --- Responses -------------------------------------------------------------------------------------------------------

const LAST = ['response.completed', 'response.incomplete']

class ResponseReader implements Reader {
  readonly reply: Reply = { content: '', reasoning: '', calls: [] }

  /** The last event has all that was said. */
  ends(data: string): boolean {
    const event = jsonOf(data)
    if (!isLast(event)) return false
    this.read(asJson(event['response']))
    return true
  }

  rest(held: readonly Buffer[], quick: string): Buffer[] {
    const at = held.findIndex((event) => isLast(jsonOf(dataIn(event))))
    return held.map((event, i) => (i === at ? withQuick(event, responseEnd(event), quick) : event))
  }

  read(body: Json): void {
    const { reply } = this
    for (const item of listOf(body['output'])) {
      const parts = [...listOf(item['content']), ...(item['type'] === 'reasoning' ? listOf(item['summary']) : [])]
      const said = parts.map((part) => textOf(part['text']) || textOf(part['refusal'])).join('')
      if (item['type'] === 'message') reply.content += said
      else if (item['type'] === 'reasoning') reply.reasoning += said
      else if (item['type'] === 'function_call') {
        const [id, name, args] = [item['call_id'], item['name'], item['arguments']].map(textOf) as [string, ...string[]]
        reply.calls.push({ id, name: name as string, arguments: args as string })
      }
    }
  }
}

function isLast({ type }: Json): boolean {
  return LAST.includes(textOf(type))
}

/** Where the member `response` of an event's object ends. */
function responseEnd(event: Buffer): number {
  const members: readonly BodyMember[] = membersIn(event, event.indexOf(123), event.length)
  return members.find(({ key }) => key === 'response')?.end ?? event.length
}

// --- bytes -----------------------------------------------------------------------------------------------------------

/** Puts `"quick":...` into the object whose brace is the last one in front of `end`. */
function withQuick(bytes: Buffer, end: number, quick: string): Buffer {
  const brace = bytes.lastIndexOf(125, end - 1)
  return Buffer.concat([bytes.subarray(0, brace), Buffer.from(`,"quick":${quick}`), bytes.subarray(brace)])
}

/** Behind each blank line; what stands behind the last one is an event too. */
function eventEnds(bytes: Buffer): number[] {
  const ends = [...bytes.toString('latin1').matchAll(/\r?\n\r?\n/g)].map(({ index, 0: line }) => index + line.length)
  return (ends.at(-1) ?? 0) < bytes.length ? [...ends, bytes.length] : ends
}

function dataIn(event: Buffer): string {
  const lines = event.toString('utf8').split(/\r?\n/)
  return lines.flatMap((line) => (line.startsWith('data:') ? line.slice(5).trim() : [])).join('\n')
}

/** Empty where it is no object: a comment, the mark of the end, garbage. */
function jsonOf(text: string): Json {
  try {
    return asJson(JSON.parse(text))
  } catch {
    // It goes on as it is.
    return {}
  }
}

function asJson(value: unknown): Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : {}
}

function listOf(value: unknown): readonly Json[] {
  return Array.isArray(value) ? value.map(asJson) : []
}

function textOf(value: unknown): string {
  return typeof value === 'string' ? value : ''
}
