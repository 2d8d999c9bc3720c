// How a chat's answer names and counts reasoning, and how it ends; whole transcripts are in golden.test.ts.

import { describe, expect, test } from 'vitest'
import type { CallDelta, GenerateEvent } from '../../core/events.js'
import type { About } from './contract.js'
import { ChatBody, ChatStream } from './openai-chat-encode.js'

const about: About = { id: 'chatcmpl-1', model: 'toy', created: 1, forceUsage: true }
const cache = { working: 0, memory: 0, disk: 0, computed: 9 }

const piece = (
  tokens: number,
  split: { reasoning?: string; content?: string; calls?: CallDelta[] },
): GenerateEvent => ({
  type: 'token',
  choice: 0,
  ids: Array.from({ length: tokens }, (_, i) => i),
  text: '',
  split: { reasoning: '', content: '', calls: [], ...split },
})
const ended: GenerateEvent[] = [
  { type: 'end', choice: 0, reason: 'stop' },
  { type: 'finish', promptTokens: 9, completionTokens: 20, cache, committedTokens: 0 },
]

function bodyOf(events: readonly GenerateEvent[], more: Partial<About> = {}) {
  const encoder = new ChatBody({ ...about, ...more }, { n: 1, includeUsage: true })
  for (const event of events) encoder.event(event)
  return JSON.parse(encoder.body())
}

describe('reasoning', () => {
  const events = [
    piece(1, {}),
    piece(2, { reasoning: 'hm' }),
    piece(1, {}),
    piece(1, { reasoning: '\n\nso' }),
    piece(2, {}),
    piece(3, { content: 'Yes' }),
    ...ended,
  ]

  test('has the name that the config gives it, in bodies and streams', () => {
    expect(bodyOf(events).choices[0].message).toMatchObject({ reasoning_content: 'hm\n\nso', content: 'Yes' })
    const { message } = bodyOf(events, { reasoningField: 'reasoning' }).choices[0]
    expect(message).toMatchObject({ reasoning: 'hm\n\nso' })
    expect(message).not.toHaveProperty('reasoning_content')
    const stream = new ChatStream({ ...about, reasoningField: 'reasoning' }, { n: 1, includeUsage: true })
    const text = events.map((event) => stream.event(event)).join('')
    expect(text).toContain('"delta":{"reasoning":"hm"}')
    expect(text).not.toContain('reasoning_content')
  })

  test('counts what was held back before it, and not what stands behind its end', () => {
    expect(bodyOf(events).usage.completion_tokens_details.reasoning_tokens).toBe(5)
  })
})

test('whoever is made to call ends with tool_calls: loops of clients go by it', () => {
  const call = { index: 0, id: 'c', name: 'f', argumentsDelta: '{}' }
  expect(bodyOf([piece(3, { calls: [call] }), ...ended]).choices[0]).toMatchObject({
    finish_reason: 'tool_calls',
    message: { content: null, tool_calls: [{ id: 'c', type: 'function', function: { name: 'f', arguments: '{}' } }] },
  })
})
