// The composition root of a fleet: backends elsewhere in place of an engine. Config in, a program out that listens at once
// and takes backends in as they answer. Invariant: no backend's silence delays the start or another backend's requests.

import { join } from 'node:path'
import { setFlagsFromString } from 'node:v8'
import { parse } from 'yaml'
import type { FleetQuick, FleetService } from './api/contract.js'
import { dashboardRoutes } from './api/dashboard-routes.js'
import { fleetRoutes } from './api/fleet-routes.js'
import { createFleetServer } from './api/fleet-server.js'
import { checkSignals } from './api/session-signal.js'
import { BrokenAnswer } from './backend/remote/broken-answer.js'
import { ChatEvents } from './backend/remote/chat-events.js'
import type { RemoteOptions } from './backend/remote/contract.js'
import { exchange } from './backend/remote/exchange.js'
import { LlamaSlots } from './backend/remote/llama-slots.js'
import { kindOf, openRemote } from './backend/remote/open-remote.js'
import { SlotRecords } from './backend/remote/slot-records.js'
import type { ComposeOptions, Program } from './compose.js'
import { createKnowledge } from './compose-knowledge.js'
import { type Config, ConfigError, makeConfig } from './config.js'
import { systemClock } from './core/clock.js'
import { RefrainError } from './core/errors.js'
import { note } from './core/signals.js'
import type { BackendState } from './dashboard/contract.js'
import { createDashboard } from './dashboard/dashboard.js'
import { Discovery } from './router/discovery.js'
import { Fleet, type MemberReport } from './router/fleet.js'
import { createFleetRouter } from './router/fleet-router.js'
import { openSessionLog } from './router/session-log.js'
import { limitsIn } from './router/tenant-limits.js'
import { createWaitingRoom } from './router/waiting-room.js'
import { createFleetService } from './serve-fleet.js'
import { createFleetQuick } from './serve-quick.js'
import { type BackendGauges, startMetrics } from './telemetry/metrics.js'
import { openTrace } from './telemetry/trace-open.js'
import { VERSION } from './version.js'

export interface FleetOptions extends ComposeOptions {
  /** Reads the config again; on SIGHUP its backends replace those of before. @throws ConfigError */
  readonly again?: () => Config
}

/**
 * A router's work is much code of which each request runs a little, so that the interpreter is left late. Its worth is not
 * settled: of three noisy comparisons of own work alone, two were for it and one against.
 */
const COMPILE_AT_ONCE = '--always-sparkplug'

/** @throws ConfigError where a backend or a signal of the config cannot be one. */
export async function composeFleet(config: Config, options: FleetOptions = {}): Promise<Program> {
  setFlagsFromString(COMPILE_AT_ONCE)
  const clock = options.clock ?? systemClock
  const { fleet: limits } = config
  const fleet: Fleet = new Fleet(limits, {
    open: (entry) => knowledge.follow(openRemote(entry, limits)),
    knowledgeOf: (id) => knowledge.knowledgeOf(id),
    clock,
    viewOf: (member) => router.view(member),
    onEmptied: (id) => {
      router.emptied(id)
      slots.emptied(id)
    },
  })
  const knowledge = createKnowledge(config, {
    remotes: () => fleet.remotes(),
    isUp: (id) => fleet.members().some((member) => member.id === id && member.state === 'up'),
    clock,
  })
  const folder = join(config.dataDir, 'fleet')
  const { sessions: max, sessionTtlMs: ttlMs } = config.router
  const store = await openSessionLog({ folder, max, ttlMs, clock })
  const router = createFleetRouter(config.router, {
    members: () => fleet.members(),
    clock,
    store,
    precise: knowledge.index,
  })
  const slots = new LlamaSlots(
    { waitMs: config.limits.queueMs, saveAfterMs: limits.slotSaveMs },
    {
      remotes: () => fleet.remotes(),
      records: new SlotRecords(join(folder, 'llama-slots.json'), limits.slotFiles),
      clock,
    },
  )
  const { watch: file, watchMs: everyMs } = limits
  const discovery = new Discovery({ everyMs, ...(file !== undefined && { file }) }, { fleet, clock, parse: backendsIn })
  for (const entry of config.backends) if (!entry.resolve) addConfigured(fleet, entry as RemoteOptions)
  const reload = () => configureAgain(discovery, options)
  const { queuedRequests, queueMs, sideRequestMs } = config.limits
  const room = createWaitingRoom({ router, queuedRequests, queueMs, sideRequestMs, clock })
  const service = createFleetService({
    router,
    room,
    quotas: limitsIn(config, clock),
    remotes: () => fleet.remotes(),
    kindOf: (remote) => kindOf(remote.facts?.kind ?? 'openai'),
    exchange: (request) => fleet.exchange(request, (watched) => exchange({ ...watched, limits })),
    chatReader: (promptTokens) => new ChatEvents(promptTokens),
    ...(limits.continueBroken && { brokenChat: () => new BrokenAnswer() }),
    aliases: config.model.aliases,
    tenants: config.tenants.map(({ name }) => name),
    attempts: limits.attempts,
    seats: slots,
    tokens: knowledge.tokens,
    clock,
  })
  const signals = signalsOf(config)
  const tracing = await openTrace(config.telemetry.trace, { version: VERSION, server: config.server })
  const metrics = startMetrics(() => ({ running: inFlightOf(fleet), waiting: room.waiting }), {
    fleet: { backends: () => fleet.reports().map(gaugesOf), slots: () => ({ ...slots.counts }) },
  })
  const dashboard = createDashboard({
    ...{ version: VERSION, kind: 'fleet', clock },
    models: () => service.models().map(({ name }) => name),
    backends: () => fleet.reports().map(stateOf),
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
    metrics: metrics.scrape,
    ready: () => readiness(fleet),
    routes: [
      ...fleetRoutes({
        desk: fleet,
        fleet: service,
        sessionSignals: signals,
        backendOf,
        release: (tenant, session) => router.release(tenant, session),
      }),
      ...dashboardRoutes(config.server.dashboard ? dashboard : undefined),
    ],
  })
  return {
    server,
    model: `${config.backends.length} ${config.backends.length === 1 ? 'backend' : 'backends'}`,
    start: async () => {
      const url = await server.listen(config.server.host, config.server.port)
      fleet.start()
      await discovery.configure(CONFIGURED, config.backends as readonly RemoteOptions[])
      discovery.start()
      process.on('SIGHUP', reload)
      return url
    },
    async stop(drainMs = config.server.drainMs) {
      process.off('SIGHUP', reload)
      discovery.stop()
      await server.drain(drainMs)
      await slots.close()
      await fleet.stop()
      await store.close()
      metrics.close()
      await tracing?.close()
      dashboard.close()
    },
  }
}

/** How side questions are put to each backend. */
function quickOf(service: FleetService, fleet: Fleet): FleetQuick {
  return createFleetQuick({
    fleet: service,
    members: () => fleet.remotes().map(({ id }) => id),
    askedAs(member) {
      const remote = fleet.remotes().find(({ id }) => id === member)
      if (remote?.facts?.kind === 'refrain') return 'refrain'
      return remote?.options.tasks === true ? 'tasks' : 'words'
    },
  })
}

/** @throws ConfigError */
function addConfigured(fleet: Fleet, entry: RemoteOptions): void {
  try {
    fleet.add(entry, CONFIGURED)
  } catch (error) {
    throw new ConfigError(`backends: ${(error as Error).message}`)
  }
}

/** What a watched file lists: entries as in the config, or URLs. @throws ConfigError */
function backendsIn(text: string): readonly RemoteOptions[] {
  const value: unknown = parse(text) ?? []
  const list = typeof value === 'string' ? value.split(/\s+/) : Array.isArray(value) ? value : undefined
  if (list === undefined) throw new ConfigError('it must be a list of backends, or a URL a line')
  const backends = list.map((each: unknown) => (typeof each === 'string' ? { url: each } : each))
  return makeConfig({ flags: { backends } }).backends as readonly RemoteOptions[]
}

function configureAgain(discovery: Discovery, { again }: FleetOptions): void {
  if (again === undefined) return
  try {
    void discovery.configure(CONFIGURED, again().backends as readonly RemoteOptions[])
    note.publish({ level: 'info', text: 'the backends of the config were read again' })
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    note.publish({ level: 'error', text: `the config is not taken: ${error.message}` })
  }
}

/** As an entry of the config's `backends`, complete. @throws RefrainError */
function backendOf(value: unknown): RemoteOptions {
  try {
    return makeConfig({ flags: { backends: [value] } }).backends[0] as RemoteOptions
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    // `backends.0.kind: must be one of ...`
    const [path = '', ...rest] = error.message.split(': ')
    const param = path.replace(/^backends\.0\.?/, '')
    const what = rest.join(': ')
    throw new RefrainError('invalid_request', `${param}: ${what}`, { ...(param !== '' && { param }) })
  }
}

/** The source of members that the config names. */
const CONFIGURED = 'config'

function inFlightOf(fleet: Fleet): number {
  return fleet.members().reduce((sum, { load }) => sum + load.inFlight, 0)
}

function gaugesOf({ member, view }: MemberReport): BackendGauges {
  const { id, state, load } = member
  const { inFlight, queuedPrefillTokens } = load
  const predictionError = view?.predictionError
  return { id, state, inFlight, queuedPrefillTokens, sessions: view?.sessions ?? 0, predictionError }
}

function stateOf({ member, why, view }: MemberReport): BackendState {
  const { id, kind, state, models, load } = member
  const { predictionError, capacityTokens } = view ?? {}
  return {
    ...{ id, kind, state, models },
    notes: why === undefined ? [] : [why],
    running: load.inFlight,
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
