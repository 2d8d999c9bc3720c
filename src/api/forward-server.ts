// The HTTP server of a fleet, with what is sent on answered before a framework sees it, and connections read by front.ts
// where they can be. The warm-up has one of its own, made here as well: see compose-path.ts. Steps 1 and 12 in fleet mode.

import { createServer, type RequestListener, type Server } from 'node:http'
import type { ApiAccess } from './contract.js'
import { GENERATING } from './forward-asked.js'
import { type ForwardOptions, forwardRoute } from './forward-route.js'
import { type Front, putInFront } from './front.js'
import { IDLE_MS } from './front-exchange.js'
import { createGate } from './gate.js'
import { inboundOf } from './inbound.js'
import { draining } from './server.js'

export interface ForwardServerOptions
  extends Omit<ForwardOptions, 'gate' | 'active' | 'state' | 'draining' | 'signals'> {
  readonly access: ApiAccess
}

export interface ForwardServerParts extends Pick<ForwardOptions, 'active' | 'state' | 'signals'> {
  /** Whether a path is answered by `rest`, also where it is POSTed to. */
  isOurs(path: string): boolean
  readonly rest: RequestListener
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
