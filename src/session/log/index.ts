// The kinds of session logs, by the names that config `sessions.log.store` gives them.

import { join } from 'node:path'
import type { SessionLog } from './contract.js'
import { createMemoryLog } from './memory.js'
import { openSqliteLog } from './sqlite.js'
import type { Durability } from './sqlite-database.js'

/** Config `sessions.log`. */
export interface SessionLogConfig {
  readonly store: 'sqlite' | 'memory' | 'none'
  readonly durability: Durability
  readonly key?: string
  readonly keyFile?: string
  readonly oldKeyFiles: readonly string[]
  readonly maxBytes: number
  readonly sessionEvents: number
  readonly sessionBytes: number
  readonly sources: number
}

export interface SessionLogPlace {
  /** Absolute; the log lies in a folder below. */
  readonly dataDir: string
  /** The compiled session/log/sqlite-worker.js. */
  readonly workerUrl: URL
}

/** Undefined: sessions are not logged. @throws UsageError with a sentence for the operator where a log cannot be opened. */
export async function openSessionLog(
  config: SessionLogConfig,
  { dataDir, workerUrl }: SessionLogPlace,
): Promise<SessionLog | undefined> {
  const { store, durability, key, keyFile, oldKeyFiles, maxBytes, sessionEvents, sessionBytes, sources } = config
  const limits = { sessionEvents, sessionBytes, sources }
  if (store === 'none') return undefined
  if (store === 'memory') return createMemoryLog({ limits, maxBytes })
  const folder = join(dataDir, 'sessions')
  return openSqliteLog({ workerUrl, folder, durability, keys: { key, keyFile, oldKeyFiles }, maxBytes, limits })
}
