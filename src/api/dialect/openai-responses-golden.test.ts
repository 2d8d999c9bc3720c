// Golden transcripts of the Responses API: the very bytes that its encoder makes of given events, and the rules that any
// such stream keeps. A change of a file here is a change of the wire API.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { RefrainError } from '../../core/errors.js'
import type { CallDelta, GenerateEvent, SplitText } from '../../core/events.js'
import { readBody } from '../body.js'
import type { About, Envelope } from './contract.js'
import { openaiResponses } from './openai-responses.js'
import { openReasoning } from './openai-responses-shape.js'

const limits = { n: 16, prompts: 64, stopStrings: 16, stopChars: 512, logitBias: 1024, jsonDepth: 64 }
const tenant = { name: 'default', salt: 'default', admin: true }
const envelope: Envelope = { id: '0123', tenant, session: undefined, priority: 'interactive', limits }
const about: About = { id: 'resp_0123', model: 'toy', created: 1_790_000_000, forceUsage: false }

const cache = { working: 64, memory: 128, disk: 64, computed: 44 }
const said = (part: Partial<SplitText>): GenerateEvent => ({
  type: 'token',
  choice: 0,
  ids: [1],
  text: 'whatever',
  split: { content: '', reasoning: '', calls: [], ...part },
})
const call = (delta: CallDelta) => said({ calls: [delta] })
const end = (reason: 'stop' | 'length'): GenerateEvent => ({ type: 'end', choice: 0, reason })
const around = (...events: GenerateEvent[]): GenerateEvent[] => [
  { type: 'start', promptTokens: 300, cache, committedTokens: 64 },
  ...events,
  { type: 'finish', promptTokens: 300, completionTokens: 9, cache, committedTokens: 64 },
]
const withLogprobs = (part: Partial<SplitText>, text: string, logprob: number): GenerateEvent => {
  const entry = { id: 1, text, bytes: [...Buffer.from(text)], logprob }
  return { ...said(part), logprobs: [{ ...entry, top: [entry] }] } as GenerateEvent
}

const tools = [
  { type: 'function', name: 'look', parameters: { type: 'object' } },
  { type: 'namespace', name: 'agents', description: 'd', tools: [{ type: 'function', name: 'spawn' }] },
  { type: 'custom', name: 'patch' },
]

interface Case {
  readonly name: string
  readonly body: object
  readonly events: readonly GenerateEvent[]
}

const CASES: readonly Case[] = [
  {
    name: 'responses',
    body: { input: 'a', instructions: 'Be short.', metadata: { k: 'v' }, temperature: 0.5 },
    events: around(said({ content: 'Hé' }), said({}), said({ content: 'llo\n' }), end('stop')),
  },
  {
    name: 'responses-reasoning-and-calls',
    body: { input: 'a', tools, include: ['reasoning.encrypted_content'] },
    events: around(
      said({ reasoning: 'hm' }),
      said({ reasoning: '\n' }),
      said({ content: 'Looking.' }),
      call({ index: 0, id: 'call_a', name: 'look', argumentsDelta: '{"limit": ' }),
      call({ index: 0, argumentsDelta: '20.0,  "q": "caf\\u00e9"}' }),
      call({ index: 1, name: 'spawn', argumentsDelta: '{}' }),
      call({ index: 2, id: 'call_c', name: 'patch', argumentsDelta: '{"input": "a\\n' }),
      call({ index: 2, argumentsDelta: 'b"}' }),
      end('stop'),
    ),
  },
  {
    name: 'responses-logprobs',
    body: { input: 'a', top_logprobs: 1 },
    events: around(
      withLogprobs({ reasoning: 'hm' }, 'hm', -3),
      withLogprobs({}, 'H', -0.5),
      withLogprobs({ content: 'Hi' }, 'i', -Infinity),
      end('stop'),
    ),
  },
  {
    name: 'responses-cut-in-a-call',
    body: { input: 'a', tools, max_output_tokens: 9 },
    events: around(call({ index: 0, id: 'call_a', name: 'look', argumentsDelta: '{"limit": ' }), end('length')),
  },
  {
    name: 'responses-cut-behind-a-call',
    body: { input: 'a', tools, max_output_tokens: 9 },
    events: around(call({ index: 0, id: 'call_a', name: 'look', argumentsDelta: '{}' }), end('length')),
  },
  { name: 'responses-empty', body: { input: 'a' }, events: around(said({ reasoning: 'hm' }), end('stop')) },
  { name: 'responses-prefill-only', body: { input: 'a', max_output_tokens: 0 }, events: around() },
]

// biome-ignore lint/suspicious/noExplicitAny: what the test is about to assert
type Json = any

function toldBy(stream: string): Json[] {
  const blocks = stream.split('\n\n')
  expect(blocks.pop()).toBe('')
  return blocks.map((block) => {
    const [event, data, ...rest] = block.split('\n')
    expect(rest).toEqual([])
    const told = JSON.parse(data!.replace(/^data: /, ''))
    expect(event).toBe(`event: ${told.type}`)
    return told
  })
}

function decode(body: object, text = JSON.stringify(body)) {
  return openaiResponses.decode(readBody(Buffer.from(text)), envelope)
}

/** What a client of the SDK puts together; throws as it does where a piece is not announced. */
function gathered(told: readonly Json[]): Json[] {
  const output: Json[] = []
  for (const event of told) {
    const item = output[event.output_index]
    if (event.type === 'response.output_item.added') {
      expect(event.output_index).toBe(output.length)
      output.push(structuredClone(event.item))
    } else if (event.type === 'response.content_part.added') item.content[event.content_index] = { ...event.part }
    else if (/_text\.delta$/.test(event.type)) item.content[event.content_index].text += event.delta
    else if (/arguments\.delta$/.test(event.type)) item.arguments += event.delta
    else if (/input\.delta$/.test(event.type)) item.input += event.delta
    else if (event.type === 'response.output_item.done') {
      const parts = (each: Json) => [each.content?.map((part: Json) => part.text), each.arguments, each.input]
      expect(parts(item)).toEqual(parts(event.item))
      output[event.output_index] = event.item
    }
    if (event.item_id !== undefined) expect(event.item_id).toBe(output[event.output_index].id)
  }
  return output
}

describe.each(CASES)('$name', ({ name, body, events }) => {
  test('stream', async () => {
    const encoder = decode(body).streamEncoder(about)
    const stream = events.map((event) => encoder.event(event)).join('') + encoder.ending
    await expect(stream).toMatchFileSnapshot(`golden/${name}.sse`)
    const told = toldBy(stream)
    expect(told.map((event) => event.sequence_number)).toEqual([...told.keys()])
    expect(told.slice(0, 2).map((event) => event.type)).toEqual(['response.created', 'response.in_progress'])
    const last = told.at(-1)
    expect(last.type).toBe(`response.${last.response.status}`)
    expect(told.filter((event) => /(completed|incomplete|failed)$/.test(event.type))).toHaveLength(1)
    const ids = last.response.output.map((item: Json) => item.id)
    expect(new Set(ids).size).toBe(ids.length)
    expect(gathered(told).map((item) => item.id)).toEqual(ids)
    const done = told.filter((event) => event.type === 'response.output_item.done').map((event) => event.item)
    expect(last.response.output.filter((item: Json) => done.some(({ id }) => id === item.id))).toEqual(done)
  })

  test('body', async () => {
    const encoder = decode(body).bodyEncoder(about)
    for (const event of events) encoder.event(event)
    const response = JSON.parse(encoder.body())
    await expect(`${JSON.stringify(response, null, 2)}\n`).toMatchFileSnapshot(`golden/${name}.body`)
    const stream = decode(body).streamEncoder(about)
    const told = toldBy(events.map((event) => stream.event(event)).join(''))
    expect(told.at(-1).response).toEqual(response)
  })
})

test('whatever is said in whatever pieces: a well-formed stream, and the body that it adds up to', () => {
  const piece = fc.oneof(
    fc.record({ reasoning: fc.string({ unit: 'grapheme', maxLength: 5 }) }),
    fc.record({ content: fc.string({ unit: 'grapheme', maxLength: 5 }) }),
    fc.record({ name: fc.constantFrom('look', 'spawn', 'patch', 'no such'), argumentsDelta: fc.string() }),
    fc.record({ argumentsDelta: fc.string() }),
  )
  fc.assert(
    fc.property(
      fc.array(piece, { maxLength: 12 }),
      fc.constantFrom('stop' as const, 'length' as const),
      (said_, reason) => {
        let index = -1
        let isOpen = false
        const events = said_.flatMap((part): GenerateEvent[] => {
          if (!('argumentsDelta' in part)) {
            if (Object.values(part).join('') !== '') isOpen = false
            return [said(part)]
          }
          if ('name' in part) {
            isOpen = true
            return [call({ index: ++index, ...part })]
          }
          return isOpen ? [call({ index, ...part })] : []
        })
        const whole = around(...events, end(reason))
        const body = { input: 'a', tools }
        const stream = decode(body).streamEncoder(about)
        const told = toldBy(whole.map((event) => stream.event(event)).join(''))
        expect(told.map((event) => event.sequence_number)).toEqual([...told.keys()])
        const last = told.at(-1)
        expect(last.type).toBe(reason === 'stop' ? 'response.completed' : 'response.incomplete')
        const visible = (output: Json[]) => output.map(({ status: _, ...item }) => item)
        const parts = gathered(told)
        // A call that was cut off has no done event: what a client has gathered of a custom one is not its input yet.
        const isCut = (item: Json) => item.status === 'incomplete' && item.type === 'custom_tool_call'
        const shown = last.response.output.filter((item: Json) => !isCut(item))
        expect(visible(parts.slice(0, shown.length))).toEqual(visible(shown))
        const encoder = decode(body).bodyEncoder(about)
        for (const event of whole) encoder.event(event)
        expect(JSON.parse(encoder.body())).toEqual(last.response)
      },
    ),
    { numRuns: 150 },
  )
})

test('a stream that breaks ends with response.failed, the open item incomplete, and never with completed', () => {
  const encoder = decode({ input: 'a' }).streamEncoder(about)
  const stream = around(said({ content: 'Hel' }))
    .slice(0, -1)
    .map((event) => encoder.event(event))
    .join('')
  const told = toldBy(stream + encoder.failure(new RefrainError('engine_failed', 'it is gone')))
  expect(told.at(-1)).toMatchObject({
    type: 'response.failed',
    response: {
      status: 'failed',
      error: { code: 'server_error', message: 'it is gone' },
      output: [{ status: 'incomplete', content: [{ text: 'Hel' }] }],
    },
  })
  expect(told.map((event) => event.type)).not.toContain('response.completed')
})

test.each([
  [new RefrainError('context_length_exceeded', 'too long'), 'context_length_exceeded', 'too long'],
  [new RefrainError('queue_full', 'full', { retryAfterMs: 1300 }), 'rate_limit_exceeded', 'try again in 1.3s'],
  [new RefrainError('draining', 'going'), 'rate_limit_exceeded', 'try again in 1s'],
  [new RefrainError('invalid_grammar', 'no such schema'), 'invalid_prompt', 'no such schema'],
  [new Error('a secret'), 'server_error', 'A fault of the server itself; the log has the details.'],
])('%s in front of the first event: created, in progress, failed with a code of this API', (error, code, message) => {
  const told = toldBy(decode({ input: 'a' }).streamEncoder(about).failure(error))
  expect(told.map((event) => event.type)).toEqual(['response.created', 'response.in_progress', 'response.failed'])
  expect(told[2].response.error).toEqual({ code, message: expect.stringContaining(message) })
})

test('keepalives are events, the first of a stream too', () => {
  const encoder = decode({ input: 'a' }).streamEncoder(about)
  const stream = `${encoder.keepalive?.()}${encoder.keepalive?.()}`
  const told = toldBy(
    stream +
      around(said({ content: 'a' }), end('stop'))
        .map((event) => encoder.event(event))
        .join(''),
  )
  const types = told.map((event) => event.type)
  expect(types.slice(0, 4)).toEqual(['response.created', 'response.in_progress', 'keepalive', 'keepalive'])
  expect(types.filter((type) => type === 'response.created')).toHaveLength(1)
  expect(told.map((event) => event.sequence_number)).toEqual([...told.keys()])
})

test('what the request said is repeated as it was sent, on one line', () => {
  const text = '{"input":"a",\n "temperature":1e0,\r\n "tools":[\n  {"type":"function","name":"f"}\n ]}'
  const encoder = decode({}, text).streamEncoder(about)
  const told = encoder.event(around()[0]!)
  expect(told).toContain('"temperature":1e0')
  expect(toldBy(told)[0].response).toMatchObject({ tools: [{ type: 'function', name: 'f' }], tool_choice: 'auto' })
})

test('sealed reasoning opens to the text it was made of', () => {
  const { events, body } = CASES[1]!
  const encoder = decode(body).bodyEncoder(about)
  for (const event of events) encoder.event(event)
  const [item] = JSON.parse(encoder.body()).output
  expect(openReasoning(item.encrypted_content)).toBe('hm\n')
  expect(item.content).toEqual([{ type: 'reasoning_text', text: 'hm\n' }])
})

test('a piece of a call that is not open is a fault, not a wrong answer', () => {
  const encoder = decode({ input: 'a' }).streamEncoder(about)
  expect(() => encoder.event(call({ index: 1, argumentsDelta: '{}' }))).toThrow(/call 1/)
})
