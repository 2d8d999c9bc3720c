// Counters and histograms in the text format of Prometheus. The only file that imports prom-client. Invariant: it counts
// what the program says anyway; labels are few and none of them is a client's to choose.
// Names end in their unit: https://prometheus.io/docs/practices/naming/

import { AggregatorRegistry, Counter, Gauge, Histogram, Registry } from 'prom-client'
import {
  cacheAlarm,
  cacheMoved,
  hedgeSettled,
  kvHeard,
  kvTurned,
  phasesTimed,
  quickAnswered,
  type RouteSignals,
  routeSignals,
  stepDone,
} from '../core/signals.js'
import { Batches } from './batches.js'

/** What is asked when metrics are scraped. */
export interface Load {
  readonly running: number
  readonly waiting: number
}

/** A backend elsewhere as it is when metrics are scraped. */
export interface BackendGauges {
  readonly id: string
  readonly state: string
  readonly inFlight: number
  readonly queuedPrefillTokens: number
  readonly sessions: number
  /** Mean |predicted - reported hit| as a share of the prompt; undefined: nothing was reported. */
  readonly predictionError: number | undefined
}

/** What a fleet is asked for when metrics are scraped. */
export interface FleetGauges {
  backends(): readonly BackendGauges[]
  /** States of llama-server's slots that went to files and back, and those that did not. */
  slots(): Readonly<Record<string, number>>
  /** What was told to other routers and heard of them; absent: there are none. */
  shared?(): Readonly<Record<string, number>>
}

/** Metrics of several processes as one; a gauge says by itself how it is joined. */
export async function joinMetrics(parts: readonly (readonly unknown[])[]): Promise<Scrape> {
  const joined = AggregatorRegistry.aggregate(parts as unknown as object[])
  return { type: joined.contentType, text: await joined.metrics() }
}

/** A place for KV as it is when metrics are scraped. */
export interface TierGauges {
  readonly tier: string
  readonly usedBytes: number
  readonly capacityBytes: number
  /** Undefined: nothing there can fail. */
  readonly healthy?: boolean
}

/** What else is asked for when metrics are scraped. */
export interface Gauged {
  readonly fleet?: FleetGauges
  /** Rejects where nobody can say at the moment. */
  tiers?(): Promise<readonly TierGauges[]>
  /** Of the log of sessions. */
  sessionLog?(): Promise<{ readonly sessions: number; readonly events: number; readonly bytes: number }>
}

export interface Scrape {
  readonly type: string
  readonly text: string
}

export interface Metrics {
  scrape(): Promise<Scrape>
  /** The same for another process, which adds them up. */
  parts(): Promise<readonly unknown[]>
  close(): void
}

const SECONDS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300]
const TOKEN_SECONDS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.1, 0.2, 0.5, 1, 2.5]
const TOKENS = [64, 256, 1024, 4096, 16384, 65536, 262144]

/** Starts to count. `load` and what `gauged` has are asked at every scrape. */
export function startMetrics(load: () => Load, gauged: Gauged = {}, signals: RouteSignals = routeSignals): Metrics {
  const { fleet, tiers, sessionLog } = gauged
  const registry = new Registry()
  const batches = new Batches()
  const attempts = fleet === undefined ? undefined : countAttempts(registry, batches, { fleet, signals })
  const stops = [
    countRequests(registry, batches, signals),
    countCache(registry),
    countSteps(registry),
    countPhases(registry, batches, signals),
    countMisses(registry, batches, signals),
    countAlarms(registry),
    countQuick(registry),
    ...(attempts === undefined ? [] : [attempts.stop, countHedges(registry)]),
    countKvEvents(registry),
  ]
  const registers = [registry]
  const running = new Gauge({ name: 'refrain_requests_running', help: 'Requests being computed.', registers })
  const waiting = new Gauge({ name: 'refrain_requests_waiting', help: 'Requests in the queue.', registers })
  const showFleet = fleet === undefined ? () => undefined : fleetGauges(registry, fleet)
  const showTiers = tiers === undefined ? async () => undefined : tierGauges(registry, tiers)
  const showLog = sessionLog === undefined ? async () => undefined : logGauges(registry, sessionLog)
  const show = async () => {
    batches.drain()
    showFleet()
    attempts?.forgetOthers()
    await showTiers()
    await showLog()
    const now = load()
    running.set(now.running)
    waiting.set(now.waiting)
  }
  return {
    async scrape() {
      await show()
      return { type: registry.contentType, text: await registry.metrics() }
    },
    async parts() {
      await show()
      return registry.getMetricsAsJSON()
    },
    close() {
      for (const stop of stops) stop()
    },
  }
}

/** A tier of which nothing is known is not shown. */
function tierGauges(registry: Registry, tiers: () => Promise<readonly TierGauges[]>): () => Promise<void> {
  const gauge = (name: string, help: string) =>
    new Gauge({ name: `refrain_tier_${name}`, help, labelNames: ['tier'], registers: [registry] })
  const used = gauge('used_bytes', 'KV that is held there.')
  const capacity = gauge('capacity_bytes', 'KV that fits.')
  const healthy = gauge('healthy', '0: it is slow, full or failing, and left alone for a while.')
  return async () => {
    const now = await tiers().catch(() => [])
    for (const each of [used, capacity, healthy]) each.reset()
    for (const { tier, usedBytes, capacityBytes, healthy: isHealthy } of now) {
      used.set({ tier }, usedBytes)
      capacity.set({ tier }, capacityBytes)
      if (isHealthy !== undefined) healthy.set({ tier }, isHealthy ? 1 : 0)
    }
  }
}

/** What nobody can say at the moment stays as it was. */
function logGauges(registry: Registry, status: NonNullable<Gauged['sessionLog']>): () => Promise<void> {
  const gauge = (name: string, help: string) =>
    new Gauge({ name: `refrain_session_log_${name}`, help, registers: [registry] })
  const sessions = gauge('sessions', 'Sessions that are logged and not erased.')
  const events = gauge('events', 'Events of all of them.')
  const bytes = gauge('bytes', 'What they take in the store.')
  return async () => {
    const now = await status().catch(() => undefined)
    if (now === undefined) return
    sessions.set(now.sessions)
    events.set(now.events)
    bytes.set(now.bytes)
  }
}

interface GaugeForm {
  readonly labels?: string[]
  /** How several processes' values are joined. */
  readonly aggregator?: 'sum' | 'max' | 'average'
}

/** What every router process knows of all. */
const SAME: GaugeForm = { aggregator: 'max' }

/** Backends that were taken out are no longer shown. */
function fleetGauges(registry: Registry, fleet: FleetGauges): () => void {
  const gauge = (name: string, help: string, { labels = ['backend'], aggregator = 'sum' }: GaugeForm = {}) =>
    new Gauge({ name: `refrain_${name}`, help, labelNames: labels, aggregator, registers: [registry] })
  const up = gauge('backend_up', '1: the backend gets requests.', { labels: ['backend', 'state'], aggregator: 'max' })
  const inFlight = gauge('backend_requests_in_flight', 'Requests sent there and not over.')
  const queued = gauge(
    'backend_queued_prefill_tokens',
    'Tokens that are still to be computed there, by prediction.',
    SAME,
  )
  const sessions = gauge('backend_sessions', 'Active sessions that live there.', SAME)
  const error = gauge('backend_prediction_error_ratio', 'Mean |predicted - reported hit| as a share of the prompt.', {
    aggregator: 'average',
  })
  const labels = ['what']
  const moves = gauge('llama_slot_moves_total', "States of llama-server's slots by what became of them.", { labels })
  const shared = gauge('router_news_total', 'What routers that share their books told, heard and lost.', { labels })
  return () => {
    for (const each of [up, inFlight, queued, sessions, error]) each.reset()
    for (const { id: backend, state, predictionError, ...now } of fleet.backends()) {
      up.set({ backend, state }, state === 'up' ? 1 : 0)
      inFlight.set({ backend }, now.inFlight)
      queued.set({ backend }, now.queuedPrefillTokens)
      sessions.set({ backend }, now.sessions)
      if (predictionError !== undefined) error.set({ backend }, predictionError)
    }
    for (const [what, count] of Object.entries(fleet.slots())) moves.set({ what }, count)
    for (const [what, count] of Object.entries(fleet.shared?.() ?? {})) shared.set({ what }, count)
  }
}

function countRequests(registry: Registry, batches: Batches, { requestSettled }: RouteSignals): () => void {
  const registers = [registry]
  const requests = new Counter({
    name: 'refrain_requests_total',
    help: 'Requests by route and status.',
    labelNames: ['route', 'status', 'error'],
    registers,
  })
  const prompt = new Counter({
    name: 'refrain_prompt_tokens_total',
    help: 'Prompt tokens by where their KV came from; `computed` is what reuse did not save.',
    labelNames: ['source', 'tenant'],
    registers,
  })
  const generated = new Counter({
    name: 'refrain_generated_tokens_total',
    help: 'Tokens generated.',
    labelNames: ['tenant'],
    registers,
  })
  const ttft = new Histogram({
    name: 'refrain_time_to_first_token_seconds',
    help: 'From the body to the first token.',
    buckets: SECONDS,
    registers,
  })
  const duration = new Histogram({
    name: 'refrain_request_duration_seconds',
    help: 'From the body to the last byte.',
    buckets: SECONDS,
    registers,
  })
  const perToken = new Histogram({
    name: 'refrain_time_per_output_token_seconds',
    help: 'From the first token to the last byte, by token after the first.',
    buckets: TOKEN_SECONDS,
    registers,
  })
  const length = new Histogram({
    name: 'refrain_prompt_length_tokens',
    help: 'Tokens of a prompt.',
    buckets: TOKENS,
    registers,
  })
  return batches.subscribe(requestSettled, (request) => {
    const { tenant, working, memory, disk, computed, ttftMs, completionTokens, durationMs } = request
    requests.inc({ route: request.route, status: request.status, error: request.error ?? '' })
    if (working > 0) prompt.inc({ source: 'working', tenant }, working)
    if (memory > 0) prompt.inc({ source: 'memory', tenant }, memory)
    if (disk > 0) prompt.inc({ source: 'disk', tenant }, disk)
    if (computed > 0) prompt.inc({ source: 'computed', tenant }, computed)
    if (completionTokens > 0) generated.inc({ tenant }, completionTokens)
    if (ttftMs !== undefined) {
      ttft.observe(ttftMs / 1000)
      if (completionTokens > 1) perToken.observe((durationMs - ttftMs) / 1000 / (completionTokens - 1))
    }
    duration.observe(durationMs / 1000)
    if (request.promptTokens > 0) length.observe(request.promptTokens)
  })
}

function countCache(registry: Registry): () => void {
  const labelNames = ['what', 'tier']
  const registers = [registry]
  const blocks = new Counter({ name: 'refrain_cache_blocks_total', help: 'Blocks moved.', labelNames, registers })
  const bytes = new Counter({ name: 'refrain_cache_bytes_total', help: 'Bytes moved.', labelNames, registers })
  const seconds = new Counter({
    name: 'refrain_cache_seconds_total',
    help: 'Time that moving took.',
    labelNames,
    registers,
  })
  return cacheMoved.subscribe((move) => {
    const labels = { what: move.what, tier: move.tier }
    blocks.inc(labels, move.blocks)
    bytes.inc(labels, move.bytes)
    if (move.durationMs !== undefined) seconds.inc(labels, move.durationMs / 1000)
  })
}

function countSteps(registry: Registry): () => void {
  const registers = [registry]
  const duration = new Histogram({
    name: 'refrain_step_duration_seconds',
    help: 'Steps of the engine.',
    buckets: SECONDS,
    registers,
  })
  const tokens = new Counter({
    name: 'refrain_step_tokens_total',
    help: 'Tokens that steps computed.',
    labelNames: ['phase'],
    registers,
  })
  return stepDone.subscribe((step) => {
    duration.observe(step.durationMs / 1000)
    tokens.inc({ phase: 'prefill' }, step.prefillTokens)
    tokens.inc({ phase: 'decode' }, step.decodeTokens)
  })
}

/** Phases of the embedded engine, and the wait for a backend of a fleet. */
function countPhases(registry: Registry, batches: Batches, { attemptSettled }: RouteSignals): () => void {
  const phase = (name: string, help: string) =>
    new Histogram({ name: `refrain_${name}_seconds`, help, buckets: SECONDS, registers: [registry] })
  const queue = phase('queue', 'Until a request is admitted; in a fleet, until a backend is chosen that has room.')
  const restore = phase('restore', 'Until KV that was found stands in memory.')
  const prefill = phase('prefill', 'Until the rest of the prompt is computed.')
  const stops = [
    phasesTimed.subscribe(({ queueMs, restoreMs, prefillMs }) => {
      queue.observe(queueMs / 1000)
      if (restoreMs !== undefined) restore.observe(restoreMs / 1000)
      if (prefillMs !== undefined) prefill.observe(prefillMs / 1000)
    }),
    batches.subscribe(attemptSettled, ({ routeMs }) => queue.observe(routeMs / 1000)),
  ]
  return () => {
    for (const stop of stops) stop()
  }
}

/** Why sessions' turns computed what they could have reused; see docs/explain.md for the reasons. */
function countMisses(registry: Registry, batches: Batches, { turnMissed }: RouteSignals): () => void {
  const labelNames = ['reason']
  const registers = [registry]
  const turns = new Counter({ name: 'refrain_missed_turns_total', help: 'Turns that missed.', labelNames, registers })
  const tokens = new Counter({
    name: 'refrain_missed_tokens_total',
    help: 'Tokens that turns computed and could have reused.',
    labelNames,
    registers,
  })
  return batches.subscribe(turnMissed, ({ reason, missedTokens }) => {
    turns.inc({ reason })
    tokens.inc({ reason }, missedTokens)
  })
}

function countAlarms(registry: Registry): () => void {
  const alarms = new Counter({
    name: 'refrain_cache_alarms_total',
    help: 'Prompts of sessions that were cached worse than they should be.',
    labelNames: ['what', 'reason'],
    registers: [registry],
  })
  return cacheAlarm.subscribe((alarm) => {
    alarms.inc({ what: alarm.what, reason: alarm.what === 'hit_rate' ? '' : alarm.reason })
  })
}

/** What backends of a fleet made of what they got; those that were taken out are no longer shown. */
interface Attempting {
  readonly fleet: FleetGauges
  readonly signals: RouteSignals
}

function countAttempts(registry: Registry, batches: Batches, { fleet, signals }: Attempting) {
  const registers = [registry]
  const attempts = new Counter({
    name: 'refrain_backend_attempts_total',
    help: 'Requests that were sent to a backend, by what became of them there.',
    labelNames: ['backend', 'outcome'],
    registers,
  })
  const hits = new Counter({
    name: 'refrain_backend_hit_tokens_total',
    help: 'Prompt tokens that backends had cached: as predicted, and as they reported it of the same requests.',
    labelNames: ['backend', 'source'],
    registers,
  })
  /** Outcomes by backend. */
  const seen = new Map<string, Set<string>>()
  const stop = batches.subscribe(signals.attemptSettled, ({ backend, outcome, predictedHitTokens, cachedTokens }) => {
    const outcomes = seen.get(backend) ?? new Set()
    seen.set(backend, outcomes.add(outcome))
    attempts.inc({ backend, outcome })
    if (cachedTokens === undefined) return
    hits.inc({ backend, source: 'predicted' }, predictedHitTokens)
    hits.inc({ backend, source: 'reported' }, cachedTokens)
  })
  const forgetOthers = () => {
    const there = new Set(fleet.backends().map(({ id }) => id))
    for (const [backend, outcomes] of seen) {
      if (there.has(backend)) continue
      for (const outcome of outcomes) attempts.remove({ backend, outcome })
      for (const source of ['predicted', 'reported']) hits.remove({ backend, source })
      seen.delete(backend)
    }
  }
  return { stop, forgetOthers }
}

function countHedges(registry: Registry): () => void {
  const hedges = new Counter({
    name: 'refrain_fleet_hedges_total',
    help: 'Late requests, by whether a second backend answered them; refused: why none was asked.',
    labelNames: ['outcome', 'why'],
    registers: [registry],
  })
  return hedgeSettled.subscribe(({ outcome, why = '' }) => hedges.inc({ outcome, why }))
}

function countQuick(registry: Registry): () => void {
  const tasks = new Counter({
    name: 'refrain_quick_tasks_total',
    help: 'Quick instructions by task, by how they were asked, and by what went wrong.',
    labelNames: ['task', 'form', 'error'],
    registers: [registry],
  })
  return quickAnswered.subscribe(({ task, form, error = '' }) => tasks.inc({ task, form, error }))
}

/** What is heard of members' caches; nothing where none is followed. */
function countKvEvents(registry: Registry): () => void {
  const registers = [registry]
  const blocks = new Counter({
    name: 'refrain_kv_event_blocks_total',
    help: 'Blocks in events of backends, by what became of them.',
    labelNames: ['backend', 'what'],
    registers,
  })
  const faults = new Counter({
    name: 'refrain_kv_event_faults_total',
    help: 'Events and frames of backends that were left out.',
    labelNames: ['backend', 'what'],
    registers,
  })
  const turns = new Counter({
    name: 'refrain_kv_event_turns_total',
    help: 'Gaps, restarts, late joins and replays in the order of events of backends.',
    labelNames: ['backend', 'what'],
    registers,
  })
  const lag = new Gauge({
    name: 'refrain_kv_event_lag_seconds',
    help: 'From the clock of the backend to ours, last batch.',
    labelNames: ['backend'],
    registers,
  })
  const stops = [
    kvHeard.subscribe(({ member: backend, lagMs, ...heard }) => {
      const { stored, removed, duplicates, orphans, ignored, bad, unknown, broken } = heard
      for (const [what, count] of Object.entries({ stored, removed, duplicates, orphans, ignored })) {
        if (count > 0) blocks.inc({ backend, what }, count)
      }
      for (const [what, count] of Object.entries({ bad, unknown, broken })) {
        if (count > 0) faults.inc({ backend, what }, count)
      }
      if (lagMs !== undefined) lag.set({ backend }, lagMs / 1000)
    }),
    kvTurned.subscribe(({ member: backend, what }) => turns.inc({ backend, what })),
  ]
  return () => {
    for (const stop of stops) stop()
  }
}
