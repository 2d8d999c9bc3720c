// Conversations with their texts, a JSON object a line, as requests that are sent again: whole transcripts (`messages` that
// end with an answer: a turn an answer) and logged OpenAI bodies (with `model`: one request each). Invariant: a line that
// is neither is the file's fault, named by its number.

import { createHash } from 'node:crypto'
import { UsageError } from '../core/usage-error.js'

type Json = Readonly<Record<string, unknown>>

export interface Message {
  readonly role: string
  readonly content?: unknown
  readonly tool_calls?: unknown
}

export interface TextRequest {
  /** Seconds from the first request that has a time; undefined: the line has none. */
  readonly at: number | undefined
  readonly session: string
  /** Counts from 1. */
  readonly turn: number
  readonly messages: readonly Message[]
  readonly tools: readonly unknown[] | undefined
  /** Of the recorded answer, estimated from its length; undefined: it is not recorded. */
  readonly outputTokens: number | undefined
}

export interface Conversations {
  readonly name: string
  readonly requests: readonly TextRequest[]
}

const CHARS_A_TOKEN = 4
/** Numbers above are milliseconds since 1970, those below seconds. */
const MILLISECONDS_FROM = 1e11

/** @throws UsageError naming `name` and the line. */
export function readConversations(text: string, name: string): Conversations {
  const sessions = new Sessions()
  const requests: TextRequest[] = []
  let first: number | undefined
  for (const [i, line] of text.split('\n').entries()) {
    if (line.trim() === '') continue
    const place = `${name}:${i + 1}`
    const record = objectOf(parsed(line, place))
    const body = bodyOf(record)
    const messages = messagesOf(body, place)
    const tools = Array.isArray(body['tools']) ? (body['tools'] as unknown[]) : undefined
    const time = timeOf(record)
    first ??= time
    const at = time === undefined ? undefined : Math.max(0, time - first!)
    if (typeof body['model'] === 'string') {
      const outputTokens = typeof body['max_tokens'] === 'number' ? body['max_tokens'] : undefined
      requests.push({ at, ...sessions.of(record, body, messages), messages, tools, outputTokens })
    } else requests.push(...turnsOf(messages, { at, tools, session: `${name}:${i + 1}` }, place))
  }
  return { name, requests }
}

/** Whether the first record of a file has messages. */
export function isConversation(value: unknown): boolean {
  return Array.isArray(bodyOf(objectOf(value))['messages'])
}

/** What each answer of a transcript was asked with. */
function turnsOf(
  messages: readonly Message[],
  common: Pick<TextRequest, 'at' | 'tools' | 'session'>,
  place: string,
): TextRequest[] {
  const turns: TextRequest[] = []
  for (const [i, message] of messages.entries()) {
    if (message.role !== 'assistant' || i === 0) continue
    const outputTokens = Math.max(1, Math.ceil(charsOf(message) / CHARS_A_TOKEN))
    turns.push({ ...common, turn: turns.length + 1, messages: messages.slice(0, i), outputTokens })
  }
  if (turns.length > 0) return turns
  throw new UsageError(`${place}: the conversation has no answer; a single request has a model beside its messages`)
}

/** Text of a message and of what it calls, in characters. */
export function charsOf(message: Message): number {
  const { content, tool_calls: calls } = message
  const text = typeof content === 'string' ? content.length : content == null ? 0 : JSON.stringify(content).length
  return text + (calls === undefined ? 0 : JSON.stringify(calls).length)
}

/** Who sent which logged body: by its own name, or by the body that it goes on from. */
class Sessions {
  readonly #turns = new Map<string, number>()
  /** Digest of a body's messages -> whose they were. */
  readonly #ends = new Map<string, string>()

  of(record: Json, body: Json, messages: readonly Message[]): Pick<TextRequest, 'session' | 'turn'> {
    const session = namedSession(record, body) ?? this.#followed(messages)
    const turn = (this.#turns.get(session) ?? 0) + 1
    this.#turns.set(session, turn)
    return { session, turn }
  }

  #followed(messages: readonly Message[]): string {
    const hash = createHash('sha256')
    const digests = messages.map((message) =>
      hash
        .update(`${JSON.stringify(message)}\n`)
        .copy()
        .digest('hex'),
    )
    const whose = digests.findLast((digest) => this.#ends.has(digest))
    const session = whose === undefined ? `unnamed ${this.#ends.size + 1}` : this.#ends.get(whose)!
    if (whose !== undefined) this.#ends.delete(whose)
    this.#ends.set(digests.at(-1)!, session)
    return session
  }
}

function namedSession(record: Json, body: Json): string | undefined {
  const names = [record['session'], body['session_id'], body['prompt_cache_key'], body['conversation_id']]
  return names.find((name): name is string => typeof name === 'string' && name !== '')
}

/** Bodies as they are logged: bare, or below `body`, `request` or both. */
function bodyOf(record: Json): Json {
  if (Array.isArray(record['messages'])) return record
  const request = objectOf(record['request'])
  return [objectOf(record['body']), objectOf(request['body']), request].find((each) => 'messages' in each) ?? record
}

function messagesOf(body: Json, place: string): readonly Message[] {
  const { messages } = body
  const fine =
    Array.isArray(messages) &&
    messages.length > 0 &&
    messages.every((each) => typeof objectOf(each)['role'] === 'string')
  if (fine) return messages as Message[]
  throw new UsageError(`${place}: it has no messages with roles`)
}

/** Seconds. */
function timeOf(record: Json): number | undefined {
  const { timestamp, t } = record
  if (typeof t === 'number' && Number.isFinite(t)) return t
  const time = typeof timestamp === 'string' ? Date.parse(timestamp) : timestamp
  if (typeof time !== 'number' || !Number.isFinite(time)) return undefined
  return time > MILLISECONDS_FROM ? time / 1000 : time
}

function parsed(line: string, place: string): unknown {
  try {
    return JSON.parse(line)
  } catch (error) {
    throw new UsageError(`${place}: it is not JSON: ${(error as Error).message}`)
  }
}

function objectOf(value: unknown): Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : {}
}
