// A chat stream of another server as the events of a backend, for dialects that it has not. Invariant: `start` first, one
// `end` a choice, `finish` last, as every backend's; counts are the server's own where it tells them. A chunk counts as
// one token until then, which is what these servers send.

import type { CallDelta, FinishReason, GenerateEvent, TokenLogprob } from '../../core/events.js'
import type { ChatReader, RemoteUsage } from './contract.js'
import { dataOf } from './stream-watch.js'
import { joinUsage, usageFrom } from './usage.js'

type Json = Readonly<Record<string, unknown>>
type Token = Extract<GenerateEvent, { type: 'token' }>

/** What stands for a token whose id the server does not tell. */
const SOME_ID = [0] as const

export class ChatEvents implements ChatReader {
  /** Tokens of the prompt until the server tells them. */
  readonly #estimate: number
  #usage: RemoteUsage | undefined
  #started = false
  #tokens = 0

  constructor(estimate: number) {
    this.#estimate = estimate
  }

  /** Events of whole SSE events. */
  add(bytes: Buffer): GenerateEvent[] {
    const events: GenerateEvent[] = []
    for (const event of bytes.toString('utf8').split(/\r?\n\r?\n/)) {
      const data = dataOf(Buffer.from(event))
      if (data === undefined || data === '[DONE]') continue
      this.#chunk(asJson(parsed(data)), events)
    }
    return events
  }

  /** What is said once the stream has ended. */
  finish(usage: RemoteUsage | undefined): GenerateEvent[] {
    const events: GenerateEvent[] = []
    this.#usage = joinUsage(this.#usage, usage)
    this.#start(events)
    const { promptTokens, completionTokens } = this.#usage ?? {}
    events.push({
      type: 'finish',
      ...this.#prompt(promptTokens),
      completionTokens: completionTokens ?? this.#tokens,
    })
    return events
  }

  #chunk(chunk: Json, events: GenerateEvent[]): void {
    this.#usage = joinUsage(this.#usage, usageFrom(chunk['usage'], chunk['timings']))
    const choices = Array.isArray(chunk['choices']) ? (chunk['choices'] as Json[]) : []
    for (const choice of choices) {
      this.#start(events)
      const index = typeof choice['index'] === 'number' ? choice['index'] : 0
      const token = tokenOf(choice, index)
      if (token !== undefined) {
        this.#tokens++
        events.push(token)
      }
      const reason = choice['finish_reason']
      if (typeof reason === 'string') {
        const stop = choice['stop_reason']
        events.push({
          type: 'end',
          choice: index,
          reason: finishOf(reason),
          ...(typeof stop === 'string' && { stopString: stop }),
        })
      }
    }
  }

  #start(events: GenerateEvent[]): void {
    if (this.#started) return
    this.#started = true
    events.push({ type: 'start', ...this.#prompt(this.#usage?.promptTokens) })
  }

  #prompt(promptTokens = this.#estimate) {
    const memory = this.#usage?.cachedTokens ?? 0
    return {
      promptTokens,
      cache: { working: 0, memory, disk: 0, computed: promptTokens - memory },
      committedTokens: 0,
    }
  }
}

/** Undefined: the choice says nothing. */
function tokenOf(choice: Json, index: number): Token | undefined {
  const delta = asJson(choice['delta'])
  const content = textOf(delta['content']) || textOf(delta['refusal'])
  const reasoning = textOf(delta['reasoning_content']) || textOf(delta['reasoning']) || textOf(delta['reasoning_text'])
  const calls = callsOf(delta['tool_calls'])
  const logprobs = logprobsOf(choice['logprobs'])
  if (content === '' && reasoning === '' && calls.length === 0 && logprobs === undefined) return undefined
  return {
    type: 'token',
    choice: index,
    ids: SOME_ID,
    text: content,
    split: { content, reasoning, calls },
    ...(logprobs && { logprobs }),
  }
}

function callsOf(calls: unknown): CallDelta[] {
  if (!Array.isArray(calls)) return []
  return calls.map((call: unknown, i) => {
    const { index, id, function: called } = asJson(call)
    const { name, arguments: args } = asJson(called)
    return {
      index: typeof index === 'number' ? index : i,
      ...(typeof id === 'string' && id !== '' && { id }),
      ...(typeof name === 'string' && name !== '' && { name }),
      ...(typeof args === 'string' && { argumentsDelta: args }),
    }
  })
}

function logprobsOf(logprobs: unknown): Token['logprobs'] {
  const { content } = asJson(logprobs)
  if (!Array.isArray(content) || content.length === 0) return undefined
  return content.map((entry: unknown) => {
    const { top_logprobs: top } = asJson(entry)
    return { ...logprobOf(entry), top: Array.isArray(top) ? top.map(logprobOf) : [] }
  })
}

function logprobOf(entry: unknown): TokenLogprob {
  const { token, bytes, logprob } = asJson(entry)
  const text = textOf(token)
  return {
    id: SOME_ID[0],
    text,
    bytes: Array.isArray(bytes) ? (bytes as number[]) : [...Buffer.from(text)],
    logprob: typeof logprob === 'number' ? logprob : -Infinity,
  }
}

function finishOf(reason: string): FinishReason {
  return reason === 'length' ? 'length' : 'stop'
}

function textOf(value: unknown): string {
  return typeof value === 'string' ? value : ''
}

function parsed(data: string): unknown {
  try {
    return JSON.parse(data)
  } catch {
    // What is no JSON says nothing; the watch has let it through behind content.
    return undefined
  }
}

function asJson(value: unknown): Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : {}
}
