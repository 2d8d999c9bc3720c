// The HTTP server in fleet mode. What generates, and every other POST that is not ours, goes to forward-route.ts before
// fastify sees it; models, health, metrics and the operators' routes are fastify's. Invariant: both sides have one gate,
// one drain and one shape of errors.

import type { FastifyServerFactory } from 'fastify'
import { RefrainError } from '../core/errors.js'
import { routeSignals } from '../core/signals.js'
import { aliveRoutes, type Readiness } from './alive-routes.js'
import type { FleetModel, FleetQuick } from './contract.js'
import type { Dialect } from './dialect/contract.js'
import * as dialects from './dialect/index.js'
import { fleetQuickRoutes } from './fleet-quick.js'
import { type ForwardServerOptions, forwardServer } from './forward-server.js'
import type { Front } from './front.js'
import type { Active } from './generate-route.js'
import { openapi } from './openapi.js'
import type { Route } from './route.js'
import { type ApiServer, addAccess, answerTheRest, apiServer, createApp } from './server.js'
import { withoutSessions } from './session-routes.js'

export interface FleetServerOptions extends ForwardServerOptions {
  readonly quick: FleetQuick
  readonly version: string
  readonly metrics: () => Promise<{ readonly type: string; readonly text: string }>
  /** Whether a request sent now would be answered, and what is degraded. */
  readonly ready: () => Readiness
  /** The operators' routes: /v1/route, /v1/backends, ... */
  readonly routes: readonly Route[]
}

const NO_SESSIONS = 'a fleet logs no sessions: ask the Refrain that keeps the session, or send whole histories'

export function createFleetServer(options: FleetServerOptions): ApiServer {
  const active: Active = new Set()
  const state = { draining: false }
  const sessions = withoutSessions(NO_SESSIONS)
  const own = [...options.routes, ...fleetQuickRoutes(options, active), ...fleetOps(options, state), ...sessions]
  let front: Front | undefined
  const serverFactory: FastifyServerFactory = (rest) => {
    const parts = { active, state, isOurs: ownPaths(own), rest, signals: routeSignals }
    const forwarding = forwardServer(options, parts)
    front = forwarding.front
    return forwarding.server
  }
  const app = createApp(options, serverFactory)
  const generating = (Object.values(dialects) as Dialect[]).map(forwarded)
  const ours = [...own, openapi([...generating, ...own], options)]
  const all = [...generating, ...ours]
  addAccess(app, options, all, state)
  for (const route of ours) app.route({ method: route.method, url: route.path, handler: route.handler })
  answerTheRest(app, all)
  return apiServer(app, options, { active, state, front })
}

/** For descriptions, and for what is said to other methods: requests themselves never get as far as fastify. */
function forwarded({ path }: Dialect): Route {
  const handler = () => {
    throw new Error(`${path} is sent on before fastify sees it`)
  }
  return { method: 'POST', path, right: 'tenant', handler }
}

function ownPaths(routes: readonly Route[]): (path: string) => boolean {
  const patterns = routes.map(
    ({ path }) => new RegExp(`^${path.replace(/[.]/g, '\\.').replace(/:\w+/g, '[^/]+').replace('*', '.+')}$`),
  )
  return (path) => patterns.some((pattern) => pattern.test(path))
}

function fleetOps(options: FleetServerOptions, state: { readonly draining: boolean }): Route[] {
  const { fleet, access } = options
  return [
    ...aliveRoutes({ host: access.host, readiness: options.ready, metrics: options.metrics }, state),
    {
      method: 'GET',
      path: '/v1/models',
      right: 'tenant',
      summary: 'Lists the models of all backends.',
      handler: (_request, reply) =>
        reply
          .type('application/json; charset=utf-8')
          .send(`{"object":"list","data":[${fleet.models().map(modelJson).join(',')}]}`),
    },
    {
      method: 'GET',
      path: '/v1/models/*',
      right: 'tenant',
      summary: 'One model, by its name or by an alias.',
      handler: (request, reply) => {
        const name = fleet.resolve((request.params as { '*': string })['*'])
        const model = fleet.models().find((each) => each.name === name)
        if (model === undefined) throw new RefrainError('model_not_found', `The model '${name}' does not exist`)
        return reply.type('application/json; charset=utf-8').send(modelJson(model))
      },
    },
  ]
}

/** The backend's own object, under the name that clients use, with the window under every name that they look for. */
function modelJson({ name, json, contextLength }: FleetModel): string {
  const window = contextLength
  const sizes =
    window === undefined
      ? {}
      : { max_model_len: window, context_length: window, context_window: window, max_context: window }
  return JSON.stringify({ ...JSON.parse(json), ...sizes, id: name })
}
