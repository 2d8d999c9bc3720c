// A server as vLLM is one from outside, with a cache that is simulated truly: chained blocks of 256 characters (64 tokens),
// least recently used ones dropped, one prefill at a time, as long as what is not cached takes. Streams send their headers
// before the prefill, as servers behind uvicorn do. For tests and benches of fleets; 127.0.0.1 alone.

import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'

export const BLOCK_CHARS = 256
export const BLOCK_TOKENS = 64

export interface MockOptions {
  /** 0: any that is free. */
  readonly port?: number
  /** Blocks that the cache holds. */
  readonly blocks?: number
  /** Prefill, tokens a second; 0: at once. */
  readonly rate?: number
  /** Between two tokens of an answer. */
  readonly decodeMs?: number
}

export interface MockCounts {
  requests: number
  promptTokens: number
  cachedTokens: number
  /** Requests whose client left before the end. */
  aborted: number
}

export interface MockUpstream {
  readonly url: string
  readonly counts: MockCounts
  /** Cuts all connections. */
  close(): Promise<void>
}

interface ChatBody {
  readonly messages: readonly { readonly role: string; readonly content: string }[]
  readonly stream?: boolean
  readonly max_tokens?: number
  readonly cache_salt?: string
}

/** What each block is by all that stands before it. */
export function blockKeys(text: string, salt = ''): string[] {
  const keys: string[] = []
  let [a, b] = [0x811c9dc5, 0x9e3779b9]
  const mix = (code: number) => {
    a = Math.imul(a ^ code, 0x01000193)
    b = Math.imul(b + code, 0x85ebca6b) ^ (b >>> 13)
  }
  for (let i = 0; i < salt.length; i++) mix(salt.charCodeAt(i))
  for (let start = 0; start + BLOCK_CHARS <= text.length; start += BLOCK_CHARS) {
    for (let i = start; i < start + BLOCK_CHARS; i++) mix(text.charCodeAt(i))
    keys.push(`${a >>> 0}.${b >>> 0}`)
  }
  return keys
}

export function flatten({ messages }: Pick<ChatBody, 'messages'>): string {
  return messages.map(({ role, content }) => `<|${role}|>${content}`).join('')
}

/** Blocks by their keys, the tail of a chain first to go. */
class Blocks {
  readonly #held = new Map<string, true>()
  readonly #capacity: number

  constructor(capacity: number) {
    this.#capacity = capacity
  }

  /** How many blocks of the front are there. */
  match(keys: readonly string[]): number {
    const missing = keys.findIndex((key) => !this.#held.has(key))
    return missing < 0 ? keys.length : missing
  }

  insert(keys: readonly string[]): void {
    for (const key of [...keys].reverse()) {
      this.#held.delete(key)
      this.#held.set(key, true)
    }
    for (const key of this.#held.keys()) {
      if (this.#held.size <= this.#capacity) return
      this.#held.delete(key)
    }
  }
}

export async function mockUpstream({ port = 0, blocks = 20_000, rate = 0, decodeMs = 0 }: MockOptions = {}) {
  const cache = new Blocks(blocks)
  const counts: MockCounts = { requests: 0, promptTokens: 0, cachedTokens: 0, aborted: 0 }
  let last: Promise<unknown> = Promise.resolve()

  const prefill = async (keys: readonly string[], tokens: number, isGone: () => boolean): Promise<number> => {
    const turn = last.then(async () => {
      if (isGone()) return 0
      const held = cache.match(keys) * BLOCK_TOKENS
      // The last position is always computed.
      const cached = held >= tokens ? Math.max(0, tokens - BLOCK_TOKENS) : held
      counts.promptTokens += tokens
      counts.cachedTokens += cached
      if (rate > 0) await sleep(((tokens - cached) / rate) * 1000)
      cache.insert(keys)
      return cached
    })
    last = turn
    return turn
  }

  const chat = async (body: ChatBody, response: ServerResponse) => {
    const { stream = false, max_tokens: max = 8, cache_salt: salt } = body
    const text = flatten(body)
    const tokens = Math.ceil(text.length / 4)
    let isGone = false
    response.on('close', () => {
      isGone = !response.writableFinished
    })
    counts.requests++
    if (stream) {
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      response.flushHeaders()
    }
    const cached = await prefill(blockKeys(text, salt), tokens, () => isGone)
    const usage = {
      prompt_tokens: tokens,
      completion_tokens: max,
      total_tokens: tokens + max,
      prompt_tokens_details: { cached_tokens: cached },
    }
    const about = { id: 'chatcmpl-1', created: 1, model: 'mock' }
    if (!stream) {
      await sleep(decodeMs * max)
      const message = { role: 'assistant', content: 'tok '.repeat(max) }
      const choices = [{ index: 0, message, finish_reason: 'stop' }]
      answer(response, { ...about, object: 'chat.completion', choices, usage })
      return
    }
    const event = (more: object) =>
      response.write(`data: ${JSON.stringify({ ...about, object: 'chat.completion.chunk', ...more })}\n\n`)
    for (let i = 0; i < max && !isGone; i++) {
      event({ choices: [{ index: 0, delta: { role: 'assistant', content: 'tok ' }, finish_reason: null }] })
      await sleep(decodeMs)
    }
    if (isGone) counts.aborted++
    event({ choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] })
    event({ choices: [], usage })
    response.end('data: [DONE]\n\n')
  }

  const server = createServer((request, response) => {
    const { url = '/', method } = request
    if (method === 'POST' && url === '/v1/chat/completions') {
      readText(request).then(
        (text) => chat(JSON.parse(text), response),
        () => response.destroy(),
      )
    } else if (url === '/health') answer(response, { status: 'ok' })
    else if (url === '/stats') answer(response, counts)
    else if (url === '/version') answer(response, { version: '0.11.0' })
    else if (url === '/v1/models') answer(response, { object: 'list', data: [{ id: 'mock', owned_by: 'vllm' }] })
    else answer(response, { error: { message: 'not found' } }, 404)
  })
  server.keepAliveTimeout = 72_000
  await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    counts,
    close: () =>
      new Promise<void>((resolve) => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  } satisfies MockUpstream
}

async function readText(request: IncomingMessage): Promise<string> {
  const parts: Buffer[] = []
  for await (const part of request) parts.push(part as Buffer)
  return Buffer.concat(parts).toString('utf8')
}

function answer(response: ServerResponse, value: object, status = 200): void {
  const text = JSON.stringify(value)
  response.writeHead(status, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) })
  response.end(text)
}
