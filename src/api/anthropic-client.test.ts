// Anthropic's official client against a real socket: create, the stream helper with its accumulator, tool loops that append
// what it returns, counts, models, errors with the headers that its retries look at.

import Anthropic from '@anthropic-ai/sdk'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Program } from '../compose.js'
import { RefrainError } from '../core/errors.js'
import { hasRecordings, recordings } from '../testing/recordings.js'
import { post, scriptedProgram } from '../testing/scripted-program.js'
import { messagesOf, type ToldAnswer, type ToldServer, toldServer } from '../testing/told-server.js'

const LOOK = { reasoning: 'The city is asked for.\nI look.\n', content: 'Let me look.\n\n' }
const ODD = '{"limit": 20.0,  "city": "caf\\u00e9\\/x"}'
/** What JavaScript makes of it. */
const PLAIN = '{"limit":20,"city":"café/x"}'
const tool = {
  name: 'lookup',
  description: 'Looks a city up.',
  input_schema: { type: 'object' as const, properties: { city: { type: 'string' }, limit: { type: 'number' } } },
}
const hello = { model: 'claude-x', max_tokens: 100, messages: [{ role: 'user' as const, content: 'Hello' }] }

let next: ToldAnswer[] | Error = []
let server: ToldServer
let client: Anthropic

const clientOf = (url: string, more: object = {}) =>
  new Anthropic({ baseURL: url.replace(/\/v1$/, ''), apiKey: 'unused', maxRetries: 0, ...more })

beforeAll(async () => {
  server = await toldServer(() => (next instanceof Error ? next : (next.shift() ?? { content: 'Done.' })))
  client = clientOf(server.url)
})
afterAll(() => server.close())

function tell(...answers: ToldAnswer[]): void {
  next = answers
  server.requests.length = 0
}

const usage = {
  input_tokens: 0,
  cache_creation_input_tokens: 36,
  cache_read_input_tokens: 64,
  cache_creation: { ephemeral_5m_input_tokens: 36, ephemeral_1h_input_tokens: 0 },
}

describe('create', () => {
  test('one body', async () => {
    tell({ ...LOOK, calls: [{ name: 'lookup', arguments: ODD }] })
    const { data, response, request_id } = await client.messages
      .create({ ...hello, tools: [tool], system: 'Be brief.' })
      .withResponse()
    expect(data).toMatchObject({ type: 'message', role: 'assistant', model: 'told-model', stop_reason: 'tool_use' })
    expect(data.id).toMatch(/^msg_[0-9a-f]{32}$/)
    expect(data.content).toMatchObject([
      { type: 'thinking', thinking: LOOK.reasoning, signature: expect.stringMatching(/^\S+$/) },
      { type: 'text', text: LOOK.content },
      { type: 'tool_use', name: 'lookup', input: JSON.parse(ODD), id: expect.stringMatching(/^toolu_\w+$/) },
    ])
    expect(data.usage).toMatchObject({ ...usage, output_tokens_details: { thinking_tokens: expect.any(Number) } })
    expect(request_id).toBe(response.headers.get('x-request-id'))
    expect(messagesOf(server.requests[0]!).map(({ role }) => role)).toEqual(['system', 'user'])
  })

  test('the beta path, whose query does not matter', async () => {
    tell({ content: 'Yes.' })
    const message = await client.beta.messages.create({
      ...hello,
      betas: ['context-management-2025-06-27'],
      context_management: { edits: [{ type: 'clear_thinking_20251015', keep: 'all' }] },
      diagnostics: { previous_message_id: 'msg_1' },
    })
    expect(message.context_management).toEqual({ applied_edits: [] })
    expect(message.diagnostics).toEqual({ cache_miss_reason: { type: 'unavailable' } })
  })
})

describe('the stream helper', () => {
  test('puts together what was said', async () => {
    tell({
      ...LOOK,
      calls: [
        { id: 'functions.lookup:0', name: 'lookup', arguments: ODD },
        { name: 'lookup', arguments: '' },
      ],
    })
    const texts: string[] = []
    const thoughts: string[] = []
    const stream = client.messages.stream({ ...hello, tools: [tool] })
    stream.on('text', (delta) => texts.push(delta)).on('thinking', (delta) => thoughts.push(delta))
    const message = await stream.finalMessage()
    expect([texts.join(''), thoughts.join('')]).toEqual([LOOK.content, LOOK.reasoning])
    expect(message.content.map(({ type }) => type)).toEqual(['thinking', 'text', 'tool_use', 'tool_use'])
    expect(message.content[0]).toMatchObject({ thinking: LOOK.reasoning, signature: expect.stringMatching(/^\S+$/) })
    expect(message.content[2]).toMatchObject({ id: 'functions.lookup:0', input: JSON.parse(ODD) })
    expect(message.content[3]).toMatchObject({ input: {} })
    expect(message).toMatchObject({ stop_reason: 'tool_use', usage })
  })

  test('usage is real in the first event', async () => {
    tell({ content: 'Hi.' })
    const events = []
    for await (const event of client.messages.stream(hello)) events.push(event)
    expect(events[0]).toMatchObject({ type: 'message_start', message: { usage } })
    expect(events.map(({ type }) => type)).toEqual([
      'message_start',
      'content_block_start',
      'content_block_delta',
      'content_block_stop',
      'message_delta',
      'message_stop',
    ])
  })

  test.each([
    ['nothing', {}, 'end_turn', 0],
    ['reasoning alone', { reasoning: 'hm', reason: 'length' as const }, 'model_context_window_exceeded', 1],
  ])('an answer of %s', async (_, answer, reason, blocks) => {
    tell(answer)
    const message = await client.messages.stream(hello).finalMessage()
    expect([message.stop_reason, message.content.length]).toEqual([reason, blocks])
  })

  test('an answer that broke is an error, never a message', async () => {
    tell({ content: 'It goes', failure: new RefrainError('engine_failed', 'the engine failed') })
    const error = await client.messages
      .stream(hello)
      .finalMessage()
      .catch((thrown) => thrown)
    expect(error).toBeInstanceOf(Anthropic.APIError)
    expect(error.error).toMatchObject({ type: 'error', error: { type: 'api_error', message: 'the engine failed' } })
  })

  test.each(['well', 'badly'])('a long prefill: pings, and then it ends %s', async (end) => {
    let release: () => void = () => undefined
    const after = new Promise<void>((resolve) => {
      release = resolve
    })
    const failure = end === 'badly' && { failure: new RefrainError('out_of_memory', 'no room') }
    const slow = await toldServer(() => ({ after, content: 'At last.', ...failure }), { keepaliveMs: 5 })
    try {
      const { body } = await fetch(`${slow.url}/messages`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ ...hello, stream: true }),
      })
      let text = ''
      for await (const chunk of body!.pipeThrough(new TextDecoderStream())) {
        text += chunk
        if (text.includes('event: ping')) release()
      }
      const types = [...text.matchAll(/^event: (\w+)$/gm)].map(([, type]) => type)
      expect([types[0], types.at(-1)]).toEqual(['ping', end === 'well' ? 'message_stop' : 'error'])
      expect(types.filter((type) => type === 'message_start')).toHaveLength(1)
    } finally {
      await slow.close()
    }
  })
})

test.each(['create', 'stream'])('a two-tool loop by %s: what is appended is what was said', async (way) => {
  tell(
    { ...LOOK, calls: [{ id: 'call_1', name: 'lookup', arguments: ODD }] },
    { reasoning: 'Again.\n', calls: [{ id: 'call_2', name: 'lookup', arguments: '{"x": 1e3}' }] },
    { reasoning: 'Enough.', content: '\n\nIt is there.\n' },
  )
  const messages: Anthropic.MessageParam[] = [{ role: 'user', content: 'Look it up.' }]
  for (let step = 0; step < 3; step++) {
    const body = { ...hello, messages, tools: [tool] }
    const message =
      way === 'create' ? await client.messages.create(body) : await client.messages.stream(body).finalMessage()
    messages.push({ role: 'assistant', content: message.content })
    const results = message.content.flatMap((block) =>
      block.type === 'tool_use' ? [{ type: 'tool_result' as const, tool_use_id: block.id, content: 'found' }] : [],
    )
    if (results.length > 0) messages.push({ role: 'user', content: results })
  }
  const turns = server.requests.map(messagesOf)
  expect(turns[1]!.slice(0, turns[0]!.length)).toEqual(turns[0])
  expect(turns[2]!.slice(0, turns[1]!.length)).toEqual(turns[1])
  expect(turns[2]!.slice(1)).toEqual([
    { role: 'assistant', ...LOOK, toolCalls: [{ id: 'call_1', name: 'lookup', arguments: PLAIN }] },
    { role: 'tool', content: 'found', toolCallId: 'call_1' },
    {
      role: 'assistant',
      content: '',
      reasoning: 'Again.\n',
      toolCalls: [{ id: 'call_2', name: 'lookup', arguments: '{"x":1000}' }],
    },
    { role: 'tool', content: 'found', toolCallId: 'call_2' },
  ])
  expect(messages.at(-1)).toMatchObject({ content: [{ type: 'thinking' }, { text: '\n\nIt is there.\n' }] })
})

test("the SDK's own tool runner: its thread is not held, so it sends the whole conversation, and ends", async () => {
  tell(
    { calls: [{ id: 'call_1', name: 'lookup', arguments: ODD }] },
    { calls: [{ id: 'call_2', name: 'lookup', arguments: '{}' }] },
    { content: 'It is there.' },
  )
  const asked: unknown[] = []
  const run = async (input: unknown) => {
    asked.push(input)
    return 'found'
  }
  const runnable = { ...tool, run, parse: (content: unknown) => content }
  const message = await client.beta.messages.toolRunner({ ...hello, tools: [runnable as never] })
  expect(asked).toEqual([JSON.parse(ODD), {}])
  expect(message.content).toMatchObject([{ type: 'text', text: 'It is there.' }])
  const turns = server.requests.map(messagesOf)
  expect(turns.map((turn) => turn.length)).toEqual([1, 3, 5])
  expect(turns[2]!.slice(0, 3)).toEqual(turns[1])
})

describe('refusals', () => {
  test.each([
    [{ max_tokens: undefined }, /'max_tokens' is required/],
    [{ messages: [{ role: 'user', content: [{ type: 'image', source: {} }] }] }, /messages\[0\].content\[0\].type/],
    [{ container: 'c' }, /'container'/],
  ])('%j', async (more, message) => {
    tell()
    const error = await client.messages.create({ ...hello, ...more } as never).catch((thrown) => thrown)
    expect(error).toBeInstanceOf(Anthropic.BadRequestError)
    expect(error.error).toMatchObject({
      type: 'error',
      error: { type: 'invalid_request_error', message: expect.stringMatching(message) },
      request_id: error.requestID,
    })
    expect(server.requests).toEqual([])
  })

  test.each([
    ['queue_full', 429, 'rate_limit_error'],
    ['no_room', 429, 'rate_limit_error'],
    ['queue_timeout', 503, 'overloaded_error'],
    ['out_of_memory', 503, 'overloaded_error'],
    ['draining', 503, 'overloaded_error'],
    ['engine_failed', 500, 'api_error'],
  ] as const)('%s always says when to come again', async (code, status, type) => {
    next = new RefrainError(code, 'not now')
    const error = await client.messages.create({ ...hello, stream: true }).catch((thrown) => thrown)
    expect(error).toMatchObject({ status, error: { error: { type, message: 'not now' } } })
    expect(error.headers.get('retry-after')).toBe('1')
    expect(error.headers.get('x-should-retry')).toBe('true')
  })

  test('the client comes again where it is told to', async () => {
    let refusals = 1
    const busy = await toldServer(() =>
      refusals-- > 0 ? new RefrainError('queue_full', 'not now', { retryAfterMs: 1 }) : { content: 'Now.' },
    )
    try {
      const message = await clientOf(busy.url, { maxRetries: 1 }).messages.create(hello)
      expect(message.content).toMatchObject([{ text: 'Now.' }])
      expect(busy.requests).toHaveLength(2)
    } finally {
      await busy.close()
    }
  })
})

describe('over the scripted backend', () => {
  let program: Program
  let own: Anthropic
  const flags = {
    'model.contextLength': 4096,
    'model.aliases': { 'claude-*': 'smollm2-135m-instruct' },
    'limits.bodyBytes': 200_000,
    tenants: [{ name: 'a', key: 'a'.repeat(32) }],
  }
  beforeAll(async () => {
    program = await scriptedProgram(flags, { script: () => 'An answer. END of it.' })
    own = clientOf(await program.start(), { apiKey: 'a'.repeat(32) })
  })
  afterAll(() => program.stop(0))

  const long = 'What is a refrain? '.repeat(40)

  test('a follow-up turn is a cache hit, and the numbers sum to the prompt that is counted', async () => {
    const messages: Anthropic.MessageParam[] = [{ role: 'user', content: long }]
    const counts = [await own.messages.countTokens({ model: 'claude-x', messages })]
    const first = await own.messages.stream({ ...hello, messages }).finalMessage()
    messages.push({ role: 'assistant', content: first.content }, { role: 'user', content: 'And then?' })
    counts.push(await own.messages.countTokens({ model: 'claude-x', messages }))
    const second = await own.messages.create({ ...hello, messages })
    const sums = [first, second].map(
      ({ usage }) => usage.input_tokens + usage.cache_creation_input_tokens! + usage.cache_read_input_tokens!,
    )
    expect(sums[0]).toBe(counts[0]!.input_tokens)
    // A reply goes on as it was sampled, which need not be how its text is cut by itself.
    expect(Math.abs(sums[1]! - counts[1]!.input_tokens)).toBeLessThan(5)
    const before = sums[0]!
    expect(second.usage.cache_read_input_tokens).toBeGreaterThanOrEqual(Math.floor((before - 1) / 64) * 64)
    expect(first.usage.cache_creation_input_tokens).toBeGreaterThanOrEqual(Math.floor((before - 1) / 64) * 64)
  })

  test('a stop sequence is named', async () => {
    const message = await own.messages.create({ ...hello, stop_sequences: ['no', 'END'] })
    expect(message).toMatchObject({ stop_reason: 'stop_sequence', stop_sequence: 'END' })
    expect(message.content).toMatchObject([{ text: 'An answer. ' }])
  })

  test('max_tokens: 0 warms the cache and says nothing', async () => {
    const messages = [{ role: 'user' as const, content: `Warm. ${long}` }]
    const warm = await own.messages.create({ ...hello, max_tokens: 0, messages })
    expect(warm).toMatchObject({ content: [], stop_reason: 'max_tokens', usage: { output_tokens: 0 } })
    const after = await own.messages.create({ ...hello, messages })
    expect(after.usage.cache_read_input_tokens).toBeGreaterThanOrEqual(64)
  })

  test('counts see system text, tools and edits', async () => {
    const of = async (more: object) => (await own.messages.countTokens({ ...hello, ...more } as never)).input_tokens
    const plain = await of({})
    expect(await of({ system: 'Be brief.' })).toBeGreaterThan(plain)
    expect(await of({ tools: [tool] })).toBeGreaterThan(plain + 20)
    const called = [{ type: 'tool_use', id: 't', name: 'lookup', input: {} }]
    const results = (content: string) => [{ type: 'tool_result', tool_use_id: 't', content }]
    const messages = [
      hello.messages[0],
      { role: 'assistant', content: called },
      { role: 'user', content: results(long) },
    ]
    const edit = {
      type: 'clear_tool_uses_20250919',
      trigger: { type: 'tool_uses', value: 1 },
      keep: { type: 'tool_uses', value: 0 },
    }
    const twice = [...messages, ...messages.slice(1)]
    const body = { model: 'claude-x', messages: twice, context_management: { edits: [edit] } }
    const edited = await own.beta.messages.countTokens(body as never)
    expect(edited.context_management?.original_input_tokens).toBe(await of({ messages: twice }))
    expect(edited.input_tokens).toBeLessThan(edited.context_management!.original_input_tokens - 100)
    await expect(of({ model: 'unknown' })).rejects.toMatchObject({
      status: 404,
      error: { error: { type: 'not_found_error' } },
    })
  })

  test('too long a prompt is told in the words on which agents compact', async () => {
    const messages = [{ role: 'user' as const, content: 'x'.repeat(20_000) }]
    const error = await own.messages.create({ ...hello, messages }).catch((thrown) => thrown)
    expect(error.status).toBe(400)
    expect(error.error.error.message).toMatch(/^prompt is too long: \d+ tokens > 4096 maximum/)
    expect(error.error.error.message).toContain('capability_rejected: prompt_too_long')
    expect(error.error.error.message).toContain('maximum context length is 4096 tokens')
    expect(error.headers.get('x-should-retry')).toBe('false')
  })

  test('models: pages of them', async () => {
    const list = await own.models.list({ limit: 1000 })
    expect(list.data).toMatchObject([{ id: 'smollm2-135m-instruct', type: 'model', max_input_tokens: 4096 }])
    expect(Date.parse(list.data[0]!.created_at)).not.toBeNaN()
    expect(list.hasNextPage()).toBe(false)
    expect(list).toMatchObject({ first_id: 'smollm2-135m-instruct', last_id: 'smollm2-135m-instruct' })
    expect((await own.models.retrieve('claude-x')).display_name).toBe('smollm2-135m-instruct')
    const missing = await own.models.retrieve('nothing').catch((thrown) => thrown)
    expect(missing).toMatchObject({ status: 404, error: { type: 'error', error: { type: 'not_found_error' } } })
  })

  test.each([
    ['no key', { method: 'POST' as const, headers: {} }, 401, 'authentication_error'],
    ['a wrong key', { method: 'POST' as const, headers: { 'x-api-key': 'b' } }, 401, 'authentication_error'],
    ['a GET', { method: 'GET' as const }, 405, 'invalid_request_error'],
    ['no JSON', { payload: '{' }, 400, 'invalid_request_error'],
    ['a form', { headers: { 'content-type': 'text/plain' } }, 415, 'invalid_request_error'],
    ['too large', { payload: `"${'x'.repeat(200_001)}"` }, 413, 'request_too_large'],
    ['an unknown path below', { url: '/v1/messages/batches' }, 404, 'not_found_error'],
    ['an unknown path', { url: '/v1/files' }, 404, 'not_found_error'],
  ])('%s: refused in the shape of this API, query or not', async (_, asked, status, type) => {
    for (const query of ['', '?beta=true']) {
      const {
        url = '/v1/messages',
        method = 'POST',
        payload = '{}',
        headers = {},
      } = asked as {
        url?: string
        method?: 'POST' | 'GET'
        payload?: string
        headers?: Record<string, string>
      }
      const needsKey = status === 401 ? {} : { 'x-api-key': 'a'.repeat(32) }
      const reply = await program.server.app.inject({
        method,
        url: url + query,
        headers: { 'anthropic-version': '2023-06-01', 'content-type': 'application/json', ...needsKey, ...headers },
        ...(method === 'POST' && { payload }),
      })
      expect([reply.statusCode, reply.json()]).toMatchObject([status, { type: 'error', error: { type } }])
      expect(reply.json().request_id).toBe(reply.headers['request-id'])
    }
  })

  test('what is ignored is named; a probe of the server is answered', async () => {
    const key = { 'x-api-key': 'a'.repeat(32) }
    const reply = await post(program, '/v1/messages?beta=true', { ...hello, speed: 'fast', new_field: 1 }, key)
    expect([reply.status, reply.headers['x-refrain-ignored']]).toEqual([200, 'speed, new_field'])
    const probe = await program.server.app.inject({ method: 'HEAD', url: '/api/hello' })
    expect(probe.statusCode).toBe(200)
  })
})

test.skipIf(!hasRecordings)('every recorded request is answered to its end (needs ../shared)', async () => {
  const recorded = recordings().filter(({ path }) => path.split('?')[0] === '/v1/messages')
  expect(recorded.length).toBeGreaterThan(30)
  tell()
  for (const { name, body } of recorded) {
    const response = await fetch(`${server.url}/messages?beta=true`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ ...body, stream: true }),
    })
    const text = await response.text()
    expect([name, response.status]).toEqual([name, 200])
    expect(text.trimEnd().split('\n').at(-2)).toBe('event: message_stop')
  }
})
