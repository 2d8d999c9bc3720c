// The HTTP server of a fleet, with what is sent on answered before a framework sees it, and connections read by front.ts
// where they can be. The warm-up has one of its own, made here as well: see compose-path.ts. Steps 1 and 12 in fleet mode.

import { createServer, type RequestListener, type Server } from 'node:http'
import type { Clock } from '../core/clock.js'
import type { RouteSignals } from '../core/signals.js'
import type { ApiAccess, ApiLimits, FleetQuick, FleetService } from './contract.js'
import { GENERATING } from './forward-asked.js'
import { forwardRoute } from './forward-route.js'
import { type Front, putInFront } from './front.js'
import { IDLE_MS } from './front-exchange.js'
import { createGate } from './gate.js'
import type { Active } from './generate-route.js'
import { inboundOf } from './inbound.js'
import { draining } from './server.js'

export interface ForwardServerOptions {
  readonly fleet: FleetService
  /** Side questions; undefined: none are asked. */
  readonly quick: FleetQuick | undefined
  readonly limits: ApiLimits
  readonly access: ApiAccess
  readonly clock: Clock
  readonly keepaliveMs: number
  readonly sessionSignals: readonly string[]
  readonly forceUsage: boolean
  /** fleet.memoBytes */
  readonly memoBytes: number
}

export interface ForwardServerParts {
  readonly active: Active
  readonly state: { readonly draining: boolean }
  /** Whether a path is answered by `rest`, also where it is POSTed to. */
  isOurs(path: string): boolean
  readonly rest: RequestListener
  readonly signals: RouteSignals
}

/** Paths outside of /v1 that engines have and that go through. */
const ENGINE_PATHS = new Set([
  '/tokenize',
  '/detokenize',
  '/rerank',
  '/v2/rerank',
  '/score',
  '/pooling',
  '/classify',
  '/generate',
  '/completion',
  '/infill',
  '/apply-template',
])

export function forwardServer(
  options: ForwardServerOptions,
  { active, state, isOurs, rest, signals }: ForwardServerParts,
): { server: Server; front: Front } {
  const { fleet, quick, limits, access, clock, keepaliveMs, sessionSignals, forceUsage, memoBytes } = options
  const forward = forwardRoute({
    fleet,
    quick,
    gate: createGate(access),
    limits,
    clock,
    keepaliveMs,
    sessionSignals,
    forceUsage,
    memoBytes,
    active,
    state,
    draining,
    signals,
  })
  /** Whether a POST to it is sent on. */
  const isForwarded = (url: string) => {
    const question = url.indexOf('?')
    const path = question < 0 ? url : url.slice(0, question)
    if (GENERATING.has(path)) return true
    return (path.startsWith('/v1/') || ENGINE_PATHS.has(path)) && !isOurs(path)
  }
  const { receiveMs } = limits
  const server = createServer(
    { requestTimeout: receiveMs, headersTimeout: receiveMs, connectionsCheckingInterval: 1000 },
    (request, response) => {
      if (request.method === 'POST' && isForwarded(request.url ?? '/')) forward(inboundOf(request), response)
      else rest(request, response)
    },
  )
  server.keepAliveTimeout = IDLE_MS
  const front = putInFront(server, { isOurs: isForwarded, handle: forward, receiveMs, idleMs: IDLE_MS, clock })
  return { server, front }
}
