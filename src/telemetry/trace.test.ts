// Traces as a collector gets them: from the embedded path and from a fleet, continued and sampled as who called says, and
// with a collector that is dead.

import { afterEach, describe, expect, test } from 'vitest'
import type { Program } from '../compose.js'
import { type Note, note, requestBegun, requestSettled } from '../core/signals.js'
import { type FleetHouse, fleetHouse } from '../testing/fleet-house.js'
import { type CollectedSpan, type Collector, startCollector } from '../testing/otlp-collector.js'
import { chat, post, scriptedProgram } from '../testing/scripted-program.js'
import { startTrace } from './trace.js'
import { readTraceParent, writeTraceParent } from './trace-context.js'

const PARENT = { traceId: '4bf92f3577b34da6a3ce929d0e0e4736', spanId: '00f067aa0ba902b7' }
const sampled = `00-${PARENT.traceId}-${PARENT.spanId}-01`
const unsampled = `00-${PARENT.traceId}-${PARENT.spanId}-00`

let collector: Collector
let program: Program | undefined
let house: FleetHouse | undefined

afterEach(async () => {
  await program?.stop(0)
  await house?.close()
  await collector.close()
  program = undefined
  house = undefined
})

const traced = (more: object = {}) => ({ 'telemetry.trace.endpoint': collector.url, ...more })

async function embedded(flags: object = {}): Promise<Program> {
  collector = await startCollector()
  program = await scriptedProgram({ ...traced(), ...flags })
  return program
}

/** What was sent, once the program has stopped. */
async function sent(): Promise<readonly CollectedSpan[]> {
  await program?.stop(0)
  await house?.close()
  program = undefined
  house = undefined
  return collector.spans
}

const named = (spans: readonly CollectedSpan[], name: string) => spans.filter((span) => span.name === name)
const one = (spans: readonly CollectedSpan[], name: string) => {
  const found = named(spans, name)
  expect(found, name).toHaveLength(1)
  return found[0] as CollectedSpan
}

describe('a request to the embedded engine', () => {
  test('is a span of the trace that it came with, and has one for each of its phases', async () => {
    const before = Date.now()
    await embedded({
      'telemetry.trace.headers': { 'x-key': 'of-the-collector' },
      'telemetry.trace.serviceName': 'mine',
    })
    const headers = { traceparent: sampled, 'x-refrain-session': 'agent-7' }
    const body = chat(`a secret ${'word '.repeat(60)}`, { max_tokens: 5 })
    await post(program as Program, '/v1/chat/completions', body)
    const reply = await post(program as Program, '/v1/chat/completions', body, headers)
    const spans = (await sent()).filter(({ traceId }) => traceId === PARENT.traceId)
    const model = reply.json().model as string
    const root = one(spans, `chat ${model}`)
    const { prompt_tokens: inputs, completion_tokens: outputs, prompt_tokens_details: details } = reply.json().usage
    const cached = details.cached_tokens as number
    expect(cached).toBeGreaterThan(0)
    expect(root).toMatchObject({ parentSpanId: PARENT.spanId, kind: 2, status: 0, service: 'mine' })
    expect(root.attributes).toEqual({
      'gen_ai.operation.name': 'chat',
      'gen_ai.provider.name': 'refrain',
      'gen_ai.request.model': model,
      'gen_ai.response.model': model,
      'gen_ai.conversation.id': 'agent-7',
      'gen_ai.usage.input_tokens': inputs,
      'gen_ai.usage.output_tokens': outputs,
      'gen_ai.usage.cache_read.input_tokens': cached,
      'server.address': '127.0.0.1',
      'http.request.method': 'POST',
      'http.route': '/v1/chat/completions',
      'http.response.status_code': 200,
      'refrain.request.id': reply.json().id.replace('chatcmpl-', ''),
      'refrain.tenant': 'default',
      'refrain.tokens.working': 0,
      'refrain.tokens.memory': cached,
      'refrain.tokens.disk': 0,
      'refrain.tokens.computed': inputs - cached,
    })
    const phases = ['queue', 'restore', 'prefill', 'decode'].map((name) => one(spans, name))
    expect(spans).toHaveLength(5)
    for (const phase of phases) expect(phase).toMatchObject({ parentSpanId: root.spanId, kind: 1 })
    const times = [root.start, ...phases.map(({ start }) => start), phases.at(-1)?.end ?? 0, root.end]
    expect(times).toEqual([...times].sort((a, b) => a - b))
    for (const [i, { end }] of phases.slice(0, -1).entries()) expect(end).toBeCloseTo(phases[i + 1]?.start ?? 0, 1)
    expect(root.start).toBeGreaterThanOrEqual(before - 1)
    expect(root.end).toBeLessThanOrEqual(Date.now() + 1)
    expect(root.events).toEqual([{ name: 'first_token', at: expect.any(Number) }])
    expect(phases[2]?.attributes['refrain.tokens.computed']).toBe(inputs - cached)
    expect(phases[3]?.attributes['gen_ai.usage.output_tokens']).toBe(outputs)
    expect(collector.headers[0]).toMatchObject({ 'x-key': 'of-the-collector' })
    expect(collector.bodies.join()).not.toContain('secret')
  })

  test('begins a trace where it came with none that can be read', async () => {
    await embedded()
    for (const traceparent of ['', 'ff-00-00-00', `00-${'0'.repeat(32)}-${PARENT.spanId}-01`]) {
      await post(program as Program, '/v1/completions', { prompt: 'x', max_tokens: 1 }, { traceparent })
    }
    const roots = (await sent()).filter(({ kind }) => kind === 2)
    expect(roots).toHaveLength(3)
    for (const { parentSpanId, name } of roots) {
      expect(parentSpanId).toBeUndefined()
      expect(name).toMatch(/^text_completion /)
    }
    expect(new Set(roots.map(({ traceId }) => traceId)).size).toBe(3)
  })

  test('is sampled as its caller decided, else by the ratio', async () => {
    await embedded({ 'telemetry.trace.sampleRatio': 0 })
    const ask = (headers = {}) => post(program as Program, '/v1/chat/completions', chat(), headers)
    await ask()
    await ask({ traceparent: unsampled })
    await ask({ traceparent: sampled })
    expect((await sent()).filter(({ kind }) => kind === 2)).toHaveLength(1)
    await collector.close()
    await embedded()
    await ask({ traceparent: unsampled })
    expect(await sent()).toEqual([])
  })

  test('says what it failed with, and what was refused at the door has no span', async () => {
    await embedded({ 'model.name': 'm' })
    expect((await post(program as Program, '/v1/chat/completions', chat('x', { model: 'other' }))).status).toBe(404)
    expect((await post(program as Program, '/v1/chat/completions', '{')).status).toBe(400)
    expect((await post(program as Program, '/v1/nothing', {})).status).toBe(404)
    const spans = await sent()
    expect(spans.map(({ attributes, status }) => [attributes['error.type'], status])).toEqual([
      ['model_not_found', 0],
      ['invalid_json', 0],
    ])
  })

  test('side questions are a span too, with the phases of each run', async () => {
    await embedded()
    const task = { task: 'title' }
    const body = { messages: [{ role: 'user', content: 'Hello' }], tasks: [task] }
    expect((await post(program as Program, '/v1/quick', body)).status).toBe(200)
    const spans = await sent()
    const [root] = spans.filter(({ kind }) => kind === 2)
    expect(root?.attributes['http.route']).toBe('/v1/quick')
    expect(named(spans, 'queue').map(({ parentSpanId }) => parentSpanId)).toEqual([root?.spanId])
  })
})

describe('a request through a fleet', () => {
  async function fleet(flags: object = {}): Promise<FleetHouse> {
    collector = await startCollector()
    house = await fleetHouse({ config: { ...traced(), ...flags } })
    return house
  }

  test('has a span for each backend that it was sent to, which the backend is told as its parent', async () => {
    const { stubs, chat: ask } = await fleet()
    const answers = [0, 1].map((i) => {
      const { answer } = stubs[i] as (typeof stubs)[number]
      return answer
    })
    let asked = 0
    for (const [i, stub] of stubs.entries()) {
      stub.answer = (request, response, socket) => {
        if (asked++ > 0) return answers[i]?.(request, response, socket)
        response.writeHead(503)
        response.end('{}')
      }
    }
    const headers = { traceparent: sampled, tracestate: 'vendor=1', 'x-refrain-session': 's' }
    const response = await ask({ stream: true, stream_options: { include_usage: true } }, headers)
    await response.text()
    const spans = await sent()
    const [root] = spans.filter(({ kind }) => kind === 2)
    expect(root).toMatchObject({ name: 'chat m', traceId: PARENT.traceId, parentSpanId: PARENT.spanId })
    expect(root?.attributes).toMatchObject({
      'gen_ai.request.model': 'm',
      'gen_ai.usage.input_tokens': 10,
      'gen_ai.conversation.id': 's',
    })
    const attempts = spans.filter(({ kind }) => kind === 3)
    expect(attempts.map(({ attributes }) => attributes['http.response.status_code'])).toEqual([503, 200])
    expect(attempts.map(({ status }) => status)).toEqual([2, 0])
    expect(attempts[0]?.attributes['error.type']).toBe('503')
    expect(attempts[1]?.attributes).toMatchObject({
      'gen_ai.operation.name': 'chat',
      'gen_ai.request.model': 'm',
      'gen_ai.usage.input_tokens': 10,
      'gen_ai.usage.output_tokens': 1,
      'gen_ai.usage.cache_read.input_tokens': 0,
      'server.address': '127.0.0.1',
    })
    const routes = named(spans, 'route')
    expect(routes).toHaveLength(2)
    for (const span of [...attempts, ...routes]) expect(span.parentSpanId).toBe(root?.spanId)
    expect(routes[0]?.attributes['refrain.route.reason']).toBeTypeOf('string')
    expect(routes[0]?.end).toBeCloseTo(attempts[0]?.start ?? 0, 1)
    const got = stubs.flatMap(({ requests, url }) => requests.map((request) => ({ ...request.headers, url })))
    for (const { spanId, attributes } of attempts) {
      const told = got.find(({ url }) => url.endsWith(`:${attributes['server.port']}`))
      expect(told).toMatchObject({ traceparent: `00-${PARENT.traceId}-${spanId}-01`, tracestate: 'vendor=1' })
    }
  })

  test('that is not sampled tells backends so; a state without a trace that can be read is dropped', async () => {
    const { stubs, chat: ask } = await fleet()
    await ask({}, { traceparent: unsampled, tracestate: 'vendor=1' })
    await ask({}, { traceparent: 'nonsense', tracestate: 'vendor=1' })
    const [first, second] = stubs.flatMap(({ requests }) => requests).map(({ headers }) => headers)
    expect([first, second].map((headers) => headers?.['tracestate']).sort()).toEqual(['vendor=1', undefined])
    const [kept] = [first, second].filter((headers) => headers?.['tracestate'] !== undefined)
    expect(kept?.['traceparent']).toMatch(new RegExp(`^00-${PARENT.traceId}-[0-9a-f]{16}-00$`))
    expect((await sent()).filter(({ traceId }) => traceId === PARENT.traceId)).toEqual([])
  })

  test('that asks several side questions at once has a span for each', async () => {
    const { stubs, post: ask } = await fleet()
    const tasks = [{ task: 'title' }, { task: 'query' }, { task: 'domain' }]
    const reply = await ask('/v1/quick', { model: 'm', messages: [{ role: 'user', content: 'x' }], tasks })
    expect(reply.status).toBe(200)
    const spans = await sent()
    const [root] = spans.filter(({ kind }) => kind === 2)
    expect(root?.attributes['http.route']).toBe('/v1/quick')
    const attempts = spans.filter(({ kind }) => kind === 3)
    expect(attempts.length).toBe(stubs.flatMap(({ requests }) => requests).length)
    expect(attempts.length).toBeGreaterThanOrEqual(3)
    for (const span of attempts) {
      expect(span.parentSpanId).toBe(root?.spanId)
      expect(span.attributes['http.response.status_code']).toBe(200)
      expect(span.end).toBeLessThanOrEqual((root?.end ?? 0) + 0.1)
    }
    expect(new Set(attempts.map(({ spanId }) => spanId)).size).toBe(attempts.length)
  })

  test('whose client leaves ends its span and that of its backend', async () => {
    const { stubs, url } = await fleet()
    for (const stub of stubs) stub.answer = () => undefined
    const left = new AbortController()
    const body = JSON.stringify({ model: 'm', messages: [{ role: 'user', content: 'x' }] })
    const asking = fetch(`${url}/v1/chat/completions`, {
      ...{ method: 'POST', body, signal: left.signal },
      headers: { 'content-type': 'application/json' },
    })
    while (stubs.every(({ requests }) => requests.length === 0)) await new Promise((resolve) => setTimeout(resolve, 5))
    left.abort()
    await expect(asking).rejects.toThrow()
    while (stubs.every(({ aborted }) => aborted === 0)) await new Promise((resolve) => setTimeout(resolve, 5))
    const spans = await sent()
    expect(spans.map(({ kind, attributes }) => [kind, attributes['error.type']]).sort()).toEqual([
      [1, undefined],
      [2, 'client_gone'],
      [3, 'client_gone'],
    ])
  })
})

describe('a collector that is dead', () => {
  const options = { sampleRatio: 1, headers: {}, serviceName: 'r', version: '0', server: { host: 'h', port: 1 } }

  function tell(count: number): void {
    for (let i = 0; i < count; i++) {
      requestBegun.publish({ id: `${i}`, route: '/v1/completions', sinceMs: 0, traceparent: undefined, tracestate: '' })
      requestSettled.publish({
        ...{ id: `${i}`, tenant: 't', route: '/v1/completions', model: 'm', status: 200, durationMs: 1 },
        ...{ promptTokens: 1, completionTokens: 1, working: 0, memory: 0, disk: 0, computed: 1 },
      })
    }
  }

  test.each(['refuses', 'silent'] as const)('%s: nothing waits, spans are dropped, the end is bounded', async (how) => {
    collector = await startCollector(how)
    const notes: Note[] = []
    const unsubscribe = note.subscribe((each) => notes.push(each))
    const tracing = startTrace({ ...options, endpoint: collector.url, delayMs: 10, closeMs: 300 })
    for (let i = 0; i < 6; i++) {
      tell(1000)
      await new Promise((resolve) => setTimeout(resolve, 5))
    }
    const closing = performance.now()
    await tracing.close()
    unsubscribe()
    // The bound and what a busy machine adds.
    expect(performance.now() - closing).toBeLessThan(6000)
    expect(requestBegun.channel.hasSubscribers).toBe(false)
    for (let tries = 0; collector.open > 0 && tries < 100; tries++)
      await new Promise((resolve) => setTimeout(resolve, 10))
    expect(collector.open).toBe(0)
    // No more is held than the queue and what is on its way: 6000 spans would be twelve exports of 512.
    if (how === 'silent') expect(collector.bodies.length).toBeLessThanOrEqual(5)
    if (how === 'refuses') expect(notes.map(({ level }) => level)).toEqual(['warn'])
  })

  test('and a program with one answers and stops as ever', async () => {
    collector = await startCollector()
    await collector.close()
    program = await scriptedProgram(traced())
    for (let i = 0; i < 20; i++) expect((await post(program, '/v1/chat/completions', chat())).status).toBe(200)
    const started = performance.now()
    await program.stop(0)
    program = undefined
    expect(performance.now() - started).toBeLessThan(8000)
    collector = await startCollector()
  })
})

test('without an endpoint nobody listens', async () => {
  collector = await startCollector()
  program = await scriptedProgram()
  expect(requestBegun.channel.hasSubscribers).toBe(false)
})

test('traceparent is read as the standard says', () => {
  expect(readTraceParent(sampled)).toEqual({ ...PARENT, traceFlags: 1 })
  expect(readTraceParent(`01-${PARENT.traceId}-${PARENT.spanId}-03-more`)).toEqual({ ...PARENT, traceFlags: 1 })
  for (const bad of [undefined, '', `${sampled}-more`, sampled.toUpperCase(), `ff${sampled.slice(2)}`]) {
    expect(readTraceParent(bad)).toBeUndefined()
  }
  expect(writeTraceParent({ ...PARENT, traceFlags: 0 })).toBe(unsampled)
})
