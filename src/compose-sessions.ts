// The part of the composition root that joins what logged sessions are made of: the log, the service that runs their turns,
// and everything that keeps something of them and must forget it with them. Invariant: whoever keeps something that a
// session's words can be read from is named in `forget`.

import type { Service } from './api/contract.js'
import type { Backend } from './backend/backend.js'
import type { EraseAsk } from './cache/contract.js'
import { type Config, ConfigError } from './config.js'
import { BLOCK_TOKENS, type BlockHash, type Root } from './core/block.js'
import { RefrainError } from './core/errors.js'
import { UsageError } from './core/usage-error.js'
import type { TurnConcluded, TurnRecorder } from './explain/contract.js'
import type { ChatRenderer } from './serve.js'
import { alarmWebhook } from './session/alarm-webhook.js'
import { parseLifecycle } from './session/compaction/lifecycle.js'
import type { SessionPorts } from './session/contract.js'
import type { SessionLog } from './session/log/contract.js'
import { openSessionLog } from './session/log/index.js'
import { policyUrl } from './session/policy-url.js'
import type { ReplyStore } from './session/replies.js'
import type { SeriesRules } from './session/series.js'
import { SeriesWatch } from './session/series-watch.js'
import type { SessionFactsTable } from './session/session-facts.js'
import { createSessions, type LoggedSessions } from './session/sessions.js'
import { SourcePolicy } from './session/sources.js'

export interface SessionParts {
  readonly log: SessionLog
  readonly backend: Backend
  /** Of the model's card; undefined: it has none. */
  readonly lifecycle: unknown
  /** Name of the model's rule of retention. */
  readonly retention: string
  readonly replies: ReplyStore | undefined
  readonly facts: SessionFactsTable
  readonly explain: TurnRecorder | undefined
  readonly watch: SeriesWatch
  /** Where a tenant's chains begin. */
  root(tenant: { readonly salt: string }): Root
  /** The service that runs their turns; it is made after them. */
  service(): Service & ChatRenderer
}

/** Undefined: sessions are not logged. @throws ConfigError with a sentence for the operator. */
export async function openLog(
  { sessions, backend, dataDir }: Config,
  workerUrl = new URL('./session/log/sqlite-worker.js', import.meta.url),
): Promise<SessionLog | undefined> {
  const { log } = sessions
  // The scripted backend is for tests: what it says need not outlive it.
  const store = log.store === 'auto' ? (backend.kind === 'embedded' ? 'sqlite' : 'memory') : log.store
  try {
    return await openSessionLog({ ...log, store }, { dataDir, workerUrl })
  } catch (error) {
    if (!(error instanceof UsageError)) throw error
    throw new ConfigError(error.message, { cause: error })
  }
}

export function loggedSessions(config: Config, parts: SessionParts): LoggedSessions {
  const { open, forks, metadataBytes, appendEvents, builtInRounds, memoryTokens } = config.sessions.log
  const { unknown, policyUrl: url, policyMs: timeoutMs, policyTtlMs, policyFault } = config.sessions.sources
  const ask = url === undefined ? undefined : policyUrl({ url, timeoutMs })
  return createSessions({
    log: parts.log,
    sources: new SourcePolicy({ unknown, policyFault, policyTtlMs }, { log: parts.log, ask }),
    ports: portsOf(config, parts),
    lifecycle: lifecycleOf(config, parts.lifecycle),
    idleMs: config.cache.idleMs,
    seriesRules: rulesOf(config),
    watch: parts.watch,
    options: { open, forks, metadataBytes, appendEvents, builtInRounds, memoryTokens, readChars: READ_CHARS },
  })
}

function rulesOf({ cache, sessions }: Config): SeriesRules {
  const { hitRate, hitRateTurns } = sessions.alarms
  const ttlMs = cache.idleMs > 0 ? cache.idleMs : Number.POSITIVE_INFINITY
  return { blockTokens: BLOCK_TOKENS, ttlMs, hitRate, hitRateTurns }
}

export interface CacheWatch {
  readonly series: SeriesWatch
  /** Of sessions that are not logged, what is known of their turns. */
  shadow(turn: TurnConcluded): void
  close(): Promise<void>
}

/** Who tells alarms, and whom. */
export function watchCaches(config: Config): CacheWatch {
  const { webhook: url, webhookMs: timeoutMs, webhookTries: tries, webhookWaiting: waiting } = config.sessions.alarms
  const series = new SeriesWatch(rulesOf(config), config.sessions.max)
  const webhook = url === undefined ? undefined : alarmWebhook({ url, timeoutMs, tries, waiting })
  return {
    series,
    shadow({ tenant, session, isLogged, reason, ...step }) {
      const told = reason !== undefined && { reason }
      if (!isLogged) series.see({ tenant, session }, { kind: 'step', at: Date.now(), ...step, ...told })
    },
    async close() {
      series.close()
      await webhook?.close()
    },
  }
}

/** Characters that a model gets of a stored result at once. */
const READ_CHARS = 20_000

/** The operator's word goes before the card's. @throws ConfigError that names the field. */
function lifecycleOf({ sessions }: Config, card: unknown) {
  const own = Object.keys(sessions.lifecycle).length > 0
  try {
    return parseLifecycle(own ? sessions.lifecycle : card)
  } catch (error) {
    throw new ConfigError(`${own ? 'sessions.' : 'the card: '}${(error as Error).message}`, { cause: error })
  }
}

function portsOf(config: Config, parts: SessionParts): SessionPorts {
  const { backend, replies, facts, explain, retention, service } = parts
  const saltOf = (tenant: string) => config.tenants.find(({ name }) => name === tenant)?.salt ?? tenant
  const model = (name: string | undefined) => service().resolve(name)
  return {
    model(name) {
      const { name: own, contextLength } = model(name)
      return { name: own, contextLength, retention }
    },
    shown: (name, prompt) => service().shown(name, prompt),
    render: (name, shown, rendering) => service().render(name, shown, rendering),
    countTokens: (name, text) => service().countTokens(model(name), text),
    saltOf,
    generate: (request, signal) => service().generate(request, signal),
    eraseBlocks: (hashes: readonly BlockHash[]) => eraseCached(backend.cache, { hashes }),
    async forget({ tenant, session }) {
      const whose = session === undefined ? { tenant } : { tenant, session }
      facts.forget(whose)
      parts.watch.forget(whose)
      explain?.forget(whose)
      await replies?.erase({ ...whose, tenant: saltOf(tenant) })
      // Of a whole tenant nothing that is cached may be left, whoever asked for it.
      if (session === undefined) await eraseCached(backend.cache, { tenants: [parts.root({ salt: saltOf(tenant) })] })
    },
    async revoked({ tenant, session }) {
      facts.forget({ tenant, session })
      explain?.revoked({ tenant, session })
      await replies?.erase({ tenant: saltOf(tenant), session })
    },
  }
}

/** @throws RefrainError `storage_failed` where something of it may still be read: nobody is told that it is gone before it is. */
export async function eraseCached(cache: Backend['cache'], ask: EraseAsk): Promise<void> {
  const erased = await cache?.erase(ask)
  if (erased === undefined || erased.complete) return
  const message = 'cached blocks of it are still in use, or the disk cannot be overwritten: ask again'
  throw new RefrainError('storage_failed', message)
}
