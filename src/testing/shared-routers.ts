// Several routers that share their books, as one: requests come to one after the other, and news take a while. For
// simulations in virtual time.

import type { FleetRouter, Member } from '../router/contract.js'
import { createFleetRouter } from '../router/fleet-router.js'
import { ROUTER_DEFAULTS } from '../router/options.js'
import { Peers } from '../router/peers.js'
import type { ManualClock } from './manual-clock.js'

export interface SharedRoutersOptions {
  readonly count: number
  /** From one to another, beyond what a batch waits for. */
  readonly wireMs: number
  /** False: each knows of its own requests alone. */
  readonly shares: boolean
}

export function sharedRouters({ count, wireMs, shares }: SharedRoutersOptions) {
  return (parts: { members: () => readonly Member[]; clock: ManualClock }): FleetRouter => {
    const { clock } = parts
    const nodes = Array.from({ length: count }, (_, place) => {
      const wire = {
        send(text: string) {
          if (!shares) return
          clock.after(wireMs, () => {
            for (const [i, { peers: other }] of nodes.entries()) if (i !== place) other.hear(text)
          })
        },
      }
      const peers: Peers = new Peers({ wire, clock, origin: `${place}`, books: () => router.books })
      const router = createFleetRouter(ROUTER_DEFAULTS, { ...parts, peers })
      return { peers, router }
    })
    for (const { peers } of nodes) peers.start()
    const places = new Map<string, FleetRouter>()
    let nth = 0
    const of = ({ id }: { readonly id: string }) => places.get(id) as FleetRouter
    return {
      place(query) {
        const { router } = nodes[nth++ % count] as (typeof nodes)[number]
        places.set(query.id, router)
        return router.place(query)
      },
      sent: (query, placement) => of(query).sent(query, placement),
      hedged: (query, placement, first) => of(query).hedged(query, placement, first),
      started: (query, member) => of(query).started(query, member),
      settled: (outcome) => of(outcome.query).settled(outcome),
      release: (...session) => (nodes[0] as (typeof nodes)[number]).router.release(...session),
    }
  }
}
