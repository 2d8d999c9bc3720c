// The Hermes form in particular: raw arguments, end tags in strings, and what is no call.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import type { CallDelta } from '../../core/events.js'
import type { ToolCallParser } from './contract.js'
import { createHermesParser } from './hermes.js'

interface Joined {
  readonly content: string
  readonly calls: readonly { id: string | undefined; name: string | undefined; arguments: string }[]
}

function run(parser: ToolCallParser, pieces: readonly string[]): Joined {
  const parts = [...pieces.map((piece) => parser.push(piece)), parser.end()]
  const calls: { id: string | undefined; name: string | undefined; arguments: string }[] = []
  for (const delta of parts.flatMap((part): readonly CallDelta[] => part.calls)) {
    calls[delta.index] ??= { id: delta.id, name: delta.name, arguments: '' }
    calls[delta.index]!.arguments += delta.argumentsDelta ?? ''
  }
  return { content: parts.map((part) => part.content).join(''), calls }
}

/** `text` cut at the given places, as a stream would bring it. */
function cutAt(text: string, places: readonly number[]): string[] {
  const at = [...new Set(places.map((place) => place % (text.length + 1)))].sort((a, b) => a - b)
  return [...at, text.length].map((end, i) => text.slice(i === 0 ? 0 : at[i - 1], end))
}

const fragment = fc.constantFrom(
  'Hello ',
  '\n',
  ' ',
  '<',
  '<tool_call>',
  '</tool_call>',
  '<tool_',
  '</',
  '{"name": "f", "arguments": {"a": 1.0}}',
  '{"name": "g", "arguments": {"s": "</tool_call>"}}',
  '{"name": "h"}',
  '"',
  '\\',
  '{',
  '}',
  'é😀',
)
const text = fc.array(fragment, { maxLength: 12 }).map((parts) => parts.join(''))

test('gives the same for any cut of the text', () => {
  fc.assert(
    fc.property(text, fc.array(fc.nat(400), { maxLength: 8 }), (whole, places) => {
      expect(run(createHermesParser(), cutAt(whole, places))).toEqual(run(createHermesParser(), [whole]))
    }),
    { numRuns: 500 },
  )
})

describe('hermes', () => {
  const call = (json: string): string => `<tool_call>\n${json}\n</tool_call>`
  const hermes = (...pieces: string[]): Joined => run(createHermesParser(), pieces)

  test('keeps the raw text of the arguments', () => {
    const raw = '{ "b":1.0,\n "a" : "\\u00e9" , "n": 12345678901234567890}'
    const { content, calls } = hermes(`Let me see.\n${call(`{"name": "look", "arguments": ${raw}}`)}`)
    expect(content).toBe('Let me see.')
    expect(calls).toEqual([{ id: expect.stringMatching(/^call_[0-9a-f]{24}$/), name: 'look', arguments: raw }])
  })

  test('reads several calls, in any order of keys, and drops the space around them', () => {
    const { content, calls } = hermes(`${call('{"arguments": {"x": 1}, "name": "a"}')}\n${call('{"name": "b"}')}\n`)
    expect(content).toBe('')
    expect(calls.map(({ name, arguments: args }) => [name, args])).toEqual([
      ['a', '{"x": 1}'],
      ['b', '{}'],
    ])
    expect(calls[0]?.id).not.toBe(calls[1]?.id)
  })

  test('ids depend on the text and the index alone', () => {
    const twice = () => hermes(call('{"name": "a", "arguments": {}}') + call('{"name": "a", "arguments": {}}'))
    expect(twice()).toEqual(twice())
    expect(twice().calls[0]?.id).not.toBe(twice().calls[1]?.id)
  })

  test('an end tag inside of an argument is part of it', () => {
    const raw = '{"html": "a </tool_call> \\" </tool_call> b"}'
    expect(hermes(call(`{"name": "a", "arguments": ${raw}}`)).calls[0]?.arguments).toBe(raw)
  })

  test('arguments that are an object in a string are that object', () => {
    expect(hermes(call('{"name": "a", "arguments": "{\\"x\\": 1}"}')).calls[0]?.arguments).toBe('{"x": 1}')
  })

  test('a call without its end tag counts when it is complete, and is text when it is not', () => {
    expect(hermes('<tool_call>\n{"name": "a", "arguments": {}}').calls).toHaveLength(1)
    const cut = 'So:\n<tool_call>\n{"name": "a", "argum'
    expect(hermes(cut)).toEqual({ content: cut, calls: [] })
  })

  test.each([
    '<tool_call>not json</tool_call>',
    '<tool_call>{"arguments": {}}</tool_call>',
    '<tool_call>{"name": "", "arguments": {}}</tool_call>',
    '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
    '<tool_call>{"name": "a", "arguments": [1]}</tool_call>',
    '<tool_call></tool_call>',
    'a </tool_call> b <tool_call',
  ])('what is no call stays text: %s', (broken) => {
    expect(hermes(broken)).toEqual({ content: broken, calls: [] })
    const good = hermes(`${broken} then ${call('{"name": "a"}')}`)
    if (!broken.endsWith('<tool_call'))
      expect(good).toMatchObject({ content: `${broken} then `, calls: [{ name: 'a' }] })
  })

  test('text comes out at once, but for what may be a tag', () => {
    const parser = createHermesParser()
    expect(parser.push('Hello wor').content).toBe('Hello wor')
    expect(parser.push('ld <').content).toBe('ld ')
    expect(parser.push('b> <tool').content).toBe('<b> ')
    expect(parser.push('s>').content).toBe('<tools>')
  })

  test('a long argument full of end tags is read in one pass', () => {
    const parser = createHermesParser()
    parser.push('<tool_call>{"name": "a", "arguments": {"s": "')
    for (let i = 0; i < 20_000; i++) parser.push('</tool_call>')
    const done = parser.push('"}}</tool_call>')
    expect(done.calls[0]?.argumentsDelta).toHaveLength(20_000 * 12 + 9)
  })
})
