// The official client's Responses API against a real socket: create, the stream helper with its accumulator, schemas that
// it parses, tool loops that append what it returns, failures.

import OpenAI from 'openai'
import { zodResponsesFunction, zodTextFormat } from 'openai/helpers/zod'
import type { ResponseInput } from 'openai/resources/responses/responses'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { z } from 'zod'
import type { Program } from '../compose.js'
import { RefrainError } from '../core/errors.js'
import { hasRecordings, recordings } from '../testing/recordings.js'
import { scriptedProgram } from '../testing/scripted-program.js'
import { messagesOf, type ToldAnswer, type ToldServer, toldServer } from '../testing/told-server.js'

const LOOK = { reasoning: 'The city is asked for.\nI look.\n', content: 'Let me look.\n\n' }
const ODD = '{"limit": 20.0,  "city": "caf\\u00e9\\/x"}'
const tool = {
  type: 'function' as const,
  name: 'lookup',
  description: 'Looks a city up.',
  parameters: { type: 'object', properties: { city: { type: 'string' }, limit: { type: 'number' } } },
  strict: false,
}

let next: ToldAnswer[] | Error = []
let server: ToldServer
let client: OpenAI

beforeAll(async () => {
  server = await toldServer(() => (next instanceof Error ? next : (next.shift() ?? { content: 'Done.' })))
  client = new OpenAI({ baseURL: server.url, apiKey: 'unused', maxRetries: 0 })
})
afterAll(() => server.close())

function tell(...answers: ToldAnswer[]): void {
  next = answers
  server.requests.length = 0
}

describe('create', () => {
  test('one body, with usage that has the cache fields', async () => {
    tell({ content: 'Four bridges.' })
    const response = await client.responses.create({ model: 'm', input: 'How many?', instructions: 'Count.' })
    expect(response.output_text).toBe('Four bridges.')
    expect(response).toMatchObject({ status: 'completed', model: 'told-model', instructions: 'Count.', error: null })
    expect(response.id).toMatch(/^resp_[0-9a-f]{32}$/)
    expect(response.usage).toEqual({
      input_tokens: 100,
      input_tokens_details: { cached_tokens: 64, cache_write_tokens: 36 },
      output_tokens: 2,
      output_tokens_details: { reasoning_tokens: 0 },
      total_tokens: 102,
    })
    expect(messagesOf(server.requests[0]!).map(({ role }) => role)).toEqual(['system', 'user'])
  })

  test('a plain stream of events: numbered, the response first and last', async () => {
    tell({ ...LOOK, calls: [{ name: 'lookup', arguments: ODD }] })
    const stream = await client.responses.create({ model: 'm', input: 'Look.', tools: [tool], stream: true })
    const events = []
    for await (const event of stream) events.push(event)
    expect(events.map((event) => event.sequence_number)).toEqual([...events.keys()])
    expect(events[0]?.type).toBe('response.created')
    expect(events.at(-1)?.type).toBe('response.completed')
    expect(events.map((event) => event.type)).not.toContain('response.reasoning_part.added')
  })
})

describe('the stream helper', () => {
  test('puts together what was said, exactly', async () => {
    tell({
      ...LOOK,
      calls: [
        { id: 'call_a', name: 'lookup', arguments: ODD },
        { name: 'lookup', arguments: '{}' },
      ],
    })
    const texts: string[] = []
    const stream = client.responses.stream({ model: 'm', input: 'Look.', tools: [tool] })
    stream.on('response.output_text.delta', ({ delta, snapshot }) => texts.push(delta, snapshot))
    const response = await stream.finalResponse()
    expect(response.output_text).toBe(LOOK.content)
    expect(texts.at(-1)).toBe(LOOK.content)
    expect(response.output.map((item) => item.type)).toEqual(['reasoning', 'message', 'function_call', 'function_call'])
    expect(response.output[0]).toMatchObject({ content: [{ type: 'reasoning_text', text: LOOK.reasoning }] })
    expect(response.output[2]).toMatchObject({ call_id: 'call_a', name: 'lookup', arguments: ODD, status: 'completed' })
    expect(new Set(response.output.map((item) => item.id)).size).toBe(4)
  })

  test('an answer of nothing is an empty message', async () => {
    tell({})
    const response = await client.responses.stream({ model: 'm', input: 'Say nothing.' }).finalResponse()
    expect(response.output).toMatchObject([{ type: 'message', content: [{ text: '' }] }])
  })

  test('an answer that was cut is incomplete', async () => {
    tell({ content: 'It goes on and', reason: 'length' })
    const response = await client.responses.stream({ model: 'm', input: 'a', max_output_tokens: 2 }).finalResponse()
    expect(response).toMatchObject({ status: 'incomplete', incomplete_details: { reason: 'max_output_tokens' } })
    expect(response.output_text).toBe('It goes on and')
  })

  test('an answer that broke is failed, never completed', async () => {
    tell({ content: 'It goes', failure: new RefrainError('engine_failed', 'the engine failed') })
    const stream = client.responses.stream({ model: 'm', input: 'a' })
    const types: string[] = []
    stream.on('event', (event) => types.push(event.type))
    const response = await stream.finalResponse()
    expect(response).toMatchObject({ status: 'failed', error: { code: 'server_error', message: 'the engine failed' } })
    expect(types.at(-1)).toBe('response.failed')
    expect(types).not.toContain('response.completed')
  })
})

describe('schemas', () => {
  const City = z.object({ name: z.string(), bridges: z.number().int() })

  test('responses.parse gives the object; the schema became the constraint', async () => {
    tell({ content: '{"name":"Bern","bridges":18}' })
    const text = { format: zodTextFormat(City, 'city') }
    const response = await client.responses.parse({ model: 'm', input: 'Bern?', text })
    expect(response.output_parsed).toEqual({ name: 'Bern', bridges: 18 })
    const { constraint } = server.requests[0]!
    expect(constraint?.kind === 'json-schema' && JSON.parse(constraint.schema).required).toEqual(['name', 'bridges'])
  })

  test('the stream helper parses, too', async () => {
    tell({ reasoning: 'hm', content: '{"name":"Bern","bridges":18}' })
    const text = { format: zodTextFormat(City, 'city') }
    const response = await client.responses.stream({ model: 'm', input: 'Bern?', text }).finalResponse()
    expect(response.output_parsed).toEqual({ name: 'Bern', bridges: 18 })
  })

  test('a strict tool gives parsed arguments', async () => {
    tell({ calls: [{ name: 'lookup', arguments: '{"name": "Bern",  "bridges": 18}' }] })
    const tools = [zodResponsesFunction({ name: 'lookup', parameters: City })]
    const response = await client.responses.parse({ model: 'm', input: 'a', tools, tool_choice: 'required' })
    expect(response.output[0]).toMatchObject({ parsed_arguments: { name: 'Bern', bridges: 18 } })
    expect(server.requests[0]?.toolChoice).toEqual({ mode: 'required' })
  })
})

test.each(['create', 'stream'])('a two-tool loop by %s: what is appended is what was said', async (way) => {
  tell(
    { ...LOOK, calls: [{ id: 'call_1', name: 'lookup', arguments: ODD }] },
    { reasoning: 'Again.\n', calls: [{ id: 'call_2', name: 'lookup', arguments: '{"x": 1e3}' }] },
    { reasoning: 'Enough.', content: '\n\nIt is there.\n' },
  )
  const input: ResponseInput = [{ role: 'user', content: 'Look it up.' }]
  const include: ['reasoning.encrypted_content'] = ['reasoning.encrypted_content']
  for (let step = 0; step < 3; step++) {
    const body = { model: 'm', input, tools: [tool], include, store: false }
    const response =
      way === 'create' ? await client.responses.create(body) : await client.responses.stream(body).finalResponse()
    input.push(...(response.output as ResponseInput))
    for (const item of response.output) {
      if (item.type === 'function_call') {
        input.push({ type: 'function_call_output', call_id: item.call_id, output: `for ${item.arguments}` })
      }
    }
  }
  const turns = server.requests.map(messagesOf)
  expect(turns[1]!.slice(0, turns[0]!.length)).toEqual(turns[0])
  expect(turns[2]!.slice(0, turns[1]!.length)).toEqual(turns[1])
  expect(turns[2]!.slice(1)).toEqual([
    { role: 'assistant', ...LOOK, toolCalls: [{ id: 'call_1', name: 'lookup', arguments: ODD }] },
    { role: 'tool', content: `for ${ODD}`, toolCallId: 'call_1' },
    {
      role: 'assistant',
      content: '',
      reasoning: 'Again.\n',
      toolCalls: [{ id: 'call_2', name: 'lookup', arguments: '{"x": 1e3}' }],
    },
    { role: 'tool', content: 'for {"x": 1e3}', toolCallId: 'call_2' },
  ])
  expect(input.at(-1)).toMatchObject({ type: 'message', content: [{ text: '\n\nIt is there.\n' }] })
})

test('a custom tool is called with text, and its call is understood when it comes back', async () => {
  const patch = { type: 'custom' as const, name: 'patch', description: 'Patches.' }
  tell({ calls: [{ id: 'call_1', name: 'patch', arguments: '{"input": "*** a\\n\\"b\\""}' }] }, { content: 'Patched.' })
  const first = await client.responses.stream({ model: 'm', input: 'Patch it.', tools: [patch] }).finalResponse()
  expect(first.output[0]).toMatchObject({ type: 'custom_tool_call', name: 'patch', input: '*** a\n"b"' })
  const input = [
    { role: 'user' as const, content: 'Patch it.' },
    ...(first.output as ResponseInput),
    { type: 'custom_tool_call_output' as const, call_id: 'call_1', output: 'ok' },
  ]
  await client.responses.create({ model: 'm', input, tools: [patch] })
  const messages = messagesOf(server.requests[1]!)
  expect(JSON.parse(messages[1]!.toolCalls![0]!.arguments)).toEqual({ input: '*** a\n"b"' })
  expect(messages[2]).toEqual({ role: 'tool', content: 'ok', toolCallId: 'call_1' })
})

describe('refusals', () => {
  test.each([
    [{ previous_response_id: 'resp_1' }, 400, 'previous_response_id'],
    [{ conversation: 'conv_1' }, 400, 'conversation'],
    [{ background: true }, 400, 'background'],
    [
      { input: [{ role: 'user', content: [{ type: 'input_image', detail: 'auto' }] }] },
      400,
      'input[0].content[0].type',
    ],
  ])('%j', async (more, status, param) => {
    tell()
    const body = { model: 'm', input: 'a', ...more } as OpenAI.Responses.ResponseCreateParamsNonStreaming
    await expect(client.responses.create(body)).rejects.toMatchObject({ status, param })
    expect(server.requests).toEqual([])
  })

  test.each([
    ['queue_full', 429],
    ['queue_timeout', 503],
    ['out_of_memory', 503],
    ['draining', 503],
    ['engine_failed', 500],
  ] as const)('%s always says when to come again', async (code, status) => {
    next = new RefrainError(code, 'not now')
    const error = await client.responses.create({ model: 'm', input: 'a', stream: true }).catch((thrown) => thrown)
    expect(error).toMatchObject({ status, code })
    expect(error.headers.get('retry-after')).toBe('1')
    expect(error.headers.get('x-should-retry')).toBe('true')
  })
})

test.each(['well', 'badly'])('a long prefill: events from the first silence on, and then it ends %s', async (end) => {
  let release: () => void = () => undefined
  const after = new Promise<void>((resolve) => {
    release = resolve
  })
  const failure = end === 'badly' && { failure: new RefrainError('out_of_memory', 'no room', { retryAfterMs: 5000 }) }
  const slow = await toldServer(() => ({ after, content: 'At last.', ...failure }), { keepaliveMs: 5 })
  try {
    const own = new OpenAI({ baseURL: slow.url, apiKey: 'unused', maxRetries: 0 })
    const stream = own.responses.stream({ model: 'm', input: 'a' })
    const types: string[] = []
    stream.on('event', (event) => {
      types.push(event.type)
      if ((event.type as string) === 'keepalive') release()
    })
    const response = await stream.finalResponse()
    expect(types.slice(0, 3)).toEqual(['response.created', 'response.in_progress', 'keepalive'])
    expect(types.filter((type) => type === 'response.created')).toHaveLength(1)
    if (end === 'well') expect(response).toMatchObject({ status: 'completed', output_text: 'At last.' })
    else expect(response.error).toEqual({ code: 'rate_limit_exceeded', message: expect.stringMatching(/again in 5s/) })
  } finally {
    await slow.close()
  }
})

test.skipIf(!hasRecordings)('every recorded request is answered to its end (needs ../shared)', async () => {
  const recorded = recordings().filter(({ path }) => path.split('?')[0]?.endsWith('/responses'))
  expect(recorded.length).toBeGreaterThan(90)
  tell()
  for (const { name, body } of recorded) {
    const response = await fetch(`${server.url}/responses`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    })
    const text = await response.text()
    expect([name, response.status]).toEqual([name, 200])
    expect(text.trimEnd().split('\n').at(-2)).toBe('event: response.completed')
  }
})

test('over the scripted backend: text streams, a follow-up turn is a cache hit, too long a prompt is told in known words', async () => {
  const program: Program = await scriptedProgram({ 'model.contextLength': 4096 }, { script: () => 'An answer.' })
  try {
    const own = new OpenAI({ baseURL: `${await program.start()}/v1`, apiKey: 'unused', maxRetries: 0 })
    const input: ResponseInput = [{ role: 'user', content: 'What is a refrain? '.repeat(40) }]
    const first = await own.responses.stream({ model: '', input }).finalResponse()
    expect(first.output_text).toBe('An answer.')
    input.push(...(first.output as ResponseInput), { role: 'user', content: 'And then?' })
    const second = await own.responses.create({ model: '', input })
    const cached = second.usage?.input_tokens_details.cached_tokens ?? 0
    expect(cached).toBeGreaterThanOrEqual(Math.floor((first.usage!.input_tokens - 1) / 64) * 64)
    await expect(own.responses.create({ model: '', input: 'x'.repeat(20_000) })).rejects.toMatchObject({
      status: 400,
      code: 'context_length_exceeded',
      message: expect.stringMatching(/maximum context length is 4096 tokens/),
    })
  } finally {
    await program.stop(0)
  }
})
