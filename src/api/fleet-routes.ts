// What operators of a fleet ask and do: which backends there are and how they are, taking them in and out, draining them,
// where a request would go and why, forgetting where a session lives. Invariant: none of it waits for a backend but the
// taking out of one, which ends with its last request.

import type { FastifyRequest } from 'fastify'
import type { RemoteOptions } from '../backend/remote/contract.js'
import { RefrainError } from '../core/errors.js'
import type { Member, MemberPlacement, MemberView, RouteQuery } from '../router/contract.js'
import { readBody } from './body.js'
import { BodyScan } from './body-scan.js'
import type { FleetService } from './contract.js'
import { chatFields } from './dialect/openai-chat.js'
import type { Route } from './route.js'
import { queryOf } from './route-query.js'

/** A member, for operators. */
export interface BackendReport {
  readonly member: Member
  /** Who put it there. */
  readonly source: string
  readonly version: string | undefined
  /** Why it is not up. */
  readonly why: string | undefined
  readonly view: MemberView | undefined
}

/** The fleet as operators hold it; router/fleet.ts is one. Ids that are not known: RefrainError `not_found`. */
export interface FleetDesk {
  reports(): readonly BackendReport[]
  report(id: string): BackendReport
  /** @throws RefrainError `invalid_request`. */
  add(options: RemoteOptions, source: string): Member
  remove(id: string): Promise<void>
  drain(id: string): void
  undrain(id: string): void
}

export interface FleetRoutesOptions {
  readonly desk: FleetDesk
  readonly fleet: Pick<FleetService, 'resolve' | 'tokensPerByte' | 'place'>
  readonly sessionSignals: readonly string[]
  /** Complete, as in the config's `backends`. @throws RefrainError `invalid_request` naming the field. */
  backendOf(value: unknown): RemoteOptions
  /** Forgets where a session lives; false: it is unknown. */
  release(tenant: string, session: string): boolean
}

/** Who added a member by these routes. */
const SOURCE = 'api'

const backendSchema = {
  type: 'object',
  required: ['url'],
  properties: {
    url: { type: 'string', description: 'As in the config: with the keys of one of `backends`.' },
    name: { type: 'string' },
    kind: { enum: ['auto', 'vllm', 'sglang', 'llama-cpp', 'openai', 'refrain'] },
    apiKey: { type: 'string' },
    shared: { type: 'boolean' },
  },
}

export function fleetRoutes(options: FleetRoutesOptions): Route[] {
  const { desk } = options
  return [
    {
      method: 'GET',
      path: '/v1/backends',
      right: 'admin',
      summary: 'The backends: state, load, what is known of their caches, how well that is predicted.',
      handler: () => ({ object: 'list', data: desk.reports().map(backendObject) }),
    },
    {
      method: 'GET',
      path: '/v1/backends/:id',
      right: 'admin',
      summary: 'One backend, by its id (percent-encoded).',
      handler: (request) => backendObject(desk.report(idOf(request))),
    },
    {
      method: 'POST',
      path: '/v1/backends',
      right: 'admin',
      summary: 'Takes a backend in; it gets requests once it has answered.',
      body: backendSchema,
      handler: (request, reply) => {
        const { id } = desk.add(options.backendOf(readBody(request.body).value), SOURCE)
        reply.code(201)
        return backendObject(desk.report(id))
      },
    },
    {
      method: 'DELETE',
      path: '/v1/backends/:id',
      right: 'admin',
      summary: 'Takes a backend out: no new requests, and closed when the last is over.',
      handler: (request) => {
        const id = idOf(request)
        desk.report(id)
        void desk.remove(id)
        return { id, object: 'backend', deleted: true }
      },
    },
    ...(['drain', 'undrain'] as const).map(
      (verb): Route => ({
        method: 'POST',
        path: `/v1/backends/:id/${verb}`,
        right: 'admin',
        summary: verb === 'drain' ? 'No new requests there until undrain.' : 'New requests go there again.',
        handler: (request) => {
          const id = idOf(request)
          desk[verb](id)
          return backendObject(desk.report(id))
        },
      }),
    ),
    {
      method: 'POST',
      path: '/v1/route',
      right: 'admin',
      summary: 'Where a request with this body and these headers would go, and why; nothing is sent.',
      body: { type: 'object', required: ['messages'], properties: { messages: chatFields.messages.schema } },
      handler: (request) => dryRun(request, options),
    },
    {
      method: 'DELETE',
      path: '/v1/sessions/:id/route',
      right: 'tenant',
      summary: 'Forgets on which backend a session lives; its next turn goes where it is best.',
      handler: (request) => {
        const id = idOf(request)
        if (!options.release(request.tenant.name, id)) {
          throw new RefrainError('not_found', `there is no session '${id.slice(0, 128)}'`)
        }
        return { id, object: 'session.route', deleted: true }
      },
    },
  ]
}

function idOf(request: FastifyRequest): string {
  return (request.params as { id: string }).id
}

function backendObject({ member, source, version, why, view }: BackendReport) {
  const { id, url, kind, state, models, weight, load, rates } = member
  return {
    id,
    object: 'backend',
    url,
    kind,
    version: version ?? null,
    state,
    ...(why !== undefined && { reason: why }),
    models,
    source,
    weight: round(weight),
    // The router's books have those of other router processes, too.
    in_flight: view?.load.inFlight ?? load.inFlight,
    decoding: view?.load.decoding ?? load.decoding,
    queued_prefill_tokens: load.queuedPrefillTokens,
    reported_queue: load.reportedQueue,
    sessions: view?.sessions ?? 0,
    knowledge: view?.knowledge ?? member.knowledge,
    prediction_error: view?.predictionError === undefined ? null : round(view.predictionError),
    prefill_tokens_per_second: Math.round(view?.prefillTokensPerSecond ?? rates.prefillTokensPerSecond),
    capacity_tokens: view?.capacityTokens ?? null,
  }
}

function dryRun(request: FastifyRequest, { fleet, sessionSignals }: FleetRoutesOptions) {
  const scan = new BodyScan(request.body instanceof Buffer ? request.body : Buffer.from('{}'))
  const { id, tenant, headers } = request
  const sent = queryOf({ id, tenant, headers, scan }, { sessionSignals, tokensPerByte: fleet.tokensPerByte })
  const query = { ...sent, model: fleet.resolve(sent.model || undefined) }
  return routeObject(query, fleet.place(query))
}

function routeObject(query: RouteQuery, { member, reason, predictedHitTokens, scores }: MemberPlacement) {
  return {
    object: 'route',
    backend: member.id,
    url: member.url,
    reason,
    model: query.model,
    session: query.session ?? null,
    request_class: query.requestClass,
    prompt_tokens: query.promptTokens,
    estimated: query.estimated,
    predicted_hit_tokens: Math.round(predictedHitTokens),
    scores: scores.map((score) => ({
      backend: score.member,
      ttft_ms: round(score.ttftMs),
      overlap_tokens: Math.round(score.overlapTokens),
      parts: Object.fromEntries(Object.entries(score.parts).map(([name, ms]) => [name, round(ms)])),
    })),
  }
}

function round(value: number): number {
  return Math.round(value * 1000) / 1000
}
