// The composition root of a fleet: backends elsewhere in place of an engine. Config in, a program out that listens at once
// and takes backends in as they answer. Invariant: no backend's silence delays the start or another backend's requests.

import { createFleetServer } from './api/fleet-server.js'
import { checkSignals } from './api/session-signal.js'
import type { Remote, RemoteOptions } from './backend/remote/contract.js'
import { exchange } from './backend/remote/exchange.js'
import { kindOf, openRemote } from './backend/remote/open-remote.js'
import type { ComposeOptions, Program } from './compose.js'
import { type Config, ConfigError } from './config.js'
import { type Clock, systemClock } from './core/clock.js'
import { note } from './core/signals.js'
import { type AskedRemote, createLeastBusy } from './router/least-busy.js'
import { createFleetService } from './serve-fleet.js'
import { startMetrics } from './telemetry/metrics.js'
import { VERSION } from './version.js'

/** @throws ConfigError where a backend or a signal of the config cannot be one. */
export async function composeFleet(config: Config, options: ComposeOptions = {}): Promise<Program> {
  const clock = options.clock ?? systemClock
  const { fleet: limits } = config
  const remotes = config.backends.map((entry) => open(entry as RemoteOptions, config))
  const asking = createAsking(remotes, clock)
  const router = createLeastBusy(() => remotes.flatMap(asked))
  const service = createFleetService({
    router,
    remotes: () => remotes,
    kindOf: (remote) => kindOf(remote.facts?.kind ?? 'openai'),
    exchange: (request) => exchange({ ...request, limits }),
    aliases: config.model.aliases,
    tenants: config.tenants.map(({ name }) => name),
    attempts: limits.attempts,
    clock,
  })
  const metrics = startMetrics(() => ({ running: router.inFlight(), waiting: 0 }))
  const server = createFleetServer({
    fleet: service,
    limits: config.limits,
    access: { tenants: config.tenants, host: config.server.host },
    clock,
    keepaliveMs: config.server.keepaliveMs,
    sessionSignals: signalsOf(config),
    forceUsage: config.server.forceUsage,
    memoBytes: limits.memoBytes,
    version: VERSION,
    metrics: metrics.scrape,
    ready: () => readiness(remotes),
    routes: [],
  })
  return {
    server,
    model: `${remotes.length} ${remotes.length === 1 ? 'backend' : 'backends'}`,
    start: async () => {
      const url = await server.listen(config.server.host, config.server.port)
      asking.start()
      return url
    },
    async stop(drainMs = config.server.drainMs) {
      asking.stop()
      await server.drain(drainMs)
      await Promise.all(remotes.map((remote) => remote.close()))
      metrics.close()
    },
  }
}

function open(entry: RemoteOptions, { fleet }: Config): Remote {
  try {
    return openRemote(entry, fleet)
  } catch (error) {
    throw new ConfigError(`backends: ${(error as Error).message}`)
  }
}

function asked(remote: Remote): AskedRemote[] {
  const { facts, id, options } = remote
  if (facts === undefined) return []
  const models = [...facts.models.map((model) => model.id), ...Object.keys(options.models)]
  return [{ id, url: options.url, kind: facts.kind, models }]
}

function readiness(remotes: readonly Remote[]) {
  const silent = remotes.filter(({ facts }) => facts === undefined)
  return { ready: silent.length < remotes.length, notes: silent.map(({ id }) => `${id} has not answered yet`) }
}

/** Between two questions to a backend that does not answer. */
const ASK_AGAIN_MS = 1000

/** Asks each backend what it is until it says so. */
function createAsking(remotes: readonly Remote[], clock: Clock) {
  const cancels = new Set<() => void>()
  let stopped = false
  const ask = async (remote: Remote, wasTold: boolean): Promise<void> => {
    try {
      const { kind, models } = await remote.ask()
      const names = models.map(({ id }) => id)
      note.publish({ level: 'info', text: `${remote.id} is a ${kind}`, detail: { models: names } })
    } catch (error) {
      if (stopped) return
      const text = `${remote.id} does not answer: ${(error as Error).message}`
      if (!wasTold) note.publish({ level: 'warn', text })
      const cancel = clock.after(ASK_AGAIN_MS, () => {
        cancels.delete(cancel)
        void ask(remote, true)
      })
      cancels.add(cancel)
    }
  }
  return {
    start() {
      for (const remote of remotes) void ask(remote, false)
    },
    stop() {
      stopped = true
      for (const cancel of cancels) cancel()
    },
  }
}

/** @throws ConfigError where an entry can be no signal. */
function signalsOf({ sessions }: Config): readonly string[] {
  try {
    return checkSignals(sessions.signals)
  } catch (error) {
    throw new ConfigError((error as Error).message)
  }
}
