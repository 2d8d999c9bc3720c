// Bodies of the session routes that were right once: whatever is done to them, the answer is an answer or an error of the
// catalogue, and what is in the log compiles, replays and can be erased.

import { afterAll, beforeAll, expect, test } from 'vitest'
import type { Program } from '../compose.js'
import { ERRORS } from '../core/errors.js'
import { type Random, seeded } from '../testing/random.js'
import { scriptedProgram } from '../testing/scripted-program.js'

const BODIES = 500

let program: Program
beforeAll(async () => {
  program = await scriptedProgram({ 'backend.options': { template: 'chatml', answer: 'Some words.' } })
})
afterAll(() => program.stop(0))

const tool = { type: 'function', function: { name: 'look', parameters: { type: 'object', properties: {} } } }
const SEEDS: readonly [method: 'POST' | 'PUT', path: string, body: object][] = [
  ['POST', '', { system: 'S', tools: [tool], built_in_tools: ['memory'], metadata: { a: 1 }, model: '' }],
  ['POST', '/ID/events', { events: [{ type: 'user', content: 'a', key: 'k', sources: ['s'], layer: 'l' }] }],
  ['POST', '/ID/events', { events: [{ type: 'assistant', content: 'a', reasoning: 'b' }], expected_position: 3 }],
  [
    'POST',
    '/ID/events',
    {
      events: [
        { type: 'tool_call', call_id: 'c', name: 'look', arguments: '{}' },
        { type: 'tool_result', call_id: 'c', content: 'x', error: true },
      ],
    },
  ],
  ['POST', '/ID/events', { events: [{ type: 'note', tail: 'kept', label: 'l', content: 'x' }] }],
  ['POST', '/ID/events', { events: [{ type: 'memory', label: 'l', value: 'x', limit_tokens: 9, shared: 'm' }] }],
  ['POST', '/ID/events', { events: [{ type: 'head', apply: 'append', system: 'T', tools: [tool] }] }],
  ['POST', '/ID/events', { events: [{ type: 'layer', layer_id: 'l', parent: 'k', sources: ['s'] }] }],
  ['POST', '/ID/events', { events: [{ type: 'attempt', outcome: 'failed', reason: 'r' }] }],
  ['POST', '/ID/fork', { at: 2, n: 1 }],
  ['POST', '/ID/compact', { strategy: 'micro' }],
  ['POST', '/ID/reset', { artifacts: ['event-3'] }],
  ['POST', '/ID/layers', { id: 'l2', parent: 'l', sources: ['s'] }],
  ['POST', '/ID/resume', {}],
  ['PUT', '../sources/s', { state: 'granted' }],
  ['PUT', '../memory/m', { label: 'm', value: 'v', limit_tokens: 5 }],
  [
    'POST',
    '../chat/completions',
    { session: 'ID', messages: [{ role: 'user', content: 'a' }], apply: 'now', tools: [tool] },
  ],
]

const ODD: readonly unknown[] = [
  null,
  '',
  0,
  -1,
  1e21,
  [],
  {},
  [[]],
  true,
  'ses_',
  '__proto__',
  '\ud800',
  'x'.repeat(300),
]

/** The value with one of its members, at any depth, replaced, dropped or doubled. */
function mutated(value: unknown, random: Random): unknown {
  if (typeof value !== 'object' || value === null || random.next() < 0.15) return ODD[random.below(ODD.length)]
  if (Array.isArray(value)) {
    if (value.length === 0 || random.next() < 0.2) return [...value, ...value]
    const at = random.below(value.length)
    return value.map((each, i) => (i === at ? mutated(each, random) : each))
  }
  const entries = Object.entries(value)
  const at = random.below(entries.length)
  if (random.next() < 0.2) return Object.fromEntries(entries.filter((_, i) => i !== at))
  return Object.fromEntries(entries.map(([key, each], i) => [key, i === at ? mutated(each, random) : each]))
}

async function send(method: 'GET' | 'POST' | 'PUT' | 'DELETE', url: string, payload?: string) {
  const reply = await program.server.app.inject({
    method,
    url,
    ...(payload !== undefined && { headers: { 'content-type': 'application/json' }, payload }),
  })
  return { status: reply.statusCode, json: JSON.parse(reply.body) }
}

test('whatever is done to a body, the server answers and the log stands', async () => {
  const random = seeded(7)
  let { id } = (await send('POST', '/v1/sessions', '{}')).json
  const ids = [id]
  const codes = new Set<string>()
  for (let n = 0; n < BODIES; n++) {
    const [method, path, body] = SEEDS[n % SEEDS.length] as (typeof SEEDS)[number]
    const sent = n % 3 === 0 ? body : mutated(body, random)
    const url = path.startsWith('..') ? `/v1${path.slice(2)}` : `/v1/sessions${path.replace('ID', id)}`
    const { status, json } = await send(method, url, JSON.stringify(sent)?.replaceAll('"ID"', `"${id}"`) ?? '')
    if (status !== 200) {
      expect([json.error.code in ERRORS, json.error.code === 'internal', sent]).toEqual([true, false, sent])
      codes.add(json.error.code)
    }
    if (n % 100 === 99) {
      ;({ id } = (await send('POST', '/v1/sessions', '{}')).json)
      ids.push(id)
    }
  }
  expect(codes.size).toBeGreaterThan(2)
  for (const each of ids) {
    const { turns } = (await send('GET', `/v1/sessions/${each}`)).json
    for (let turn = 1; turn <= turns; turn++)
      expect((await send('GET', `/v1/sessions/${each}/context?at=${turn}`)).json).toMatchObject({ matches: true })
    expect((await send('GET', `/v1/sessions/${each}/context`)).status).toBe(200)
    expect((await send('GET', `/v1/sessions/${each}/series`)).status).toBe(200)
  }
  expect((await send('DELETE', '/v1/tenants/default')).status).toBe(200)
}, 60_000)
