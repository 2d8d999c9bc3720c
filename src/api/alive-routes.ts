// What every server of ours answers to whoever watches over it: alive, ready, metrics; in front of an engine and in front
// of a fleet alike. Invariant: nothing here waits for a request's work.

import { isLoopback } from './gate.js'
import type { Route } from './route.js'

export interface Readiness {
  /** Whether a request sent now would be answered. */
  readonly ready: boolean
  /** What is degraded, or why not: sentences. */
  readonly notes: readonly string[]
  readonly running?: number
  readonly waiting?: number
}

export interface AliveOptions {
  /** The address that is listened on. */
  readonly host: string
  readonly readiness: () => Readiness
  readonly metrics: () => Promise<{ readonly type: string; readonly text: string }>
}

export function aliveRoutes(
  { host, readiness, metrics }: AliveOptions,
  state: { readonly draining: boolean },
): Route[] {
  return [
    {
      method: 'GET',
      path: '/health',
      right: 'anyone',
      summary: 'Whether the process answers.',
      handler: () => ({ status: 'ok' }),
    },
    {
      method: 'GET',
      path: '/ready',
      right: 'anyone',
      summary: '200 once a request would be answered; `notes` say what is degraded.',
      handler: (_request, reply) => {
        const { ready, notes, ...load } = readiness()
        const answers = ready && !state.draining
        reply.code(answers ? 200 : 503)
        const all = [...(state.draining ? ['the server is shutting down'] : []), ...notes]
        return { status: answers ? 'ready' : 'not ready', notes: all, ...load }
      },
    },
    {
      method: 'GET',
      path: '/metrics',
      right: isLoopback(host) ? 'anyone' : 'admin',
      summary: 'Counters and histograms in the text format of Prometheus.',
      handler: async (_request, reply) => {
        const { type, text } = await metrics()
        return reply.type(type).send(text)
      },
    },
  ]
}
