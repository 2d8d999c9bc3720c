// Who may come in, decided before a body is read. With keys: the key's tenant, and admins alone where state is changed or
// shown. Without keys on loopback: nobody but programs of this machine, so Host and Origin must be loopback names and no
// web page can reach the server through a browser. Invariant: keys are compared in constant time and kept as digests.

import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import { RefrainError } from '../core/errors.js'
import type { Tenant } from '../core/request.js'
import type { ApiAccess } from './contract.js'

/** What a route asks of its caller. */
export type Right =
  /** Nothing: health and the API's description. */
  | 'anyone'
  /** A key, where keys are set. */
  | 'tenant'
  /** An admin's key, where keys are set. */
  | 'admin'

export interface Gate {
  /** @throws RefrainError `forbidden` (host, origin, not an admin), `unauthorized`. */
  admit(headers: IncomingHttpHeaders, right: Right): Tenant
}

/** The tenant of a server without keys. */
export const DEFAULT_TENANT: Tenant = { name: 'default', salt: 'default', admin: true }

export function createGate(access: ApiAccess): Gate {
  const secret = randomBytes(32)
  const digest = (key: string) => createHmac('sha256', secret).update(key).digest()
  const known = access.tenants.map(({ key, ...tenant }) => ({ digest: digest(key), tenant }))
  const guardsLoopback = known.length === 0 && isLoopback(access.host)

  const tenantOf = (headers: IncomingHttpHeaders): Tenant => {
    const sent = keyOf(headers)
    if (sent === undefined) throw new RefrainError('unauthorized', 'an API key is needed: Authorization: Bearer KEY')
    const sentDigest = digest(sent)
    // Every key is compared, so that the time taken does not tell which one was close.
    const matches = known.filter((each) => timingSafeEqual(each.digest, sentDigest))
    if (matches[0] === undefined) throw new RefrainError('unauthorized', 'this API key is not known')
    return matches[0].tenant
  }

  return {
    admit(headers, right) {
      if (guardsLoopback) requireLoopback(headers)
      if (known.length === 0 || right === 'anyone') return DEFAULT_TENANT
      const tenant = tenantOf(headers)
      if (right === 'admin' && !tenant.admin) throw new RefrainError('forbidden', 'this needs the key of an admin')
      return tenant
    },
  }
}

/** Whether a listening address or a host name means this machine alone. */
export function isLoopback(host: string): boolean {
  const bare = host.toLowerCase().replace(/^\[(.*)\]$/, '$1')
  return bare === 'localhost' || bare === '::1' || /^127\.\d{1,3}\.\d{1,3}\.\d{1,3}$/.test(bare)
}

/** Hosts that were let in: the same few come with every request. */
const letIn = new Set<string>()
const MOST_LET_IN = 256

function isLetIn(host: string): boolean {
  if (letIn.has(host)) return true
  const isOurs = isLoopback(withoutPort(host))
  if (isOurs && letIn.size < MOST_LET_IN) letIn.add(host)
  return isOurs
}

function requireLoopback(headers: IncomingHttpHeaders): void {
  if (!isLetIn(headers.host ?? '')) {
    throw new RefrainError('forbidden', 'the Host header must name this machine: 127.0.0.1, localhost or [::1]', {
      param: 'host',
    })
  }
  const { origin } = headers
  if (origin !== undefined && !isLoopbackOrigin(origin)) {
    throw new RefrainError('forbidden', 'web pages of other origins may not call this server', { param: 'origin' })
  }
}

function withoutPort(host: string): string {
  return host.replace(/:\d{1,5}$/, '')
}

function isLoopbackOrigin(origin: string): boolean {
  const authority = /^https?:\/\/([^/?#@\s]+)$/.exec(origin)?.[1]
  return authority !== undefined && isLoopback(withoutPort(authority))
}

function keyOf(headers: IncomingHttpHeaders): string | undefined {
  const bearer = /^Bearer +(\S+) *$/i.exec(headers.authorization ?? '')?.[1]
  const direct = headers['x-api-key']
  return bearer ?? (typeof direct === 'string' && direct !== '' ? direct : undefined)
}
