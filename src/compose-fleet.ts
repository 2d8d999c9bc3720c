// The composition root of a fleet: backends elsewhere in place of an engine. Config in, a program out that listens at once
// and takes backends in as they answer. Invariant: no backend's silence delays the start or another backend's requests.

import { setFlagsFromString } from 'node:v8'
import type { FleetQuick, FleetService } from './api/contract.js'
import { dashboardRoutes } from './api/dashboard-routes.js'
import { explainRoutes, turnRoutes } from './api/explain-routes.js'
import { fleetRoutes } from './api/fleet-routes.js'
import { createFleetServer } from './api/fleet-server.js'
import { checkSignals } from './api/session-signal.js'
import { openRemote } from './backend/remote/open-remote.js'
import { askWaiting } from './backend/remote/waiting.js'
import type { ComposeOptions, Program } from './compose.js'
import { createKnowledge } from './compose-knowledge.js'
import {
  applyChange,
  backendOf,
  createMembership,
  createSlots,
  deskOf,
  openDrains,
  ownedMembership,
} from './compose-members.js'
import { createPath, hasSlots } from './compose-path.js'
import { type LeftToOwner, leaveToOwner, openSharing } from './compose-sharing.js'
import { warmUp } from './compose-warm-up.js'
import { type Config, ConfigError } from './config.js'
import { type Clock, systemClock } from './core/clock.js'
import { note, routeSignals } from './core/signals.js'
import type { BackendState } from './dashboard/contract.js'
import { createDashboard } from './dashboard/dashboard.js'
import { createFleetTurns } from './explain/fleet-turns.js'
import { Fleet, type MemberReport } from './router/fleet.js'
import type { OwnerLink } from './router/owner-link.js'
import { limitsIn } from './router/tenant-limits.js'
import { createBeside } from './serve-beside.js'
import type { Seats } from './serve-fleet.js'
import { createFleetQuick, type FleetQuickParts } from './serve-quick.js'
import { type BackendGauges, startMetrics } from './telemetry/metrics.js'
import { openTrace } from './telemetry/trace-open.js'
import { VERSION } from './version.js'

export interface FleetOptions extends ComposeOptions {
  /** Runs its own code before anybody waits for it, where the config says so (fleet.warmUp). */
  readonly warm?: boolean
  /** Reads the config again; on SIGHUP its backends replace those of before. @throws ConfigError */
  readonly again?: () => Config
  /** This is one of several processes: who owns what they share. */
  readonly owner?: OwnerLink
  /** The owner wants this process to end. */
  readonly onStop?: (drainMs: number) => void
}

/**
 * A router's work is much code of which each request runs a little: by its defaults the runtime leaves the interpreter
 * after thousands of requests. With these it compiles what it runs at once, and well after an eighth of the usual work.
 */
const COMPILE_AT_ONCE = '--always-sparkplug'
const COMPILE_EARLY = '--interrupt-budget=16384'
/**
 * Of what is kept of requests (sessions, turns, bodies) most is replaced by the next turn. By its defaults the runtime looks
 * through all of it whenever it has grown by two thirds; with this, when it has trebled (0.27 ms a request against 0.32).
 */
const COLLECT_SELDOM = '--heap-growing-percent=200'

/** @throws ConfigError where a backend or a signal of the config cannot be one. */
export async function composeFleet(config: Config, options: FleetOptions = {}): Promise<Program> {
  setFlagsFromString(COMPILE_AT_ONCE)
  setFlagsFromString(COLLECT_SELDOM)
  const clock = options.clock ?? systemClock
  const { owner } = options
  const { fleet: limits } = config
  const fleet: Fleet = new Fleet(probing(limits, owner), {
    open: (entry) => knowledge.follow(openRemote(entry, limits)),
    knowledgeOf: (id) => knowledge.knowledgeOf(id),
    clock,
    viewOf: (member) => router.view(member),
    waitingAt: askWaiting,
    onEmptied(id) {
      router.emptied(id)
      sharing.peers?.emptied(id)
      slots?.emptied(id)
    },
    onCircuit: (id, nth) => sharing.peers?.circuit(id, nth),
    ...(owner ? { onTurned: (id) => owner.turned(id) } : { drains: openDrains(config) }),
  })
  const knowledge = createKnowledge(config, {
    remotes: () => fleet.remotes(),
    isUp: (id) => fleet.members().some((member) => member.id === id && member.state === 'up'),
    clock,
    isTold: owner !== undefined,
  })
  const sharing = await openSharing(config, {
    clock,
    owner,
    books: () => router.books,
    limits: () => quotas?.shared,
    freed: () => room.look(),
    circuits: fleet,
  })
  const { peers, store } = sharing
  const quotas = limitsIn(config, clock, peers && ((...took) => peers.took(...took)))
  const slots = owner === undefined ? createSlots(config, fleet, clock) : undefined
  const membership =
    owner === undefined
      ? createMembership(config, { fleet, clock, again: options.again })
      : ownedMembership(owner, fleet)
  // A session's turns may come to any of several processes: their owner has all of them.
  const left =
    owner && leaveToOwner(config, owner, { models: () => modelNames(service), backends: () => states(fleet) })
  const turns = owner === undefined && config.explain.turns > 0 ? createFleetTurns(config.explain) : undefined
  const { router, room, service } = createPath(config, {
    fleet,
    clock,
    store,
    precise: knowledge.index,
    peers,
    quotas,
    seats: slots ?? ownedSeats(owner as OwnerLink, fleet),
    ears: left === undefined ? turns : left.ears,
    tokens: knowledge.tokens,
    signals: routeSignals,
  })
  const signals = signalsOf(config)
  const tracing = await openTrace(config.telemetry.trace, { version: VERSION, server: config.server })
  const metrics = startMetrics(() => ({ running: inFlightOf(fleet), waiting: room.waiting }), {
    fleet: {
      backends: () => fleet.reports().map(gaugesOf),
      slots: () => ({ ...slots?.counts }),
      shared: sharing.counts,
    },
  })
  const dashboard =
    left?.dashboard ??
    createDashboard({
      ...{ version: VERSION, kind: 'fleet', clock, turns },
      models: () => modelNames(service),
      backends: () => states(fleet),
    })
  const server = createFleetServer({
    fleet: service,
    quick: quickOf(service, fleet),
    limits: config.limits,
    access: { tenants: config.tenants, host: config.server.host },
    clock,
    keepaliveMs: config.server.keepaliveMs,
    sessionSignals: signals,
    forceUsage: config.server.forceUsage,
    memoBytes: limits.memoBytes,
    version: VERSION,
    metrics: owner === undefined ? metrics.scrape : () => owner.scrape(),
    ready: () => readiness(fleet),
    routes: [
      ...fleetRoutes({
        desk: deskOf(fleet, owner),
        fleet: service,
        sessionSignals: signals,
        backendOf,
        release: (tenant, session) => router.release(tenant, session),
      }),
      ...(left?.turns === undefined ? explainRoutes({ ...(turns && { turns }) }) : turnRoutes(left.turns)),
      ...dashboardRoutes(config.server.dashboard ? dashboard : undefined),
    ],
  })
  const { onStop = () => undefined } = options
  const metricsHere = () => metrics.parts()
  let isStopped = false
  const warm = () => {
    const others = { inFlight: () => inFlightOf(fleet), begun: () => fleet.exchanges, isOver: () => isStopped }
    warmUp(config, others).catch((error: unknown) =>
      note.publish({
        level: 'warn',
        text: 'the router begins cold: its warm-up failed',
        detail: { error: String(error) },
      }),
    )
  }
  return {
    server,
    model: `${config.backends.length} ${config.backends.length === 1 ? 'backend' : 'backends'}`,
    start: async () => {
      owner?.listen({
        ...(left as LeftToOwner).told,
        news: (text) => peers?.hear(text),
        assign: ({ source, wanted }) => fleet.assign(source, wanted),
        desk: (change) => applyChange(fleet, change),
        look: (member) => fleet.look(member),
        kv: knowledge.index,
        metrics: metricsHere,
        stop: onStop,
      })
      await sharing.start()
      if (owner !== undefined) {
        fleet.start()
        await knownUp(owner, fleet, clock)
      }
      // Not what runs once, at the start.
      setFlagsFromString(COMPILE_EARLY)
      const url = await server.listen(config.server.host, config.server.port)
      if (owner === undefined) fleet.start()
      await membership.start()
      owner?.listening(url)
      if (options.warm === true && config.fleet.warmUp) warm()
      return url
    },
    async stop(drainMs = config.server.drainMs) {
      isStopped = true
      membership.stop()
      await server.drain(drainMs)
      await slots?.close()
      await fleet.stop()
      await sharing.close()
      metrics.close()
      await tracing?.close()
      dashboard.close()
    },
  }
}

/** Several processes probe no more often than one would: the owner does too, and who notices a change tells the others. */
function probing(limits: Config['fleet'], owner: OwnerLink | undefined): Config['fleet'] {
  const { processes = 1 } = owner?.welcome ?? {}
  const { probeMs, downProbeMs, queueMs } = limits
  return {
    ...limits,
    probeMs: probeMs * processes,
    downProbeMs: downProbeMs * processes,
    queueMs: queueMs * processes,
  }
}

/** One of several does not answer for members that it has not asked yet, while the others know them to be up. */
async function knownUp({ welcome }: OwnerLink, fleet: Fleet, clock: Clock): Promise<void> {
  const until = clock.now() + KNOWN_UP_MS
  const isWaited = () =>
    fleet.members().some(({ id, state }) => state === 'starting' && welcome.up.includes(id)) && clock.now() < until
  while (isWaited()) await new Promise<void>((resolve) => clock.after(KNOWN_UP_STEP_MS, resolve))
}

const KNOWN_UP_MS = 2000
const KNOWN_UP_STEP_MS = 10

/** Seats in slots are the owner's to give. */
function ownedSeats(owner: OwnerLink, fleet: Fleet): Seats {
  return {
    take(member, query, signal) {
      const remote = fleet.remotes().find(({ id }) => id === member)
      return remote !== undefined && hasSlots(remote) ? owner.seat(member, query, signal) : undefined
    },
  }
}

/** How side questions are put to each backend. */
function quickOf(service: FleetService, fleet: Fleet): FleetQuick {
  const parts: FleetQuickParts = {
    fleet: service,
    members: () => fleet.remotes().map(({ id }) => id),
    askedAs(member) {
      const remote = fleet.remotes().find(({ id }) => id === member)
      if (remote?.facts?.kind === 'refrain') return 'refrain'
      return remote?.options.tasks === true ? 'tasks' : 'words'
    },
  }
  return { ...createFleetQuick(parts), ...createBeside(parts) }
}

function inFlightOf(fleet: Fleet): number {
  return fleet.members().reduce((sum, { load }) => sum + load.inFlight, 0)
}

function gaugesOf({ member, view }: MemberReport): BackendGauges {
  const { id, state, load } = member
  const { inFlight, queuedPrefillTokens } = load
  const predictionError = view?.predictionError
  return { id, state, inFlight, queuedPrefillTokens, sessions: view?.sessions ?? 0, predictionError }
}

function modelNames(service: FleetService): readonly string[] {
  return service.models().map(({ name }) => name)
}

function states(fleet: Fleet): readonly BackendState[] {
  return fleet.reports().map(stateOf)
}

function stateOf({ member, why, view }: MemberReport): BackendState {
  const { id, kind, state, models, load } = member
  const { predictionError, capacityTokens } = view ?? {}
  return {
    ...{ id, kind, state, models },
    notes: why === undefined ? [] : [why],
    // Of all routers that share their books.
    running: view?.load.inFlight ?? load.inFlight,
    waiting: load.reportedQueue,
    queuedPrefillTokens: Math.round(load.queuedPrefillTokens),
    sessions: view?.sessions ?? 0,
    knowledge: view?.knowledge ?? member.knowledge,
    ...(predictionError !== undefined && { predictionError }),
    ...(capacityTokens !== undefined && { capacityTokens }),
  }
}

function readiness(fleet: Fleet) {
  const reports = fleet.reports()
  const out = reports.filter(({ member }) => member.state !== 'up')
  const notes = out.map(({ member, why }) => `${member.id} is ${member.state}${why === undefined ? '' : `: ${why}`}`)
  return { ready: out.length < reports.length, notes }
}

/** @throws ConfigError where an entry can be no signal. */
function signalsOf({ sessions }: Config): readonly string[] {
  try {
    return checkSignals(sessions.signals)
  } catch (error) {
    throw new ConfigError((error as Error).message)
  }
}
