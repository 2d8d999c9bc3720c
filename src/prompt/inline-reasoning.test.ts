import { describe, expect, test } from 'vitest'
import type { ChatMessage } from '../core/request.js'
import type { ModelFormats } from './contract.js'
import { reasoningApart } from './inline-reasoning.js'
import { think } from './reasoning/think.js'

const formats: ModelFormats = {
  specials: [],
  reasoning: (prompt) => think.create({}, { prompt }),
  reasoningStart: '<think>',
  reasoningEnd: '</think>',
}
const says = (content: string, more: Partial<ChatMessage> = {}): ChatMessage => ({
  role: 'assistant',
  content,
  ...more,
})

describe('reasoning within the content', () => {
  test('is reasoning', () => {
    expect(reasoningApart([says('<think>\nhm\n</think>\n\nYes.')], formats)).toEqual([
      says('Yes.', { reasoning: 'hm' }),
    ])
    expect(reasoningApart([says('\n<think></think>Yes.')], formats)).toEqual([says('Yes.')])
  })

  test.each<[string, ChatMessage]>([
    ["a user's", { role: 'user', content: '<think>hm</think>Yes.' }],
    ['not at the start', says('Write <think>hm</think>.')],
    ['not ended', says('<think>hm')],
    ['beside reasoning of its own', says('<think>hm</think>Yes.', { reasoning: 'own' })],
  ])('stays where it is: %s', (_, message) => {
    const messages = [message]
    expect(reasoningApart(messages, formats)).toBe(messages)
  })

  test('stays where it is for a model that does not reason', () => {
    const messages = [says('<think>hm</think>Yes.')]
    expect(reasoningApart(messages, { specials: [] })).toBe(messages)
  })
})
