// How the streams of the dialects are told apart, event by event: what is no content yet, what is an error, what says that
// all is over. Invariant: a stream without its ending is a broken one, whatever the connection says.

import { outputOnly, type Usage, usageFrom } from './usage.js'

type Json = Readonly<Record<string, unknown>>

/** What one event of a stream is. */
export interface Seen {
  /** `preamble`: nothing of an answer; another backend may still give it. */
  readonly what: 'preamble' | 'content' | 'error' | 'usage' | 'ending' | 'garbage'
  readonly usage?: Usage | undefined
  /** Choices of which this event says that they are complete. */
  readonly finished?: number
  /** Of an error, its sentence and status. */
  readonly message?: string
  readonly status?: number
}

export interface Wire {
  /** Found in what deserves a look in the midst of a stream: anything else is content. Global. */
  readonly suspect: RegExp
  see(data: string): Seen
  /** Sent where a complete stream lacks it. */
  readonly ending: string
}

const DONE = '[DONE]'

/** Chat Completions and Completions. */
const openaiWire: Wire = {
  suspect: /\[DONE\]|"error"|"usage":\s?\{|"finish_reason":\s?"/g,
  ending: 'data: [DONE]\n\n',
  see(data) {
    if (data === DONE) return { what: 'ending' }
    const event = parsed(data)
    if (event === undefined) return { what: 'garbage' }
    if (event['error'] !== undefined && event['error'] !== null) return errorSeen(event['error'])
    const choices = Array.isArray(event['choices']) ? (event['choices'] as Json[]) : []
    const usage = usageFrom(event['usage'], event['timings'])
    if (choices.length === 0) return { what: usage === undefined ? 'preamble' : 'usage', usage }
    const finished = choices.filter(({ finish_reason: reason }) => typeof reason === 'string').length
    const what = finished > 0 || choices.some(hasContent) ? 'content' : 'preamble'
    return { what, usage, finished }
  },
}

const CONTENT = ['content', 'reasoning_content', 'reasoning', 'reasoning_text', 'refusal']

function hasContent(choice: Json): boolean {
  if (typeof choice['text'] === 'string') return choice['text'] !== ''
  const delta = asJson(choice['delta'])
  if (Array.isArray(delta['tool_calls']) && delta['tool_calls'].length > 0) return true
  return CONTENT.some((key) => typeof delta[key] === 'string' && delta[key] !== '')
}

const anthropicWire: Wire = {
  suspect: /"message_stop"|"error"|"message_delta"/g,
  ending: '',
  see(data) {
    const event = parsed(data)
    if (event === undefined) return { what: 'garbage' }
    switch (event['type']) {
      case 'ping':
        return { what: 'preamble' }
      case 'message_start':
        return { what: 'preamble', usage: usageFrom(asJson(event['message'])['usage']) }
      case 'message_delta':
        return { what: 'content', usage: usageFrom(event['usage']) ?? outputOnly(event['usage']), finished: 1 }
      case 'message_stop':
        return { what: 'ending' }
      case 'error':
        return errorSeen(event['error'])
      default:
        return { what: 'content' }
    }
  },
}

const responsesWire: Wire = {
  suspect: /"response\.(completed|incomplete|failed)"|"error"/g,
  ending: '',
  see(data) {
    if (data === DONE) return { what: 'ending' }
    const event = parsed(data)
    if (event === undefined) return { what: 'garbage' }
    const response = asJson(event['response'])
    switch (event['type']) {
      case 'response.created':
      case 'response.in_progress':
      case 'response.queued':
      case 'keepalive':
        return { what: 'preamble' }
      case 'response.completed':
      case 'response.incomplete':
        return { what: 'ending', usage: usageFrom(response['usage']) }
      case 'response.failed':
        return errorSeen(response['error'])
      case 'error':
        return errorSeen(event['error'] ?? event)
      default:
        return { what: 'content' }
    }
  },
}

const WIRES: Readonly<Record<string, Wire>> = {
  '/v1/messages': anthropicWire,
  '/v1/responses': responsesWire,
}

/** By the path of the request. */
export function wireOf(path: string): Wire {
  return WIRES[path] ?? openaiWire
}

function errorSeen(error: unknown): Seen {
  const { message, code, status } = asJson(error)
  const text = typeof error === 'string' ? error : typeof message === 'string' ? message : 'the backend told an error'
  const number = [code, status].find((each): each is number => typeof each === 'number' && each >= 400 && each < 600)
  return { what: 'error', message: text, ...(number !== undefined && { status: number }) }
}

function parsed(data: string): Json | undefined {
  try {
    return asJson(JSON.parse(data))
  } catch {
    // Garbage is what `see` calls it.
    return undefined
  }
}

function asJson(value: unknown): Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : {}
}
