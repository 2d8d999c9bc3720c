// Configuration: one YAML file, then the environment, then flags, checked against the schema and frozen. The only file
// that reads process.env. Invariant: an unknown key or a wrong value is refused with its path at boot; nobody gets the
// whole, compose.ts hands out slices; secrets are never printed.

import { readFileSync } from 'node:fs'
import { availableParallelism, homedir, totalmem } from 'node:os'
import { join, resolve } from 'node:path'
import type { TSchema } from 'typebox'
import Value from 'typebox/value'
import { parse } from 'yaml'
import { isLoopback } from './api/gate.js'
import { configSchema, type WrittenConfig } from './config-schema.js'

/** A fault of the operator's: said in one line, without a stack. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError'
}

type Sizes = 'bodyBytes' | 'unsentBytes'
type FleetSizes = 'wholeBytes' | 'memoBytes' | 'tokenBytes'

/** Checked, complete and frozen: sizes in bytes, paths absolute, nothing left to guess. */
export interface Config {
  readonly dataDir: string
  readonly server: Readonly<WrittenConfig['server']>
  readonly limits: Readonly<Omit<WrittenConfig['limits'], Sizes> & Record<Sizes, number>>
  readonly model: Readonly<Omit<WrittenConfig['model'], 'contextLength'> & { contextLength: number | undefined }>
  readonly backend: Readonly<WrittenConfig['backend']>
  readonly engine: Readonly<
    Omit<WrittenConfig['engine'], 'threads' | 'workingSetBytes'> & { threads: number; workingSetBytes: number }
  >
  readonly cache: Readonly<
    Omit<WrittenConfig['cache'], 'memoryBytes' | 'diskBytes'> & { memoryBytes: number; diskBytes: number }
  >
  readonly sessions: Readonly<
    Omit<WrittenConfig['sessions'], 'memoryBytes' | 'log'> & {
      memoryBytes: number
      log: Omit<WrittenConfig['sessions']['log'], 'maxBytes' | 'sessionBytes' | 'metadataBytes'> & {
        maxBytes: number
        sessionBytes: number
        metadataBytes: number
      }
    }
  >
  readonly replies: Readonly<Record<'memoryBytes' | 'diskBytes', number>>
  readonly prompt: Readonly<WrittenConfig['prompt']>
  readonly explain: Readonly<Omit<WrittenConfig['explain'], 'memoryBytes'> & { memoryBytes: number }>
  readonly backends: readonly Readonly<WrittenConfig['backends'][number]>[]
  readonly events: Readonly<Omit<WrittenConfig['events'], 'bufferBytes'> & { bufferBytes: number }>
  readonly fleet: Readonly<Omit<WrittenConfig['fleet'], FleetSizes> & Record<FleetSizes, number>>
  readonly router: Readonly<WrittenConfig['router']>
  readonly tenants: readonly Readonly<WrittenConfig['tenants'][number] & { salt: string }>[]
  readonly telemetry: { readonly trace: Readonly<WrittenConfig['telemetry']['trace']> }
  readonly log: Readonly<WrittenConfig['log']>
}

export interface ConfigSources {
  /** YAML text and the name to complain under. */
  readonly file?: { readonly name: string; readonly text: string }
  readonly env?: Readonly<Record<string, string | undefined>>
  /** Flags: config path -> value; they win. */
  readonly flags?: Readonly<Record<string, unknown>>
}

/** Shares of the memory that the process may use, where the config says `auto`. */
const CACHE_SHARE = 0.25
const WORKING_SHARE = 0.25

/** A secret that a command takes by the name of its variable. */
export function environmentValue(name: string): string | undefined {
  return process.env[name]
}

/** Reads the file that `path` names and this process's environment. @throws ConfigError */
export function loadConfig(path: string | undefined, flags: Readonly<Record<string, unknown>> = {}): Config {
  const name = path ?? process.env['REFRAIN_CONFIG']
  const file = name === undefined ? {} : { file: { name, text: readText(name) } }
  return makeConfig({ ...file, env: process.env, flags })
}

/** @throws ConfigError with the path of the first key that is unknown or wrong. */
export function makeConfig(sources: ConfigSources): Config {
  const written = readWritten(sources)
  return deepFreeze(complete(written))
}

/** For printing: keys and salts are masked. */
export function maskedConfig(config: Config): object {
  const tenants = config.tenants.map((tenant) => ({ ...tenant, key: '***', salt: '***' }))
  const backends = config.backends.map((backend) => ({
    ...backend,
    url: backend.url.replace(/\/\/[^/@]*@/, '//***@'),
    ...(backend.apiKey !== undefined && { apiKey: '***' }),
    headers: hidden(backend.headers),
  }))
  const { shared, sharedPassword } = config.fleet
  const fleet = {
    ...config.fleet,
    ...(shared !== undefined && { shared: shared.replace(/\/\/[^/@]*@/, '//***@') }),
    ...(sharedPassword !== undefined && { sharedPassword: '***' }),
  }
  const { trace } = config.telemetry
  const endpoint = trace.endpoint?.replace(/\/\/[^/@]*@/, '//***@')
  const headers = hidden(trace.headers)
  const telemetry = { trace: { ...trace, ...(endpoint !== undefined && { endpoint }), headers } }
  const { log, sources, alarms } = config.sessions
  const policyUrl = sources.policyUrl?.replace(/\/\/[^/@]*@/, '//***@')
  const webhook = alarms.webhook?.replace(/\/\/[^/@]*@/, '//***@')
  const sessions = {
    ...config.sessions,
    log: { ...log, ...(log.key !== undefined && { key: '***' }) },
    sources: { ...sources, ...(policyUrl !== undefined && { policyUrl }) },
    alarms: { ...alarms, ...(webhook !== undefined && { webhook }) },
  }
  return { ...config, backends, fleet, sessions, tenants, telemetry }
}

function hidden(headers: Readonly<Record<string, string>>): Record<string, string> {
  return Object.fromEntries(Object.keys(headers).map((name) => [name, '***']))
}

function readText(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    throw new ConfigError(`the config file cannot be read: ${(error as Error).message}`)
  }
}

function readWritten(sources: ConfigSources): WrittenConfig {
  const root = sources.file === undefined ? {} : parseFile(sources.file)
  for (const [path, value] of fromEnvironment(sources.env ?? {})) setAt(root, path, value)
  for (const [path, value] of Object.entries(sources.flags ?? {})) {
    if (value !== undefined) setAt(root, path.split('.'), value)
  }
  const filled = Value.Default(configSchema, withSections(withoutNulls(root))) as unknown
  const complaint = firstComplaint(filled)
  if (complaint !== undefined) throw new ConfigError(complaint)
  return filled as WrittenConfig
}

function parseFile({ name, text }: { readonly name: string; readonly text: string }): Record<string, unknown> {
  let root: unknown
  try {
    root = parse(text) ?? {}
  } catch (error) {
    throw new ConfigError(`${name}: ${(error as Error).message.split('\n')[0]}`)
  }
  if (typeof root !== 'object' || root === null || Array.isArray(root)) throw new ConfigError(`${name}: must be a map`)
  return root as Record<string, unknown>
}

/** An empty key in YAML is null: it means the default. */
function withoutNulls(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutNulls)
  if (typeof value !== 'object' || value === null) return value
  const kept = Object.entries(value).filter(([, member]) => member !== null)
  return Object.fromEntries(kept.map(([key, member]) => [key, withoutNulls(member)]))
}

/** Sections that are not written have defaults all the same. */
function withSections(value: unknown): unknown {
  const sections = Object.entries(configSchema.properties).filter(([, schema]) => 'properties' in schema)
  return { ...Object.fromEntries(sections.map(([key]) => [key, {}])), ...(value as object) }
}

function firstComplaint(value: unknown): string | undefined {
  const errors = [...Value.Errors(configSchema, value)]
  const unknown = errors.find((error) => error.keyword === 'additionalProperties')
  if (unknown !== undefined) {
    const [key] = (unknown.params as { additionalProperties: string[] }).additionalProperties
    const at = pathOf(unknown.instancePath)
    const known = Object.keys((schemaAt(at) as { properties?: object })?.properties ?? {})
    return `${[...at, key].join('.')}: unknown key; known are ${known.sort().join(', ')}`
  }
  const first = errors[0]
  if (first === undefined) return undefined
  const at = pathOf(first.instancePath)
  const expects = (schemaAt(at) as { expects?: string } | undefined)?.expects
  return `${at.join('.') || 'the config'}: ${expects ?? first.message}`
}

function pathOf(pointer: string): string[] {
  return pointer
    .split('/')
    .slice(1)
    .map((step) => step.replaceAll('~1', '/').replaceAll('~0', '~'))
}

function schemaAt(path: readonly string[]): TSchema | undefined {
  let schema: TSchema | undefined = configSchema
  for (const step of path) schema = stepInto(schema, step)?.schema
  return schema
}

/** What stands below a schema under a name, however its letters' case and underscores are. */
function stepInto(schema: TSchema | undefined, step: string): { key: string; schema: TSchema } | undefined {
  const { properties, items } = (schema ?? {}) as { properties?: Record<string, TSchema>; items?: TSchema }
  if (items !== undefined && /^\d{1,3}$/.test(step)) return { key: step, schema: items }
  const plain = (name: string) => name.replaceAll('_', '').toLowerCase()
  const found = Object.entries(properties ?? {}).find(([key]) => plain(key) === plain(step))
  return found && { key: found[0], schema: found[1] }
}

/**
 * REFRAIN_SERVER__PORT=9000 is server.port, REFRAIN_DATA_DIR is dataDir, REFRAIN_TENANTS__0__KEY is a tenant's key. A name
 * with `__` that fits nothing is refused; one without is another program's (Kubernetes sets REFRAIN_PORT beside a service
 * that is called refrain).
 */
function* fromEnvironment(env: Readonly<Record<string, string | undefined>>): Generator<[string[], unknown]> {
  for (const [name, text] of Object.entries(env).sort()) {
    const steps = /^REFRAIN_(.+)$/.exec(name)?.[1]?.split('__')
    if (steps === undefined || text === undefined) continue
    const path: string[] = []
    let schema: TSchema | undefined = configSchema
    for (const step of steps) {
      const next = stepInto(schema, step)
      if (next !== undefined) path.push(next.key)
      schema = next?.schema
    }
    if (schema !== undefined) yield [path, isText(schema) ? text : parseValue(name, text)]
    else if (steps.length > 1) throw new ConfigError(`${name}: there is no such key in the config`)
  }
}

function isText(schema: TSchema): boolean {
  return (schema as { type?: string }).type === 'string'
}

function parseValue(name: string, text: string): unknown {
  try {
    return parse(text)
  } catch (error) {
    throw new ConfigError(`${name}: ${(error as Error).message.split('\n')[0]}`)
  }
}

function setAt(root: Record<string, unknown>, path: readonly string[], value: unknown): void {
  let at: Record<string, unknown> = root
  path.slice(0, -1).forEach((step, i) => {
    if (typeof at[step] !== 'object' || at[step] === null) at[step] = /^\d+$/.test(path[i + 1] ?? '') ? [] : {}
    at = at[step] as Record<string, unknown>
  })
  at[path.at(-1) as string] = value
}

function complete(written: WrittenConfig): Config {
  const { limits, model, cache, engine, tenants, server } = written
  const { endpoint } = written.telemetry.trace
  if (endpoint !== undefined && !URL.canParse(endpoint)) {
    throw new ConfigError(`telemetry.trace.endpoint: '${endpoint}' is no URL`)
  }
  const memory = memoryLimitBytes()
  const names = new Set(tenants.map((tenant) => tenant.name))
  const keys = new Set(tenants.map((tenant) => tenant.key))
  if (names.size < tenants.length) throw new ConfigError('tenants: two have the same name')
  if (keys.size < tenants.length) throw new ConfigError('tenants: two have the same key')
  if (tenants.length === 0 && !server.allowUnauthenticated && !isLoopback(server.host)) {
    throw new ConfigError(
      `server.host: ${server.host} can be reached from elsewhere and no tenant has a key; ` +
        'set tenants, or server.allowUnauthenticated: true',
    )
  }
  return {
    ...written,
    dataDir: resolve(written.dataDir),
    limits: { ...limits, bodyBytes: bytesOf(limits.bodyBytes), unsentBytes: bytesOf(limits.unsentBytes) },
    model: {
      ...model,
      contextLength: model.contextLength === 'auto' ? undefined : model.contextLength,
      directory: model.directory === 'auto' ? userCache() : resolve(model.directory),
    },
    engine: {
      ...engine,
      threads: engine.threads === 'auto' ? availableParallelism() : engine.threads,
      workingSetBytes: bytesOf(engine.workingSetBytes, memory * WORKING_SHARE),
    },
    cache: {
      ...cache,
      memoryBytes: bytesOf(cache.memoryBytes, memory * CACHE_SHARE),
      diskBytes: bytesOf(cache.diskBytes),
    },
    replies: {
      memoryBytes: bytesOf(written.replies.memoryBytes),
      diskBytes: bytesOf(written.replies.diskBytes),
    },
    sessions: {
      ...written.sessions,
      memoryBytes: bytesOf(written.sessions.memoryBytes),
      log: {
        ...written.sessions.log,
        maxBytes: bytesOf(written.sessions.log.maxBytes),
        sessionBytes: bytesOf(written.sessions.log.sessionBytes),
        metadataBytes: bytesOf(written.sessions.log.metadataBytes),
      },
    },
    explain: { ...written.explain, memoryBytes: bytesOf(written.explain.memoryBytes) },
    events: { ...written.events, bufferBytes: bytesOf(written.events.bufferBytes) },
    fleet: {
      ...written.fleet,
      wholeBytes: bytesOf(written.fleet.wholeBytes),
      memoBytes: bytesOf(written.fleet.memoBytes),
      tokenBytes: bytesOf(written.fleet.tokenBytes),
    },
    tenants: tenants.map((tenant) => ({ ...tenant, salt: tenant.salt ?? `tenant:${tenant.name}` })),
  }
}

const UNITS: Readonly<Record<string, number>> = { KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 }

function bytesOf(size: string | number, auto = 0): number {
  if (typeof size === 'number') return size
  const [, number, unit] = /^([\d.]+) ?(\w+)$/.exec(size) ?? []
  return Math.floor(number === undefined ? auto : Number(number) * (UNITS[unit ?? ''] ?? 1))
}

/** What this process may use: the cgroup's limit (version 2, then 1) where one is set, else the machine's memory. */
export function memoryLimitBytes(files = ['/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/memory/memory.limit_in_bytes']) {
  const limits = files.map(readNumber).filter((limit) => limit !== undefined)
  return Math.min(totalmem(), ...limits)
}

function readNumber(path: string): number | undefined {
  try {
    const number = Number(readFileSync(path, 'utf8').trim())
    return Number.isFinite(number) && number > 0 ? number : undefined
  } catch {
    return undefined
  }
}

/** Pulled weights are shared by all data folders of a user. */
function userCache(): string {
  const base = process.env['XDG_CACHE_HOME'] || join(homedir(), '.cache')
  return join(base, 'refrain', 'models')
}

function deepFreeze<T>(value: T): T {
  if (typeof value === 'object' && value !== null && !Object.isFrozen(value)) {
    Object.freeze(value)
    for (const member of Object.values(value)) deepFreeze(member)
  }
  return value
}
