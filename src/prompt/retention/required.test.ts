import { describe, expect, test } from 'vitest'
import type { ChatMessage } from '../../core/request.js'
import { dropAtUserTurn } from './drop-at-user-turn.js'
import { keepWithTools } from './keep-with-tools.js'
import { requireReasoning } from './required.js'
import type { Retention } from './retention.js'

const user: ChatMessage = { role: 'user', content: 'x' }
const bare: ChatMessage = { role: 'assistant', content: 'y' }
const chat = [user, bare, user, { ...bare, reasoning: 'r' }]
const check = (messages: readonly ChatMessage[], retention: Retention, known: readonly number[] = []) =>
  requireReasoning(messages, { retention, isKnown: (i) => known.includes(i) })

describe('missing reasoning', () => {
  test('is refused in the words that clients know, where the rule would show it', () => {
    expect(() => check(chat, keepWithTools)).toThrow(
      expect.objectContaining({
        code: 'reasoning_missing',
        status: 400,
        param: 'reasoning_content',
        message: expect.stringContaining(
          'The `reasoning_content` in the thinking mode must be passed back to the API.',
        ),
      }),
    )
    check(chat, dropAtUserTurn)
    expect(() => check([user, bare], dropAtUserTurn)).toThrow('messages[1]')
  })

  test('is none where it was empty, or is known to be', () => {
    check([user, { ...bare, reasoning: '' }], keepWithTools)
    check(chat, keepWithTools, [1])
  })
})
