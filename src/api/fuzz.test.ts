// Ten thousand bodies that were right once: whatever is done to them, the answer is an answer or an error of the
// catalogue, at once, and the server goes on.

import { afterAll, beforeAll, expect, test } from 'vitest'
import type { Program } from '../compose.js'
import { ERRORS } from '../core/errors.js'
import { type Random, seeded } from '../testing/random.js'
import { payloadsOf, post, scriptedProgram } from '../testing/scripted-program.js'

const COUNT = 10_000
const AT_ONCE = 50
/** Far above what one takes, far below what a person would call a hang. */
const SLOW_MS = 5000

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

test(`${COUNT} mutated bodies: a well-formed answer each, in time, and no fault of our own`, async () => {
  const random = seeded(20_261_130)
  const statuses = new Map<number, number>()
  const one = async () => {
    const [path, seed] = SEEDS[random.below(SEEDS.length)] as [string, object]
    let value: unknown = seed
    for (let i = 0; i <= random.next() * 3; i++) value = mutateValue(value, random)
    const body = random.next() < 0.5 ? mutateBytes(JSON.stringify(seed), random) : (JSON.stringify(value) ?? '')
    const started = performance.now()
    const reply = await post(program, path, body)
    const problem = problemOf(reply.status, reply.text)
    if (problem !== undefined)
      throw new Error(`${problem}: ${path} ${String(body).slice(0, 500)} -> ${reply.text.slice(0, 500)}`)
    expect(performance.now() - started).toBeLessThan(SLOW_MS)
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
  const started = performance.now()
  const reply = await post(program, '/v1/chat/completions', body)
  expect(problemOf(reply.status, reply.text)).toBeUndefined()
  expect(reply.status).toBeLessThan(500)
  expect(performance.now() - started).toBeLessThan(SLOW_MS)
})

function problemOf(status: number, text: string): string | undefined {
  if (status !== 200) {
    const { error } = JSON.parse(text)
    const entry = ERRORS[error.code as keyof typeof ERRORS]
    if (entry === undefined || entry.status !== status) return `status ${status} with code ${error.code}`
    return typeof error.message === 'string' && error.message !== '' ? undefined : 'no message'
  }
  if (!text.startsWith('data: ')) return typeof JSON.parse(text) === 'object' ? undefined : 'no object'
  const payloads = payloadsOf(text)
  if (payloads.some((payload) => payload.error !== undefined)) return 'a failure in-band'
  return payloads.at(-1) === '[DONE]' ? undefined : 'no [DONE]'
}
