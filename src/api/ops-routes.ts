// What operators ask: is it alive, is it ready, what does it measure, what is in the cache; and what they do to the
// cache: warm a prefix, release it, clear all. Invariant: these answer without touching the step loop's work.

import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Backend } from '../backend/backend.js'
import { RefrainError } from '../core/errors.js'
import { aliveRoutes, type Readiness } from './alive-routes.js'
import { cacheHeader } from './answer.js'
import { readBody } from './body.js'
import type { ApiOptions } from './contract.js'
import { type Calling, countedCall } from './counted-call.js'
import type { RawBody } from './dialect/contract.js'
import { custom, type Field, invalid, kindOf, number, readFields, readingOf, schemaOf } from './dialect/fields.js'
import { chatFields, decodeChat } from './dialect/openai-chat.js'
import { type Active, envelopeOf, nameIgnored } from './generate-route.js'
import type { Route } from './route.js'

/** How long a warmed prefix stays when nothing is said; the shorter of the two that Anthropic's API offers. */
const DEFAULT_TTL_MS = 300_000

export function opsRoutes(options: ApiOptions, active: Active, state: { readonly draining: boolean }): Route[] {
  const { fleet, access } = options
  return [
    ...aliveRoutes({ host: access.host, readiness: () => readinessOf(fleet), metrics: options.metrics }, state),
    {
      method: 'POST',
      path: '/v1/cache/warm',
      right: 'admin',
      summary: 'Computes the prefix of a chat and keeps it for a time.',
      body: schemaOf({ ...chatFields, ...warmFields }, ['messages']),
      handler: (request, reply) => warm(request, reply, { options, active }),
    },
    {
      method: 'DELETE',
      path: '/v1/cache/warm/:id',
      right: 'admin',
      summary: 'Releases what was warmed.',
      handler: (request) => release((request.params as { id: string }).id, fleet),
    },
    {
      method: 'GET',
      path: '/v1/cache',
      right: 'admin',
      summary: 'Tiers, bytes, hits and pins.',
      handler: async () => ({ object: 'list', data: await Promise.all(fleet.flatMap(cacheObject)) }),
    },
    {
      method: 'DELETE',
      path: '/v1/cache',
      right: 'admin',
      summary: 'Drops every block that is not pinned.',
      handler: async () => {
        const dropped = await Promise.all(fleet.map((backend) => backend.cache?.clear() ?? 0))
        return { object: 'cache.cleared', blocks: dropped.reduce((sum, blocks) => sum + blocks, 0) }
      },
    },
  ]
}

function readinessOf(fleet: readonly Backend[]): Readiness {
  const healths = fleet.map((backend) => backend.health())
  return {
    ready: healths.some(({ ready }) => ready),
    notes: healths.flatMap(({ notes }) => notes),
    running: healths.reduce((sum, { running }) => sum + running, 0),
    waiting: healths.reduce((sum, { waiting }) => sum + waiting, 0),
  }
}

const ttl: Field<number> = custom(
  { type: 'string', pattern: '^[0-9]+(ms|s|m|h)$', description: 'How long: `30s`, `5m`, `1h`. Default 5m.' },
  (value, path) => {
    const [, count, unit] = /^(\d{1,9})(ms|s|m|h)$/.exec(typeof value === 'string' ? value : '') ?? []
    if (count === undefined) throw invalid(path, `must be a duration as '5m', not ${kindOf(value)}`)
    return Number(count) * { ms: 1, s: 1000, m: 60_000, h: 3_600_000 }[unit as 'ms' | 's' | 'm' | 'h']
  },
)

const warmFields = { ttl, ttl_seconds: number({ min: 0 }, 'The same in seconds.') }

/** @throws RefrainError when it is longer than limits.pinMs. */
function ttlOf(raw: RawBody, options: ApiOptions): number {
  const { ttl = null, ttl_seconds = null } = raw.value
  const read = readFields(warmFields, { ttl, ttl_seconds }, '', readingOf(raw.text, options.limits.jsonDepth))
  const ms = read.ttl ?? (read.ttl_seconds === undefined ? DEFAULT_TTL_MS : read.ttl_seconds * 1000)
  if (ms <= options.limits.pinMs) return ms
  const path = read.ttl === undefined ? 'ttl_seconds' : 'ttl'
  throw invalid(path, `must be at most ${options.limits.pinMs} ms (limits.pinMs)`)
}

async function warm(request: FastifyRequest, reply: FastifyReply, calling: Calling & { readonly options: ApiOptions }) {
  const { options } = calling
  return countedCall(request, reply, calling, async (call) => {
    const { tally } = call
    const raw = readBody(request.body)
    const decoded = decodeChat(raw, envelopeOf(request, options, raw), Object.keys(warmFields))
    const pinTtlMs = ttlOf(raw, options)
    nameIgnored(decoded, reply)
    const [asked] = decoded.requests
    call.model = asked.model
    const aside = asked.logged && { logged: { aside: 'behind' as const } }
    const job = { ...asked, n: 1, maxTokens: 0, pinTtlMs, ...aside }
    for await (const event of options.service.generate(job, call.signal)) tally.add(event, options.clock)
    reply.header('x-refrain-cache', cacheHeader(tally.cache))
    return {
      id: request.id,
      object: 'cache.warm',
      tokens: tally.promptTokens,
      blocks: await pinnedBlocks(request.id, options.fleet),
      computed_tokens: tally.cache.computed,
      expires_at: Math.floor((Date.now() + pinTtlMs) / 1000),
    }
  })
}

/** Blocks that the pin `id` really holds: none where the cache is off or had no room. */
async function pinnedBlocks(id: string, fleet: readonly Backend[]): Promise<number> {
  const caches = await Promise.all(fleet.map((backend) => backend.cache?.status()))
  return caches.flatMap((cache) => cache?.pins ?? []).find((pin) => pin.id === id)?.blocks ?? 0
}

async function release(id: string, fleet: readonly Backend[]) {
  const released = await Promise.all(fleet.map((backend) => backend.cache?.unpin(id) ?? false))
  if (!released.includes(true)) throw new RefrainError('not_found', `nothing is warm under the id '${id.slice(0, 64)}'`)
  return { id, object: 'cache.warm', deleted: true }
}

/** One backend's cache; none where it keeps its own counsel. */
function cacheObject(backend: Backend): Promise<object>[] {
  if (backend.cache === undefined) return []
  return [
    backend.cache.status().then((status) => ({
      backend: backend.name,
      model: backend.model,
      block_tokens: status.blockTokens,
      block_bytes: status.blockBytes,
      tiers: status.tiers.map(snakeKeys),
      pins: status.pins.map(snakeKeys),
    })),
  ]
}

function snakeKeys(object: object): object {
  return Object.fromEntries(
    Object.entries(object).map(([key, value]) => [
      key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
      value,
    ]),
  )
}
