// The part of the fleet's composition root that joins a router with others of the same fleet: in other processes through
// their owner, on other machines through Valkey or Redis. Invariant: a router alone has no peers and pays for none; where
// its sessions and their turns are kept, and by whom, is decided here only.

import { join } from 'node:path'
import { turnsHere } from './api/explain-routes.js'
import { type Config, ConfigError } from './config.js'
import type { Clock } from './core/clock.js'
import {
  answerDashboard,
  askedDashboard,
  type DashboardAnswer,
  type DashboardQuestion,
} from './dashboard/asked-dashboard.js'
import type { BackendState, Dashboard } from './dashboard/contract.js'
import { createDashboard } from './dashboard/dashboard.js'
import { SignalEars, SignalTeller, type ToldSignal } from './dashboard/told-signals.js'
import type { Joined, TurnDesk } from './explain/contract.js'
import { createFleetTurns } from './explain/fleet-turns.js'
import { answerTurns, askedTurns, OWNER, type TurnQuestion } from './explain/turn-desk.js'
import type { TurnEars } from './explain/turn-ears.js'
import { type ToldTurn, TurnHearer, TurnTeller } from './explain/turn-wire.js'
import type { OwnerEars, OwnerLink, Question } from './router/owner-link.js'
import { type PeerCounts, Peers, type PeersParts } from './router/peers.js'
import { openSessionLog, type SessionLog } from './router/session-log.js'
import type { SessionStore } from './router/session-store.js'
import type { Shared, SharedEars } from './router/shared.js'
import type { WorkerHub } from './router/worker-hub.js'
import { VERSION } from './version.js'

export interface Sharing {
  /** Undefined: it is alone. */
  readonly peers: Peers | undefined
  readonly store: SessionStore
  /** Begins to tell; resolves once others can be heard, or cannot be reached. */
  start(): Promise<void>
  /** What was told, heard and lost. */
  counts(): Readonly<Record<string, number>>
  close(): Promise<void>
}

export type SharingParts = Pick<PeersParts, 'clock' | 'books' | 'limits' | 'freed' | 'circuits'> & {
  readonly owner: OwnerLink | undefined
}

export async function openSharing(config: Config, parts: SharingParts): Promise<Sharing> {
  const { owner } = parts
  if (owner !== undefined) return withOwner(owner, parts)
  const log = await openLog(config, parts.clock)
  return config.fleet.shared === undefined ? alone(log) : withShared(config, { ...parts, log })
}

/** The sessions in the data folder. */
export function openLog(config: Config, clock: Clock): Promise<SessionLog> {
  const { sessions: max, sessionTtlMs: ttlMs } = config.router
  return openSessionLog({ folder: join(config.dataDir, 'fleet'), max, ttlMs, clock })
}

/** Undefined where the config names none; its client is loaded for those that need it. @throws ConfigError */
export async function openConfiguredShared(
  config: Config,
  clock: Clock,
  ears: SharedEars,
): Promise<Shared | undefined> {
  const { shared: url, sharedPassword: password, sharedPrefix: prefix, sharedTls: tls } = config.fleet
  if (url === undefined) return undefined
  const { sessions, sessionTtlMs: ttlMs } = config.router
  const { openShared } = await import('./router/shared.js')
  try {
    return openShared({ url, password, prefix, tls, ttlMs, sessions, clock }, ears)
  } catch (error) {
    throw new ConfigError(`fleet.sharedTls: ${(error as Error).message}`)
  }
}

function alone(log: SessionLog): Sharing {
  return {
    peers: undefined,
    store: log,
    start: async () => undefined,
    counts: () => ({}),
    close: () => log.close(),
  }
}

/** The owner keeps the sessions, and carries the news. */
function withOwner(owner: OwnerLink, parts: SharingParts): Sharing {
  const { origin } = owner.welcome
  const peers = new Peers({ ...peersParts(parts), wire: owner, origin })
  return {
    peers,
    store: { records: () => owner.takeRecords(), put: (record) => peers.keep(record), remove: () => undefined },
    start: async () => peers.start(),
    counts: () => countsOf(peers.counts),
    close: async () => peers.close(),
  }
}

/** One process that shares with other machines. */
async function withShared(config: Config, parts: SharingParts & { readonly log: SessionLog }): Promise<Sharing> {
  const { log, clock } = parts
  const shared = (await openConfiguredShared(config, clock, {
    news: (text) => peers.hear(text),
    sessions(records) {
      for (const record of records) parts.books().recall(record)
    },
  })) as Shared
  const peers: Peers = new Peers({
    ...peersParts(parts),
    wire: shared,
    kept: (record) => log.put(record),
    forgotten(keys) {
      for (const key of keys) log.remove(key)
    },
  })
  return {
    peers,
    store: {
      records: () => log.records(),
      put(record) {
        log.put(record)
        peers.keep(record)
        shared.keep([record])
      },
      remove: (key) => log.remove(key),
    },
    async start() {
      await within(shared.tried(), clock)
      peers.start()
    },
    counts: () => ({ ...countsOf(peers.counts), ...sharedCounts(shared) }),
    async close() {
      peers.close()
      await shared.close()
      await log.close()
    },
  }
}

function peersParts({ clock, books, limits, freed, circuits }: SharingParts): Omit<PeersParts, 'wire'> {
  return {
    clock,
    books,
    ...(limits !== undefined && { limits }),
    ...(freed !== undefined && { freed }),
    ...(circuits !== undefined && { circuits }),
  }
}

function countsOf({ told, heard, bad }: PeerCounts) {
  return { told, heard, bad }
}

export function sharedCounts({ counts, isUp }: Shared): Readonly<Record<string, number>> {
  return {
    'redis-sent': counts.sent,
    'redis-heard': counts.heard,
    'redis-lost': counts.lost,
    'redis-outages': counts.outages,
    'redis-up': isUp ? 1 : 0,
  }
}

// --- turns, and what somebody looks at -------------------------------------------------------------------------------

/** What one of several processes leaves to its owner. */
export interface LeftToOwner {
  /** Undefined: nobody takes turns down. */
  readonly ears: TurnEars | undefined
  readonly turns: TurnDesk | undefined
  readonly dashboard: Dashboard
  /** What `OwnerLink.listen` is to have of it. */
  readonly told: Pick<OwnerEars, 'enclosure' | 'watched'>
}

export interface LeftParts {
  models(): readonly string[]
  backends(): readonly BackendState[]
}

/** As it goes along with news. */
interface Enclosed {
  readonly turns: readonly ToldTurn[]
  readonly signals: readonly ToldSignal[]
}

/** In a process that has an owner. */
export function leaveToOwner(config: Config, owner: OwnerLink, parts: LeftParts): LeftToOwner {
  const isTaken = config.explain.turns > 0
  const teller = new TurnTeller()
  const signals = new SignalTeller()
  signals.watch(owner.welcome.isWatched)
  return {
    ears: isTaken ? teller : undefined,
    turns: isTaken
      ? askedTurns((body: TurnQuestion) => owner.question<Joined<unknown>>({ kind: 'turns', body }))
      : undefined,
    dashboard: askedDashboard({
      ...{ version: VERSION, processes: owner.welcome.processes, owner: OWNER, ...parts },
      ask: (body: DashboardQuestion) => owner.question<DashboardAnswer>({ kind: 'dashboard', body }),
    }),
    told: {
      watched: (isWatched) => signals.watch(isWatched),
      enclosure: {
        take(): Enclosed | undefined {
          const taken = { turns: teller.take(), signals: signals.take() }
          return taken.turns.length + taken.signals.length === 0 ? undefined : taken
        },
        lost: () => teller.lost(),
      },
    },
  }
}

export interface KeptParts {
  readonly clock: Clock
  readonly hub: Pick<WorkerHub, 'gather' | 'watched'>
  /** Ids of members. */
  members(): readonly string[]
}

/** In the owner: turns of all processes, and what is shown of them. */
export function keepForAll(config: Config, { clock, hub, members }: KeptParts) {
  const turns = config.explain.turns > 0 ? createFleetTurns(config.explain) : undefined
  const hearers = new Map<string, TurnHearer>()
  const signals = new SignalEars({ onWatched: (isWatched) => hub.watched(isWatched), joined: () => hub.gather() })
  const dashboard = createDashboard({
    ...{ version: VERSION, kind: 'fleet', clock, processes: config.fleet.processes, turns, signals },
    models: () => [],
    // How they are the processes say.
    backends: () => members().map((id) => ({ id, kind: '', state: '', notes: [], models: [], running: 0, waiting: 0 })),
  })
  return {
    isWatched: () => signals.isWatched,
    enclosed(origin: string, what: unknown): void {
      const told = what as Enclosed
      signals.hear(told.signals)
      if (turns === undefined) return
      const hearer = hearers.get(origin) ?? new TurnHearer(turns)
      hearers.set(origin, hearer)
      hearer.hear(told.turns)
    },
    ended(origin: string): void {
      hearers.get(origin)?.gone()
      hearers.delete(origin)
    },
    async answer({ kind, body }: Question): Promise<object> {
      const missing = await hub.gather()
      if (kind === 'dashboard') return answerDashboard(dashboard, body as DashboardQuestion, missing)
      if (kind === 'turns' && turns !== undefined) return answerTurns(turnsHere(turns), body as TurnQuestion, missing)
      throw new Error(`nobody here knows of '${kind}'`)
    },
    close: () => dashboard.close(),
  }
}

/** Whoever cannot be reached is not waited for. */
const START_MS = 1000

export function within(promise: Promise<void>, clock: Clock): Promise<void> {
  return new Promise((resolve, reject) => {
    const cancel = clock.after(START_MS, resolve)
    promise.then(() => {
      cancel()
      resolve()
    }, reject)
  })
}
