// The page and what it asks. Invariant: the page's files are anybody's and hold nothing of the server's; what it shows is
// asked for with a key, and a tenant is answered about its own alone. Its policy lets in no script, style or address but
// its own.

import type { FastifyReply, FastifyRequest } from 'fastify'
import { RefrainError } from '../core/errors.js'
import type { Dashboard } from '../dashboard/contract.js'
import type { Route } from './route.js'

const HEADERS: Readonly<Record<string, string>> = {
  'content-security-policy':
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  'x-content-type-options': 'nosniff',
  'referrer-policy': 'no-referrer',
  'cross-origin-resource-policy': 'same-origin',
  // Asked for anew with its etag: the page of a new version never runs with an old one's parts.
  'cache-control': 'no-cache',
  vary: 'accept-encoding',
}

/** `dashboard` undefined: there is no page. */
export function dashboardRoutes(dashboard: Dashboard | undefined): Route[] {
  if (dashboard === undefined) return []
  return [
    {
      method: 'GET',
      path: '/dashboard',
      right: 'anyone',
      summary: 'The page that shows what is going on; it asks for a key where keys are set.',
      handler: (request, reply) => sendAsset(request, reply, { dashboard, path: '' }),
    },
    {
      method: 'GET',
      path: '/dashboard/*',
      right: 'anyone',
      summary: "The page's files.",
      handler: (request, reply) => {
        const path = (request.params as { '*': string })['*']
        // Relative addresses of the page are meant from without a slash.
        if (path === '') return reply.redirect('../dashboard', 308)
        return sendAsset(request, reply, { dashboard, path })
      },
    },
    {
      method: 'GET',
      path: '/v1/dashboard/feed',
      right: 'tenant',
      summary: 'What has changed since `since`, the cursor of the answer before; all where there is none.',
      handler: async (request) => {
        const { since } = request.query as { since?: unknown }
        const page = await dashboard.feed(request.tenant, typeof since === 'string' ? since : undefined)
        return { object: 'dashboard.feed', ...(snakeKeys(page) as object) }
      },
    },
    {
      method: 'GET',
      path: '/v1/dashboard/tree',
      right: 'tenant',
      summary: 'What is cached as a tree of prefixes: tokens, tiers and sessions of its largest nodes, without text.',
      handler: async (request) => {
        const tree = await dashboard.tree(request.tenant)
        if (tree === undefined) throw new RefrainError('not_found', 'this server has no prefix cache of its own')
        return { object: 'dashboard.tree', ...(snakeKeys(tree) as object) }
      },
    },
    {
      method: 'GET',
      path: '/v1/dashboard/sessions/:id/turns',
      right: 'tenant',
      summary: "A session's turns as the page shows them.",
      handler: (request) => turnsOf(request, dashboard),
    },
  ]
}

function sendAsset(
  { headers }: FastifyRequest,
  reply: FastifyReply,
  { dashboard, path }: { readonly dashboard: Dashboard; readonly path: string },
) {
  const asset = dashboard.asset(path)
  if (asset === undefined) throw new RefrainError('not_found', `the page has no file '${path.slice(0, 128)}'`)
  reply.headers(HEADERS).header('etag', asset.etag)
  if (headers['if-none-match'] === asset.etag) return reply.code(304).send()
  const takesGzip = /\bgzip\b/.test(String(headers['accept-encoding'] ?? ''))
  if (takesGzip) reply.header('content-encoding', 'gzip')
  return reply.type(asset.type).send(takesGzip ? asset.gzip : asset.bytes)
}

async function turnsOf(request: FastifyRequest, dashboard: Dashboard) {
  const { id } = request.params as { id: string }
  const { tenant } = request.query as { tenant?: unknown }
  const whose = typeof tenant === 'string' && tenant !== '' ? tenant : undefined
  const found = await dashboard.turns(request.tenant, id, whose)
  if (found === undefined) throw new RefrainError('not_found', `no turns of a session '${id.slice(0, 128)}' are known`)
  return { object: 'dashboard.turns', ...(snakeKeys(found) as object) }
}

/** At every depth. */
function snakeKeys(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(snakeKeys)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(
    Object.entries(value).map(([key, inner]) => [
      key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
      snakeKeys(inner),
    ]),
  )
}
