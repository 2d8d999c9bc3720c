// The part of the fleet's composition root that joins a router with others of the same fleet: in other processes through
// their owner, on other machines through Valkey or Redis. Invariant: a router alone has no peers and pays for none; where
// its sessions are kept, and by whom, is decided here only.

import { join } from 'node:path'
import { type Config, ConfigError } from './config.js'
import type { Clock } from './core/clock.js'
import type { OwnerLink } from './router/owner-link.js'
import { type PeerCounts, Peers, type PeersParts } from './router/peers.js'
import { openSessionLog, type SessionLog } from './router/session-log.js'
import type { SessionStore } from './router/session-store.js'
import type { Shared, SharedEars } from './router/shared.js'

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
