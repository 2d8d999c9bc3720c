// What counts as the same conversation: each rewrite of wire.md 2.7 keeps the key, each change of what is said changes it.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import type { ChatMessage } from '../core/request.js'
import {
  callKey,
  canonical,
  canonicalJson,
  forgetTranscripts,
  type Said,
  startTranscript,
  words,
} from './transcript.js'

const scope = { tenantSalt: 't', model: 'm' }
const keyOf = (messages: readonly Said[], of: Parameters<typeof startTranscript>[0] = scope) =>
  messages.reduce((transcript, message) => transcript.add(message), startTranscript(of)).key

const call = (args: string, name = 'look', id = 'c1') => ({ id, name, arguments: args })
const chat: readonly ChatMessage[] = [
  { role: 'system', content: 'Be brief.\n' },
  { role: 'user', content: 'What is there?' },
  {
    role: 'assistant',
    content: 'Let me look.\n\n',
    reasoning: 'Hm.\n',
    toolCalls: [call('{"limit": 20.0,  "path": "\\/a\\u00e9", "far": 1e3}')],
  },
  { role: 'tool', content: 'a tree', toolCallId: 'c1' },
  { role: 'assistant', content: '\n\nA tree.\n' },
]
const changed = (at: number, more: Partial<ChatMessage>) =>
  chat.map((message, i) => (i === at ? { ...message, ...more } : message))

describe('the same', () => {
  test.each<[string, readonly ChatMessage[]]>([
    ['trimmed', chat.map((message) => ({ ...message, content: message.content.trim() }))],
    ['reasoning gone', changed(2, { reasoning: '' })],
    ['arguments re-serialised', changed(2, { toolCalls: [call('{"limit":20,"path":"/aé","far":1000}')] })],
    ['as Python writes them', changed(2, { toolCalls: [call('{"limit": 20.0, "path": "/a\\u00e9", "far": 1000.0}')] })],
    ['keys in another order', changed(2, { toolCalls: [call('{"far":1000,"path":"/aé","limit":20}')] })],
    ['other ids', changed(2, { toolCalls: [call(chat[2]!.toolCalls![0]!.arguments, 'look', 'x')] })],
    ['no calls as an empty list', changed(4, { toolCalls: [] })],
    ['an empty answer between', [...chat.slice(0, 2), { role: 'assistant', content: ' ' }, ...chat.slice(2)]],
    [
      'an answer as two messages',
      [
        ...chat.slice(0, 2),
        { role: 'assistant', content: 'Let me look.' },
        { ...chat[2]!, content: '' },
        ...chat.slice(3),
      ],
    ],
    ['other white space', changed(1, { content: 'What\u00a0is\u2003 there?\u3000\ufeff' })],
    ['halves of characters replaced', changed(1, { content: 'What is \ud83dthere?\ufffd' })],
  ])('%s', (_, messages) => {
    expect(keyOf(messages)).toBe(keyOf(chat))
  })

  test('white space goes from long texts as from short ones', () => {
    fc.assert(
      fc.property(
        fc.string({ unit: 'binary', maxLength: 200 }),
        fc.constantFrom(' ', '\u2028', '\ufffd'),
        (text, blank) => {
          const long = `${text}${blank}${'x'.repeat(300)}`
          const wanted = Buffer.from(long)
            .toString()
            .replace(/[\s\ufffd]/g, '')
          expect(words(long)).toBe(wanted)
          expect(words(text) + 'x'.repeat(300)).toBe(wanted)
        },
      ),
    )
  })
})

describe('another', () => {
  test.each<[string, readonly ChatMessage[]]>([
    ['word', changed(1, { content: 'What was there?' })],
    ['role', changed(0, { role: 'user' })],
    ['name of a call', changed(2, { toolCalls: [call(chat[2]!.toolCalls![0]!.arguments, 'see')] })],
    ['number', changed(2, { toolCalls: [call('{"limit":20.5,"path":"/aé","far":1000}')] })],
    ['type', changed(2, { toolCalls: [call('{"limit":"20","path":"/aé","far":1000}')] })],
    ['white space in an argument', changed(2, { toolCalls: [call('{"limit":20,"path":"/ aé","far":1000}')] })],
    ['call too many', changed(2, { toolCalls: [...chat[2]!.toolCalls!, call('{}')] })],
    ['result', changed(3, { content: 'a bush' })],
    ['end', chat.slice(0, 4)],
    ['order', [chat[1]!, chat[0]!, ...chat.slice(2)]],
    [
      'place of a result',
      [...chat.slice(0, 3), { role: 'tool', content: 'a' }, { role: 'tool', content: 'tree' }, chat[4]!],
    ],
  ])('%s', (_, messages) => {
    expect(keyOf(messages)).not.toBe(keyOf(chat))
  })

  test('tenant, model or salt', () => {
    const keys = [scope, { ...scope, tenantSalt: 'u' }, { ...scope, model: 'n' }, { ...scope, cacheSalt: 's' }]
    expect(new Set(keys.map((each) => keyOf(chat, each))).size).toBe(4)
    expect(new Set(keys.map((each) => callKey(each, 'c1', 'said'))).size).toBe(4)
  })
})

test('a transcript is a value: adding to it leaves it as it was', () => {
  const start = startTranscript(scope)
  const one = start.add({ role: 'assistant', content: 'a' })
  const key = one.key
  one.add({ role: 'assistant', content: 'b' })
  expect(one.key).toBe(key)
  expect(start.key).toBe(startTranscript(scope).key)
})

describe('arguments', () => {
  test('print again to what they were, for any JSON', () => {
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        expect(JSON.parse(canonicalJson(JSON.stringify(value)))).toEqual(JSON.parse(JSON.stringify(value)))
        expect(canonicalJson(JSON.stringify(value, null, 2))).toBe(canonicalJson(JSON.stringify(value)))
      }),
    )
  })

  test('what is no JSON, or is too deep, is compared as it stands', () => {
    expect(canonicalJson('{"a": ')).toBe('{"a":')
    expect(canonicalJson('')).toBe('{}')
    const deep = `${'['.repeat(5000)} ${']'.repeat(5000)}`
    expect(canonicalJson(deep)).toBe(deep.replace(' ', ''))
    expect(canonicalJson('{"__proto__":1,"a":2}')).toBe('{"__proto__":1,"a":2}')
  })

  test('an answer says nothing without words and calls', () => {
    expect(canonical({ content: ' \n' })).toBe('')
    expect(canonical({ content: '', toolCalls: [call('{}')] })).not.toBe('')
  })
})

test('what is remembered changes nothing, and is forgotten when it is much', () => {
  const key = keyOf(chat)
  expect(keyOf(chat)).toBe(key)
  for (let i = 0; i < 40; i++) keyOf([{ role: 'user', content: `${i}` }])
  for (let i = 0; i < 20; i++) keyOf([{ role: 'user', content: `${i}`.repeat(1_000_000) }])
  expect(keyOf(chat)).toBe(key)
  forgetTranscripts()
  expect(keyOf(chat)).toBe(key)
})
