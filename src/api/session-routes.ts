// Sessions that are logged: made, read, added to, forked, shortened, begun anew, erased; sources, shared memory, tenants.
// Invariant: a tenant is answered about its own alone, and a session of somebody else's looks like one that is not there.

import type { FastifyReply, FastifyRequest } from 'fastify'
import { RefrainError } from '../core/errors.js'
import type { Tenant } from '../core/request.js'
import type { Sessions } from '../session/contract.js'
import { ClientGone } from './answer.js'
import { readBody } from './body.js'
import type { ApiOptions } from './contract.js'
import { type Fields, invalid, type ReadOf, readFields, readingOf, required, schemaOf } from './dialect/fields.js'
import type { Route } from './route.js'
import {
  appendFields,
  compactFields,
  createFields,
  forkFields,
  layerFields,
  memoryFields,
  newSessionOf,
  resetFields,
  sourceFields,
} from './session-body.js'
import {
  compactionObject,
  contextObject,
  eventObject,
  memoryObject,
  sessionObject,
  sourceObject,
} from './session-json.js'
import { snakeKeys } from './snake-keys.js'

type Options = Pick<ApiOptions, 'sessions' | 'limits'>

export function sessionRoutes(options: Options): Route[] {
  const { sessions } = options
  if (sessions === undefined) return withoutSessions('sessions are not logged here (sessions.log.store)')
  const routes = new SessionRoutes(sessions, options)
  return [...routes.whole(), ...routes.turns(), ...routes.beside()]
}

/** Of a server that logs none: a sentence that says so. */
export function withoutSessions(why: string): Route[] {
  const handler = () => {
    throw new RefrainError('not_found', why)
  }
  const below = ['events', 'fork', 'compact', 'reset', 'resume', 'layers'].map((name) => `/v1/sessions/:id/${name}`)
  const posted = ['/v1/sessions', ...below].map((path) => ['POST', path] as const)
  const read = ['/v1/sessions', '/v1/sessions/:id', '/v1/sessions/:id/events'].map((path) => ['GET', path] as const)
  return [...posted, ...read, ['DELETE', '/v1/sessions/:id'] as const].map(([method, path]) => ({
    ...at(method, path, 'Sessions are not logged here.'),
    handler,
  }))
}

const PAGE = 100
const MAX_PAGE = 1000
/** How long a resumed session's blocks are kept when nothing is said. */
const RESUME_MS = 300_000
const READ_CHARS = 30_000

class SessionRoutes {
  readonly #sessions: Sessions
  readonly #limits: Options['limits']

  constructor(sessions: Sessions, { limits }: Options) {
    this.#sessions = sessions
    this.#limits = limits
  }

  whole(): Route[] {
    const sessions = this.#sessions
    return [
      {
        ...at('POST', '/v1/sessions', 'Makes a session: a log of events that its context is compiled from.'),
        body: schemaOf(createFields),
        handler: async (request) => {
          const read = this.#read(createFields, request)
          return sessionObject(await sessions.create(request.tenant, newSessionOf(read)))
        },
      },
      {
        ...at(
          'GET',
          '/v1/sessions',
          'The sessions, the latest first. `limit`, `before`: `created_ms` of the last one.',
        ),
        handler: async (request) => {
          const limit = limitIn(request)
          const before = numberIn(request, 'before', 0)
          const list = await sessions.list(viewer(request), { limit: limit + 1, ...(before > 0 && { before }) })
          return pageOf(list.map(sessionObject), limit)
        },
      },
      {
        ...at('GET', '/v1/sessions/:id', 'A session.'),
        handler: async (request) => sessionObject(await sessions.get(viewer(request), idOf(request))),
      },
      {
        ...at(
          'DELETE',
          '/v1/sessions/:id',
          'Erases a session: its events, stored results, kept tokens and cached blocks.',
        ),
        handler: async (request) => {
          const id = idOf(request)
          await sessions.erase(request.tenant, id)
          return { id, object: 'session', deleted: true }
        },
      },
      {
        ...at('DELETE', '/v1/tenants/:id', 'Erases everything of a tenant. For the tenant itself, and for admins.'),
        handler: async (request) => {
          const id = idOf(request)
          await sessions.eraseTenant(request.tenant, id)
          return { id, object: 'tenant', deleted: true }
        },
      },
    ]
  }

  turns(): Route[] {
    const sessions = this.#sessions
    return [
      {
        ...at('POST', '/v1/sessions/:id/events', 'Appends events, all of them or none.'),
        body: schemaOf(appendFields, ['events']),
        handler: async (request) => {
          const { events, expected_position: expected } = this.#read(appendFields, request)
          const append = { events: required(events, 'events'), ...(expected !== undefined && { expected }) }
          const appended = await sessions.append(request.tenant, idOf(request), append)
          return { object: 'list', data: appended.map(eventObject) }
        },
      },
      {
        ...at('GET', '/v1/sessions/:id/events', 'The events from position `from` on, `limit` at once.'),
        handler: async (request) => {
          const [from, limit] = [numberIn(request, 'from', 1), limitIn(request)]
          const events = await sessions.events(viewer(request), idOf(request), { from, limit: limit + 1 })
          return pageOf(events.map(eventObject), limit)
        },
      },
      {
        ...at(
          'GET',
          '/v1/sessions/:id/context',
          'What the model saw at turn `at`, byte for byte; without it, what it would see next.',
        ),
        handler: async (request) => {
          const turn = numberIn(request, 'at', 0)
          return contextObject(await sessions.context(viewer(request), idOf(request), turn > 0 ? turn : undefined))
        },
      },
      {
        ...at(
          'GET',
          '/v1/sessions/:id/series',
          'Each turn: tokens cached, tokens that the turn before left, hit rate, its series.',
        ),
        handler: async (request) => ({
          object: 'list',
          data: (await sessions.series(viewer(request), idOf(request))).map((step) => snakeKeys(step)),
        }),
      },
      {
        ...at('POST', '/v1/sessions/:id/fork', 'Forks at a position, `n` ways: prefix and cached blocks are shared.'),
        body: schemaOf(forkFields),
        handler: async (request) => {
          const { at: position, n = 1 } = this.#read(forkFields, request)
          const ask = { n, ...(position !== undefined && { at: position }) }
          const made = await sessions.fork(request.tenant, idOf(request), ask)
          return { object: 'list', data: made.map(sessionObject) }
        },
      },
      {
        ...at('POST', '/v1/sessions/:id/compact', 'Shortens the context at once.'),
        body: schemaOf(compactFields),
        handler: async (request, reply) => {
          const { strategy } = this.#read(compactFields, request)
          const ask = strategy === undefined ? {} : { strategy }
          return compactionObject(await sessions.compact(request.tenant, idOf(request), ask, goneSignal(reply)))
        },
      },
      {
        ...at('POST', '/v1/sessions/:id/reset', 'Begins the body anew; memory blocks and named results stay.'),
        body: schemaOf(resetFields),
        handler: async (request) => {
          const { artifacts = [] } = this.#read(resetFields, request)
          return eventObject(await sessions.reset(request.tenant, idOf(request), { artifacts }))
        },
      },
      {
        ...at(
          'POST',
          '/v1/sessions/:id/resume',
          'Brings up or computes the KV of the context, and keeps it for a while.',
        ),
        handler: async (request, reply) => {
          const ttlMs = Math.min(RESUME_MS, this.#limits.pinMs)
          const how = { requestId: request.id, ttlMs, signal: goneSignal(reply) }
          const { promptTokens, computedTokens } = await sessions.resume(request.tenant, idOf(request), how)
          return { object: 'session.resumed', prompt_tokens: promptTokens, computed_tokens: computedTokens }
        },
      },
      {
        ...at('POST', '/v1/sessions/:id/layers', "Logs a layer of the harness's sandbox and what it rests on."),
        body: schemaOf(layerFields, ['id']),
        handler: async (request) => {
          const { id, parent, sources = [] } = this.#read(layerFields, request)
          const own = [...new Set(sources)].sort()
          const body = {
            kind: 'layer',
            id: required(id, 'id'),
            sources: own,
            ...(parent !== undefined && { parent }),
          } as const
          const [event] = await sessions.append(request.tenant, idOf(request), { events: [{ body }] })
          return event && eventObject(event)
        },
      },
      {
        ...at('GET', '/v1/sessions/:id/results/:locator', 'A stored result: `length` characters from `offset` on.'),
        handler: async (request) => {
          const { locator } = request.params as { locator: string }
          const { text } = await sessions.result(viewer(request), idOf(request), locator)
          const [offset, length] = [numberIn(request, 'offset', 0), numberIn(request, 'length', READ_CHARS)]
          const content = text.slice(offset, offset + length)
          return { object: 'session.result', locator, offset, length: content.length, chars: text.length, content }
        },
      },
    ]
  }

  beside(): Route[] {
    const sessions = this.#sessions
    return [
      {
        ...at('GET', '/v1/sources/:id', 'Whether the tenant may see what rests on a source.'),
        handler: async (request) => {
          const id = idOf(request)
          const found = (await sessions.sources(request.tenant)).find(({ source }) => source === id)
          if (found === undefined)
            throw new RefrainError('not_found', `nothing was said of a source '${id.slice(0, 128)}'`)
          return sourceObject({ ...found, sessions: [] })
        },
      },
      {
        ...at('PUT', '/v1/sources/:id', 'Grants a source, or revokes it: what rests on it is dropped and erased.'),
        body: schemaOf(sourceFields, ['state']),
        handler: async (request) => {
          const state = required(this.#read(sourceFields, request).state, 'state')
          return sourceObject(await sessions.setSource(request.tenant, idOf(request), state))
        },
      },
      {
        ...at('GET', '/v1/memory', 'Memory blocks that sessions of the tenant share.'),
        handler: async (request) => ({
          object: 'list',
          data: (await sessions.memory(request.tenant)).map(memoryObject),
        }),
      },
      {
        ...at('GET', '/v1/memory/:id', 'A shared memory block.'),
        handler: async (request) => {
          const id = idOf(request)
          const found = (await sessions.memory(request.tenant)).find((block) => block.id === id)
          if (found === undefined) throw new RefrainError('not_found', `there is no memory block '${id.slice(0, 128)}'`)
          return memoryObject(found)
        },
      },
      {
        ...at('PUT', '/v1/memory/:id', 'Writes a shared memory block; sessions see it from their next turn on.'),
        body: schemaOf(memoryFields, ['label', 'value']),
        handler: async (request) => {
          const { label, value, limit_tokens: limitTokens } = this.#read(memoryFields, request)
          const block = { id: idOf(request), label: required(label, 'label'), value: required(value, 'value') }
          const limits = limitTokens !== undefined && { limitTokens }
          return memoryObject(await sessions.setMemory(request.tenant, { ...block, ...limits }))
        },
      },
    ]
  }

  /** An absent body is an empty one. */
  #read<F extends Fields>(fields: F, request: FastifyRequest): ReadOf<F> {
    const { body } = request
    if (body === undefined || (Buffer.isBuffer(body) && body.length === 0)) return {}
    const { text, value } = readBody(body)
    return readFields(fields, value, '', readingOf(text, this.#limits.jsonDepth))
  }
}

function at(
  method: Route['method'],
  path: string,
  summary: string,
): Pick<Route, 'method' | 'path' | 'right' | 'summary'> {
  return { method, path, right: 'tenant', summary }
}

function idOf({ params }: FastifyRequest): string {
  return (params as { id: string }).id
}

/** Who reads: an admin may say whose it is. */
function viewer({ tenant, query }: FastifyRequest): Tenant {
  const { tenant: name } = query as { tenant?: unknown }
  return tenant.admin && typeof name === 'string' && name !== '' ? { ...tenant, name } : tenant
}

/** A number of the query. @throws RefrainError that names it. */
function numberIn({ query }: FastifyRequest, name: string, fallback: number, max = Number.MAX_SAFE_INTEGER): number {
  const sent = (query as Record<string, unknown>)[name]
  if (sent === undefined) return fallback
  if (typeof sent === 'string' && /^\d{1,15}$/.test(sent) && Number(sent) <= max) return Number(sent)
  throw invalid(name, `must be a number from 0 to ${max}`)
}

/** How many are asked for. @throws RefrainError where that is none, or too many. */
function limitIn(request: FastifyRequest): number {
  const limit = numberIn(request, 'limit', PAGE, MAX_PAGE)
  if (limit > 0) return limit
  throw invalid('limit', `must be a number from 1 to ${MAX_PAGE}`)
}

/** Of one more than were asked for. */
function pageOf(found: readonly object[], limit: number): object {
  return { object: 'list', data: found.slice(0, limit), has_more: found.length > limit }
}

function goneSignal(reply: FastifyReply): AbortSignal {
  const stop = new AbortController()
  reply.raw.once('close', () => {
    if (!reply.raw.writableFinished) stop.abort(new ClientGone())
  })
  return stop.signal
}
