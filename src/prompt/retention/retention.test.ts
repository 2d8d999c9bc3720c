import { describe, expect, test } from 'vitest'
import type { ChatMessage } from '../../core/request.js'
import { asSent } from './as-sent.js'
import { dropAtUserTurn } from './drop-at-user-turn.js'
import * as retentions from './index.js'
import { keepWithTools } from './keep-with-tools.js'

const user = (content: string): ChatMessage => ({ role: 'user', content })
const says = (content: string, reasoning?: string): ChatMessage => ({
  role: 'assistant',
  content,
  ...(reasoning !== undefined && { reasoning }),
})
const calls = (id: string, reasoning: string): ChatMessage => ({
  role: 'assistant',
  content: '',
  reasoning,
  toolCalls: [{ id, name: 'look', arguments: '{}' }],
})
const result = (toolCallId: string): ChatMessage => ({ role: 'tool', content: 'found', toolCallId })

const twoTurns = [
  { role: 'system', content: 's' } as const,
  user('one'),
  calls('a', 'think a'),
  result('a'),
  says('done', 'think done'),
  user('two'),
  calls('b', 'think b'),
  result('b'),
]
const reasoningOf = (messages: readonly ChatMessage[]) =>
  messages.flatMap(({ role, reasoning }) => (role === 'assistant' ? [reasoning] : []))

describe.each(Object.entries(retentions))('%s', (_name, policy) => {
  test.each([true, false])('drops nothing but reasoning of assistants, and does it once (tools: %s)', (tools) => {
    const given = structuredClone(twoTurns)
    const once = policy.retain(twoTurns, { tools })
    expect(twoTurns).toEqual(given)
    expect(once.map(({ reasoning: _, ...rest }) => rest)).toEqual(twoTurns.map(({ reasoning: _, ...rest }) => rest))
    expect(policy.retain(once, { tools })).toEqual(once)
    for (const [i, message] of once.entries()) expect([undefined, twoTurns[i]?.reasoning]).toContain(message.reasoning)
  })

  test.each([true, false])('within a user turn the prefix stays put (tools: %s)', (tools) => {
    const before = policy.retain(twoTurns, { tools })
    const after = policy.retain([...twoTurns, says('bye', 'think bye')], { tools })
    expect(after.slice(0, before.length)).toEqual(before)
  })
})

test('as-sent leaves all as it came', () => {
  expect(asSent.retain(twoTurns, { tools: false })).toBe(twoTurns)
})

describe('drop-at-user-turn', () => {
  const { retain } = dropAtUserTurn

  test('a new user turn drops the reasoning before it, the tool loop behind it keeps its own; tool history stays', () => {
    const kept = retain(twoTurns, { tools: true })
    expect(reasoningOf(kept)).toEqual([undefined, undefined, 'think b'])
    expect(kept[2]?.toolCalls).toEqual(twoTurns[2]?.toolCalls)
    expect(kept[3]).toEqual(twoTurns[3])
  })

  test('a tool result that a harness sends as a user message is a user turn', () => {
    const asUser = [user('one'), calls('a', 'think a'), user('<tool_result>found</tool_result>')]
    expect(reasoningOf(retain(asUser, { tools: true }))).toEqual([undefined])
    const asTool = [user('one'), calls('a', 'think a'), result('a')]
    expect(reasoningOf(retain(asTool, { tools: true }))).toEqual(['think a'])
  })

  test('without any user message all stays', () => {
    expect(reasoningOf(retain([says('hello', 'think')], { tools: false }))).toEqual(['think'])
  })
})

test('keep-with-tools keeps all with tools, and drops at a user turn without', () => {
  const { retain } = keepWithTools
  expect(retain(twoTurns, { tools: true })).toBe(twoTurns)
  expect(reasoningOf(retain(twoTurns, { tools: false }))).toEqual([undefined, undefined, 'think b'])
})
