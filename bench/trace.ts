// What do traces cost a request: off, sampled out, and sent to a collector?
//
// Method: the signals that traces listen to, told as the path tells them for a request of the embedded engine (its beginning,
// its phases) and of a fleet (its beginning, an attempt). `off`: nobody listens. `not sampled`: traces are on, the caller said
// no. `sampled`: spans are made; `sent` adds their batches, put as JSON to a collector on loopback that takes all. Each is the
// quietest of 20 rounds, in microseconds of CPU a request; where they listen, requestSettled is told too, which metrics and log
// hear anyway.
// Ceiling of `off`: two looks at a flag. Goal: off <= 0.2 us. Run: npm run bench -- trace [requests]

import {
  attemptBegun,
  attemptSettled,
  machineMs,
  phasesTimed,
  requestBegun,
  requestSettled,
} from '../src/core/signals.js'
import { startTrace } from '../src/telemetry/trace.js'
import { startCollector } from '../src/testing/otlp-collector.js'

const requests = Number(process.argv[2] ?? 400)
const ROUNDS = 20
const IDS = Array.from({ length: 1000 }, (_, i) => `${i}`)
const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7'
function settle(id: string): void {
  requestSettled.publish({
    ...{ id, tenant: 'default', route: '/v1/chat/completions', model: 'm', status: 200, durationMs: 10, ttftMs: 2 },
    ...{ promptTokens: 1000, completionTokens: 20, working: 0, memory: 960, disk: 0, computed: 40 },
  })
}

function begin(id: string, flags: string): void {
  if (!requestBegun.channel.hasSubscribers) return
  const traceparent = `00-${TRACE}-${flags}`
  requestBegun.publish({ id, route: '/v1/chat/completions', sinceMs: 1, traceparent, tracestate: undefined })
}

function engine(id: string, flags: string): void {
  begin(id, flags)
  if (phasesTimed.channel.hasSubscribers) {
    const cache = { working: 0, memory: 960, disk: 0, computed: 40 }
    const times = { queueMs: 0.1, restoreMs: 0.2, prefillMs: 2, decodeMs: 8 }
    phasesTimed.publish({ id, endedAt: machineMs(), ...times, promptTokens: 1000, completionTokens: 20, cache })
  }
}

function fleet(id: string, flags: string): void {
  begin(id, flags)
  const about = { id, key: {}, backend: 'http://127.0.0.1:8000', routeMs: 0.1, predictedHitTokens: 900 }
  if (attemptBegun.channel.hasSubscribers) {
    attemptBegun.publish({ ...about, model: 'm', url: about.backend, reason: 'overlap', headers: {} })
  }
  if (attemptSettled.channel.hasSubscribers) {
    const counts = { promptTokens: 1000, completionTokens: 20, cachedTokens: 960 }
    attemptSettled.publish({ ...about, ...counts, outcome: 'answered', status: 200, why: undefined, ttftMs: 2 })
  }
}

/** Microseconds of CPU a request: the quietest round. */
async function measure(work: (id: string) => void, count: number): Promise<number> {
  const rounds: number[] = []
  for (let round = -3; round < ROUNDS; round++) {
    const from = process.cpuUsage()
    for (let i = 0; i < count; i++) work(IDS[i % IDS.length] as string)
    const { user, system } = process.cpuUsage(from)
    if (round >= 0) rounds.push((user + system) / count)
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
  return Math.min(...rounds)
}

/** `count` requests a round; where `settles`, each is over at its end. */
const both = async (flags: string, settles: boolean, count: number) => {
  const over = (work: typeof engine) => (id: string) => {
    work(id, flags)
    if (settles) settle(id)
  }
  return { engine: await measure(over(engine), count), fleet: await measure(over(fleet), count) }
}

const off = await both('01', false, 1000 * requests)
const collector = await startCollector()
const options = { sampleRatio: 1, headers: {}, serviceName: 'bench', version: '0', server: { host: 'h', port: 1 } }
const tracing = startTrace({ ...options, endpoint: collector.url, delayMs: 10 })
const unsampled = await both('00', true, requests)
const sampled = await both('01', true, requests)
const quiet = () => new Promise<void>((resolve) => setTimeout(resolve, 1000))
await quiet()
const before = collector.spans.length
const sentFrom = process.cpuUsage()
for (let i = 0; i < 400; i++) {
  engine(`${i}`, '01')
  settle(`${i}`)
}
await quiet()
const used = process.cpuUsage(sentFrom)
const spans = collector.spans.length - before
await tracing.close()
await collector.close()

const us = (value: number) => Number(value.toFixed(3))
const told = ({ engine: own, fleet: routed }: typeof off) => ({ engine: us(own), fleet: us(routed) })
process.stdout.write(
  `${JSON.stringify({
    requests,
    usPerRequest: { off: told(off), unsampled: told(unsampled), sampled: told(sampled) },
    sentCpuUsPerRequest: us((used.user + used.system) / 400),
    spansPerRequest: spans / 400,
    goal: { offUs: 0.2, reached: off.engine <= 0.2 && off.fleet <= 0.2 },
  })}\n`,
)
