// Logged sessions through the whole server on the scripted backend: made, talked in with tools, forked, shortened, begun anew,
// replayed to the byte, erased; and what a client does wrong.

import { afterEach, describe, expect, test } from 'vitest'
import { createScriptedTokenizer } from './backend/scripted-tokenizer.js'
import type { Program } from './compose.js'
import { RefrainError } from './core/errors.js'
import type { Job } from './core/request.js'
import { payloadsOf, post, scriptedProgram } from './testing/scripted-program.js'

const programs: Program[] = []
afterEach(async () => {
  for (const program of programs.splice(0)) await program.stop(0)
})

const tokenizer = createScriptedTokenizer({ end: '<|im_end|>', specials: ['<|im_start|>'] })

const TOOLS = [
  {
    type: 'function',
    function: {
      name: 'look',
      description: 'Looks.',
      parameters: { type: 'object', properties: { at: { type: 'string' } } },
    },
  },
]

/** What the model says next; the last is repeated. */
type Script = (string | ((job: Job) => string))[]

async function house(script: Script = ['Yes.'], flags: Record<string, unknown> = {}) {
  let n = 0
  const program = await scriptedProgram(
    {
      'backend.options': { template: 'chatml', toolCalls: 'hermes', reasoning: 'think' },
      'sessions.log.store': 'memory',
      ...flags,
    },
    {
      script: (job) => {
        const next = script[Math.min(n++, script.length - 1)] as Script[number]
        return typeof next === 'string' ? next : next(job)
      },
    },
  )
  programs.push(program)
  const ask = async (method: 'GET' | 'POST' | 'PUT' | 'DELETE', url: string, body?: object, headers = {}) => {
    const reply = await program.server.app.inject({
      method,
      url,
      headers: { ...(body && { 'content-type': 'application/json' }), ...headers },
      ...(body && { payload: JSON.stringify(body) }),
    })
    return { status: reply.statusCode, json: JSON.parse(reply.body), headers: reply.headers }
  }
  const create = async (body: object = {}) => (await ask('POST', '/v1/sessions', body)).json.id as string
  const chat = (session: string, messages: object[], more: object = {}, headers = {}) =>
    post(program, '/v1/chat/completions', { session, messages, temperature: 0, ...more }, headers)
  const events = async (id: string) => (await ask('GET', `/v1/sessions/${id}/events?limit=1000`)).json.data
  return { program, ask, create, chat, events }
}

const user = (content: string) => ({ role: 'user', content })
const call = (at: string) => `<tool_call>\n{"name": "look", "arguments": {"at": "${at}"}}\n</tool_call>`
const result = (id: string, content: string) => ({ role: 'tool', tool_call_id: id, content })
const kinds = (events: { type: string }[]) => events.map(({ type }) => type)

describe('a session', () => {
  test('takes only what is new, and shows what it was made of', async () => {
    const { program, ask, create, chat, events } = await house(['Hello.', call('tree'), 'It is green.'])
    const id = await create({ system: 'Be brief.', tools: TOOLS, metadata: { a: 1 } })
    expect(id).toMatch(/^ses_[0-9a-f]{32}$/)
    const first = (await chat(id, [user('Hi')])).json()
    expect(first.choices[0].message.content).toBe('Hello.')
    const second = (await chat(id, [user('What is the tree like?')])).json()
    const [made] = second.choices[0].message.tool_calls
    expect(made.function).toEqual({ name: 'look', arguments: '{"at": "tree"}' })
    const third = (await chat(id, [result(made.id, 'green')])).json()
    expect(third.choices[0].message.content).toBe('It is green.')
    const log = await events(id)
    expect(kinds(log)).toEqual([
      ...['head', 'user', 'policy', 'turn', 'assistant', 'usage', 'user', 'turn', 'assistant', 'tool_call', 'usage'],
      ...['tool_result', 'turn', 'assistant', 'usage'],
    ])
    expect(log.map(({ position }: { position: number }) => position)).toEqual(log.map((_: unknown, i: number) => i + 1))
    expect(log[0].tools.map((tool: { function: { name: string } }) => tool.function.name)).toEqual([
      'look',
      'read_result',
    ])
    const state = (await ask('GET', `/v1/sessions/${id}`)).json
    expect(state).toMatchObject({ turns: 3, position: 15, busy: false, metadata: { a: 1 } })
    const { text } = await program.server.app.inject('/metrics').then(({ body }) => ({ text: body }))
    expect(text).toContain('refrain_session_log_events 15')
    const list = (await ask('GET', '/v1/sessions')).json.data
    expect(list.map((each: { id: string }) => each.id)).toEqual([id])
  })

  test('is seen again as the model saw it, at each turn, to the byte', async () => {
    const prompts: string[] = []
    const say = (text: string) => (job: Job) => {
      prompts.push(tokenizer.decode(job.tokens, { special: 'keep' }))
      return text
    }
    const { ask, create, chat } = await house([say('One.'), say(call('b')), say('Two.')])
    const id = await create({ system: 'Sys.', tools: TOOLS })
    await chat(id, [user('a')])
    const { tool_calls: calls } = (await chat(id, [user('b')])).json().choices[0].message
    await chat(id, [result(calls[0].id, 'B')])
    for (const turn of [1, 2, 3]) {
      const { json } = await ask('GET', `/v1/sessions/${id}/context?at=${turn}`)
      expect(json).toMatchObject({ turn, matches: true, prompt: prompts[turn - 1] })
      expect(json.messages[0]).toEqual({ role: 'system', content: 'Sys.' })
    }
    const next = (await ask('GET', `/v1/sessions/${id}/context`)).json
    expect(next.messages.at(-1)).toEqual({ role: 'assistant', content: 'Two.' })
    expect((await ask('GET', `/v1/sessions/${id}/context?at=4`)).status).toBe(404)
  })
})

describe('turns', () => {
  test('one at a time: a second gets 409, and nothing is lost', async () => {
    const { create, chat, events } = await house(['Slowly.'], {
      'backend.options': { template: 'chatml', toolCalls: 'hermes', reasoning: 'think', decodeTokensPerSecond: 100 },
    })
    const id = await create()
    const both = await Promise.all([chat(id, [user('a')]), chat(id, [user('b')])])
    expect(both.map(({ status }) => status).sort()).toEqual([200, 409])
    const refused = both.find(({ status }) => status === 409)?.json()
    expect(refused.error).toMatchObject({ code: 'conflict' })
    expect((await events(id)).filter(({ type }: { type: string }) => type === 'user')).toHaveLength(1)
  })

  test('expected_position: a conflict appends nothing', async () => {
    const { ask, create, chat, events } = await house()
    const id = await create()
    expect((await chat(id, [user('a')], { expected_position: 7 })).json().error).toMatchObject({ code: 'conflict' })
    expect((await chat(id, [], { expected_position: 7 })).json().error).toMatchObject({
      code: 'conflict',
      param: 'expected_position',
    })
    expect(await events(id)).toHaveLength(1)
    expect((await chat(id, [user('a')], { expected_position: (await events(id)).length })).status).toBe(200)
    const append = { events: [{ type: 'user', content: 'x' }], expected_position: 1 }
    expect((await ask('POST', `/v1/sessions/${id}/events`, append)).status).toBe(409)
  })

  test('what fails is logged, stays, and is not there twice when it is asked again', async () => {
    const { create, chat, events } = await house([
      () => {
        throw new RefrainError('engine_failed', 'gone')
      },
      'Again.',
    ])
    const id = await create()
    expect((await chat(id, [user('a')])).status).toBe(500)
    expect((await events(id)).at(-1)).toMatchObject({ type: 'attempt', outcome: 'failed', turn: 1 })
    const again = await chat(id, [user('a')])
    expect(again.json().choices[0].message.content).toBe('Again.')
    const log = await events(id)
    expect(kinds(log)).toEqual(['head', 'user', 'policy', 'turn', 'attempt', 'turn', 'assistant', 'usage'])
  })

  test('an idempotency key is one turn, and its answer is told again', async () => {
    const { create, chat, events } = await house([`Look. ${call('a')}`, 'Other.'])
    const id = await create({ tools: TOOLS })
    const key = { 'idempotency-key': 'k1' }
    const first = (await chat(id, [user('a')], {}, key)).json()
    const second = (await chat(id, [user('a')], {}, key)).json()
    expect(second.choices).toEqual(first.choices)
    expect(second.usage).toMatchObject({ completion_tokens: first.usage.completion_tokens })
    expect((await events(id)).filter(({ type }: { type: string }) => type === 'user')).toHaveLength(1)
    expect((await chat(id, [user('b')], {}, { 'idempotency-key': 'x'.repeat(201) })).json().error.param).toBe(
      'idempotency-key',
    )
  })

  test('a client that leaves leaves an attempt', async () => {
    const { program, create, events } = await house(['Long. '.repeat(400)], {
      'backend.options': { template: 'chatml', toolCalls: 'hermes', reasoning: 'think', decodeTokensPerSecond: 50 },
    })
    const url = await program.start()
    const id = await create()
    const stop = new AbortController()
    const response = await fetch(`${url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ session: id, messages: [user('a')], stream: true }),
      signal: stop.signal,
    })
    await response.body?.getReader().read()
    stop.abort()
    const last = async () => (await events(id)).at(-1)
    await expect.poll(last).toMatchObject({ type: 'attempt', outcome: 'cancelled' })
  })

  test.each([
    [
      'messages that continue',
      { messages: [user('a'), { role: 'assistant', content: 'b', prefix: true }] },
      'messages',
    ],
    ['n', { n: 2 }, 'n'],
    ['another system text', { messages: [{ role: 'system', content: 'x' }, user('a')] }, 'messages'],
    ['other tools', { tools: [{ ...TOOLS[0], function: { name: 'other' } }] }, 'tools'],
    ['a result that nobody waits for', { messages: [result('c9', 'x')] }, 'messages'],
    ['an id that is none', { session: 'ses_1' }, 'session'],
    ['apply', { apply: 'later' }, 'apply'],
    ['a choice of no tool', { tool_choice: { type: 'function', function: { name: 'nope' } } }, 'tool_choice'],
  ])('%s: refused by its field, nothing is appended', async (_, more, param) => {
    const { create, chat, events } = await house()
    const id = await create({ tools: TOOLS })
    const refused = await chat(id, [user('a')], more)
    expect([refused.status, refused.json().error.param]).toEqual([400, param])
    expect(kinds(await events(id))).toEqual(['head'])
  })

  test('the same head is taken, another one with apply', async () => {
    const { ask, create, chat, events } = await house(['Yes.'])
    const id = await create({ system: 'S', tools: TOOLS })
    const same = await chat(id, [{ role: 'system', content: 'S' }, user('a')], { tools: TOOLS })
    expect(same.status).toBe(200)
    const other = [{ ...TOOLS[0], function: { name: 'other' } }]
    expect((await chat(id, [user('b')], { tools: other, apply: 'now' })).status).toBe(200)
    const { tools } = (await ask('GET', `/v1/sessions/${id}/context`)).json
    expect(tools.map((tool: { function: { name: string } }) => tool.function.name)).toEqual(['other', 'read_result'])
    expect((await events(id)).filter(({ type }: { type: string }) => type === 'head')).toHaveLength(2)
  })

  test('a session that is not there, or somebody else’s, is 404', async () => {
    const { ask, create, chat } = await house(['Yes.'], {
      tenants: [
        { name: 'a', key: 'key-of-a-1' },
        { name: 'b', key: 'key-of-b-1' },
      ],
    })
    const of = (key: string) => ({ authorization: `Bearer ${key}` })
    const made = await ask('POST', '/v1/sessions', {}, of('key-of-a-1'))
    const { id } = made.json
    expect((await chat(id, [user('x')], {}, of('key-of-a-1'))).status).toBe(200)
    expect((await chat(id, [user('x')], {}, of('key-of-b-1'))).status).toBe(404)
    expect((await ask('GET', `/v1/sessions/${id}/events`, undefined, of('key-of-b-1'))).status).toBe(404)
    expect((await ask('DELETE', '/v1/tenants/a', undefined, of('key-of-b-1'))).status).toBe(403)
    expect((await ask('DELETE', '/v1/tenants/a', undefined, of('key-of-a-1'))).status).toBe(200)
    expect((await ask('GET', `/v1/sessions/${id}`, undefined, of('key-of-a-1'))).status).toBeGreaterThanOrEqual(404)
    void create
  })
})

describe('forks', () => {
  test('share the prefix, go on apart, and keep their parent from being erased', async () => {
    const { ask, create, chat } = await house([(job) => `I am ${job.request.session?.slice(-4)}.`])
    const id = await create({ system: 'A long system text. '.repeat(40) })
    await chat(id, [user('a')])
    const made = (await ask('POST', `/v1/sessions/${id}/fork`, { n: 8 })).json.data as { id: string; parent: object }[]
    expect(new Set(made.map((each) => each.id)).size).toBe(8)
    for (const { id: fork, parent } of made) {
      expect(parent).toEqual({ session: id, at: 6 })
      const reply = await chat(fork, [user('b')])
      expect(reply.json().choices[0].message.content).toBe(`I am ${fork.slice(-4)}.`)
      expect(reply.headers['x-refrain-cache']).toMatch(/memory=(?!0,)/)
    }
    expect((await ask('GET', `/v1/sessions/${id}`)).json.position).toBe(6)
    const refused = await ask('DELETE', `/v1/sessions/${id}`)
    expect([refused.status, refused.json.error.code]).toEqual([409, 'conflict'])
    for (const { id: fork } of made) expect((await ask('DELETE', `/v1/sessions/${fork}`)).status).toBe(200)
    expect((await ask('DELETE', `/v1/sessions/${id}`)).json).toEqual({ id, object: 'session', deleted: true })
    expect((await chat(id, [user('c')])).status).toBeGreaterThanOrEqual(404)
  })

  test.each([
    [{ n: 65 }, 'n'],
    [{ at: 99 }, 'at'],
    [{ at: 0 }, 'at'],
  ])('%o is refused', async (body, param) => {
    const { ask, create } = await house()
    const id = await create()
    const { status, json } = await ask('POST', `/v1/sessions/${id}/fork`, body)
    expect([status, json.error.param]).toEqual([400, param])
  })
})

describe('tools of the server’s own', () => {
  const own = (name: string, args: object) =>
    `<tool_call>\n{"name": "${name}", "arguments": ${JSON.stringify(args)}}\n</tool_call>`

  test('run by themselves, hidden from the client, in one answer', async () => {
    const { ask, create, chat, events } = await house([
      `Noting. ${own('memory_set', { label: 'plan', value: 'First A.' })}`,
      'Done.',
    ])
    const id = await create({ built_in_tools: ['memory'] })
    const { choices, usage } = (await chat(id, [user('Plan.')])).json()
    expect(choices[0].message.tool_calls).toBeUndefined()
    expect(choices[0].message.content).toMatch(/^Noting\.\s*Done\.$/)
    expect(choices[0].finish_reason).toBe('stop')
    expect(usage.prompt_tokens).toBeGreaterThan(100)
    const log = await events(id)
    expect(kinds(log)).toEqual([
      ...['head', 'user', 'policy', 'turn', 'assistant', 'tool_call', 'memory', 'tool_result', 'usage'],
      ...['turn', 'assistant', 'usage'],
    ])
    expect(JSON.stringify((await ask('GET', `/v1/sessions/${id}/context`)).json)).toContain('First A.')
  })

  test('stream as one answer, with calls of the client’s counted from 0', async () => {
    const { create, chat } = await house([`${own('memory_set', { label: 'p', value: 'v' })}\n${call('x')}`])
    const id = await create({ built_in_tools: ['memory'], tools: TOOLS })
    const { text } = await chat(id, [user('Go.')], { stream: true })
    const deltas = payloadsOf(text).flatMap((chunk) => chunk.choices?.[0]?.delta?.tool_calls ?? [])
    expect(deltas.map(({ index }) => index)).toEqual(deltas.map(() => 0))
    expect(deltas[0].function.name).toBe('look')
  })

  test('a result that is too long is stored, and read on', async () => {
    const { ask, create, chat, events } = await house(
      [
        call('big'),
        (job) => {
          const text = tokenizer.decode(job.tokens, { special: 'keep' })
          const locator = /stored as "(res_\w+)"/.exec(text)?.[1]
          return own('read_result', { locator, offset: 2000, length: 5 })
        },
        'Read.',
      ],
      { 'sessions.lifecycle': { results: { batchChars: 10_000, singleChars: 5000, previewChars: 2000 } } },
    )
    const id = await create({ tools: TOOLS })
    const [made] = (await chat(id, [user('Look.')])).json().choices[0].message.tool_calls
    const whole = Array.from({ length: 12_000 }, (_, i) => String(i % 10)).join('')
    const reply = (await chat(id, [result(made.id, whole)])).json()
    expect(reply.choices[0].message.content).toBe('Read.')
    const log = await events(id)
    const stub = log.find(({ spilled }: { spilled?: object }) => spilled)
    expect(stub.spilled.chars).toBe(12_000)
    const read = log.findLast(({ type }: { type: string }) => type === 'tool_result')
    expect(read.content).toMatch(/^01234\n\[9995 characters follow; read on with offset 2005\]$/)
    const got = (await ask('GET', `/v1/sessions/${id}/results/${stub.spilled.locator}?offset=11990&length=50`)).json
    expect(got).toMatchObject({ offset: 11990, length: 10, chars: 12_000, content: '0123456789' })
    expect((await ask('GET', `/v1/sessions/${id}/results/nope`)).status).toBe(404)
  })

  test('rounds are bounded', async () => {
    const { create, chat, events } = await house([own('memory_set', { label: 'p', value: 'v' })], {
      'sessions.log.builtInRounds': 2,
    })
    const id = await create({ built_in_tools: ['memory'] })
    expect((await chat(id, [user('Go.')])).status).toBe(200)
    expect((await events(id)).filter(({ type }: { type: string }) => type === 'turn')).toHaveLength(3)
  })
})

describe('memory', () => {
  test('blocks are seen, bounded, and shared between sessions', async () => {
    const { ask, create, chat } = await house()
    const put = await ask('PUT', '/v1/memory/team', { label: 'team', value: 'We are three.', limit_tokens: 50 })
    expect(put.json).toEqual({ id: 'team', object: 'memory', label: 'team', value: 'We are three.', limit_tokens: 50 })
    const long = await ask('PUT', '/v1/memory/team', { label: 'team', value: 'x'.repeat(200), limit_tokens: 50 })
    expect([long.status, long.json.error.code]).toEqual([400, 'memory_limit'])
    const event = { type: 'memory', label: 'team', value: 'We are three.', shared: 'team' }
    const [one, two] = [await create({ events: [event] }), await create({ events: [event] })]
    const seen = async (id: string) => (await ask('GET', `/v1/sessions/${id}/context`)).json.prompt
    expect(await seen(one)).toContain('We are three.')
    await ask('POST', `/v1/sessions/${one}/events`, { events: [{ ...event, value: 'We are four.' }] })
    await chat(two, [user('Hi')])
    expect(await seen(two)).toContain('We are four.')
    expect((await ask('GET', '/v1/memory/team')).json.value).toBe('We are four.')
    expect((await ask('GET', '/v1/memory')).json.data).toHaveLength(1)
    expect((await ask('GET', '/v1/memory/none')).status).toBe(404)
  })
})

describe('events', () => {
  test('that a client logs are what the next turn sees', async () => {
    const { ask, create, chat, events } = await house()
    const id = await create()
    const post = async (list: object[]) => (await ask('POST', `/v1/sessions/${id}/events`, { events: list })).json
    const made = await post([
      { type: 'user', content: 'What is in a.txt?', key: 'u1', sources: ['s2', 's1', 's1'] },
      { type: 'assistant', content: 'I look.' },
      { type: 'tool_call', call_id: 'c1', name: 'read', arguments: '{"file":"a.txt"}' },
      { type: 'tool_result', call_id: 'c1', content: 'A letter.' },
      { type: 'note', label: 'date', content: 'It is Monday.' },
    ])
    expect(made.data.map(({ position }: { position: number }) => position)).toEqual([2, 3, 4, 5, 6])
    expect(made.data[0].sources).toEqual(['s1', 's2'])
    const again = await post([{ type: 'user', content: 'What is in a.txt?', key: 'u1' }])
    expect(again.data.map(({ position }: { position: number }) => position)).toEqual([2])
    expect((await chat(id, [])).status).toBe(200)
    const { prompt, tail } = (await ask('GET', `/v1/sessions/${id}/context?at=1`)).json
    expect(tail).toHaveLength(1)
    for (const text of ['a.txt?', 'A letter.', 'It is Monday.']) expect(prompt).toContain(text)
    expect((await events(id)).findLast(({ type }: { type: string }) => type === 'usage').stable_tokens).toBeGreaterThan(
      0,
    )
  })

  test.each([
    [{ type: 'compaction' }, 'events[0].type'],
    [{ type: 'user' }, 'events[0].content'],
    [{ type: 'tool_result', call_id: 'c', content: 'x' }, 'events'],
    [{ type: 'memory', label: '', value: 'x' }, 'events[0].label'],
    [{ type: 'head' }, 'events[0]'],
    [{ type: 'layer' }, 'events[0].layer_id'],
    [{ type: 'attempt', outcome: 'won', reason: 'x' }, 'events[0].outcome'],
  ])('%o is refused by its field', async (event, param) => {
    const { ask, create } = await house()
    const id = await create()
    const { status, json } = await ask('POST', `/v1/sessions/${id}/events`, { events: [event] })
    expect([status, json.error.param]).toEqual([400, param])
  })

  test('are paged', async () => {
    const { ask, create } = await house()
    const id = await create({ events: Array.from({ length: 9 }, (_, i) => ({ type: 'user', content: `${i}` })) })
    const page = (await ask('GET', `/v1/sessions/${id}/events?from=4&limit=3`)).json
    expect(page.data.map(({ position }: { position: number }) => position)).toEqual([4, 5, 6])
    expect(page.has_more).toBe(true)
    expect((await ask('GET', `/v1/sessions/${id}/events?from=-1`)).json.error.param).toBe('from')
    expect((await ask('GET', `/v1/sessions/${id}/events?limit=5000`)).json.error.param).toBe('limit')
  })
})

test('where nothing is logged, routes and bodies say so', async () => {
  const { ask, chat } = await house(['Yes.'], { 'sessions.log.store': 'none' })
  for (const [method, path] of [
    ['POST', '/v1/sessions'],
    ['GET', '/v1/sessions'],
    ['POST', '/v1/sessions/ses_1/fork'],
  ] as const) {
    const { status, json } = await ask(method, path)
    expect([status, json.error.message]).toEqual([404, expect.stringContaining('sessions.log.store')])
  }
  const refused = await chat(`ses_${'0'.repeat(32)}`, [user('a')])
  expect(refused.json().error).toMatchObject({ code: 'unsupported_parameter', param: 'session' })
})

describe('what rests on a revoked source', () => {
  test('is shown to auditors alone', async () => {
    const { ask } = await house(['Yes.'], {
      tenants: [
        { name: 'a', key: 'key-of-a-1' },
        { name: 'ops', key: 'key-of-ops-1', admin: true },
      ],
    })
    const of = (key: string) => ({ authorization: `Bearer ${key}` })
    const as = (key: string, method: 'GET' | 'POST' | 'PUT', path: string, body?: object) =>
      ask(method, path, body, of(key))
    const turned = async (key: string) => {
      const { id } = (await as(key, 'POST', '/v1/sessions', {})).json
      const event = { type: 'user', content: 'SECRET', sources: ['web'] }
      await as(key, 'POST', `/v1/sessions/${id}/events`, { events: [event] })
      await as(key, 'POST', '/v1/chat/completions', { session: id, messages: [] })
      await as(key, 'PUT', '/v1/sources/web', { state: 'revoked' })
      return as(key, 'GET', `/v1/sessions/${id}/context?at=1`)
    }
    const refused = await turned('key-of-a-1')
    expect([refused.status, refused.json.error.code]).toEqual([403, 'source_revoked'])
    const shown = await turned('key-of-ops-1')
    expect(shown.json).toMatchObject({ matches: true, prompt: expect.stringContaining('SECRET') })
    const { id } = (await as('key-of-ops-1', 'GET', '/v1/sessions?tenant=a')).json.data[0]
    const theirs = await as('key-of-ops-1', 'GET', `/v1/sessions/${id}/context?at=1&tenant=a`)
    expect(theirs.json.prompt).toContain('SECRET')
    expect((await as('key-of-a-1', 'GET', '/v1/sessions?tenant=ops')).json.data[0].id).toBe(id)
  })

  test('a turn that runs on it is ended', async () => {
    const { ask, create, chat, events } = await house(['Slow. '.repeat(200)], {
      'backend.options': { template: 'chatml', toolCalls: 'hermes', reasoning: 'think', decodeTokensPerSecond: 50 },
    })
    const id = await create({ events: [{ type: 'user', content: 'x', sources: ['web'] }] })
    const running = chat(id, [])
    await expect.poll(async () => (await ask('GET', `/v1/sessions/${id}`)).json.turns).toBe(1)
    expect((await ask('PUT', '/v1/sources/web', { state: 'revoked' })).status).toBe(200)
    expect((await running).json().error.code).toBe('source_revoked')
    expect(kinds(await events(id))).toEqual(['head', 'user', 'policy', 'turn', 'attempt', 'revocation'])
    expect((await ask('GET', `/v1/sessions/${id}`)).json.busy).toBe(false)
  })

  test('and so is one of a session that is erased', async () => {
    const { ask, create, chat } = await house(['Slow. '.repeat(200)], {
      'backend.options': { template: 'chatml', toolCalls: 'hermes', reasoning: 'think', decodeTokensPerSecond: 50 },
    })
    const id = await create()
    const running = chat(id, [user('x')])
    await expect.poll(async () => (await ask('GET', `/v1/sessions/${id}`)).json.turns).toBe(1)
    expect((await ask('DELETE', `/v1/sessions/${id}`)).status).toBe(200)
    expect((await running).json().error.code).toBe('erased')
    expect((await ask('GET', `/v1/sessions/${id}`)).status).toBe(410)
  })
})

test('tools that are told behind the history can be called at once', async () => {
  const { create, chat } = await house(['Yes.', '<tool_call>\n{"name": "peek", "arguments": {}}\n</tool_call>'])
  const id = await create({ tools: TOOLS })
  await chat(id, [user('a')])
  const peek = { type: 'function', function: { name: 'peek', parameters: { type: 'object', properties: {} } } }
  const reply = (await chat(id, [user('b')], { tools: [...TOOLS, peek], apply: 'append' })).json()
  expect(reply.choices[0].message.tool_calls[0].function.name).toBe('peek')
})
