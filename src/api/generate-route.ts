// The route of a dialect: body in, answer out, one settled-signal at the end whatever happened. Steps 1, 2 and 12.
// Invariant: the work of a request is stopped by its own client's leaving, and by nothing else but slowness and a drain.

import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Clock } from '../core/clock.js'
import type { ErrorCode } from '../core/errors.js'
import type { QuickResult } from '../core/quick.js'
import type { GenerateRequest, Priority } from '../core/request.js'
import { quickAnswered, requestBegun, requestSettled } from '../core/signals.js'
import { type Answering, answerStream, answerWhole, ClientGone, Tally } from './answer.js'
import { readBody } from './body.js'
import type { ApiOptions } from './contract.js'
import type { About, Decoded, Dialect, Envelope, RawBody } from './dialect/contract.js'
import { invalid } from './dialect/fields.js'
import { asRefrainError } from './dialect/openai-shape.js'
import { reportFault } from './failure.js'
import { inertThinking } from './inert-thinking.js'
import { inSession, type Kept, keptAnswer } from './logged-session.js'
import { classify } from './request-class.js'
import { sessionSignal } from './session-signal.js'

/** Requests that are being answered, so that a drain can wait for them and end them. */
export type Active = Set<Pick<AbortController, 'abort'>>

const PRIORITIES: readonly string[] = ['interactive', 'auxiliary', 'background'] satisfies Priority[]
const CLIENT_GONE_STATUS = 499

export function generateRoute(dialect: Dialect, options: ApiOptions, active: Active) {
  return async (request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> => {
    const tally = new Tally()
    const stop = new AbortController()
    let failure: unknown
    let model = ''
    let kept: Kept | undefined
    reply.raw.once('close', () => {
      if (!reply.raw.writableFinished) stop.abort(new ClientGone())
    })
    active.add(stop)
    tellBegun(request, options.clock)
    try {
      const body = readBody(request.body)
      const sent = envelopeOf(request, options, body)
      kept = await keptAnswer(dialect, body, { envelope: sent, options })
      const envelope = kept?.envelope ?? sent
      request.session = envelope.session
      const decoded = dialect.decode(body, envelope)
      const served = options.service.resolve(decoded.requests[0].model || undefined)
      model = served.name
      const inert = inertThinking(decoded.requests[0].prompt, served, body.value)
      nameIgnored({ ignored: [...decoded.ignored, ...inert] }, reply)
      const about = {
        id: dialect.idPrefix + (kept?.answerId ?? request.id),
        model,
        created: Math.floor(Date.now() / 1000),
        forceUsage: options.forceUsage,
        ...missReason(options, decoded.requests[0]),
        ...(options.reasoningField && { reasoningField: options.reasoningField }),
      }
      const answering: Answering = { options, decoded, about, reply, stop, tally }
      if (decoded.stream) failure = await answerStream(answering)
      else await answerWhole(answering)
      if (failure !== undefined && !(failure instanceof ClientGone)) reportUnknown(failure)
    } catch (error) {
      failure = error
      if (!(error instanceof ClientGone)) throw error
      reply.hijack()
    } finally {
      active.delete(stop)
      settle(request, { tally, model, failure, clock: options.clock })
      await kept?.over(failure).catch(reportFault)
    }
    return reply
  }
}

/** Who compares a request with an earlier one, where the service does. */
function missReason({ service }: ApiOptions, request: GenerateRequest): Pick<About, 'missReason'> {
  if (service.explainMiss === undefined) return {}
  return { missReason: (previousId) => service.explainMiss?.(request, previousId) }
}

/** What headers and body say of a request, whichever API it came by. @throws RefrainError naming the header. */
export function envelopeOf(request: FastifyRequest, options: ApiOptions, body: RawBody): Envelope {
  const signal = sessionSignal(request.headers, body.value, options.sessionSignals)
  const classified = classify(request.headers, body.value)
  const isSide = classified.requestClass === 'auxiliary' || classified.requestClass === 'compaction'
  const priority = request.headers['x-refrain-priority'] ?? (isSide ? 'auxiliary' : 'interactive')
  if (typeof priority !== 'string' || !PRIORITIES.includes(priority)) {
    throw invalid('x-refrain-priority', `must be one of ${PRIORITIES.join(', ')}`)
  }
  const envelope: Envelope = {
    id: request.id,
    tenant: request.tenant,
    ...signal,
    session: signal.session,
    ...classified,
    priority: priority as Priority,
    limits: options.limits,
    countTokens(model, text) {
      const served = options.service.resolve(model || undefined)
      return options.service.countTokens(served, text)
    },
  }
  return inSession(envelope, body, request.headers['idempotency-key'])
}

/** Most of the header that is sent; a body can have more unknown fields than a client wants to read of. */
const IGNORED_CHARS = 1024

export function nameIgnored({ ignored }: Pick<Decoded, 'ignored'>, reply: FastifyReply): void {
  if (ignored.length === 0) return
  reply.header('x-refrain-ignored', ignoredHeader(ignored))
}

/** '' where nothing is ignored. */
export function ignoredHeader(ignored: readonly string[]): string {
  const names = ignored.map((path) => path.slice(0, 128).replace(/[^\w.[\]-]/g, '?'))
  return names.join(', ').slice(0, IGNORED_CHARS)
}

function reportUnknown(failure: unknown): void {
  if (asRefrainError(failure).code === 'internal') reportFault(failure)
}

export interface Outcome {
  readonly tally: Tally
  readonly model: string
  /** What was thrown or told in-band; undefined: all went well. */
  readonly failure: unknown
  readonly clock: Clock
}

/** Says that a request was let in of which `settle` will say what became of it. */
export function tellBegun(request: FastifyRequest, clock: Clock): void {
  if (!requestBegun.channel.hasSubscribers) return
  const { traceparent, tracestate } = request.headers as Record<string, string | undefined>
  const route = request.routeOptions.url ?? ''
  requestBegun.publish({ id: request.id, route, sinceMs: clock.now() - request.startedAt, traceparent, tracestate })
}

/** Says what side questions came to. */
export function tellQuick(results: readonly QuickResult[], tenant: string): void {
  for (const { task, form, error, usage } of results) {
    quickAnswered.publish({ task, form, error: error?.code, tenant, ...usage })
  }
}

/** Says, once per request, what became of it. */
export function settle(request: FastifyRequest, { tally, model, failure, clock }: Outcome): void {
  if (request.settled) return
  request.settled = true
  const { startedAt, session } = request
  const tenant = request.tenant.name
  tellQuick(tally.quick, tenant)
  const error: ErrorCode | 'client_gone' | undefined =
    failure === undefined ? undefined : failure instanceof ClientGone ? 'client_gone' : asRefrainError(failure).code
  requestSettled.publish({
    id: request.id,
    tenant,
    route: request.routeOptions.url ?? '',
    model,
    status: statusOf(failure),
    ...(error === undefined ? {} : { error }),
    promptTokens: tally.promptTokens,
    completionTokens: tally.completionTokens,
    ...tally.cache,
    ...(tally.firstTokenAt === undefined ? {} : { ttftMs: tally.firstTokenAt - startedAt }),
    durationMs: clock.now() - startedAt,
    ...(session === undefined ? {} : { session }),
  })
}

function statusOf(failure: unknown): number {
  if (failure === undefined) return 200
  return failure instanceof ClientGone ? CLIENT_GONE_STATUS : asRefrainError(failure).status
}
