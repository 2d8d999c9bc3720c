// Golden transcripts of the Messages API: the very bytes that are made of given events, and what they must hold whatever
// the model says.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { RefrainError } from '../../core/errors.js'
import type { GenerateEvent, SplitText } from '../../core/events.js'
import { readBody } from '../body.js'
import { anthropicMessages } from './anthropic-messages.js'
import { openThinking } from './anthropic-shape.js'
import type { About, Envelope } from './contract.js'

const limits = { n: 16, prompts: 64, stopStrings: 16, stopChars: 512, logitBias: 1024, jsonDepth: 64 }
const tenant = { name: 'default', salt: 'default', admin: true }
const envelope: Envelope = { id: '0123', tenant, session: undefined, priority: 'interactive', limits }
const about: About = { id: 'msg_0123', model: 'toy', created: 1_790_000_000, forceUsage: false }

const cache = { working: 64, memory: 128, disk: 64, computed: 44 }
const start: GenerateEvent = { type: 'start', promptTokens: 300, cache, committedTokens: 30 }
const finish = (completionTokens: number): GenerateEvent => ({ ...start, type: 'finish', completionTokens })
const said = (split: Partial<SplitText>): GenerateEvent => {
  const whole = { content: '', reasoning: '', calls: [], ...split }
  return { type: 'token', choice: 0, ids: [7], text: whole.content, split: whole }
}
const end = (reason: 'stop' | 'length', more: object = {}): GenerateEvent => ({
  type: 'end',
  choice: 0,
  reason,
  ...more,
})
/** All events of an answer. */
const answer = (...events: GenerateEvent[]) => [
  start,
  ...events,
  finish(events.filter(({ type }) => type === 'token').length),
]

const hello = { max_tokens: 100, messages: [{ role: 'user', content: 'a' }] }
const ODD = '{"limit": 20.0,  "path": "\\/a"}'

const CASES: readonly { name: string; body?: object; events: GenerateEvent[] }[] = [
  {
    name: 'anthropic',
    events: answer(said({ content: 'Hé' }), said({}), said({ content: 'llo\n' }), end('stop')),
  },
  {
    name: 'anthropic-thinking-and-calls',
    body: { cache_control: { type: 'ephemeral', ttl: '1h' }, diagnostics: { previous_message_id: 'msg_1' } },
    events: answer(
      said({ reasoning: 'The user wants' }),
      said({ reasoning: ' it.\n', content: '\n' }),
      said({ content: '\nLooking.' }),
      said({ calls: [{ index: 0, id: 'functions.look:0', name: 'look' }] }),
      said({ calls: [{ index: 0, argumentsDelta: ODD.slice(0, 9) }] }),
      said({ content: '\n', calls: [{ index: 0, argumentsDelta: ODD.slice(9) }] }),
      end('stop', { split: { content: '', reasoning: '', calls: [{ index: 1, name: 'stop' }] } }),
    ),
  },
  {
    name: 'anthropic-cut-in-a-call',
    events: answer(said({ calls: [{ index: 0, name: 'look', argumentsDelta: '{"a": "b' }] }), end('length')),
  },
  {
    name: 'anthropic-stop-sequence',
    body: { stop_sequences: ['END'], max_tokens: 1 },
    events: answer(said({ content: 'It ' }), end('stop', { stopString: 'END' })),
  },
  { name: 'anthropic-prefill-only', body: { max_tokens: 0, diagnostics: {} }, events: answer() },
  {
    name: 'anthropic-omitted-thinking',
    body: { thinking: { type: 'enabled', display: 'omitted' }, max_tokens: 1 },
    events: answer(said({ reasoning: 'hm' }), end('length')),
  },
  {
    name: 'anthropic-edited',
    body: { context_management: { edits: [{ type: 'clear_thinking_20251015' }] } },
    events: answer(said({ content: 'a' }), end('stop')),
  },
]

const decode = (body: object = {}) =>
  anthropicMessages.decode(readBody(Buffer.from(JSON.stringify({ ...hello, ...body }))), envelope)

describe.each(CASES)('$name', ({ name, body, events }) => {
  test('stream', async () => {
    const encoder = decode(body).streamEncoder(about)
    const stream = events.map((event) => encoder.event(event)).join('') + encoder.ending
    await expect(stream).toMatchFileSnapshot(`golden/${name}.sse`)
  })

  test('body', async () => {
    const encoder = decode(body).bodyEncoder(about)
    for (const event of events) encoder.event(event)
    await expect(`${JSON.stringify(JSON.parse(encoder.body()), null, 2)}\n`).toMatchFileSnapshot(`golden/${name}.body`)
  })
})

// biome-ignore lint/suspicious/noExplicitAny: the wire's shape is what is asserted
type Json = any

function eventsOf(stream: string): Json[] {
  const events = stream.split('\n\n').slice(0, -1)
  return events.map((event) => {
    const [name, data, ...more] = event.split('\n') as [string, string]
    expect(more).toEqual([])
    const payload = JSON.parse(data.slice('data: '.length))
    expect(name).toBe(`event: ${payload.type}`)
    return payload
  })
}

function streamOf(events: readonly GenerateEvent[], body: object = {}): Json[] {
  const encoder = decode(body).streamEncoder(about)
  return eventsOf(events.map((event) => encoder.event(event)).join('') + encoder.ending)
}

function bodyOf(events: readonly GenerateEvent[], body: object = {}, own: Partial<About> = {}): Json {
  const encoder = decode(body).bodyEncoder({ ...about, ...own })
  for (const event of events) encoder.event(event)
  return JSON.parse(encoder.body())
}

test("a whole body has a call's arguments as the model wrote them", () => {
  const encoder = decode().bodyEncoder(about)
  for (const event of CASES[1]!.events) encoder.event(event)
  expect(encoder.body()).toContain(`"input":${ODD}}`)
})

describe('usage', () => {
  test.each([
    [300, 256, 30, [14, 30, 256]],
    [300, 256, 64, [0, 44, 256]],
    [300, 0, 0, [300, 0, 0]],
    [300, 320, 64, [0, 0, 300]],
    [0, 0, 0, [0, 0, 0]],
  ])(
    '%i tokens, %i cached, %i committed',
    (promptTokens, cached, committedTokens, [input, created, read]: number[]) => {
      const cache = { working: 0, memory: cached, disk: 0, computed: promptTokens - cached }
      const begun: GenerateEvent = { type: 'start', promptTokens, cache, committedTokens }
      const events = [begun, end('stop'), { ...begun, type: 'finish' as const, completionTokens: 0 }]
      const [first, last] = [streamOf(events)[0].message.usage, streamOf(events).at(-2).usage]
      for (const usage of [first, last, bodyOf(events).usage]) {
        expect(usage).toMatchObject({
          input_tokens: input,
          cache_creation_input_tokens: created,
          cache_read_input_tokens: read,
          cache_creation: { ephemeral_5m_input_tokens: created, ephemeral_1h_input_tokens: 0 },
        })
      }
    },
  )
})

test.each([
  ['end_turn', {}, [said({ content: 'a' }), end('stop')]],
  ['max_tokens', { max_tokens: 1 }, [said({ content: 'a' }), end('length')]],
  ['model_context_window_exceeded', {}, [said({ content: 'a' }), end('length')]],
  ['stop_sequence', {}, [said({ content: 'a' }), end('stop', { stopString: 'X' })]],
  ['tool_use', {}, [said({ calls: [{ index: 0, name: 'f' }] }), end('stop')]],
  ['max_tokens', { max_tokens: 1 }, [said({ calls: [{ index: 0, name: 'f', argumentsDelta: '{' }] }), end('length')]],
])('stops with %s', (reason, body, events) => {
  const told = streamOf(answer(...events), body)
  expect(told.at(-2).delta).toEqual({ stop_reason: reason, stop_sequence: reason === 'stop_sequence' ? 'X' : null })
  expect(bodyOf(answer(...events), body).stop_reason).toBe(reason)
})

test('white space alone is no block, in front of text it is a part of it', () => {
  const contents = (...texts: string[]) =>
    bodyOf(answer(...texts.map((content) => said({ content })), end('stop'))).content.map((block: Json) => block.text)
  expect(contents('\n', ' \n')).toEqual([])
  expect(contents('\n', '\n', 'a', '\n')).toEqual(['\n\na\n'])
})

test('reasoning that is not to be shown is in the signature', () => {
  const events = answer(said({ reasoning: 'hm ' }), said({ reasoning: 'é' }), said({ content: 'a' }), end('stop'))
  const [thinking, text] = bodyOf(events, { thinking: { type: 'adaptive', display: 'omitted' } }).content
  expect([thinking.thinking, openThinking(thinking.signature), text.text]).toEqual(['', 'hm é', 'a'])
  const [shown] = bodyOf(events).content
  expect([shown.thinking, openThinking(shown.signature)]).toEqual(['hm é', undefined])
  expect(shown.signature).toBe(bodyOf(events).content[0].signature)
})

describe('diagnostics', () => {
  const events = answer(said({ content: 'a' }), end('stop'))
  const asked = { diagnostics: { previous_message_id: 'msg_1' } }

  test('are there only where they were asked for; the first message of a conversation has nothing to compare', () => {
    expect(bodyOf(events)).not.toHaveProperty('diagnostics')
    expect(bodyOf(events, { diagnostics: { previous_message_id: null } }).diagnostics).toBeNull()
    expect(bodyOf(events, asked).diagnostics).toEqual({ cache_miss_reason: { type: 'unavailable' } })
  })

  test('say what is found by whoever compares', () => {
    const missReason = (previousId: string) =>
      previousId === 'msg_1' ? ({ type: 'tools_changed', missedTokens: 256 } as const) : undefined
    const found = { cache_miss_reason: { type: 'tools_changed', cache_missed_input_tokens: 256 } }
    expect(bodyOf(events, asked, { missReason }).diagnostics).toEqual(found)
    const other = { diagnostics: { previous_message_id: 'msg_2' } }
    expect(bodyOf(events, other, { missReason }).diagnostics).toBeNull()
    const encoder = decode(asked).streamEncoder({ ...about, missReason })
    expect(eventsOf(encoder.event(start))[0].message.diagnostics).toEqual(found)
  })
})

test('reasoning that is missing is told by the name that it has here', () => {
  const words = 'The `reasoning_content` in the thinking mode must be passed back to the API.'
  const body = anthropicMessages.errors?.body(new RefrainError('reasoning_missing', words), 'r') ?? ''
  expect(JSON.parse(body).error.message).toMatch(/^The `content\[\].thinking` in the thinking mode must be passed back/)
})

test('a failure is one event, in the words of the API', () => {
  const failed = (error: unknown) => eventsOf(decode().streamEncoder(about).failure(error))
  expect(failed(new RefrainError('engine_failed', 'it is gone'))).toEqual([
    { type: 'error', error: { type: 'api_error', message: 'it is gone' }, request_id: '0123' },
  ])
  expect(failed(new RefrainError('draining', 'bye'))[0].error.type).toBe('overloaded_error')
  expect(JSON.stringify(failed(new TypeError('secret detail')))).not.toContain('secret')
  expect(eventsOf(decode().streamEncoder(about).keepalive?.() ?? '')).toEqual([{ type: 'ping' }])
})

test('whatever is said: one message, blocks in turn with contiguous indices, nothing empty, and the body says the same', () => {
  const piece = fc.constantFrom('', '\n', ' ', 'a', 'é😀', '"\\')
  const split = fc.record({
    reasoning: piece,
    content: piece,
    calls: fc.constantFrom<SplitText['calls'][]>(
      [],
      [{ index: 0, name: 'f' }],
      [{ index: 1, name: 'g', argumentsDelta: '{"a":1}' }],
    ),
  })
  fc.assert(
    fc.property(
      fc.array(split, { maxLength: 12 }),
      fc.constantFrom('stop' as const, 'length' as const),
      (splits, reason) => {
        const events = answer(...splits.map(said), end(reason))
        const told = streamOf(events)
        const blocks: Json[] = []
        let open = -1
        for (const event of told.slice(1, -2)) {
          if (event.type === 'content_block_start') {
            expect([open, event.index]).toEqual([-1, blocks.length])
            open = event.index
            blocks.push({ type: event.content_block.type, text: '', signature: undefined })
          } else {
            expect(event.index).toBe(open)
            if (event.type === 'content_block_stop') open = -1
            else if (event.delta.type === 'signature_delta') blocks[open].signature = event.delta.signature
            else {
              expect(blocks[open].signature).toBeUndefined()
              blocks[open].text += event.delta.text ?? event.delta.thinking ?? event.delta.partial_json
            }
          }
        }
        expect(open).toBe(-1)
        expect(told.filter(({ type }) => /^message_/.test(type)).map(({ type }) => type)).toEqual([
          'message_start',
          'message_delta',
          'message_stop',
        ])
        for (const { type, text, signature } of blocks) {
          expect(text.trim()).not.toBe('')
          if (type === 'thinking') expect(signature).toMatch(/^\S{44}$/)
          if (type === 'tool_use') expect(JSON.parse(text)).toBeTypeOf('object')
        }
        const texts = bodyOf(events).content.map(
          (block: Json) => block.text ?? block.thinking ?? JSON.stringify(block.input),
        )
        expect(texts).toEqual(blocks.map(({ text }) => text))
      },
    ),
  )
})
