// What logged sessions refuse, and how a caller gets on: late results, erased sessions, what is too large, pages of nothing,
// a message that no window holds. On the scripted backend.

import { afterEach, describe, expect, test } from 'vitest'
import type { Program } from './compose.js'
import { type CacheAlarm, cacheAlarm } from './core/signals.js'
import { scriptedProgram } from './testing/scripted-program.js'

const programs: Program[] = []
afterEach(async () => {
  for (const program of programs.splice(0)) await program.stop(0)
})

const TENANTS = [
  { name: 'acme', key: 'key-of-acme' },
  { name: 'other', key: 'key-of-other' },
]

async function house(flags: Record<string, unknown> = {}, key?: string) {
  const program = await scriptedProgram({ 'backend.options': { template: 'chatml', answer: 'Yes.' }, ...flags })
  programs.push(program)
  const as = (who: string | undefined) => async (method: 'GET' | 'POST' | 'DELETE', url: string, body?: object) => {
    const reply = await program.server.app.inject({
      ...{ method, url },
      headers: { 'content-type': 'application/json', ...(who !== undefined && { authorization: `Bearer ${who}` }) },
      ...(body && { payload: JSON.stringify(body) }),
    })
    return { status: reply.statusCode, json: JSON.parse(reply.body) }
  }
  const ask = as(key)
  const create = async (body: object = {}) => (await ask('POST', '/v1/sessions', body)).json.id as string
  const chat = (session: string, ...messages: object[]) =>
    ask('POST', '/v1/chat/completions', { session, messages, max_tokens: 16 })
  return { ask, as, create, chat }
}

const user = (content: string) => ({ role: 'user', content })
const words = (seed: string, count: number) => Array.from({ length: count }, (_, i) => `${seed}${i}`).join(' ')

test('a result that comes late is told where it came in, and nothing is computed twice for it', async () => {
  const alarms: CacheAlarm[] = []
  const unsubscribe = cacheAlarm.subscribe((alarm) => alarms.push(alarm))
  const { ask, create, chat } = await house()
  const id = await create({
    events: [
      { type: 'user', content: words('go', 100) },
      { type: 'assistant', content: 'I look.' },
      { type: 'tool_call', call_id: 'c1', name: 'look' },
    ],
  })
  await chat(id, user(words('meanwhile', 100)))
  expect((await ask('GET', `/v1/sessions/${id}/context`)).json.prompt).toContain('[no result yet]')
  const late = { type: 'tool_result', call_id: 'c1', content: 'A letter.' }
  expect((await ask('POST', `/v1/sessions/${id}/events`, { events: [late] })).status).toBe(200)
  const first = (await ask('GET', `/v1/sessions/${id}/context?at=1`)).json
  await chat(id, user('And now?'))
  const second = (await ask('GET', `/v1/sessions/${id}/context?at=2`)).json
  expect(second.messages.slice(0, first.messages.length)).toEqual(first.messages)
  expect(second.messages.at(-2)).toMatchObject({ role: 'user', content: expect.stringContaining('\nA letter.\n') })
  expect([first.matches, second.matches]).toEqual([true, true])
  const steps = (await ask('GET', `/v1/sessions/${id}/series`)).json.data
  expect(steps[1].cached_tokens).toBeGreaterThanOrEqual(Math.floor(steps[1].stable_prefix / 64) * 64)
  expect(steps[1].stable_prefix).toBeGreaterThan(100)
  await new Promise((resolve) => setImmediate(resolve))
  unsubscribe()
  expect(alarms).toEqual([])
})

test('a session that was erased is gone for its tenant, on every route, and never was for others', async () => {
  const { ask, as, create } = await house({ tenants: TENANTS }, 'key-of-acme')
  const id = await create()
  expect((await ask('DELETE', `/v1/sessions/${id}`)).status).toBe(200)
  const routes: readonly (readonly ['GET' | 'POST' | 'DELETE', string, object?])[] = [
    ...['', '/events', '/context', '/series', '/results/event-1'].map((below) => ['GET', below] as const),
    ...['/fork', '/compact', '/reset', '/resume'].map((below) => ['POST', below, {}] as const),
    ['POST', '/events', { events: [{ type: 'user', content: 'x' }] }],
    ['POST', '/layers', { id: 'l' }],
    ['DELETE', ''],
  ]
  for (const [method, below, body] of routes) {
    const { status, json } = await ask(method, `/v1/sessions/${id}${below}`, body)
    expect([below, status, json.error.code]).toEqual([below, 410, 'erased'])
    const theirs = await as('key-of-other')(method, `/v1/sessions/${id}${below}`, body)
    expect([below, theirs.status, theirs.json.error.code]).toEqual([below, 404, 'not_found'])
  }
  const turn = { session: id, messages: [user('x')] }
  expect((await ask('POST', '/v1/chat/completions', turn)).status).toBe(410)
  expect((await as('key-of-other')('POST', '/v1/chat/completions', turn)).status).toBe(404)
  expect((await ask('DELETE', '/v1/tenants/acme')).status).toBe(200)
  expect((await ask('GET', `/v1/sessions/${id}`)).status).toBe(404)
})

describe('what is too large is refused, and the field named', () => {
  test('metadata', async () => {
    const { ask } = await house({ 'sessions.log.metadataBytes': 64 })
    const { status, json } = await ask('POST', '/v1/sessions', { metadata: { note: 'é'.repeat(30) } })
    expect([status, json.error.param]).toEqual([400, 'metadata'])
    expect(json.error.message).toContain('64 bytes (sessions.log.metadataBytes)')
    expect((await ask('POST', '/v1/sessions', { metadata: { note: 'e'.repeat(50) } })).status).toBe(200)
  })

  test('events of one append, and of a session that is made', async () => {
    const { ask, create } = await house({ 'sessions.log.appendEvents': 2 })
    const events = Array.from({ length: 3 }, (_, i) => ({ type: 'user', content: `${i}` }))
    const id = await create()
    for (const [path, position] of [
      [`/v1/sessions/${id}/events`, 1],
      ['/v1/sessions', 1],
    ] as const) {
      const { status, json } = await ask('POST', path, { events })
      expect([status, json.error.param]).toEqual([400, 'events'])
      expect(json.error.message).toContain('sessions.log.appendEvents')
      expect((await ask('GET', `/v1/sessions/${id}`)).json.position).toBe(position)
    }
    expect((await ask('GET', '/v1/sessions')).json.data).toHaveLength(1)
    expect((await ask('POST', `/v1/sessions/${id}/events`, { events: events.slice(1) })).status).toBe(200)
  })
})

test('counts the whole context of a session, as a turn then does', async () => {
  const { ask, create, chat } = await house()
  const id = await create({ system: words('sys', 50), events: [{ type: 'note', label: 'date', content: 'Today.' }] })
  await chat(id, user(words('first', 100)))
  const body = { session: id, messages: [user('And now?')], max_tokens: 8 }
  const before = (await ask('GET', `/v1/sessions/${id}`)).json.position
  const { json } = await ask('POST', '/v1/messages/count_tokens', { ...body, model: '', max_tokens: undefined })
  expect((await ask('GET', `/v1/sessions/${id}`)).json.position).toBe(before)
  const { usage } = (await ask('POST', '/v1/messages', body)).json
  const { input_tokens, cache_read_input_tokens, cache_creation_input_tokens } = usage
  expect(json.input_tokens).toBe(input_tokens + cache_read_input_tokens + cache_creation_input_tokens)
  expect(json.input_tokens).toBeGreaterThan(150)
  const none = `ses_${'0'.repeat(32)}`
  expect((await ask('POST', '/v1/messages/count_tokens', { ...body, session: none })).status).toBe(404)
})

test('pages have at least one, and say whether more follow', async () => {
  const { ask, create } = await house()
  const id = await create({ events: [{ type: 'user', content: 'a' }] })
  await create()
  for (const path of [`/v1/sessions/${id}/events`, '/v1/sessions']) {
    const none = await ask('GET', `${path}?limit=0`)
    expect([none.status, none.json.error.param]).toEqual([400, 'limit'])
    const more = async (limit: number) => (await ask('GET', `${path}?limit=${limit}`)).json
    expect([(await more(1)).data.length, (await more(1)).has_more]).toEqual([1, true])
    expect([(await more(2)).data.length, (await more(2)).has_more]).toEqual([2, false])
  }
  expect((await ask('GET', `/v1/sessions/${id}/events?from=3&limit=5`)).json).toMatchObject({
    data: [],
    has_more: false,
  })
})

/** Writes reasoning of the last messages alone: a question behind the conversation changes what stands before it. */
const FORGETFUL = [
  "{% for m in messages %}<|im_start|>{{ m['role'] }}\n",
  "{% if m['reasoning_content'] is defined and loop.index0 > messages | length - 3 %}({{ m['reasoning_content'] }}){% endif %}",
  "{{ m['content'] }}<|im_end|>\n{% endfor %}",
  '{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}',
].join('')

test('blocks of questions that run beside a turn go with the session', async () => {
  const { ask, create } = await house({
    'backend.options': { template: FORGETFUL, end: '<|im_end|>', reasoning: 'think', answer: 'Yes.' },
  })
  const kept = async () => (await ask('GET', '/v1/cache')).json.data[0].tiers[0].blocks
  const id = await create({
    events: [
      { type: 'user', content: words('go', 100) },
      { type: 'assistant', content: words('seen', 200), reasoning: words('why', 100) },
    ],
  })
  const quick = { tasks: [{ task: 'custom', instruction: 'Well?', choices: ['a', 'b'] }] }
  const turn = { session: id, messages: [user('And now?')], quick }
  const { json } = await ask('POST', '/v1/chat/completions', turn)
  expect(json.choices[0].message.content).toBe('Yes.')
  // Its own, and those of the questions.
  expect(await kept()).toBeGreaterThan(Math.floor((json.usage.prompt_tokens + 3) / 64))
  expect((await ask('DELETE', `/v1/sessions/${id}`)).status).toBe(200)
  expect(await kept()).toBe(0)
})

test('a message that no window holds: the error says what helps, and that helps', async () => {
  const { ask, create, chat } = await house({ 'model.contextLength': 1000 })
  const id = await create({ system: 'Sys.' })
  expect((await chat(id, user('Hi'))).status).toBe(200)
  const { position } = (await ask('GET', `/v1/sessions/${id}`)).json
  for (const content of [words('big', 2000), 'small']) {
    const { status, json } = await chat(id, user(content))
    expect([status, json.error.code, json.error.param]).toEqual([400, 'context_length_exceeded', 'messages'])
    expect(json.error.message).toMatch(
      /^This model's maximum context length is 1000 tokens\. .*\/reset .*fork.*compact/,
    )
  }
  const quick = await ask('POST', '/v1/cache/warm', { session: id, messages: [user('x')] })
  expect(quick.json.error.message).toContain(`POST /v1/sessions/${id}/reset`)
  const compact = (await ask('POST', `/v1/sessions/${id}/compact`, {})).json.error
  expect([compact.code, compact.message]).toEqual([
    'compaction_rejected',
    expect.stringContaining('a reset, or a fork'),
  ])
  const [fork] = (await ask('POST', `/v1/sessions/${id}/fork`, { at: position })).json.data
  expect((await chat(fork.id, user('small'))).status).toBe(200)
  expect((await ask('POST', `/v1/sessions/${id}/reset`, {})).status).toBe(200)
  expect((await chat(id, user('small'))).status).toBe(200)
})

test('compaction helps where what was answered already is too long', async () => {
  // Nothing is shortened unless it is asked for.
  const lifecycle = { trigger: { share: 1 }, steps: [], strategy: 'snip' }
  const { ask, create, chat } = await house({ 'model.contextLength': 1000, 'sessions.lifecycle': lifecycle })
  const steps = Array.from({ length: 6 }, (_, i) => [
    { type: 'assistant', content: 'I look.' },
    { type: 'tool_call', call_id: `c${i}`, name: 'look' },
    { type: 'tool_result', call_id: `c${i}`, content: words(`r${i}x`, 100) },
  ])
  const ends = [{ type: 'user', content: 'Go' }, ...steps.flat(), { type: 'assistant', content: 'Done.' }]
  const id = await create({ events: ends })
  const long = await chat(id, user('On'))
  expect([long.status, long.json.error.message]).toEqual([400, expect.stringContaining('/compact shortens')])
  const { status, json } = await ask('POST', `/v1/sessions/${id}/compact`, { strategy: 'discard-all' })
  expect([status, json.chars_after < json.chars_before]).toEqual([200, true])
  expect((await chat(id, user('On'))).status).toBe(200)
})
