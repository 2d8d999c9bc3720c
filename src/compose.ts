// The composition root: the only file of this thread that joins concrete parts. Config in, a program out that can listen
// and drain. Invariant: parts get slices of the config and each other's contracts, never the whole and never each other's
// classes. worker.ts is the root of the engine's thread.

import { join } from 'node:path'
import type { TSchema } from 'typebox'
import Value from 'typebox/value'
import type { ServedModel } from './api/contract.js'
import { DEFAULT_TENANT } from './api/gate.js'
import { type ApiServer, createServer } from './api/server.js'
import { checkSignals } from './api/session-signal.js'
import type { Backend } from './backend/backend.js'
import { scripted } from './backend/index.js'
import type { BlockPublisher } from './backend/kv-events/publisher.js'
import type { ScriptedDeps, ScriptedOptions } from './backend/scripted.js'
import { scriptedTemplate } from './backend/scripted-template.js'
import { createScriptedTokenizer } from './backend/scripted-tokenizer.js'
import { isOfTenant, makeRoot, type RootParts } from './cache/chain.js'
import { systemFiles } from './cache/disk/file-door.js'
import { formatsOf, type OpenedModel, type OpenProgress, openEmbedded } from './compose-embedded.js'
import { loggedSessions, openLog, watchCaches } from './compose-sessions.js'
import { type Config, ConfigError } from './config.js'
import type { Root } from './core/block.js'
import { type Clock, systemClock } from './core/clock.js'
import { kindNamed } from './core/kind.js'
import type { BackendState } from './dashboard/contract.js'
import { createDashboard } from './dashboard/dashboard.js'
import { createExplainer } from './explain/explainer.js'
import { announceKernels } from './native/index.js'
import type { ModelFormats } from './prompt/contract.js'
import type { HygieneRule } from './prompt/hygiene/hygiene.js'
import * as hygieneRules from './prompt/hygiene/index.js'
import { limitsIn } from './router/tenant-limits.js'
import { createService } from './serve.js'
import { createMemoryReplies, openReplies, type ReplyStore } from './session/replies.js'
import { replyLog } from './session/reply-log.js'
import { createSessionFacts } from './session/session-facts.js'
import { type Gauged, startMetrics } from './telemetry/metrics.js'
import { openTrace } from './telemetry/trace-open.js'
import { openRecorder } from './trace/recorder.js'
import { VERSION } from './version.js'

export interface ComposeOptions {
  readonly clock?: Clock
  /** Told while a model is pulled or imported. */
  readonly progress?: OpenProgress
  /** Folder of traces without text; absent: none are written. */
  readonly record?: string
  /** Tests: answers of the scripted backend. */
  readonly script?: ScriptedDeps['script']
  /** Tests: the session log's thread, built from the sources. */
  readonly logWorker?: URL
}

export interface Program {
  readonly server: ApiServer
  readonly model: string
  /** Listens; resolves with the URL. */
  start(): Promise<string>
  /** Refuses new work, lets the running finish, flushes, closes. */
  stop(drainMs?: number): Promise<void>
}

/** @throws ConfigError where the config names what is not there, ModelError where the model cannot be had. */
export async function compose(config: Config, options: ComposeOptions = {}): Promise<Program> {
  const clock = options.clock ?? systemClock
  const publisher = await publisherOf(config)
  const { model, root, backend, lifecycle, retention } = await opener(config)(config, { ...options, clock }).catch(
    async (error) => {
      await publisher?.close()
      throw error
    },
  )
  const recorder = options.record === undefined ? undefined : await openRecorder({ folder: options.record, clock })
  const fleet = [recorder?.over(backend) ?? backend]
  const replies = await repliesOf(config)
  const log = await openLog(config, options.logWorker)
  const watch = watchCaches(config)
  const explain = createExplainer(config.explain, {
    clock,
    expiresMs: config.cache.idleMs,
    concluded: (turn) => watch.shadow(turn),
  })
  const roots = rootsOf(root)
  const facts = createSessionFacts({ ...config.sessions, clock })
  const logged =
    log &&
    loggedSessions(config, {
      ...{ log, backend, lifecycle, retention, replies, facts, explain, watch: watch.series },
      root: (tenant) => roots({ tenant }),
      service: () => service,
    })
  const service = createService({
    models: [{ ...model, ...reasoningOf(model), root: roots }],
    aliases: checkedAliases(config.model.aliases, model.name),
    fleet,
    limits: config.limits,
    quotas: limitsIn(config, clock),
    sessions: facts,
    ...(logged && { turns: logged.turns }),
    hygiene: hygieneOf(config),
    ...(config.explain.turns > 0 && { explain }),
    ...(replies && { replies }),
  })
  const tracing = await openTrace(config.telemetry.trace, { version: VERSION, server: config.server })
  const metrics = startMetrics(() => backend.health(), {
    ...tiersOf(backend),
    ...(log && { sessionLog: () => log.status() }),
  })
  const turns = config.explain.turns > 0 ? explain : undefined
  const { cache } = backend
  const dashboard = createDashboard({
    ...{ version: VERSION, kind: 'engine', clock, turns, cache, roots: ownersIn(config, root) },
    models: () => [model.name],
    backends: () => [engineState(backend)],
  })
  const server = createServer({
    service,
    fleet,
    limits: config.limits,
    access: { tenants: config.tenants, host: config.server.host },
    clock,
    keepaliveMs: config.server.keepaliveMs,
    sessionSignals: checkedSignals(config),
    forceUsage: config.server.forceUsage,
    reasoningField: config.server.reasoningField,
    version: VERSION,
    metrics: metrics.scrape,
    ...(turns && { turns }),
    ...(logged && { sessions: logged.sessions, storesResponses: config.sessions.log.storeResponses === 'always' }),
    ...(config.server.dashboard && { dashboard }),
  })
  return {
    server,
    model: model.name,
    start: () => server.listen(config.server.host, config.server.port),
    async stop(drainMs = config.server.drainMs) {
      await server.drain(drainMs)
      await backend.close()
      await recorder?.close()
      await publisher?.close()
      await replies?.close()
      await log?.close()
      await model.tokenizer.close?.()
      metrics.close()
      await tracing?.close()
      explain.close()
      await watch.close()
      dashboard.close()
    },
  }
}

/** Where its KV lies, for metrics. */
function tiersOf({ cache }: Backend): Gauged {
  return cache === undefined ? {} : { tiers: async () => (await cache.status()).tiers }
}

/** What can be asked of the model's reasoning, where its template was probed. */
function reasoningOf({ template, formats }: OpenedModel['model']): Pick<ServedModel, 'reasoning'> {
  if (template.traits === undefined) return {}
  const switches = (['thinking', 'effort'] as const).filter((each) => template.traits?.options.includes(each))
  return { reasoning: { written: formats.reasoning !== undefined, switches } }
}

/** Before the engine opens: what it finds on disk is told too. */
async function publisherOf({ events }: Config): Promise<BlockPublisher | undefined> {
  const { publish, ...rest } = events
  if (publish === undefined) return undefined
  try {
    const { publishBlocks } = await import('./backend/kv-events/publisher.js')
    return await publishBlocks({ publish, ...rest })
  } catch (error) {
    throw new ConfigError((error as Error).message, { cause: error })
  }
}

/** The embedded engine's KV outlives the process, the scripted one's does not, and neither do replies to it. */
async function repliesOf({ backend, dataDir, replies }: Config): Promise<ReplyStore | undefined> {
  const { memoryBytes, diskBytes } = replies
  const folder = join(dataDir, 'replies')
  const outlives = backend.kind === 'embedded' && diskBytes > 0
  if (outlives) return openReplies({ memoryBytes, log: replyLog({ folder, files: systemFiles, diskBytes }) })
  return memoryBytes > 0 ? createMemoryReplies({ memoryBytes }) : undefined
}

type OpenOptions = ComposeOptions & { readonly clock: Clock }

/** The one place that knows each kind of backend by its name, and how its model is opened. */
const OPENERS: Readonly<Record<string, (config: Config, options: OpenOptions) => Promise<OpenedModel>>> = {
  embedded: (config, { progress }) => openOrSay(config, progress),
  scripted: openScripted,
}

/** The sentence of a worker that refuses to start is the operator's to mend: a folder in use, an unknown provider. */
async function openOrSay(config: Config, progress: OpenProgress = {}): Promise<OpenedModel> {
  announceKernels(config.engine.kernels)
  try {
    return await openEmbedded(config, progress)
  } catch (error) {
    if (!(error instanceof Error) || error.name !== 'Error') throw error
    throw new ConfigError(`the engine does not start: ${error.message}`, { cause: error })
  }
}

function opener(config: Config) {
  try {
    return kindNamed(OPENERS, config.backend.kind, 'backend.kind')
  } catch (error) {
    throw new ConfigError((error as Error).message)
  }
}

/** `backend.options` with the kind's own defaults. @throws ConfigError with the path of what is wrong. */
function checkedOptions<T>(config: Config, schema: TSchema): T {
  const filled = Value.Default(schema, { ...config.backend.options })
  const [error] = Value.Errors(schema, filled)
  if (error === undefined) return filled as T
  throw new ConfigError(`backend.options${error.instancePath.replaceAll('/', '.')}: ${error.message}`)
}

/** @throws ConfigError where an alias leads to a model that is not served. */
function checkedAliases(aliases: Readonly<Record<string, string>>, model: string): Readonly<Record<string, string>> {
  const lost = Object.entries(aliases).find(([, name]) => name !== model)
  if (lost === undefined) return aliases
  throw new ConfigError(
    `model.aliases.${lost[0]}: there is no model '${lost[1]}'; the one that is served is '${model}'`,
  )
}

/** @throws ConfigError where a rule's name is unknown. */
function hygieneOf({ prompt }: Config): HygieneRule[] {
  try {
    return prompt.hygiene.map((name) => kindNamed(hygieneRules, name, 'prompt.hygiene').create({}, undefined))
  } catch (error) {
    throw new ConfigError((error as Error).message)
  }
}

/** @throws ConfigError where an entry can be no signal. */
function checkedSignals({ sessions }: Config): readonly string[] {
  try {
    return checkSignals(sessions.signals)
  } catch (error) {
    throw new ConfigError((error as Error).message)
  }
}

/** Tokens of the scripted model's window. */
const SCRIPTED_WINDOW = 262_144

async function openScripted(config: Config, options: OpenOptions): Promise<OpenedModel> {
  const name = config.model.name
  const own = checkedOptions<ScriptedOptions>(config, scripted.options)
  const { template, end, specials } = scriptedTemplate(own)
  const tokenizer = createScriptedTokenizer(own.template === 'plain' ? {} : { end, specials })
  const formats = scriptedFormats(own)
  const backend = scripted.create(own, {
    model: name,
    tokenizer,
    clock: options.clock,
    limits: config.limits,
    ...(options.script === undefined ? {} : { script: options.script }),
  })
  const layout = { layers: 1, kvHeads: 1, headDim: 1, dtype: 'fp16' } as const
  return {
    backend,
    model: {
      name,
      contextLength: config.model.contextLength ?? SCRIPTED_WINDOW,
      created: Math.floor(Date.now() / 1000),
      formats,
      visibleSpecials: formats.specials.flatMap((spelling) => tokenizer.specialId(spelling) ?? []),
      tokenizer,
      template,
    },
    lifecycle: undefined,
    retention: own.retention,
    root: { weightsDigest: 'scripted', tokenizerDigest: 'scripted', layout, rounding: 'none', arithmetic: 'scripted' },
  }
}

/** @throws ConfigError where a format's name is unknown. */
function scriptedFormats(options: ScriptedOptions): ModelFormats {
  try {
    return formatsOf(options as Parameters<typeof formatsOf>[0])
  } catch (error) {
    throw new ConfigError(`backend.options: ${(error as Error).message}`)
  }
}

/** Whose blocks are whose: a tenant's roots begin with the one that it has without a salt. */
function ownersIn({ tenants }: Config, parts: Omit<RootParts, 'tenantSalt' | 'cacheSalt'>) {
  const known = (tenants.length > 0 ? tenants : [DEFAULT_TENANT]).map(({ name, salt }) => ({
    name,
    root: makeRoot({ ...parts, tenantSalt: salt }),
  }))
  return {
    of: (tenant: string) => known.filter(({ name }) => name === tenant).map(({ root }) => root),
    ownersOf: (root: Root) => known.filter((each) => isOfTenant(root, each.root)).map(({ name }) => name),
  }
}

function engineState(backend: Backend): BackendState {
  const { ready, notes, running, waiting } = backend.health()
  const { name, model } = backend
  return { id: name, kind: name, state: ready ? 'up' : 'down', notes, models: [model], running, waiting }
}

interface Scoped {
  readonly tenant: { readonly salt: string }
  readonly cacheSalt?: string
}

/** Roots by tenant and salt; those without a salt are few and made once. */
function rootsOf(parts: Omit<RootParts, 'tenantSalt' | 'cacheSalt'>) {
  const roots = new Map<string, Root>()
  return ({ tenant, cacheSalt }: Scoped): Root => {
    if (cacheSalt !== undefined) return makeRoot({ ...parts, tenantSalt: tenant.salt, cacheSalt })
    const root = roots.get(tenant.salt) ?? makeRoot({ ...parts, tenantSalt: tenant.salt })
    roots.set(tenant.salt, root)
    return root
  }
}
