// A whole HTTP server over a service that answers what a test tells it, already told apart into reasoning, text and calls:
// for tests of dialects against client libraries, where how a model writes a call does not matter.

import type { ServedModel, Service } from '../api/contract.js'
import { createServer } from '../api/server.js'
import { systemClock } from '../core/clock.js'
import type { FinishReason, GenerateEvent, SplitText } from '../core/events.js'
import type { ChatMessage, GenerateRequest } from '../core/request.js'

export interface ToldCall {
  readonly id?: string
  readonly name: string
  readonly arguments: string
}

export interface ToldAnswer {
  /** Nothing is said before it resolves: a long prefill. */
  readonly after?: Promise<void>
  readonly reasoning?: string
  readonly content?: string
  readonly calls?: readonly ToldCall[]
  /** Absent: `stop`. */
  readonly reason?: FinishReason
  /** Thrown behind all of the above, in place of an end. */
  readonly failure?: Error
}

export interface ToldServer {
  /** With `/v1`. */
  readonly url: string
  /** What was asked so far. */
  readonly requests: GenerateRequest[]
  close(): Promise<void>
}

const MODEL: ServedModel = { name: 'told-model', contextLength: 32_768, created: 1_790_000_000 }
/** Characters a token. */
const PIECE = 7
const CACHE = { working: 0, memory: 64, disk: 0, computed: 36 }
const MIB = 1 << 20

/**
 * Listens on a free port of 127.0.0.1. `answer` gets the request and how many came before it; an Error refuses it in
 * front of its first byte.
 */
export async function toldServer(
  answer: (request: GenerateRequest, turn: number) => ToldAnswer | Error,
  { keepaliveMs = 5000 } = {},
) {
  const requests: GenerateRequest[] = []
  const unavailable = (): never => {
    throw new Error('not in this double')
  }
  const service: Service = {
    models: [MODEL],
    resolve: () => MODEL,
    generate(request) {
      requests.push(request)
      return eventsOf(answer(request, requests.length - 1))
    },
    tokenize: unavailable,
    // Of plain text alone: there is no template.
    countTokens: (_, text) => cut(text).length,
    detokenize: unavailable,
    spellingOf: unavailable,
  }
  const limits = {
    ...{ bodyBytes: 8 * MIB, receiveMs: 30_000, unsentBytes: MIB, n: 8, prompts: 8, stopStrings: 16, stopChars: 512 },
    ...{ logitBias: 1024, jsonDepth: 64, pinMs: 60_000 },
  }
  const server = createServer({
    service,
    fleet: [],
    limits,
    access: { tenants: [], host: '127.0.0.1' },
    clock: systemClock,
    keepaliveMs,
    sessionSignals: [],
    forceUsage: false,
    version: 'test',
    metrics: async () => ({ type: 'text/plain', text: '' }),
  })
  const url = `${await server.listen('127.0.0.1', 0)}/v1`
  return { url, requests, close: () => server.drain(0) } satisfies ToldServer
}

async function* eventsOf(answer: ToldAnswer | Error): AsyncGenerator<GenerateEvent, void> {
  if (answer instanceof Error) throw answer
  await answer.after
  const pieces = splitsOf(answer)
  yield { type: 'start', promptTokens: 100, cache: CACHE, committedTokens: 36 }
  for (const [i, split] of pieces.entries()) {
    yield { type: 'token', choice: 0, ids: [i], text: split.content, split }
  }
  if (answer.failure !== undefined) throw answer.failure
  yield { type: 'end', choice: 0, reason: answer.reason ?? 'stop' }
  yield { type: 'finish', promptTokens: 100, completionTokens: pieces.length, cache: CACHE, committedTokens: 36 }
}

function splitsOf({ reasoning = '', content = '', calls = [] }: ToldAnswer): SplitText[] {
  const nothing: SplitText = { content: '', reasoning: '', calls: [] }
  return [
    ...cut(reasoning).map((text) => ({ ...nothing, reasoning: text })),
    ...cut(content).map((text) => ({ ...nothing, content: text })),
    ...calls.flatMap(({ id, name, arguments: text }, index) =>
      ['', ...cut(text)].map((argumentsDelta, i) => ({
        ...nothing,
        calls: [i === 0 ? { index, name, ...(id === undefined ? {} : { id }) } : { index, argumentsDelta }],
      })),
    ),
  ]
}

function cut(text: string): string[] {
  return Array.from({ length: Math.ceil(text.length / PIECE) }, (_, i) => text.slice(i * PIECE, (i + 1) * PIECE))
}

/** The messages of a request that is a chat. */
export function messagesOf({ prompt }: GenerateRequest): readonly ChatMessage[] {
  if (prompt.kind !== 'chat') throw new Error(`a ${prompt.kind} prompt has no messages`)
  return prompt.messages
}
