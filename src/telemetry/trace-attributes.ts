// What spans say of a request, in the words of OpenTelemetry's conventions for generative AI and HTTP:
// https://opentelemetry.io/docs/specs/semconv/gen-ai/ and /http/. What these have no word for begins with `refrain.`.
// Invariant: no key, prompt or answer is in it.

import type { AttemptBegun, AttemptSettled, PhasesTimed, RequestBegun, RequestSettled } from '../core/signals.js'

export type Attributes = Record<string, string | number | boolean>

/** Paths of other APIs (embeddings, uploads) go through a fleet; their models do nothing that has a name there. */
const OPERATIONS: Readonly<Record<string, string>> = {
  '/v1/chat/completions': 'chat',
  '/v1/messages': 'chat',
  '/v1/responses': 'chat',
  '/v1/quick': 'chat',
  '/v1/cache/warm': 'chat',
  '/v1/completions': 'text_completion',
  '/v1/embeddings': 'embeddings',
}

export interface ServerAddress {
  readonly host: string
  readonly port: number
}

/** `chat smollm2`; the route alone where it has no operation. */
export function spanName(route: string, model: string): string {
  const operation = OPERATIONS[route]
  if (operation === undefined) return 'POST'
  return model === '' ? operation : `${operation} ${model}`
}

// Made by assignment: spreading objects of such names is the dearest part of a span.

export function beginning({ id, route }: RequestBegun, { host, port }: ServerAddress): Attributes {
  const made: Attributes = {
    'gen_ai.provider.name': 'refrain',
    'server.address': host,
    'http.request.method': 'POST',
    'refrain.request.id': id,
  }
  const operation = OPERATIONS[route]
  if (operation !== undefined) made['gen_ai.operation.name'] = operation
  made[operation === undefined ? 'url.path' : 'http.route'] = route
  if (port > 0) made['server.port'] = port
  return made
}

export function outcome(request: RequestSettled): Attributes {
  const { model, status, error, session, promptTokens, working, memory, disk } = request
  const made: Attributes = { 'http.response.status_code': status, 'refrain.tenant': request.tenant }
  if (model !== '') {
    made['gen_ai.request.model'] = model
    made['gen_ai.response.model'] = model
  }
  if (error !== undefined) made['error.type'] = error
  if (session !== undefined) made['gen_ai.conversation.id'] = session.slice(0, 128)
  if (promptTokens === 0) return made
  made['gen_ai.usage.input_tokens'] = promptTokens
  made['gen_ai.usage.output_tokens'] = request.completionTokens
  made['gen_ai.usage.cache_read.input_tokens'] = working + memory + disk
  made['refrain.tokens.working'] = working
  made['refrain.tokens.memory'] = memory
  made['refrain.tokens.disk'] = disk
  made['refrain.tokens.computed'] = request.computed
  return made
}

export interface PhaseSpan {
  readonly name: 'queue' | 'restore' | 'prefill' | 'decode'
  readonly ms: number
  readonly attributes: Attributes
}

/** In their order; they follow one another without a gap. */
export function phaseSpans(phases: PhasesTimed): PhaseSpan[] {
  const { queueMs, restoreMs, prefillMs, decodeMs, cache, completionTokens, promptTokens } = phases
  const { working, memory, disk, computed } = cache
  const found = { 'refrain.tokens.working': working, 'refrain.tokens.memory': memory, 'refrain.tokens.disk': disk }
  const spans: (Omit<PhaseSpan, 'ms'> & { readonly ms: number | undefined })[] = [
    { name: 'queue', ms: queueMs, attributes: { 'gen_ai.usage.input_tokens': promptTokens } },
    { name: 'restore', ms: restoreMs, attributes: found },
    { name: 'prefill', ms: prefillMs, attributes: { 'refrain.tokens.computed': computed } },
    { name: 'decode', ms: decodeMs, attributes: { 'gen_ai.usage.output_tokens': completionTokens } },
  ]
  return spans.filter((span): span is PhaseSpan => span.ms !== undefined)
}

export function routing({ backend, reason, predictedHitTokens }: AttemptBegun): Attributes {
  const predicted = Math.round(predictedHitTokens)
  return { 'refrain.backend': backend, 'refrain.route.reason': reason, 'refrain.route.predicted_hit_tokens': predicted }
}

export function attempt({ url, model, backend }: AttemptBegun, route: string): Attributes {
  const { hostname, port, protocol } = new URL(url)
  const made: Attributes = {
    'gen_ai.request.model': model,
    'server.address': hostname,
    'server.port': port === '' ? (protocol === 'https:' ? 443 : 80) : Number(port),
    'http.request.method': 'POST',
    'refrain.backend': backend,
  }
  const operation = OPERATIONS[route]
  if (operation !== undefined) made['gen_ai.operation.name'] = operation
  return made
}

export function attemptOutcome(settled: AttemptSettled): Attributes {
  const { status, promptTokens, completionTokens, cachedTokens } = settled
  const type = failureOf(settled)
  const made: Attributes = {}
  if (settled.outcome === 'lost') made['refrain.hedge'] = 'lost'
  if (status !== undefined) made['http.response.status_code'] = status
  if (type !== undefined) made['error.type'] = type
  if (promptTokens !== undefined) made['gen_ai.usage.input_tokens'] = promptTokens
  if (completionTokens !== undefined) made['gen_ai.usage.output_tokens'] = completionTokens
  if (cachedTokens !== undefined) made['gen_ai.usage.cache_read.input_tokens'] = cachedTokens
  return made
}

/** Undefined: it was answered. */
export function failureOf({ outcome, status }: AttemptSettled): string | undefined {
  if (outcome === 'answered' || outcome === 'lost') return undefined
  if (outcome === 'left') return 'client_gone'
  return status === undefined ? 'backend_fault' : `${status}`
}
