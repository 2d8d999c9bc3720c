// Agents for benches of fleets: each session's prompt only grows, many share a head, each asks again once it is answered.
// Deterministic by seed. Closed loop over HTTP, streamed, as coding agents do.

import { Agent, type IncomingMessage, request } from 'node:http'
import { BLOCK_TOKENS, blockKeys, flatten } from '../../src/testing/mock-upstream.js'

export interface Load {
  readonly sessions: number
  readonly turns: number
  /** Head of session i is `heads[i % heads.length]`. */
  readonly heads: readonly number[]
  readonly headChars: number
  readonly turnChars: number
  readonly maxTokens: number
  readonly seed: number
}

interface Message {
  readonly role: string
  readonly content: string
}

export interface Answered {
  readonly session: number
  readonly startedAt: number
  readonly ttftMs: number
  readonly error: string | undefined
  /** Whether content had come when it failed. */
  readonly begun: boolean
  /** By the header x-refrain-route, or the upstream that the client chose. */
  readonly at: string
}

/** Words by a generator, so that texts differ from their first block on. */
function textOf(seed: number, chars: number): string {
  let state = seed | 0
  let text = ''
  while (text.length < chars) {
    state = (Math.imul(state, 1664525) + 1013904223) | 0
    text += `${(state >>> 8).toString(36)} `
  }
  return text.slice(0, chars)
}

class Session {
  readonly #load: Load
  readonly #index: number
  readonly messages: Message[]

  constructor(load: Load, index: number) {
    this.#load = load
    this.#index = index
    const head = load.heads[index % load.heads.length] as number
    this.messages = [
      { role: 'system', content: textOf(load.seed * 1000 + head, load.headChars) },
      { role: 'user', content: textOf(load.seed * 1000 + 500 + index, 200) },
    ]
  }

  grow(turn: number): void {
    const seed = this.#load.seed * 1_000_000 + this.#index * 1000 + turn
    this.messages.push({ role: 'assistant', content: 'tok '.repeat(this.#load.maxTokens) })
    this.messages.push({ role: 'user', content: textOf(seed, this.#load.turnChars) })
  }

  body(): string {
    const { maxTokens } = this.#load
    return JSON.stringify({ model: 'mock', stream: true, max_tokens: maxTokens, messages: this.messages })
  }
}

/** What one cache without a bound would compute, and all blocks that there are. */
export function idealOf(load: Load): { readonly prefilled: number; readonly blocks: number } {
  const held = new Set<string>()
  const sessions = Array.from({ length: load.sessions }, (_, i) => new Session(load, i))
  let prefilled = 0
  for (let turn = 0; turn < load.turns; turn++) {
    for (const session of sessions) {
      if (turn > 0) session.grow(turn)
      const text = flatten(session)
      const keys = blockKeys(text)
      const missing = keys.findIndex((key) => !held.has(key))
      const known = missing < 0 ? keys.length : missing
      const tokens = Math.ceil(text.length / 4)
      prefilled += tokens - Math.min(known * BLOCK_TOKENS, tokens - 1)
      for (const key of keys) held.add(key)
    }
  }
  return { prefilled, blocks: held.size }
}

/** Where a client sends a turn; undefined header: none is sent. */
export type Choose = (session: number, nth: number) => { readonly url: string; readonly header?: string }

/** Runs all sessions at once. A turn that fails is asked again 200 ms later, and counted. */
export async function runLoad(load: Load, choose: Choose, untilMs = Number.POSITIVE_INFINITY): Promise<Answered[]> {
  const agent = new Agent({ keepAlive: true })
  const answers: Answered[] = []
  const started = performance.now()
  let nth = 0
  const one = async (index: number) => {
    const session = new Session(load, index)
    for (let turn = 0; turn < load.turns && performance.now() - started < untilMs; turn++) {
      if (turn > 0) session.grow(turn)
      for (;;) {
        const { url, header } = choose(index, nth++)
        const answer = await ask({ agent, url, body: session.body(), session: index, header })
        answers.push(answer)
        if (answer.error === undefined || performance.now() - started > untilMs) break
        await new Promise((resolve) => setTimeout(resolve, 200))
      }
    }
  }
  await Promise.all(Array.from({ length: load.sessions }, (_, i) => one(i)))
  agent.destroy()
  return answers
}

interface Ask {
  readonly agent: Agent
  readonly url: string
  readonly body: string
  readonly session: number
  readonly header: string | undefined
}

function ask({ agent, url, body, session, header }: Ask): Promise<Answered> {
  const startedAt = performance.now()
  return new Promise((resolve) => {
    let at = url
    let ttftMs = 0
    let tail = ''
    const over = (error?: string) =>
      resolve({ session, startedAt, ttftMs: ttftMs || performance.now() - startedAt, error, begun: ttftMs > 0, at })
    const headers = {
      'content-type': 'application/json',
      'content-length': Buffer.byteLength(body),
      ...(header !== undefined && { 'x-session-id': header }),
    }
    const outgoing = request(`${url}/v1/chat/completions`, { method: 'POST', agent, headers }, (incoming) => {
      at = routeOf(incoming) ?? at
      incoming.on('data', (chunk: Buffer) => {
        const text = chunk.toString('latin1')
        if (ttftMs === 0 && text.includes('"content"')) ttftMs = performance.now() - startedAt
        tail = (tail + text).slice(-400)
      })
      incoming.on('end', () => over(faultOf(incoming.statusCode ?? 0, tail)))
      incoming.on('error', (error) => over(error.message))
    })
    outgoing.on('error', (error) => over(error.message))
    outgoing.end(body)
  })
}

function routeOf({ headers }: IncomingMessage): string | undefined {
  return (headers['x-refrain-route'] as string | undefined)?.split(';')[0]
}

function faultOf(status: number, tail: string): string | undefined {
  if (status !== 200) return `status ${status}`
  if (tail.includes('"error"')) return 'an error in the stream'
  return tail.includes('[DONE]') ? undefined : 'the stream broke off'
}
