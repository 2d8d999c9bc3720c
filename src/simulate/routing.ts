// Which of several simulated backends a request goes to: by turns, by its session, or by the router that serves. Invariant:
// time is the trace's; a backend computes one prompt at a time at one rate, so that load is what that rate makes of it.

import type { Clock } from '../core/clock.js'
import type { FleetRouter, Member, RouteQuery } from '../router/contract.js'
import { createFleetRouter } from '../router/fleet-router.js'
import { ROUTER_DEFAULTS } from '../router/options.js'
import { ownerOf } from '../router/rendezvous.js'
import type { References, SimulatedRequest } from './references.js'
import { Segments } from './segments.js'

export const ROUTERS = ['round-robin', 'session-hash', 'refrain'] as const
export type RouterName = (typeof ROUTERS)[number]

export interface Served {
  readonly cachedTokens: number
  /** From its arrival to its first token. */
  readonly ttftMs: number
}

export interface Routing {
  /** The backend's index. Requests in order of their time. */
  place(request: SimulatedRequest): number
  /** What came of the request that was placed last, known ahead of its time. */
  served(served: Served): void
}

export interface RoutingOptions {
  readonly router: RouterName
  readonly backends: number
  /** Prompt tokens a second that a backend computes. */
  readonly rate: number
}

export function createRouting(references: References, options: RoutingOptions): Routing {
  const { router, backends, rate } = options
  if (router === 'refrain') return new RefrainRouting(references, backends, rate)
  const nothing = () => undefined
  let next = 0
  if (router === 'round-robin') return { place: () => next++ % backends, served: nothing }
  const owners = Array.from({ length: backends }, (_, i) => ({ id: `backend ${i}`, weight: 1, index: i }))
  // Without a session it is the prompt's beginning, as gateways do that hash prefixes.
  const keyOf = ({ session, nodes }: SimulatedRequest) => session ?? `node ${nodes[0]}`
  return { place: (request) => ownerOf(keyOf(request), owners as [Owner, ...Owner[]]).index, served: nothing }
}

interface Owner {
  readonly id: string
  readonly weight: number
  readonly index: number
}

interface Due {
  readonly at: number
  readonly tell: () => void
}

class RefrainRouting implements Routing {
  readonly #router: FleetRouter
  readonly #members: readonly Member[]
  readonly #segments: Segments
  #now = 0
  #count = 0
  /** What the router is still to be told, the latest first. */
  #due: Due[] = []
  #last: Placed | undefined

  constructor(references: References, backends: number, rate: number) {
    const clock: Clock = { now: () => this.#now, after: () => () => undefined }
    this.#segments = new Segments(references)
    this.#members = Array.from({ length: backends }, (_, i) => memberOf(i, rate))
    this.#router = createFleetRouter(ROUTER_DEFAULTS, { members: () => this.#members, clock })
  }

  place(request: SimulatedRequest): number {
    const now = request.at * 1000
    while (this.#due.length > 0 && this.#due.at(-1)!.at <= now) {
      const { at, tell } = this.#due.pop()!
      this.#now = Math.max(this.#now, at)
      tell()
    }
    this.#now = Math.max(this.#now, now)
    const { session, parent, promptTokens } = request
    const query: RouteQuery = {
      ...{ id: String(this.#count++), model: MODEL, tenant: 'default', salt: '' },
      ...(session !== undefined && { session }),
      ...(parent !== undefined && { parentSession: parent }),
      ...{ requestClass: 'main', priority: 'interactive', segments: this.#segments.of(request) },
      ...{ promptTokens, estimated: false },
    }
    const placement = this.#router.place(query)
    this.#router.sent(query, placement)
    const { id: member } = placement.member
    this.#last = { query, member, predictedHitTokens: placement.predictedHitTokens, at: now }
    return this.#members.findIndex(({ id }) => id === member)
  }

  served({ cachedTokens, ttftMs }: Served): void {
    if (this.#last === undefined) throw new Error('nothing was placed')
    const { query, member, predictedHitTokens, at } = this.#last
    const usage = { cachedTokens, promptTokens: query.promptTokens, completionTokens: 0 }
    this.#tell(at + ttftMs, () => {
      this.#router.started(query, member)
      this.#router.settled({ query, member, predictedHitTokens, ...usage, ttftMs, failed: false })
    })
  }

  #tell(at: number, tell: () => void): void {
    let place = this.#due.length
    while (place > 0 && this.#due[place - 1]!.at < at) place--
    this.#due.splice(place, 0, { at, tell })
  }
}

interface Placed {
  readonly query: RouteQuery
  readonly member: string
  readonly predictedHitTokens: number
  readonly at: number
}

const MODEL = 'simulated'

function memberOf(index: number, rate: number): Member {
  return {
    ...{
      id: `backend ${index}`,
      url: `http://backend-${index}`,
      kind: 'refrain',
      models: [MODEL],
      state: 'up',
      weight: 1,
    },
    knowledge: 'learned',
    load: { inFlight: 0, queuedPrefillTokens: 0, decoding: 0, reportedQueue: 0 },
    rates: { prefillTokensPerSecond: rate, restoreCost: { device: 0, host: 0.1, disk: 0.5, remote: 0.8 } },
  }
}
