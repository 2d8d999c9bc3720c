// Bodies that were right once: whatever is done to them, the answer is an answer or an error of the catalogue, at once,
// and the server goes on. Ten thousand for each dialect's decoder, a part of them through the whole server.

import { afterAll, beforeAll, expect, test } from 'vitest'
import type { Program } from '../compose.js'
import { ERRORS, RefrainError } from '../core/errors.js'
import { type Random, seeded } from '../testing/random.js'
import { payloadsOf, post, scriptedProgram } from '../testing/scripted-program.js'
import { readBody } from './body.js'
import type { Dialect, Envelope } from './dialect/contract.js'
import * as dialects from './dialect/index.js'

/** Through the server. */
const COUNT = 4000
/** For each dialect's decoder. */
const DECODED = 10_000
const AT_ONCE = 50
/** Far above what one takes, far below what a person would call a hang. */
const SLOW_MS = 5000

/** Of this process, the server's in it: other work on the machine does not count. */
function cpuMs(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1000
}

let program: Program
beforeAll(async () => {
  program = await scriptedProgram({ 'backend.options': { answer: 'An answer of some words.' } })
})
afterAll(() => program.stop(0))

const tool = {
  type: 'function',
  function: {
    name: 'look',
    description: 'Looks.',
    parameters: { type: 'object', properties: { a: { type: 'string' } } },
  },
}
const SEEDS: readonly [string, object][] = [
  ['/v1/chat/completions', { messages: [{ role: 'user', content: 'Hello' }] }],
  [
    '/v1/chat/completions',
    {
      model: 'smollm2-135m-instruct',
      messages: [
        { role: 'system', content: 'Be short.' },
        { role: 'user', content: [{ type: 'text', text: 'Hé — 😀' }] },
        {
          role: 'assistant',
          content: null,
          reasoning_content: 'hm',
          tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'look', arguments: '{"a": 1.0}' } }],
        },
        { role: 'tool', tool_call_id: 'call_1', content: '42' },
      ],
      tools: [tool, tool],
      tool_choice: 'auto',
      stream: true,
      stream_options: { include_usage: true },
      temperature: 0.7,
      top_p: 0.9,
      max_tokens: 8,
      stop: ['a', 'b'],
      logprobs: true,
      top_logprobs: 2,
      logit_bias: { 5: -3 },
      seed: 7,
      n: 2,
    },
  ],
  [
    '/v1/chat/completions',
    {
      messages: [{ role: 'user', content: 'JSON, please' }],
      response_format: { type: 'json_schema', json_schema: { name: 'x', schema: { type: 'object' } } },
      user: 'u',
      metadata: { a: 'b' },
    },
  ],
  ['/v1/completions', { prompt: ['one', 'two'], max_tokens: 4, n: 2, echo: true, stream: true }],
  ['/v1/completions', { prompt: [[1, 2, 3], [4]], logprobs: 2, stop: 'x', presence_penalty: 1 }],
  ['/v1/responses', { input: 'Hello', max_output_tokens: 8 }],
  [
    '/v1/responses',
    {
      model: 'smollm2-135m-instruct',
      instructions: 'Be short.',
      input: [
        { type: 'message', id: 'msg_1', role: 'developer', content: [{ type: 'input_text', text: 'Hé — 😀' }] },
        { role: 'user', content: 'Look.' },
        { type: 'reasoning', id: 'rs_1', summary: [], content: [{ type: 'reasoning_text', text: 'hm' }] },
        {
          type: 'message',
          role: 'assistant',
          status: 'completed',
          content: [{ type: 'output_text', text: 'Let me.', annotations: [] }],
        },
        { type: 'function_call', call_id: 'c1', name: 'spawn', namespace: 'agents', arguments: '{"a": 1.0}' },
        { type: 'function_call_output', call_id: 'c1', output: [{ type: 'input_text', text: '42' }] },
        { type: 'custom_tool_call', call_id: 'c2', name: 'patch', input: 'text' },
        { type: 'custom_tool_call_output', call_id: 'c2', output: 'ok' },
      ],
      tools: [
        { type: 'function', name: 'look', strict: false, parameters: { type: 'object' } },
        { type: 'namespace', name: 'agents', tools: [{ type: 'function', name: 'spawn', parameters: {} }] },
        { type: 'custom', name: 'patch', format: { type: 'text' } },
        { type: 'web_search', external_web_access: true },
      ],
      tool_choice: { type: 'allowed_tools', mode: 'auto', tools: [{ type: 'function', name: 'look' }] },
      parallel_tool_calls: false,
      reasoning: { effort: 'low', summary: 'auto' },
      include: ['reasoning.encrypted_content', 'message.output_text.logprobs'],
      client_metadata: { a: 'b' },
      max_output_tokens: 8,
      stream: true,
      store: false,
    },
  ],
  [
    '/v1/responses',
    {
      input: [{ role: 'user', content: 'JSON, please' }],
      text: { format: { type: 'json_schema', name: 'x', strict: true, schema: { type: 'object' } } },
      metadata: { a: 'b' },
      temperature: 0.5,
      max_output_tokens: 8,
    },
  ],
  ['/v1/messages', { max_tokens: 8, messages: [{ role: 'user', content: 'Hello' }] }],
  [
    '/v1/messages',
    {
      model: 'smollm2-135m-instruct',
      max_tokens: 8,
      system: [{ type: 'text', text: 'Be short.', cache_control: { type: 'ephemeral', ttl: '1h' } }],
      messages: [
        { role: 'user', content: [{ type: 'text', text: 'Hé — 😀' }] },
        {
          role: 'assistant',
          content: [
            { type: 'thinking', thinking: 'hm', signature: 'x' },
            { type: 'redacted_thinking', data: 'x' },
            { type: 'text', text: 'Let me.' },
            { type: 'tool_use', id: 't1', name: 'look', input: { a: 1 } },
          ],
        },
        {
          role: 'user',
          content: [
            { type: 'tool_result', tool_use_id: 't1', is_error: false, content: [{ type: 'text', text: '42' }] },
            { type: 'document', source: { type: 'text', data: 'd' } },
          ],
        },
        { role: 'system', content: 'Soon.' },
      ],
      tools: [
        { name: 'look', description: 'Looks.', input_schema: { type: 'object' }, strict: false },
        { type: 'web_search_20260318', name: 'web_search' },
      ],
      tool_choice: { type: 'auto', disable_parallel_tool_use: true },
      thinking: { type: 'enabled', budget_tokens: 2048 },
      context_management: {
        edits: [
          {
            type: 'clear_tool_uses_20250919',
            trigger: { type: 'tool_uses', value: 1 },
            keep: { type: 'tool_uses', value: 0 },
            clear_tool_inputs: ['look'],
          },
          { type: 'clear_thinking_20251015', keep: { type: 'thinking_turns', value: 1 } },
        ],
      },
      diagnostics: { previous_message_id: 'msg_1' },
      stop_sequences: ['a'],
      metadata: { user_id: 'u' },
      stream: true,
    },
  ],
  [
    '/v1/messages',
    {
      max_tokens: 0,
      system: 's',
      messages: [
        { role: 'user', content: 'JSON, please' },
        { role: 'assistant', content: '{' },
      ],
      output_config: { effort: 'low', format: { type: 'json_schema', schema: { type: 'object' } } },
      cache_control: { type: 'ephemeral' },
      temperature: 0.5,
    },
  ],
  ['/v1/messages/count_tokens', { system: 's', messages: [{ role: 'user', content: 'Count' }] }],
  ['/v1/cache/warm', { messages: [{ role: 'user', content: 'keep' }], ttl: '5m' }],
  ['/v1/tokenize', { prompt: 'some text', return_token_strs: true }],
  ['/v1/detokenize', { tokens: [70, 80, 90_000] }],
]

const ODD_VALUES: readonly unknown[] = [
  ...[
    null,
    true,
    false,
    0,
    -1,
    1e308,
    2 ** 53,
    0.5,
    '',
    'x',
    '\ud800',
    '\u0000',
    '__proto__',
    [],
    [[]],
    {},
    { a: null },
  ],
  ...[[null], 'y'.repeat(3000), Array(500).fill(0), JSON.parse('{"__proto__": {"n": 3}, "constructor": 1}')],
]

function mutateValue(value: unknown, random: Random): unknown {
  const pick = <T>(list: readonly T[]): T => list[random.below(list.length)] as T
  if (random.next() < 0.25) return pick(ODD_VALUES)
  if (Array.isArray(value) && value.length > 0) {
    const copy = [...value]
    const at = random.below(copy.length)
    const way = random.next()
    if (way < 0.2) copy.splice(at, 1)
    else if (way < 0.35) copy.push(pick(copy))
    else copy[at] = mutateValue(copy[at], random)
    return copy
  }
  if (typeof value === 'object' && value !== null && Object.keys(value).length > 0) {
    const copy: Record<string, unknown> = { ...value }
    const key = pick(Object.keys(copy))
    const way = random.next()
    if (way < 0.15) delete copy[key]
    else if (way < 0.3) copy[pick(Object.keys(copy))] = copy[key]
    else if (way < 0.4) copy[`${key}_`] = copy[key]
    else copy[key] = mutateValue(copy[key], random)
    return copy
  }
  return pick(ODD_VALUES)
}

function mutateBytes(text: string, random: Random): Buffer {
  let bytes = Buffer.from(text)
  for (let i = 0; i <= random.next() * 3; i++) {
    const at = random.below(bytes.length)
    const way = random.next()
    if (way < 0.3) bytes[at] = random.below(256)
    else if (way < 0.5) bytes = Buffer.concat([bytes.subarray(0, at), bytes.subarray(at + 1 + random.next() * 8)])
    else if (way < 0.7) {
      const structural = '{}[]",:\\u0000 1e9-'
      const piece = structural[random.below(structural.length)] ?? '"'
      bytes = Buffer.concat([
        bytes.subarray(0, at),
        Buffer.from(piece.repeat(1 + random.next() * 200)),
        bytes.subarray(at),
      ])
    } else if (way < 0.85) bytes = bytes.subarray(0, at)
    else bytes = Buffer.concat([bytes, bytes.subarray(at)])
  }
  return bytes
}

function mutate(seed: object, random: Random): Buffer {
  if (random.next() < 0.5) return mutateBytes(JSON.stringify(seed), random)
  let value: unknown = seed
  for (let i = 0; i <= random.next() * 3; i++) value = mutateValue(value, random)
  return Buffer.from(JSON.stringify(value) ?? '')
}

const envelope: Envelope = {
  id: '0123',
  tenant: { name: 'default', salt: 'default', admin: true },
  session: undefined,
  priority: 'interactive',
  limits: { n: 16, prompts: 64, stopStrings: 16, stopChars: 512, logitBias: 1024, jsonDepth: 64 },
}

test.each(Object.values(dialects) as Dialect[])(
  `$name decodes ${DECODED} mutated bodies or says why not`,
  (dialect) => {
    const random = seeded(20_261_201)
    const seeds = SEEDS.filter(([path]) => path === dialect.path).map(([, seed]) => seed)
    expect(seeds.length, `SEEDS has bodies of ${dialect.path}`).toBeGreaterThan(0)
    const decodeAll = () => seeds.map((seed) => dialect.decode(readBody(Buffer.from(JSON.stringify(seed))), envelope))
    const before = JSON.stringify(decodeAll())
    const counts = { taken: 0, refused: 0 }
    let slowest = 0
    for (let i = 0; i < DECODED; i++) {
      const body = mutate(seeds[random.below(seeds.length)] as object, random)
      const started = cpuMs()
      try {
        expect(dialect.decode(readBody(body), envelope).requests.length).toBeGreaterThan(0)
        counts.taken++
      } catch (error) {
        const isRefusal = error instanceof RefrainError && error.status < 500 && error.message !== ''
        if (!isRefusal) throw new Error(`${dialect.path} ${String(body).slice(0, 500)}`, { cause: error })
        counts.refused++
      }
      slowest = Math.max(slowest, cpuMs() - started)
    }
    expect(slowest).toBeLessThan(SLOW_MS)
    // Both kinds must be there, or the mutations test nothing.
    expect(counts.taken).toBeGreaterThan(DECODED / 20)
    expect(counts.refused).toBeGreaterThan(DECODED / 4)
    // Nothing of one body stays behind for the next.
    expect(JSON.stringify(decodeAll())).toBe(before)
  },
)

test(`${COUNT} mutated bodies: a well-formed answer each, in time, and no fault of our own`, async () => {
  const random = seeded(20_261_130)
  const statuses = new Map<number, number>()
  const one = async () => {
    const [path, seed] = SEEDS[random.below(SEEDS.length)] as [string, object]
    const body = mutate(seed, random)
    const started = cpuMs()
    const reply = await post(program, path, body)
    const problem = path.startsWith('/v1/messages')
      ? messageProblemOf(reply.status, reply.text)
      : problemOf(reply.status, reply.text)
    if (problem !== undefined)
      throw new Error(`${problem}: ${path} ${String(body).slice(0, 500)} -> ${reply.text.slice(0, 500)}`)
    expect(cpuMs() - started).toBeLessThan(SLOW_MS)
    statuses.set(reply.status, (statuses.get(reply.status) ?? 0) + 1)
  }
  for (let done = 0; done < COUNT; done += AT_ONCE) await Promise.all(Array.from({ length: AT_ONCE }, one))
  // Both kinds must be there, or the mutations test nothing.
  expect(statuses.get(200)).toBeGreaterThan(COUNT / 20)
  expect(statuses.get(400)).toBeGreaterThan(COUNT / 4)
  expect([...statuses.keys()].filter((status) => status >= 500)).toEqual([])
}, 120_000)

const deep = (open: string, close: string, depth: number) => open.repeat(depth) + close.repeat(depth)
const messages = '"messages":[{"role":"user","content":"a"}]'

test.each([
  ['a million brackets', deep('[', ']', 1_000_000)],
  ['a million brackets, none closed', '{"messages":'.concat('['.repeat(1_000_000))],
  ['a deep unknown field', `{${messages},"x":${deep('{"a":[', ']}', 300_000)}}`.replaceAll('[]', '[1]')],
  ['a deep schema', `{${messages},"guided_json":{"a":${deep('[', ']', 500_000)}}}`],
  [
    'a deep tool',
    `{${messages},"tools":[{"type":"function","function":{"name":"f","parameters":{"a":${deep('[', ']', 500_000)}}}}]}`,
  ],
  [
    'a deep argument',
    `{"messages":[{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":{"a":${deep('[', ']', 500_000)}}}}]}]}`,
  ],
  [
    'many calls with objects as arguments',
    `{"messages":[{"role":"assistant","tool_calls":[${Array(40_000).fill('{"id":"c","function":{"name":"f","arguments":{}}}').join()}]}]}`,
  ],
  ['a field said a hundred thousand times', `{${Array(100_000).fill(messages).join()}}`],
  ['many unknown fields', `{${messages},${Array.from({ length: 100_000 }, (_, i) => `"k${i}":1`).join()}}`],
  [
    'a tool of cache marks',
    `{${messages},"tools":[{"type":"function","function":{"name":"f"},${Array(100_000).fill('"cache_control":1').join()}}]}`,
  ],
  ['backslashes', `{"messages":[{"role":"user","content":"${'\\\\'.repeat(500_000)}"}],"guided_json":{}}`],
  ['a long stop string against a long answer', `{${messages},"stop":"${'a'.repeat(512)}"}`],
  ['a long model name', `{${messages},"model":"${'a'.repeat(1_000_000)}"}`],
])('%s: answered in time', async (_, body) => {
  const started = cpuMs()
  const reply = await post(program, '/v1/chat/completions', body)
  expect(problemOf(reply.status, reply.text)).toBeUndefined()
  expect(reply.status).toBeLessThan(500)
  expect(cpuMs() - started).toBeLessThan(SLOW_MS)
})

test.each([
  [
    'many calls of one answer, with objects as arguments',
    `{"input":[${Array(40_000).fill('{"type":"function_call","call_id":"c","name":"f","arguments":{}}').join()}]}`,
  ],
  [
    'many functions of the same name, all of them allowed',
    `{"input":"a","tools":[${Array.from({ length: 5000 }, (_, i) => `{"type":"namespace","name":"n${i}","tools":[{"type":"function","name":"f"}]}`).join()}],
      "tool_choice":{"type":"allowed_tools","mode":"auto","tools":[${Array(5000).fill('{"type":"function","name":"f"}').join()}]}}`,
  ],
  ['a deep namespace', `{"input":"a","tools":[{"type":"namespace","name":"n","tools":${deep('[', ']', 500_000)}}]}`],
  ['a deep schema', `{"input":"a","text":{"format":{"type":"json_schema","schema":{"a":${deep('[', ']', 500_000)}}}}}`],
  ['deep metadata, to be repeated', `{"input":"a","metadata":{"a":${deep('[', ']', 100_000)}},"stream":true}`],
])('Responses, %s: answered in time', async (_, body) => {
  const started = cpuMs()
  const reply = await post(program, '/v1/responses', body)
  expect(problemOf(reply.status, reply.text)).toBeUndefined()
  expect(reply.status).toBeLessThan(500)
  expect(cpuMs() - started).toBeLessThan(SLOW_MS)
})

test.each([
  [
    'many calls of one answer, each with an input',
    `{"max_tokens":1,"messages":[{"role":"assistant","content":[${Array(40_000).fill('{"type":"tool_use","id":"c","name":"f","input":{}}').join()}]},{"role":"user","content":"a"}]}`,
  ],
  [
    'many messages of one turn',
    `{"max_tokens":1,"messages":[${Array(60_000).fill('{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f","input":{}}]}').join()},{"role":"user","content":"a"}]}`,
  ],
  [
    'many results, all of them to be cleared',
    `{"max_tokens":1,"context_management":{"edits":[{"type":"clear_tool_uses_20250919","trigger":{"type":"input_tokens","value":1}}]},"messages":[{"role":"user","content":[${Array(20_000).fill('{"type":"tool_result","tool_use_id":"c","content":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}').join()}]}]}`,
  ],
  [
    'a deep input',
    `{"max_tokens":1,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f","input":{"a":${deep('[', ']', 500_000)}}}]}]}`,
  ],
  [
    'a deep schema',
    `{"max_tokens":1,${messages},"tools":[{"name":"f","input_schema":{"a":${deep('[', ']', 500_000)}}}]}`,
  ],
  [
    'marks everywhere',
    `{"max_tokens":1,"messages":[{"role":"user","content":[${Array(50_000).fill('{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}').join()}]}]}`,
  ],
])('Messages, %s: answered in time', async (_, body) => {
  const started = cpuMs()
  const reply = await post(program, '/v1/messages', body)
  expect(messageProblemOf(reply.status, reply.text)).toBeUndefined()
  expect(cpuMs() - started).toBeLessThan(SLOW_MS)
})

/** Errors of Anthropic's shape, and messages that end. */
function messageProblemOf(status: number, text: string): string | undefined {
  if (text.startsWith('event: ')) {
    const types = [...text.matchAll(/^data: (.*)$/gm)].map(([, data]) => JSON.parse(data as string).type)
    return types[0] === 'message_start' && types.at(-1) === 'message_stop' ? undefined : 'no ending'
  }
  const { type, error, request_id: id, input_tokens: count } = JSON.parse(text)
  if (status === 200) return type === 'message' || count > 0 ? undefined : 'no message'
  if (status >= 500) return `status ${status}`
  const known = ['invalid_request_error', 'not_found_error', 'request_too_large', 'rate_limit_error']
  if (type !== 'error' || !known.includes(error.type)) return `status ${status} with type ${error?.type}`
  return typeof error.message === 'string' && error.message !== '' && typeof id === 'string' ? undefined : 'no message'
}

function problemOf(status: number, text: string): string | undefined {
  if (status !== 200) {
    const { error } = JSON.parse(text)
    const entry = ERRORS[error.code as keyof typeof ERRORS]
    if (entry === undefined || entry.status !== status) return `status ${status} with code ${error.code}`
    return typeof error.message === 'string' && error.message !== '' ? undefined : 'no message'
  }
  if (text.startsWith('event: ')) {
    const types = [...text.matchAll(/^data: (.*)$/gm)].map(([, data]) => JSON.parse(data as string).type)
    if (types.includes('response.failed')) return 'a failure in-band'
    return /^response\.(completed|incomplete)$/.test(types.at(-1)) ? undefined : 'no ending'
  }
  if (!text.startsWith('data: ')) return typeof JSON.parse(text) === 'object' ? undefined : 'no object'
  const payloads = payloadsOf(text)
  if (payloads.some((payload) => payload.error !== undefined)) return 'a failure in-band'
  return payloads.at(-1) === '[DONE]' ? undefined : 'no [DONE]'
}
