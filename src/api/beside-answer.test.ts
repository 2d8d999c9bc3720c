// What passes of an answer, what waits for the results, and what was said by it, as servers write their streams.

import { describe, expect, test } from 'vitest'
import type { QuickResult } from '../core/quick.js'
import { besideAnswer } from './beside-answer.js'
import { without } from './body-edit.js'
import { BodyScan } from './body-scan.js'

const results: QuickResult[] = [
  { task: 'title', form: 'instruction', text: 'Ebbe – é', usage: { promptTokens: 3, completionTokens: 2 } },
]
const CHAT = '/v1/chat/completions'

const chunk = (choices: object[], more: object = {}) =>
  `data: ${JSON.stringify({ id: 'c1', created: 5, model: 'm', choices, ...more })}\n\n`
const said = (content: string, index = 0, finish: string | null = null) =>
  chunk([{ index, delta: { content }, finish_reason: finish }])
const DONE = 'data: [DONE]\n\n'

/** What passes piece by piece, and what comes at the end. */
function passing(path: string, pieces: readonly string[], choices = 1) {
  const answer = besideAnswer(path, choices)
  const passed = pieces.map((piece) => answer.pass(Buffer.from(piece)).toString())
  return { answer, passed: passed.join(''), rest: answer.rest(results).toString() }
}

describe('a chat stream', () => {
  test('passes to its last choice; usage and end wait', () => {
    const usage = chunk([], { usage: { prompt_tokens: 3 } })
    const { passed, rest } = passing(CHAT, [said('a'), said('b', 0, 'stop') + usage, DONE])
    expect(passed).toBe(said('a') + said('b', 0, 'stop'))
    expect(
      rest.startsWith(
        'data: {"id":"c1","object":"chat.completion.chunk","created":5,"model":"m","choices":[],"quick":',
      ),
    ).toBe(true)
    expect(rest).toContain('Ebbe – é')
    expect(rest.endsWith(usage + DONE)).toBe(true)
  })

  test('of several choices waits for the last, and goes by the first', () => {
    const events = [said('a'), said('x', 1), said('', 0, 'stop'), said('y', 1), said('', 1, 'stop')]
    const { passed, answer } = passing(CHAT, [...events, DONE], 2)
    expect(passed).toBe(events.join(''))
    expect(JSON.parse(answer.reply())).toEqual({ role: 'assistant', content: 'a' })
  })

  test('with chunks that have no choices in front, and an end without a reason', () => {
    const filter = chunk([], { prompt_filter_results: [] })
    const { passed, rest } = passing(CHAT, [filter + said('a'), DONE])
    expect(passed).toBe(filter + said('a'))
    expect(rest.endsWith(DONE)).toBe(true)
  })

  test('keeps its bytes: line ends, comments, what is no JSON', () => {
    const odd = `: life\r\n\r\ndata: {"choices": [{"index":0, "delta":{"content":"é"}}]}\r\n\r\ndata: what\r\n\r\n`
    const { passed, rest } = passing(CHAT, [odd, said('', 0, 'stop'), 'data: [DONE]\r\n\r\n'])
    expect(passed).toBe(odd + said('', 0, 'stop'))
    expect(rest.endsWith('data: [DONE]\r\n\r\n')).toBe(true)
  })
})

test('Messages: the last delta gets the results, events behind it stay behind it', () => {
  const events = [
    { type: 'message_start', message: {} },
    { type: 'content_block_start', content_block: { type: 'tool_use', id: 't1', name: 'run', input: {} } },
    { type: 'content_block_delta', delta: { type: 'input_json_delta', partial_json: '{"n":' } },
    { type: 'content_block_delta', delta: { type: 'input_json_delta', partial_json: '1.0}' } },
    { type: 'message_delta', delta: {}, usage: { output_tokens: 1 } },
    { type: 'message_delta', delta: { stop_reason: 'tool_use' }, usage: { output_tokens: 2 } },
    { type: 'message_stop' },
  ].map((event) => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`)
  const { answer, passed, rest } = passing('/v1/messages', events)
  expect(passed).toBe(events.slice(0, 4).join(''))
  const quick = rest.slice(rest.indexOf(',"quick":'), rest.lastIndexOf('}\n\nevent: message_stop'))
  expect(rest).toBe(`${events[4]}${events[5]!.slice(0, -3)}${quick}}\n\n${events[6]}`)
  expect(JSON.parse(answer.reply()).tool_calls).toEqual([
    { id: 't1', type: 'function', function: { name: 'run', arguments: '{"n":1.0}' } },
  ])
})

test('Responses: the last response gets the results, what stands behind it in its event stays', () => {
  const output = [
    { type: 'reasoning', summary: [{ type: 'summary_text', text: 'I think.' }] },
    { type: 'message', content: [{ type: 'output_text', text: 'Yes.' }] },
    { type: 'function_call', call_id: 'f1', name: 'run', arguments: '{}' },
  ]
  const last = `data: {"type":"response.incomplete","response":{"output":${JSON.stringify(output)} },"timings":{"n":1}}\n\n`
  const { answer, passed, rest } = passing('/v1/responses', ['data: {"type":"response.created"}\n\n', last])
  expect(passed).toBe('data: {"type":"response.created"}\n\n')
  expect(JSON.parse(rest.slice(6))).toMatchObject({ response: { output, quick: { results: [{ text: 'Ebbe – é' }] } } })
  expect(rest.endsWith('},"timings":{"n":1}}\n\n')).toBe(true)
  expect(JSON.parse(answer.reply())).toMatchObject({
    content: 'Yes.',
    reasoning_content: 'I think.',
    tool_calls: [{ id: 'f1', function: { name: 'run', arguments: '{}' } }],
  })
})

test('a body keeps its bytes and gets one member more', () => {
  const body = '{ "choices": [{"message":{"content":"é", "n":1.0}}] }\n'
  const answer = besideAnswer(CHAT, 1)
  const whole = answer.whole(Buffer.from(body), results).toString()
  expect(whole.startsWith('{ "choices": [{"message":{"content":"é", "n":1.0}}] ,"quick":')).toBe(true)
  expect(JSON.parse(whole).quick.results[0].text).toBe('Ebbe – é')
  expect(JSON.parse(answer.reply(Buffer.from(body))).content).toBe('é')
})

test.each([
  ['{"quick":1,"a":2}', '{"a":2}'],
  ['{"a":2,"quick":1}', '{"a":2}'],
  ['{"a":2 , "quick" : 1 , "b":3}', '{"a":2 , "b":3}'],
  ['{"quick":1,"quick":2,"a":3}', '{"a":3}'],
  ['{"a":3,"quick":1,"quick":2}', '{"a":3}'],
  ['{ "quick":1 }', '{  }'],
  ['{"b":{"quick":1}}', '{"b":{"quick":1}}'],
])('%s without it is %s', (body, expected) => {
  expect(without(new BodyScan(Buffer.from(body)), 'quick').toString()).toBe(expected)
})
