// What is told of caches that are missed, through the whole server: a clock in a system prompt is an alarm, what a log says is
// none; a tail that changes at every turn is neither a miss nor an alarm.

import { afterAll, afterEach, describe, expect, test } from 'vitest'
import type { Program } from './compose.js'
import { type CacheAlarm, cacheAlarm } from './core/signals.js'
import { post, scriptedProgram } from './testing/scripted-program.js'

const programs: Program[] = []
const alarms: CacheAlarm[] = []
const unsubscribe = cacheAlarm.subscribe((alarm) => alarms.push(alarm))
afterEach(async () => {
  for (const program of programs.splice(0)) await program.stop(0)
  alarms.length = 0
})

afterAll(() => unsubscribe())

async function house(flags: Record<string, unknown> = {}) {
  const program = await scriptedProgram({ 'backend.options': { template: 'chatml', answer: 'Yes.' }, ...flags })
  programs.push(program)
  const ask = async (method: 'GET' | 'POST' | 'PUT', url: string, body?: object) => {
    const reply = await program.server.app.inject({
      method,
      url,
      ...(body && { headers: { 'content-type': 'application/json' }, payload: JSON.stringify(body) }),
    })
    return JSON.parse(reply.body)
  }
  return { program, ask }
}

const user = (content: string) => ({ role: 'user', content })
const words = (seed: string, count: number) => Array.from({ length: count }, (_, i) => `${seed}${i}`).join(' ')
/** Turns are concluded when the loop is free. */
const settled = () => new Promise((resolve) => setImmediate(resolve))

describe('a session that is not logged', () => {
  test('a clock in its system prompt is an alarm, with its reason', async () => {
    const { program } = await house()
    const history: object[] = []
    for (let n = 0; n < 3; n++) {
      history.push(user(words(`turn${n}`, 100)))
      const messages = [{ role: 'system', content: `It is 12:0${n}. ${words('rule', 100)}` }, ...history]
      await post(program, '/v1/chat/completions', { messages }, { 'x-refrain-session': 'clock' })
      history.push({ role: 'assistant', content: 'Yes.' })
    }
    await settled()
    expect(alarms).toMatchObject([
      { what: 'unscheduled_invalidation', session: 'clock', tenant: 'default', turn: 2, reason: 'system_changed' },
      { what: 'unscheduled_invalidation', turn: 3, reason: 'system_changed' },
    ])
  })

  test('one that only grows is none', async () => {
    const { program } = await house()
    const history: object[] = [{ role: 'system', content: words('rule', 100) }]
    for (let n = 0; n < 3; n++) {
      history.push(user(words(`turn${n}`, 100)))
      await post(program, '/v1/chat/completions', { messages: history }, { 'x-refrain-session': 'calm' })
      history.push({ role: 'assistant', content: 'Yes.' })
    }
    await settled()
    expect(alarms).toEqual([])
  })
})

describe('a session that is logged', () => {
  test('a tail that changes at every turn is no miss; heads, resets and revocations are no alarm', async () => {
    const { ask } = await house()
    const { id } = await ask('POST', '/v1/sessions', { system: words('rule', 100) })
    const turn = async (n: number) => {
      const note = { type: 'note', label: 'date', content: `It is ${words(`day${n}`, 60)}` }
      await ask('POST', `/v1/sessions/${id}/events`, { events: [note] })
      return ask('POST', '/v1/chat/completions', { session: id, messages: [user(words(`turn${n}`, 100))] })
    }
    for (let n = 0; n < 4; n++) await turn(n)
    const turns = (await ask('GET', `/v1/sessions/${id}/turns`)).data
    expect(turns.map(({ miss }: { miss: { reason: string } | null }) => miss?.reason)).toEqual([
      'first_seen',
      ...[undefined, undefined, undefined],
    ])
    const steps = (await ask('GET', `/v1/sessions/${id}/series`)).data
    expect(steps).toHaveLength(4)
    for (const step of steps.slice(1)) {
      expect(step.cached_tokens).toBeGreaterThanOrEqual(Math.floor(step.stable_prefix / 64) * 64)
      expect(step.series).toBe(1)
    }
    await ask('POST', `/v1/sessions/${id}/events`, { events: [{ type: 'head', system: 'Anew.', apply: 'now' }] })
    await turn(5)
    await ask('POST', `/v1/sessions/${id}/reset`, {})
    await turn(6)
    await settled()
    expect(alarms).toEqual([])
    const after = (await ask('GET', `/v1/sessions/${id}/series`)).data
    expect(after.map(({ series }: { series: number }) => series)).toEqual([1, 1, 1, 1, 2, 3])
  })

  test('a low hit rate is an alarm', async () => {
    const { program, ask } = await house({
      'sessions.alarms': { hitRate: 0.9, hitRateTurns: 2 },
      'backend.options': { template: 'chatml', answer: 'Yes.', cacheBlocks: 0 },
    })
    const { id } = await ask('POST', '/v1/sessions', {})
    for (let n = 0; n < 4; n++)
      await post(program, '/v1/chat/completions', { session: id, messages: [user(words(`t${n}`, 90))] })
    expect(alarms.map(({ what }) => what)).toContain('hit_rate')
  })
})
