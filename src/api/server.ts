// The HTTP server: step 1 of a request's path, and the only file that builds fastify. A request gets an id, is let in by
// the gate before its body is read, and its body is bounded. Invariant: every answer that is no success has the shape of
// the one catalogue of errors, those of fastify and of the HTTP parser too.

import { randomUUID } from 'node:crypto'
import Fastify, {
  type FastifyInstance,
  type FastifyReply,
  type FastifyRequest,
  type FastifyServerFactory,
  type HTTPMethods,
} from 'fastify'
import { RefrainError } from '../core/errors.js'
import type { Tenant } from '../core/request.js'
import { Tally } from './answer.js'
import { anthropicRoutes } from './anthropic-routes.js'
import type { ApiOptions } from './contract.js'
import { dashboardRoutes } from './dashboard-routes.js'
import type { Dialect } from './dialect/contract.js'
import * as dialects from './dialect/index.js'
import { explainRoutes } from './explain-routes.js'
import { refuseSocket, sendFailure, translate } from './failure.js'
import type { Front } from './front.js'
import { createGate, DEFAULT_TENANT, type Right } from './gate.js'
import { type Active, generateRoute, settle } from './generate-route.js'
import { modelRoutes } from './model-routes.js'
import { openapi } from './openapi.js'
import { opsRoutes } from './ops-routes.js'
import { quickRoutes } from './quick-routes.js'
import { responseRoutes } from './response-routes.js'
import type { Route } from './route.js'
import { sessionRoutes } from './session-routes.js'

declare module 'fastify' {
  interface FastifyRequest {
    tenant: Tenant
    /** On the server's clock. */
    startedAt: number
    /** Whether what became of it was said. */
    settled: boolean
    /** The session's key, once the body was read. */
    session: string | undefined
  }
}

export interface ApiServer {
  /** For tests (`inject`); everybody else uses what is below. */
  readonly app: FastifyInstance
  /** Resolves with the URL. */
  listen(host: string, port: number): Promise<string>
  /** Refuses new work, lets running requests finish for `drainMs`, ends the rest in-band, closes. */
  drain(drainMs: number): Promise<void>
}

/** How long a client is asked to wait when the server is going. */
const DRAINING_RETRY_MS = 2000
/** Between two looks at whether everything has finished. */
const DRAIN_POLL_MS = 20
/** What a client gets for reading the last bytes before its socket is cut. */
const CLOSE_MS = 2000

export function createServer(options: ApiOptions): ApiServer {
  const active: Active = new Set()
  const state = { draining: false }
  const app = createApp(options)
  const generating = (Object.values(dialects) as Dialect[]).map(
    (dialect): Route => ({
      method: 'POST',
      path: dialect.path,
      right: 'tenant',
      handler: generateRoute(dialect, options, active),
    }),
  )
  const routes = [
    ...generating,
    ...anthropicRoutes(options),
    ...modelRoutes(options),
    ...quickRoutes(options, active),
    ...opsRoutes(options, active, state),
    ...explainRoutes(options),
    ...sessionRoutes(options),
    ...responseRoutes(options),
    ...dashboardRoutes(options.dashboard),
  ]
  const all = [...routes, openapi(routes, options)]
  addAccess(app, options, all, state)
  for (const route of all) app.route({ method: route.method, url: route.path, handler: route.handler })
  answerTheRest(app, all)
  return apiServer(app, options, { active, state })
}

/** What any server of this program needs, whatever it answers. */
export type AppOptions = Pick<ApiOptions, 'limits' | 'clock' | 'access'>

/** `serverFactory`: what stands in front of fastify. */
export function createApp(options: AppOptions, serverFactory?: FastifyServerFactory): FastifyInstance {
  const app = Fastify({
    logger: false,
    bodyLimit: options.limits.bodyBytes,
    requestTimeout: options.limits.receiveMs,
    // How often Node looks for requests that have not arrived in time.
    http: { connectionsCheckingInterval: 1000, headersTimeout: options.limits.receiveMs },
    genReqId: () => randomUUID().replaceAll('-', ''),
    requestIdHeader: false,
    // Ids of backends are URLs, percent-encoded.
    routerOptions: { maxParamLength: 1024 },
    forceCloseConnections: 'idle',
    return503OnClosing: false,
    clientErrorHandler: refuseSocket,
    frameworkErrors: (error, _request, reply) => sendFailure(translate(error, options.limits.bodyBytes), reply),
    ...(serverFactory && { serverFactory }),
  })
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('application/json', { parseAs: 'buffer' }, (_request, body, done) => done(null, body))
  app.setErrorHandler((error, request, reply) => {
    const failure = translate(error, options.limits.bodyBytes)
    settle(request, { tally: new Tally(), model: '', failure, clock: options.clock })
    sendFailure(failure, reply)
  })
  return app
}

interface Running {
  readonly active: Active
  readonly state: { draining: boolean }
  /** Connections that Node's server does not know of. */
  readonly front?: Pick<Front, 'refuse' | 'close' | 'destroy'> | undefined
}

export function apiServer(app: FastifyInstance, options: AppOptions, { active, state, front }: Running): ApiServer {
  return {
    app,
    listen: (host, port) => app.listen({ host, port }),
    async drain(drainMs) {
      state.draining = true
      front?.refuse(draining())
      const until = options.clock.now() + drainMs
      while (active.size > 0 && options.clock.now() < until) {
        await new Promise<void>((resolve) => options.clock.after(DRAIN_POLL_MS, resolve))
      }
      for (const stop of active) stop.abort(draining())
      const cancel = options.clock.after(CLOSE_MS, () => {
        app.server.closeAllConnections()
        front?.destroy()
      })
      front?.close()
      await app.close()
      cancel()
    },
  }
}

/** The hooks in front of every body: id, drain, and the right that the route asks for. */
export function addAccess(
  app: FastifyInstance,
  options: AppOptions,
  routes: readonly Route[],
  state: { draining: boolean },
) {
  const gate = createGate(options.access)
  const rights = new Map<string, Right>(routes.map((route) => [`${route.method} ${route.path}`, route.right]))
  app.decorateRequest('tenant', undefined as unknown as Tenant)
  app.decorateRequest('startedAt', 0)
  app.decorateRequest('settled', false)
  app.decorateRequest('session', undefined)
  app.addHook('onRequest', async (request: FastifyRequest, reply: FastifyReply) => {
    request.tenant = DEFAULT_TENANT
    request.startedAt = options.clock.now()
    const id = sentId(request) ?? request.id
    // Anthropic's clients look for it under its short name.
    reply.header('x-request-id', id).header('request-id', id)
    const method = request.method === 'HEAD' ? 'GET' : request.method
    const right = rights.get(`${method} ${request.routeOptions.url}`) ?? 'anyone'
    request.tenant = gate.admit(request.headers, right)
    if (state.draining && request.method === 'POST') {
      reply.header('connection', 'close')
      throw draining()
    }
    const encoding = request.headers['content-encoding']
    if (encoding !== undefined && encoding !== 'identity') {
      throw new RefrainError('unsupported_media_type', 'compressed bodies are not read; send it plain')
    }
  })
}

/** A client's own id is repeated where it is harmless in a log. */
function sentId(request: FastifyRequest): string | undefined {
  const sent = request.headers['x-request-id']
  return typeof sent === 'string' && /^[\w.:-]{1,128}$/.test(sent) ? sent : undefined
}

/** OPTIONS of what there is, 405 for another method, 404 for the rest. */
export function answerTheRest(app: FastifyInstance, routes: readonly Route[]): void {
  const patterns = routes.map((route) => ({
    method: route.method as HTTPMethods,
    matches: new RegExp(`^${route.path.replace(/[.]/g, '\\.').replace(/:\w+/g, '[^/]+').replace('*', '.+')}$`),
  }))
  app.setNotFoundHandler((request, reply) => {
    const path = request.url.split('?')[0] ?? ''
    const known = patterns.filter(({ matches }) => matches.test(path)).map(({ method }) => method)
    if (known.length === 0)
      throw new RefrainError('not_found', `there is no route ${request.method} ${path.slice(0, 200)}`)
    const allowed = [...new Set([...known, ...(known.includes('GET') ? ['HEAD'] : []), 'OPTIONS'])].join(', ')
    reply.header('allow', allowed)
    if (request.method === 'OPTIONS') return reply.code(204).send()
    throw new RefrainError('method_not_allowed', `${path.slice(0, 200)} takes ${allowed}, not ${request.method}`)
  })
}

export function draining(): RefrainError {
  return new RefrainError('draining', 'the server is shutting down', { retryAfterMs: DRAINING_RETRY_MS })
}
