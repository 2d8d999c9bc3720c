// One row of the server's table of routes: what it answers, who may ask, and how the API's description words it.

import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Right } from './gate.js'

export interface Route {
  readonly method: 'GET' | 'POST' | 'PUT' | 'DELETE'
  /** With `:name` for a parameter, `*` for the rest of the path. */
  readonly path: string
  readonly right: Right
  /** One sentence; absent routes of dialects describe themselves. */
  readonly summary?: string
  /** JSON Schema of the body. */
  readonly body?: Readonly<Record<string, unknown>>
  readonly handler: (request: FastifyRequest, reply: FastifyReply) => unknown
}
