// One generating request from its decoded body to its last byte: steps 8 and 12 as seen from the socket. Invariant:
// exactly one ending: a body, a stream's ending, an error with a status of its own while no byte is out, an in-band error
// after that, or a closed socket; the work stops when the client goes.

import type { FastifyReply } from 'fastify'
import type { CacheUsage } from '../core/block.js'
import type { Clock } from '../core/clock.js'
import { RefrainError } from '../core/errors.js'
import type { GenerateEvent } from '../core/events.js'
import type { QuickResult } from '../core/quick.js'
import type { ApiOptions } from './contract.js'
import type { About, Decoded } from './dialect/contract.js'
import { addedTokens } from './dialect/quick-result.js'
import { merge } from './merge.js'
import { SseWriter } from './sse-writer.js'

/** The reason of a signal whose client has hung up. */
export class ClientGone extends Error {
  constructor() {
    super('the client has closed the connection')
    this.name = 'ClientGone'
  }
}

/** What is counted while events pass, for the log line and the metrics. */
export class Tally {
  promptTokens = 0
  completionTokens = 0
  cache: CacheUsage = { working: 0, memory: 0, disk: 0, computed: 0 }
  firstTokenAt: number | undefined
  /** What side questions came to. */
  quick: readonly QuickResult[] = []

  add(event: GenerateEvent, clock: Clock): void {
    if (event.type === 'token') {
      this.firstTokenAt ??= clock.now()
      this.completionTokens += event.ids.length
    } else if (event.type === 'quick') {
      this.quick = event.results ?? []
    } else if (event.type !== 'end') {
      // Suffixes and answers of side questions are tokens of the call like any other.
      const { promptTokens, completionTokens } = addedTokens(this.quick)
      this.promptTokens = event.promptTokens + promptTokens
      this.cache = { ...event.cache, computed: event.cache.computed + promptTokens }
      if (event.type === 'finish') this.completionTokens = event.completionTokens + completionTokens
    }
  }
}

export interface Answering {
  readonly options: ApiOptions
  readonly decoded: Decoded
  readonly about: About
  readonly reply: FastifyReply
  /** Aborted when the client goes, reads too slowly, or the server drains. */
  readonly stop: AbortController
  readonly tally: Tally
}

/** The events of all prompts of a request, as one stream. */
export function eventsOf({ options, decoded, stop }: Answering): AsyncIterable<GenerateEvent> {
  const [first, ...rest] = decoded.requests
  if (rest.length === 0) return options.service.generate(first, stop.signal)
  const runs = decoded.requests.map((request) => (signal: AbortSignal) => options.service.generate(request, signal))
  return merge(runs, first.n, stop.signal)
}

/** `working=0, memory=1024, disk=0, computed=37`: tokens of the prompt by where their KV came from. */
export function cacheHeader({ working, memory, disk, computed }: CacheUsage): string {
  return `working=${working}, memory=${memory}, disk=${disk}, computed=${computed}`
}

/** Answers with one body. @throws whatever the backend throws; nothing has been sent then. */
export async function answerWhole(answering: Answering): Promise<void> {
  const { options, decoded, about, reply, tally } = answering
  const encoder = decoded.bodyEncoder(about)
  for await (const event of eventsOf(answering)) {
    tally.add(event, options.clock)
    encoder.event(event)
  }
  reply.header('x-refrain-cache', cacheHeader(tally.cache))
  await reply.type('application/json; charset=utf-8').send(encoder.body())
}

/**
 * Answers with server-sent events; returns the failure that was told in-band, if there was one.
 * @throws whatever the backend throws before the status line was sent.
 */
export async function answerStream(answering: Answering): Promise<unknown> {
  const { options, decoded, about, reply, stop, tally } = answering
  const encoder = decoded.streamEncoder(about)
  const writer = new SseWriter({
    response: reply.raw,
    clock: options.clock,
    keepaliveMs: options.keepaliveMs,
    keepalive: encoder.keepalive === undefined ? undefined : () => encoder.keepalive?.() ?? '',
    unsentBytes: options.limits.unsentBytes,
    onSlow: () => stop.abort(slowReader(options.limits.unsentBytes)),
    headers: headersOf(reply),
  })
  try {
    for await (const event of eventsOf(answering)) {
      tally.add(event, options.clock)
      if (event.type === 'start') writer.open({ 'x-refrain-cache': cacheHeader(event.cache) })
      writer.write(encoder.event(event))
    }
    reply.hijack()
    writer.end(encoder.ending)
    return undefined
  } catch (error) {
    if (!writer.isOpen) throw error
    reply.hijack()
    // What waits for a slow reader would wait on; the error that it gets is the closed socket.
    if (isSlowReader(error)) reply.raw.destroy()
    else writer.end(encoder.failure(error))
    return error
  } finally {
    writer.stop()
  }
}

function slowReader(bytes: number): RefrainError {
  return new RefrainError('slow_reader', `more than ${bytes} bytes waited for the client to read them`)
}

function isSlowReader(error: unknown): boolean {
  return error instanceof RefrainError && error.code === 'slow_reader'
}

/** The headers that hooks have set so far: a raw status line does not carry them by itself. */
function headersOf(reply: FastifyReply): Record<string, string> {
  return Object.fromEntries(Object.entries(reply.getHeaders()).map(([name, value]) => [name, String(value)]))
}
