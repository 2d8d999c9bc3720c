// What can be configured, with every default: config/reference.yaml says the same with comments, and a test holds the two
// equal. Invariant: nothing is optional after the defaults, unknown keys are refused at every depth.

import Type, { type Static } from 'typebox'
import { DEFAULT_SIGNALS } from './api/session-signal.js'

const strict = { additionalProperties: false }

const size = (fallback: string | number) =>
  Type.Union([Type.Integer({ minimum: 0 }), Type.String({ pattern: '^[0-9]+(\\.[0-9]+)? ?(KiB|MiB|GiB|TiB)$' })], {
    default: fallback,
    expects: "must be a number of bytes or a size as '4 GiB'",
  })

const sizeOrAuto = Type.Union(
  [
    Type.Literal('auto'),
    Type.Integer({ minimum: 0 }),
    Type.String({ pattern: '^[0-9]+(\\.[0-9]+)? ?(KiB|MiB|GiB|TiB)$' }),
  ],
  { default: 'auto', expects: "must be 'auto', a number of bytes or a size as '4 GiB'" },
)

const count = (fallback: number, minimum = 1) => Type.Integer({ minimum, default: fallback })

const oneOf = <const T extends readonly string[]>(values: T, fallback: T[number]) =>
  Type.Unsafe<T[number]>(
    Type.Union(
      values.map((value) => Type.Literal(value)),
      { default: fallback, expects: `must be one of ${values.join(', ')}` },
    ),
  )

const server = Type.Object(
  {
    host: Type.String({ minLength: 1, default: '127.0.0.1' }),
    port: Type.Integer({ minimum: 0, maximum: 65535, default: 8080 }),
    allowUnauthenticated: Type.Boolean({ default: false }),
    keepaliveMs: count(5000),
    forceUsage: Type.Boolean({ default: false }),
    reasoningField: oneOf(['reasoning_content', 'reasoning'], 'reasoning_content'),
    drainMs: count(30_000, 0),
    dashboard: Type.Boolean({ default: true }),
  },
  strict,
)

const limits = Type.Object(
  {
    bodyBytes: size('16 MiB'),
    receiveMs: count(60_000),
    unsentBytes: size('4 MiB'),
    queuedRequests: count(256, 0),
    queueMs: count(300_000),
    sideRequestMs: count(30_000),
    n: count(16),
    prompts: count(64),
    stopStrings: count(16, 0),
    stopChars: count(512),
    logitBias: count(1024, 0),
    jsonDepth: count(64),
    requestsPerMinute: count(0, 0),
    tokensPerMinute: count(0, 0),
    pinMs: count(86_400_000, 0),
    quickTasks: count(32),
    quickChoices: count(256, 2),
    quickTokens: count(1024),
  },
  strict,
)

const model = Type.Object(
  {
    name: Type.String({ minLength: 1, default: 'smollm2-135m-instruct' }),
    aliases: Type.Record(Type.String(), Type.String(), { default: {} }),
    contextLength: Type.Union([Type.Literal('auto'), Type.Integer({ minimum: 1 })], {
      default: 'auto',
      expects: "must be 'auto' or a number of tokens",
    }),
    directory: Type.String({ minLength: 1, default: 'auto' }),
  },
  strict,
)

const cache = Type.Object(
  {
    enabled: Type.Boolean({ default: true }),
    kv: oneOf(['fp16', 'fp32'], 'fp16'),
    memoryBytes: sizeOrAuto,
    diskBytes: size('10 GiB'),
    restore: oneOf(['cost', 'always'], 'cost'),
    evictor: Type.String({ minLength: 1, default: 'priority-lru' }),
    pinnedShare: Type.Number({ minimum: 0, maximum: 1, default: 0.5 }),
    idleMs: count(0, 0),
  },
  strict,
)

const sessionLog = Type.Object(
  {
    store: oneOf(['auto', 'sqlite', 'memory', 'none'], 'auto'),
    durability: oneOf(['process', 'power'], 'power'),
    key: Type.Optional(Type.String({ minLength: 1 })),
    keyFile: Type.Optional(Type.String({ minLength: 1 })),
    oldKeyFiles: Type.Array(Type.String({ minLength: 1 }), { default: [] }),
    maxBytes: size('10 GiB'),
    sessionEvents: count(200_000),
    sessionBytes: size('1 GiB'),
    sources: count(1000),
    open: count(256, 16),
    forks: count(64),
    metadataBytes: size('16 KiB'),
    appendEvents: count(1000),
    builtInRounds: count(8, 0),
    memoryTokens: count(2000),
    storeResponses: oneOf(['asked', 'always'], 'asked'),
  },
  { ...strict, default: {} },
)

/** Where a compile asks whether a tenant may see a source, beside the grants that were put. */
const sessionSources = Type.Object(
  {
    unknown: oneOf(['auto', 'granted', 'revoked'], 'auto'),
    policyUrl: Type.Optional(Type.String({ pattern: '^https?://\\S+$' })),
    policyMs: count(1000),
    policyTtlMs: count(5000, 0),
    policyFault: oneOf(['granted', 'revoked'], 'revoked'),
  },
  { ...strict, default: {} },
)

const sessionAlarms = Type.Object(
  {
    hitRate: Type.Number({ minimum: 0, maximum: 1, default: 0 }),
    hitRateTurns: count(10),
    webhook: Type.Optional(Type.String({ pattern: '^https?://\\S+$' })),
    webhookMs: count(5000),
    webhookTries: count(3),
    webhookWaiting: count(100),
  },
  { ...strict, default: {} },
)

const sessions = Type.Object(
  {
    signals: Type.Array(Type.String(), { default: [...DEFAULT_SIGNALS] }),
    max: count(10_000, 0),
    ttlMs: count(86_400_000),
    memoryBytes: size('64 MiB'),
    log: sessionLog,
    sources: sessionSources,
    alarms: sessionAlarms,
    lifecycle: Type.Record(Type.String(), Type.Unknown(), { default: {} }),
  },
  strict,
)

const replies = Type.Object({ memoryBytes: size('64 MiB'), diskBytes: size('256 MiB') }, strict)

const explain = Type.Object(
  {
    turns: count(64, 0),
    sessions: count(1000, 0),
    memoryBytes: size('64 MiB'),
    keepText: Type.Boolean({ default: false }),
  },
  strict,
)

const prompt = Type.Object({ hygiene: Type.Array(Type.String(), { default: ['billing-header'] }) }, strict)

const engine = Type.Object(
  {
    threads: Type.Union([Type.Literal('auto'), Type.Integer({ minimum: 1 })], {
      default: 'auto',
      expects: "must be 'auto' or a number of threads",
    }),
    provider: oneOf(['auto', 'native', 'cpu'], 'auto'),
    maxRunning: count(8),
    workingSetBytes: sizeOrAuto,
    kernels: oneOf(['auto', 'native', 'fallback'], 'auto'),
    quick: Type.Boolean({ default: true }),
  },
  strict,
)

const tenant = Type.Object(
  {
    name: Type.String({ minLength: 1, maxLength: 64 }),
    key: Type.String({ minLength: 8, pattern: '^[!-~]+$' }),
    admin: Type.Boolean({ default: false }),
    salt: Type.Optional(Type.String({ minLength: 1 })),
    requestsPerMinute: Type.Optional(Type.Integer({ minimum: 0 })),
    tokensPerMinute: Type.Optional(Type.Integer({ minimum: 0 })),
  },
  strict,
)

const zmqEndpoint = Type.String({ pattern: '^(tcp|ipc)://\\S+$' })

/** What this process's own engine publishes of its cache. */
const events = Type.Object(
  {
    publish: Type.Optional(zmqEndpoint),
    replay: Type.Optional(zmqEndpoint),
    topic: Type.String({ default: '' }),
    bufferSteps: count(10_000),
    bufferBytes: size('64 MiB'),
  },
  strict,
)

/** What a backend elsewhere publishes of its cache. */
const eventsElsewhere = Type.Object(
  {
    endpoint: zmqEndpoint,
    replay: Type.Optional(zmqEndpoint),
    topic: Type.String({ default: '' }),
    bind: Type.Boolean({ default: false }),
    ranks: count(1),
    aliases: count(1_000_000),
  },
  strict,
)

/** Of connections that this process opens: files in PEM. */
const tls = Type.Object(
  {
    ca: Type.Optional(Type.String({ minLength: 1 })),
    cert: Type.Optional(Type.String({ minLength: 1 })),
    key: Type.Optional(Type.String({ minLength: 1 })),
    serverName: Type.Optional(Type.String({ minLength: 1 })),
    verify: Type.Optional(Type.Boolean()),
  },
  strict,
)

const backendElsewhere = Type.Object(
  {
    name: Type.Optional(Type.String({ minLength: 1, maxLength: 128, pattern: '^[!-~]+$' })),
    url: Type.String({ pattern: '^https?://\\S+$' }),
    resolve: Type.Boolean({ default: false }),
    kind: oneOf(['auto', 'vllm', 'sglang', 'llama-cpp', 'openai', 'refrain'], 'auto'),
    apiKey: Type.Optional(Type.String({ minLength: 1, pattern: '^[!-~]+$' })),
    forwardAuthorization: Type.Boolean({ default: false }),
    headers: Type.Record(Type.String(), Type.String(), { default: {} }),
    shared: Type.Boolean({ default: false }),
    tenant: Type.Optional(Type.String({ minLength: 1 })),
    priority: Type.Boolean({ default: false }),
    dataParallelRank: Type.Optional(Type.Integer({ minimum: 0 })),
    models: Type.Record(Type.String(), Type.String(), { default: {} }),
    events: Type.Optional(eventsElsewhere),
    tokenizer: Type.Optional(Type.String({ minLength: 1 })),
    tasks: Type.Boolean({ default: false }),
    tls: Type.Optional(tls),
  },
  strict,
)

const fleet = Type.Object(
  {
    processes: Type.Integer({ minimum: 1, maximum: 256, default: 1 }),
    shared: Type.Optional(Type.String({ pattern: '^rediss?://\\S+$' })),
    sharedPassword: Type.Optional(Type.String({ minLength: 1 })),
    sharedPrefix: Type.String({ minLength: 1, pattern: '^[!-~]+$', default: 'refrain:' }),
    sharedTls: Type.Optional(tls),
    attempts: count(3),
    connectMs: count(2000),
    askMs: count(5000),
    probeMs: count(1000),
    downProbeMs: count(100, 10),
    queueMs: count(3000, 0),
    unanswered: count(2),
    breakerFailures: count(5),
    breakerMs: count(1000),
    slowStartMs: count(5000),
    watch: Type.Optional(Type.String({ minLength: 1 })),
    watchMs: count(2000),
    slotSaveMs: count(30_000, 0),
    slotFiles: count(256),
    firstTokenMs: count(600_000),
    idleMs: count(120_000),
    hedgeMs: count(0, 0),
    hedgeShare: Type.Number({ minimum: 0, maximum: 1, default: 0.05 }),
    continueBroken: Type.Boolean({ default: false }),
    wholeBytes: size('32 MiB'),
    memoBytes: size('128 MiB'),
    warmUp: Type.Boolean({ default: true }),
    tokenizeMs: count(25, 0),
    tokenBytes: size('64 MiB'),
  },
  strict,
)

/** Traces go out where `endpoint` is set. */
const telemetry = Type.Object(
  {
    trace: Type.Object(
      {
        endpoint: Type.Optional(Type.String({ pattern: '^https?://\\S+$' })),
        sampleRatio: Type.Number({ minimum: 0, maximum: 1, default: 1 }),
        headers: Type.Record(Type.String(), Type.String(), { default: {} }),
        serviceName: Type.String({ minLength: 1, default: 'refrain' }),
      },
      { ...strict, default: {} },
    ),
  },
  strict,
)

const factor = (fallback: number, minimum = 0) => Type.Number({ minimum, default: fallback })

const router = Type.Object(
  {
    weights: Type.Object(
      {
        prefill: factor(1),
        queue: factor(1),
        streams: factor(1),
        pressure: factor(6),
        affinity: factor(1),
        random: factor(0),
      },
      { ...strict, default: {} },
    ),
    streamMs: factor(2),
    affinityMs: factor(500),
    overload: factor(2, 1),
    replicate: factor(1),
    rebalanceMs: count(4000, 0),
    spread: factor(1.25, 1),
    activeMs: count(30_000),
    maxInFlight: count(0, 0),
    sessions: count(100_000, 0),
    sessionTtlMs: count(86_400_000),
    segments: count(250_000),
    segmentTtlMs: count(7_200_000),
  },
  strict,
)

export const configSchema = Type.Object(
  {
    dataDir: Type.String({ minLength: 1, default: 'data' }),
    server,
    limits,
    model,
    backend: Type.Object(
      {
        kind: Type.String({ minLength: 1, default: 'embedded' }),
        options: Type.Record(Type.String(), Type.Unknown(), { default: {} }),
      },
      strict,
    ),
    engine,
    cache,
    sessions,
    replies,
    prompt,
    explain,
    events,
    backends: Type.Array(backendElsewhere, { default: [] }),
    fleet,
    router,
    tenants: Type.Array(tenant, { default: [] }),
    telemetry,
    log: Type.Object({ level: oneOf(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'], 'info') }, strict),
  },
  strict,
)

/** As written: sizes may be text and `auto` stands where the machine decides. */
export type WrittenConfig = Static<typeof configSchema>
