// One request and its streamed answer over HTTP, timed. Invariant: whatever goes wrong comes back as a sentence, never as a
// throw, but the caller's own abort; a stream that ends without its end is a failure.

import { Agent as HttpAgent, request as httpRequest, type IncomingMessage, type RequestOptions } from 'node:http'
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https'
import { usageFrom } from '../backend/remote/usage.js'
import type { Target } from './target.js'

export interface Answer {
  /** From sending to the first piece of the answer; of one without any, to its end. */
  readonly ttftMs: number
  readonly wallMs: number
  readonly promptTokens: number | undefined
  /** Undefined: the server does not say. */
  readonly cachedTokens: number | undefined
  readonly outputTokens: number
}

export type Exchanged = Answer | { readonly error: string }

export interface Posted {
  readonly path: string
  readonly body: unknown
  readonly headers: Readonly<Record<string, string>>
  readonly timeoutMs: number
  readonly signal: AbortSignal
}

type Json = Readonly<Record<string, unknown>>

/** Of an error's body, what is shown. */
const MOST_ERROR_CHARS = 300
/** Of a body that is read whole. */
const MOST_BODY_BYTES = 16 * 1024 * 1024
/** Of one event of a stream; a server that never ends a line is not waited for. */
const MOST_EVENT_CHARS = 16 * 1024 * 1024

const agents = {
  'http:': new HttpAgent({ keepAlive: true, maxSockets: Number.POSITIVE_INFINITY }),
  'https:': new HttpsAgent({ keepAlive: true, maxSockets: Number.POSITIVE_INFINITY }),
} as const

/** Lets go of the connections that wait. */
export function closeConnections(): void {
  for (const agent of Object.values(agents)) agent.destroy()
}

/** @throws the signal's reason. */
export async function post(target: Pick<Target, 'url' | 'key'>, posted: Posted): Promise<Exchanged> {
  const { timeoutMs, signal } = posted
  signal.throwIfAborted()
  const late = new AbortController()
  const timer = setTimeout(() => late.abort(), timeoutMs)
  const stop = () => late.abort()
  signal.addEventListener('abort', stop, { once: true })
  const startedAt = performance.now()
  try {
    const payload = JSON.stringify(posted.body)
    const response = await open(target, { ...posted, payload, signal: late.signal })
    if (response.statusCode !== 200) return { error: await refusal(response) }
    return await read(response, startedAt)
  } catch (error) {
    signal.throwIfAborted()
    if (late.signal.aborted) return { error: `no end after ${timeoutMs / 1000} s` }
    return { error: sentence(error) }
  } finally {
    clearTimeout(timer)
    signal.removeEventListener('abort', stop)
  }
}

/** A JSON body that is fetched. @throws Error with a sentence. */
export async function getJson(
  { url, key }: Pick<Target, 'url' | 'key'>,
  path: string,
  timeoutMs: number,
): Promise<unknown> {
  try {
    const signal = AbortSignal.timeout(timeoutMs)
    const response = await open({ url, key }, { path, headers: {}, payload: undefined, signal })
    if (response.statusCode !== 200) throw new Error(await refusal(response))
    return JSON.parse(await textOf(response, MOST_BODY_BYTES))
  } catch (error) {
    throw new Error(sentence(error))
  }
}

interface Opened {
  readonly path: string
  readonly headers: Readonly<Record<string, string>>
  /** Undefined: a GET. */
  readonly payload: string | undefined
  readonly signal: AbortSignal
}

function open(
  target: Pick<Target, 'url' | 'key'>,
  { path, headers, payload, signal }: Opened,
): Promise<IncomingMessage> {
  const url = new URL(target.url + path)
  const options: RequestOptions = {
    method: payload === undefined ? 'GET' : 'POST',
    headers: {
      ...(payload !== undefined && {
        'content-type': 'application/json',
        'content-length': Buffer.byteLength(payload),
      }),
      ...(target.key !== undefined && { authorization: `Bearer ${target.key}` }),
      ...headers,
    },
    agent: agents[url.protocol as keyof typeof agents],
    signal,
  }
  const once = () =>
    new Promise<IncomingMessage>((resolve, reject) => {
      const outgoing = (url.protocol === 'https:' ? httpsRequest : httpRequest)(url, options, resolve)
      outgoing.on('error', (error) => reject(outgoing.reusedSocket ? new KeptConnectionError(error) : error))
      outgoing.end(payload)
    })
  return once().catch((error) => {
    // The server closed a connection that waited, at the same moment: nothing was asked.
    if (error instanceof KeptConnectionError && error.isClosed && !signal.aborted) return once()
    throw error
  })
}

/** What went wrong with a connection that another request had used before. */
class KeptConnectionError extends Error {
  readonly isClosed: boolean

  constructor(error: NodeJS.ErrnoException) {
    super(error.message)
    this.isClosed = error.code === 'ECONNRESET' || error.code === 'EPIPE'
  }
}

async function read(response: IncomingMessage, startedAt: number): Promise<Exchanged> {
  let firstAt: number | undefined
  let [usage, timings]: [unknown, unknown] = [undefined, undefined]
  let [pieces, isOver] = [0, false]
  for await (const data of eventsOf(response)) {
    if (data === '[DONE]') {
      isOver = true
      continue
    }
    const event = objectOf(JSON.parse(data))
    if (event['error'] !== undefined) return { error: `in the stream: ${messageOf(event)}` }
    usage = event['usage'] ?? usage
    timings = event['timings'] ?? timings
    for (const choice of Array.isArray(event['choices']) ? event['choices'] : []) {
      const { finish_reason: reason } = objectOf(choice)
      if (hasContent(objectOf(choice))) {
        firstAt ??= performance.now()
        pieces++
      }
      // Some servers close without a [DONE].
      if (typeof reason === 'string') isOver = true
    }
  }
  if (!isOver) return { error: isJson(response) ? 'the answer is not streamed' : 'the stream broke off' }
  const endedAt = performance.now()
  const counted = usageFrom(usage, timings)
  return {
    ttftMs: (firstAt ?? endedAt) - startedAt,
    wallMs: endedAt - startedAt,
    promptTokens: counted?.promptTokens,
    cachedTokens: counted?.cachedTokens,
    outputTokens: counted?.completionTokens ?? pieces,
  }
}

function isJson({ headers }: IncomingMessage): boolean {
  return headers['content-type']?.startsWith('application/json') === true
}

/** Text, thought or call: whatever a client sees first. */
function hasContent(choice: Json): boolean {
  const { content, reasoning_content: thought, reasoning, tool_calls: calls } = objectOf(choice['delta'])
  return (
    [content, thought, reasoning, choice['text']].some((text) => typeof text === 'string' && text !== '') || !!calls
  )
}

async function* eventsOf(response: IncomingMessage): AsyncGenerator<string, void> {
  response.setEncoding('utf8')
  let rest = ''
  for await (const chunk of response as AsyncIterable<string>) {
    rest += chunk
    const lines = rest.split('\n')
    rest = lines.pop() as string
    if (rest.length > MOST_EVENT_CHARS) throw new Error(`an event of more than ${MOST_EVENT_CHARS} characters`)
    for (const line of lines) if (line.startsWith('data:')) yield line.slice(5).trim()
  }
  if (rest.startsWith('data:')) yield rest.slice(5).trim()
}

async function refusal(response: IncomingMessage): Promise<string> {
  const text = await textOf(response, 64 * 1024)
  let said = text
  try {
    said = messageOf(objectOf(JSON.parse(text)))
  } catch {
    // A page or plain text: it is shown as it is.
  }
  return `status ${response.statusCode}: ${said.replaceAll(/\s+/g, ' ').trim().slice(0, MOST_ERROR_CHARS)}`
}

async function textOf(response: IncomingMessage, mostBytes: number): Promise<string> {
  const parts: Buffer[] = []
  let bytes = 0
  for await (const part of response as AsyncIterable<Buffer>) {
    bytes += part.length
    if (bytes > mostBytes) {
      response.destroy()
      break
    }
    parts.push(part)
  }
  return Buffer.concat(parts).toString('utf8')
}

function messageOf(body: Json): string {
  const { error, detail, message } = body
  const said = objectOf(error)['message'] ?? error ?? message ?? detail
  return typeof said === 'string' ? said : JSON.stringify(said ?? body)
}

/** Of an error of the network, and of the several that one name may come to. */
function sentence(error: unknown): string {
  const { message, code, errors, name } = error as Error & { code?: string; errors?: readonly Error[] }
  if (name === 'TimeoutError' || name === 'AbortError') return 'no answer in time'
  if (error instanceof SyntaxError) return `the answer is not JSON: ${message}`
  return message || errors?.[0]?.message || code || String(error)
}

function objectOf(value: unknown): Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : {}
}
