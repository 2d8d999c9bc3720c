// The path of a request through a fleet, put together in one place: for the program, and for its warm-up, which would be of
// little use if what it runs were made elsewhere (the runtime compiles code for objects as they were made, and starts again
// where others come).

import type { FleetService } from './api/contract.js'
import { BrokenAnswer } from './backend/remote/broken-answer.js'
import { ChatEvents } from './backend/remote/chat-events.js'
import type { Remote } from './backend/remote/contract.js'
import { exchange } from './backend/remote/exchange.js'
import { kindOf } from './backend/remote/open-remote.js'
import type { Config } from './config.js'
import type { Clock } from './core/clock.js'
import type { RouteSignals } from './core/signals.js'
import { listenedTo, type TurnEars } from './explain/turn-ears.js'
import type { Fleet } from './router/fleet.js'
import { createFleetRouter, type FleetRouterParts, type SharedRouter } from './router/fleet-router.js'
import { createWaitingRoom, type WaitingRoom } from './router/waiting-room.js'
import { createFleetService, type FleetParts, type Seats } from './serve-fleet.js'
import { type HedgeParts, Hedging } from './serve-hedge.js'

export interface PathParts
  extends Pick<FleetRouterParts, 'store' | 'precise' | 'peers'>,
    Pick<FleetParts, 'tokens' | 'quotas'> {
  readonly fleet: Fleet
  readonly clock: Clock
  readonly seats: Seats
  /** Who hears of turns; undefined: nobody. */
  readonly ears: TurnEars | undefined
  readonly signals: RouteSignals
}

export interface Path {
  readonly router: SharedRouter
  readonly room: WaitingRoom
  readonly service: FleetService
}

/** @throws Error where `router.weights` names a scorer that there is not. */
export function createPath(config: Config, parts: PathParts): Path {
  const { fleet, clock, store, precise, peers, quotas, seats, ears, tokens, signals } = parts
  const { fleet: limits, model, tenants } = config
  const router = createFleetRouter(config.router, { members: () => fleet.members(), clock, store, precise, peers })
  const { queuedRequests, queueMs, sideRequestMs } = config.limits
  const room = createWaitingRoom({ router, queuedRequests, queueMs, sideRequestMs, clock })
  const service = createFleetService({
    router: ears === undefined ? router : listenedTo(router, ears),
    room,
    quotas,
    remotes: () => fleet.remotes(),
    kindOf: (remote) => kindOf(remote.facts?.kind ?? 'openai'),
    exchange: (request) => fleet.exchange(request, (watch) => exchange(request, limits, watch)),
    chatReader: (promptTokens) => new ChatEvents(promptTokens),
    brokenChat: limits.continueBroken ? () => new BrokenAnswer() : undefined,
    aliases: model.aliases,
    tenants: tenants.map(({ name }) => name),
    attempts: limits.attempts,
    hedging: limits.hedgeMs > 0 ? hedgingOf(limits, { router, room, fleet, clock }) : undefined,
    seats,
    seated: (query, member) => router.seated(query, member),
    tokens,
    signals,
    clock,
  })
  return { router, room, service }
}

export function hasSlots({ facts }: Pick<Remote, 'facts'>): boolean {
  return facts?.kind === 'llama-cpp' && (facts.slots ?? 0) > 0
}

interface HedgedParts extends Pick<HedgeParts, 'router' | 'clock'> {
  readonly room: WaitingRoom
  readonly fleet: Fleet
}

function hedgingOf(limits: Config['fleet'], { router, room, fleet, clock }: HedgedParts): Hedging {
  return new Hedging(limits, {
    router,
    clock,
    waiting: () => room.waiting,
    slotted: () => fleet.remotes().flatMap((remote) => (hasSlots(remote) ? [remote.id] : [])),
  })
}
