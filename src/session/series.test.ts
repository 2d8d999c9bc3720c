// The alarm rule and the figures of series, the watch that keeps them, and the webhook that is told.

import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import fc from 'fast-check'
import { afterEach, describe, expect, test } from 'vitest'
import { type CacheAlarm, cacheAlarm, cacheMoved, note } from '../core/signals.js'
import { startLog } from '../telemetry/log.js'
import { startMetrics } from '../telemetry/metrics.js'
import { alarmWebhook } from './alarm-webhook.js'
import { createMemoryLog } from './log/memory.js'
import { NO_SERIES, nextSeries, type SeriesAlarm, type SeriesInput, type SeriesRules, seriesOf } from './series.js'
import { SeriesWatch } from './series-watch.js'

const rules: SeriesRules = { blockTokens: 64, ttlMs: 1000, hitRate: 0, hitRateTurns: 3 }
const step = (more: Partial<Extract<SeriesInput, { kind: 'step' }>> = {}): SeriesInput => ({
  ...{ kind: 'step', at: 0, turn: 1, promptTokens: 1000, cachedTokens: 0, stableTokens: 990, backend: 'a' },
  ...more,
})
const boundary: SeriesInput = { kind: 'boundary', opens: true }

function alarmsOf(inputs: readonly SeriesInput[], under = rules): readonly SeriesAlarm[] {
  let state = NO_SERIES
  return inputs.flatMap((input) => {
    const next = nextSeries(state, input, under)
    state = next.state
    return next.alarms
  })
}

describe('the alarm of an unscheduled invalidation', () => {
  const first = step()
  const later = (cachedTokens: number, more = {}) => step({ turn: 2, promptTokens: 1500, cachedTokens, ...more })

  test('is told where cached tokens fall below what the turn before left', () => {
    const alarm = { what: 'unscheduled_invalidation', turn: 2, expectedTokens: 960, reason: 'unknown' }
    expect(alarmsOf([first, later(0)])).toEqual([{ ...alarm, cachedTokens: 0 }])
    expect(alarmsOf([first, later(896)])).toEqual([{ ...alarm, cachedTokens: 896 }])
    expect(alarmsOf([first, later(0, { reason: 'system_changed' })])).toMatchObject([{ reason: 'system_changed' }])
    expect(alarmsOf([first, later(0, { backend: 'b' })])).toMatchObject([{ reason: 'other_backend' }])
  })

  test.each<[string, SeriesInput[]]>([
    ['a first turn', [first]],
    ['what is cached whole', [first, later(990)]],
    ['the rounding to blocks', [first, later(960)]],
    ['the tail, which is no part of what is stable', [step({ stableTokens: 700 }), later(640)]],
    [
      'the same prompt again, whose last token is computed',
      [step({ stableTokens: 1024, promptTokens: 1024 }), later(960, { promptTokens: 1024 })],
    ],
    ['a shorter prompt', [first, later(448, { promptTokens: 500 })]],
    ['what is older than its ttl', [first, later(0, { at: 1001 })]],
    ['a boundary', [first, boundary, later(0)]],
    ['a head that the API changed', [first, { kind: 'boundary', opens: false }, later(0)]],
    ['what explain found evicted', [first, later(0, { reason: 'evicted' })]],
  ])('is not told of %s', (_, inputs) => {
    expect(alarmsOf(inputs)).toEqual([])
  })

  test('a boundary excuses one turn', () => {
    expect(alarmsOf([first, boundary, later(0), later(0, { turn: 3 })])).toMatchObject([{ turn: 3 }])
  })

  test('holds for any session: told if and only if whole blocks are missing without an excuse', () => {
    const any = fc.record({
      ...{ cached: fc.nat(2000), prompt: fc.integer({ min: 1, max: 2000 }), tail: fc.nat(50), late: fc.boolean() },
      excuse: fc.constantFrom('none', 'none', 'compaction', 'head'),
    })
    fc.assert(
      fc.property(fc.array(any, { maxLength: 12 }), (turns) => {
        let [at, stable] = [0, 0]
        const inputs: SeriesInput[] = []
        const expected: number[] = []
        for (const [i, { cached, prompt, tail, late, excuse }] of turns.entries()) {
          at += late ? 1001 : 500
          const cachedTokens = Math.min(cached, prompt - 1)
          if (excuse !== 'none') inputs.push({ kind: 'boundary', opens: excuse === 'compaction' })
          const stableTokens = Math.max(0, prompt - tail)
          inputs.push(step({ at, turn: i, promptTokens: prompt, cachedTokens, stableTokens }))
          const whole = Math.floor(Math.min(stable, prompt - 1) / 64) * 64
          if (i > 0 && !late && excuse === 'none' && cachedTokens < whole) expected.push(i)
          stable = stableTokens
        }
        expect(alarmsOf(inputs).map(({ turn }) => turn)).toEqual(expected)
      }),
    )
  })
})

test('a low hit rate is told once, until it was better', () => {
  const under = { ...rules, hitRate: 0.5, ttlMs: 0 }
  const turns = [0, 0, 0, 0, 0, 1000, 1000, 1000, 0, 0, 0].map((cachedTokens, i) =>
    step({ at: i, turn: i, cachedTokens }),
  )
  expect(alarmsOf(turns, under)).toEqual([
    { what: 'hit_rate', turn: 3, hitRate: 0, turns: 3 },
    { what: 'hit_rate', turn: 9, hitRate: 1 / 3, turns: 3 },
  ])
  expect(alarmsOf(turns, { ...under, hitRate: 0 })).toEqual([])
})

test('figures of each turn come out of the log', async () => {
  const log = createMemoryLog({ limits: { sessionEvents: 99, sessionBytes: 99_999, sources: 9 }, maxBytes: 99_999 })
  const usage = (turn: number, promptTokens: number, cachedTokens: number) =>
    ({
      kind: 'usage',
      turn,
      promptTokens,
      cachedTokens,
      completionTokens: 5,
      stableTokens: promptTokens,
      backend: 'a',
    }) as const
  const reset = { kind: 'reset', artifacts: [] } as const
  const { id } = await log.create({ id: 'ses_1', tenant: 'acme', model: 'toy' }, [
    { body: { kind: 'head', apply: 'now', system: 's' } },
    ...[usage(1, 100, 0), usage(2, 200, 64), { kind: 'user', content: 'x' } as const, reset, usage(3, 50, 0)].map(
      (body) => ({ body }),
    ),
  ])
  const events = await log.read('acme', id, { from: 1, limit: 99 })
  expect(seriesOf(events, rules)).toEqual([
    { turn: 1, series: 1, promptTokens: 100, cachedTokens: 0, stablePrefix: 0, hitRate: 0 },
    { turn: 2, series: 1, promptTokens: 200, cachedTokens: 64, stablePrefix: 100, hitRate: 0.32 },
    { turn: 3, series: 2, promptTokens: 50, cachedTokens: 0, stablePrefix: 200, hitRate: 0 },
  ])
})

// --- who is told --------------------------------------------------------------------------------------------------------

const whose = { tenant: 'acme', session: 'ses_1' }
const ends: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
})
function heard(): CacheAlarm[] {
  const alarms: CacheAlarm[] = []
  ends.push(cacheAlarm.subscribe((alarm) => alarms.push(alarm)))
  return alarms
}
function watching(more: Partial<SeriesRules> = {}, sessions = 10): SeriesWatch {
  const watch = new SeriesWatch({ ...rules, ...more }, sessions)
  ends.push(() => watch.close())
  return watch
}

test('the watch tells of live turns, by session and by tenant, not of past ones', () => {
  const alarms = heard()
  const watch = watching({ hitRate: 0.5, hitRateTurns: 2, ttlMs: 0 })
  for (const turn of [1, 2, 3, 4]) watch.see(whose, step({ turn, at: turn }), 'past')
  expect(alarms).toEqual([])
  for (const session of ['s1', 's2'])
    for (const turn of [1, 2]) watch.see({ ...whose, session }, step({ turn, at: turn }))
  expect(alarms).toEqual([
    { tenant: 'acme', session: undefined, what: 'hit_rate', turn: undefined, hitRate: 0, turns: 2 },
  ])
})

test('the watch excuses what was evicted since the turn before, forgets, and holds no more than it may', () => {
  const alarms = heard()
  const watch = watching({}, 2)
  const evict = () => cacheMoved.publish({ what: 'evict', tier: 'memory', blocks: 1, bytes: 1 })
  watch.see(whose, step())
  evict()
  watch.see(whose, step({ turn: 2 }))
  expect(alarms).toEqual([])
  watch.see(whose, step({ turn: 3 }))
  expect(alarms).toMatchObject([{ ...whose, turn: 3, what: 'unscheduled_invalidation' }])
  watch.forget(whose)
  watch.see(whose, step({ turn: 4 }))
  for (const session of ['s2', 's3']) watch.see({ ...whose, session }, step())
  watch.see(whose, step({ turn: 5 }))
  expect(alarms).toHaveLength(1)
})

test('metrics count alarms and the log says them', async () => {
  const lines: string[] = []
  const metrics = startMetrics(() => ({ running: 0, waiting: 0 }))
  const log = startLog('info', (line) => lines.push(line))
  const watch = watching()
  watch.see(whose, step())
  watch.see(whose, step({ turn: 2, reason: 'system_changed' }))
  const { text } = await metrics.scrape()
  expect(text).toContain('refrain_cache_alarms_total{what="unscheduled_invalidation",reason="system_changed"} 1')
  expect(JSON.parse(lines.join())).toMatchObject({ level: 40, msg: 'cache alarm', ...whose, turn: 2 })
  metrics.close()
  log.close()
})

describe('the webhook', () => {
  const alarm: CacheAlarm = { ...whose, what: 'hit_rate', turn: 7, hitRate: 0.1, turns: 3 }

  /** Answers with each status in turn, the last one for good; 0: never. */
  async function listening(...statuses: number[]): Promise<{ url: string; bodies: Record<string, unknown>[] }> {
    const bodies: Record<string, unknown>[] = []
    const server: Server = createServer((request, response) => {
      let text = ''
      request.on('data', (part) => {
        text += part
      })
      request.on('end', () => {
        const status = statuses[Math.min(bodies.length, statuses.length - 1)] as number
        bodies.push(JSON.parse(text))
        if (status !== 0) response.writeHead(status).end()
      })
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    ends.push(() => {
      server.closeAllConnections()
      return new Promise((resolve) => server.close(resolve))
    })
    return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, bodies }
  }
  const opened = (url: string, more = {}) => {
    const hook = alarmWebhook({ url, timeoutMs: 20_000, tries: 3, waiting: 2, pauseMs: 1, ...more })
    ends.push(() => hook.close())
    return hook
  }
  const noted = () => {
    const notes: string[] = []
    ends.push(note.subscribe(({ text }) => notes.push(text)))
    return notes
  }
  const until = async (isSo: () => boolean) => {
    while (!isSo()) await new Promise((resolve) => setTimeout(resolve, 5))
  }

  test('is told each alarm, again where it does not take it', async () => {
    const { url, bodies } = await listening(500, 503, 204)
    opened(url)
    cacheAlarm.publish(alarm)
    await until(() => bodies.length === 3)
    expect(bodies[2]).toMatchObject({ ...alarm, at: expect.any(Number) })
    cacheAlarm.publish({ ...alarm, turn: 8 })
    await until(() => bodies.length === 4)
  })

  test('is given up after its tries, and that is said', async () => {
    const { url, bodies } = await listening(500)
    const notes = noted()
    opened(url)
    cacheAlarm.publish(alarm)
    await until(() => notes.length === 1)
    expect(bodies).toHaveLength(3)
    expect(notes[0]).toContain('status 500')
  })

  test('that does not answer holds back no more than it may', async () => {
    const { url, bodies } = await listening(0)
    const notes = noted()
    const hook = opened(url, { timeoutMs: 60_000, tries: 1 })
    for (let turn = 0; turn < 5; turn++) cacheAlarm.publish({ ...alarm, turn })
    await until(() => bodies.length === 1)
    expect(notes).toEqual(['2 alarms wait for sessions.alarms.webhook'])
    // What waits is given up at once.
    await hook.close()
  })
})
