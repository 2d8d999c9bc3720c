// Clear-edits as functions of the messages: what goes, what stays, and that a prompt only grows between two clearings.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import type { ChatMessage } from '../../core/request.js'
import { applyEdits, CLEARED, type ClearThinking, type ClearToolUses } from './anthropic-context.js'

/** A token a character keeps the sums in sight. */
const counting = { head: '', tokensOf: (text: string) => text.length }

const uses: ClearToolUses = {
  kind: 'tool-uses',
  trigger: { kind: 'tool-uses', value: 3 },
  keep: 1,
  clearAtLeast: 0,
  exclude: new Set(),
  inputs: 'keep',
}

const user = (content: string): ChatMessage => ({ role: 'user', content })
const ask = (id: string, name = 'f', reasoning?: string): ChatMessage => ({
  role: 'assistant',
  content: '',
  toolCalls: [{ id, name, arguments: '{"a": 1.0}' }],
  ...(reasoning === undefined ? {} : { reasoning }),
})
const result = (toolCallId: string, length = 100): ChatMessage => ({
  role: 'tool',
  content: 'x'.repeat(length),
  toolCallId,
})
/** `n` steps of a loop, by the tools' names. */
const loop = (...names: string[]) => names.flatMap((name, i) => [ask(`t${i}`, name), result(`t${i}`)])

const clearedIds = (messages: readonly ChatMessage[]) =>
  messages.filter(({ content }) => content === CLEARED).map(({ toolCallId }) => toolCallId)

describe('tool uses', () => {
  test('nothing is cleared up to the trigger, and then all but what is kept', () => {
    const three = [user('a'), ...loop('f', 'f', 'f')]
    expect(applyEdits(three, [uses], counting)).toEqual({ messages: three, applied: [] })
    expect(applyEdits(three, [uses], counting).messages).toBe(three)
    const { messages, applied } = applyEdits([user('a'), ...loop('f', 'f', 'f', 'f')], [uses], counting)
    expect(clearedIds(messages)).toEqual(['t0', 't1', 't2'])
    expect(applied).toEqual([
      { type: 'clear_tool_uses_20250919', cleared_tool_uses: 3, cleared_input_tokens: 3 * (100 - CLEARED.length) },
    ])
    expect(
      messages.filter(({ role }) => role === 'assistant').map(({ toolCalls }) => toolCalls?.[0]?.arguments),
    ).toEqual(Array(4).fill('{"a": 1.0}'))
  })

  test('by input tokens: tools and all text count', () => {
    const edit: ClearToolUses = { ...uses, trigger: { kind: 'input-tokens', value: 460 } }
    const four = [user('a'), ...loop('f', 'f', 'f', 'f')]
    expect(applyEdits(four, [edit], counting).applied).toEqual([])
    expect(clearedIds(applyEdits(four, [edit], { ...counting, head: 'x'.repeat(20) }).messages)).toHaveLength(3)
  })

  test('a short conversation is not counted at all', () => {
    const edit: ClearToolUses = { ...uses, trigger: { kind: 'input-tokens', value: 100_000 } }
    const never = { head: 'tools', tokensOf: () => expect.fail('it was counted') }
    expect(applyEdits([user('a'), ...loop('f', 'f')], [edit], never).applied).toEqual([])
  })

  test('excluded tools stay; nothing is cleared where it would be too little', () => {
    const edit: ClearToolUses = { ...uses, exclude: new Set(['keep']) }
    const messages = [user('a'), ...loop('keep', 'f', 'keep', 'f', 'f', 'f')]
    expect(clearedIds(applyEdits(messages, [edit], counting).messages)).toEqual(['t1', 't3', 't4'])
    expect(applyEdits(messages, [{ ...edit, clearAtLeast: 1000 }], counting).messages).toBe(messages)
  })

  test('inputs go where that is asked: all, or those of some tools', () => {
    const messages = [user('a'), ...loop('f', 'g', 'f', 'f')]
    const inputsOf = (inputs: ClearToolUses['inputs']) =>
      applyEdits(messages, [{ ...uses, inputs }], counting).messages.flatMap(({ toolCalls = [] }) =>
        toolCalls.map((call) => call.arguments),
      )
    const sent = '{"a": 1.0}'
    expect(inputsOf('clear')).toEqual(['{}', '{}', '{}', sent])
    expect(inputsOf(new Set(['g']))).toEqual([sent, '{}', sent, sent])
  })

  test('what is shorter than what would stand in its place stays; results of calls that are gone are cleared too', () => {
    const messages = [user('a'), ask('t0'), result('t0', 10), result('gone'), ...loop('f', 'f', 'f')]
    expect(clearedIds(applyEdits(messages, [uses], counting).messages)).toEqual(['gone', 't0'])
  })

  test('between two clearings the edited prompt only grows: its prefix stays put', () => {
    const whole = [user('a'), ...loop(...Array(30).fill('f'))]
    const prompts = Array.from(
      { length: 31 },
      (_, step) => applyEdits(whole.slice(0, 1 + step * 2), [uses], counting).messages,
    )
    const kept = prompts.slice(1).filter((now, i) => {
      const before = prompts[i] as readonly ChatMessage[]
      return before.every((message, at) => JSON.stringify(message) === JSON.stringify(now[at]))
    })
    // Every third step clears; all others append.
    expect(kept).toHaveLength(30 - 9)
    for (const messages of prompts) {
      const left = messages.filter(({ role, content }) => role === 'tool' && content !== CLEARED)
      expect(left.length).toBeLessThanOrEqual(3)
    }
  })

  test('any conversation: only results of the past change, as many messages come out as went in, and it is quick', () => {
    const message = fc.oneof(
      fc.constant(user('u')),
      fc.integer({ min: 0, max: 5 }).map((i) => ask(`t${i}`, i % 2 === 0 ? 'f' : 'g')),
      fc.tuple(fc.integer({ min: 0, max: 6 }), fc.integer({ min: 0, max: 200 })).map(([i, n]) => result(`t${i}`, n)),
    )
    const edit = fc.record({
      kind: fc.constant('tool-uses' as const),
      trigger: fc.record({
        kind: fc.constantFrom('tool-uses' as const, 'input-tokens' as const),
        value: fc.integer({ min: 1, max: 500 }),
      }),
      keep: fc.integer({ min: 0, max: 4 }),
      clearAtLeast: fc.integer({ min: 0, max: 200 }),
      exclude: fc.constantFrom(new Set<string>(), new Set(['g'])),
      inputs: fc.constantFrom('keep' as const, 'clear' as const),
    })
    fc.assert(
      fc.property(fc.array(message, { maxLength: 30 }), edit, (messages, asked) => {
        const before = JSON.stringify(messages)
        const { messages: edited, applied } = applyEdits(messages, [asked], counting)
        expect(JSON.stringify(messages)).toBe(before)
        expect(edited.map(({ role }) => role)).toEqual(messages.map(({ role }) => role))
        expect(applied.length).toBe(edited === messages ? 0 : 1)
        for (const each of applied) expect(each.cleared_input_tokens).toBeGreaterThan(0)
        expect(edited.filter(({ role }) => role === 'user')).toEqual(messages.filter(({ role }) => role === 'user'))
      }),
    )
    const long = [user('a'), ...loop(...Array(20_000).fill('f'))]
    const started = performance.now()
    applyEdits(
      long,
      [
        { ...uses, keep: 5, clearAtLeast: 1e9 },
        { ...uses, trigger: { kind: 'input-tokens', value: 9 } },
      ],
      counting,
    )
    expect(performance.now() - started).toBeLessThan(2000)
  })
})

describe('thinking', () => {
  const edit = (keep: number | 'all'): ClearThinking => ({ kind: 'thinking', keep })
  const messages = [
    user('1'),
    ask('a', 'f', 'one'),
    result('a'),
    user('beside the result'),
    ask('b', 'f', 'one more'),
    result('b'),
    { role: 'assistant', content: 'Done.' } as const,
    user('2'),
    { role: 'assistant', content: 'Sure.', reasoning: 'two' } as const,
    user('3'),
    { role: 'assistant', content: 'No.', reasoning: 'three' } as const,
  ]
  const thoughts = (list: readonly ChatMessage[]) => list.flatMap(({ reasoning }) => reasoning ?? [])

  test('the last turns keep theirs; a turn goes on over tool results and what is said beside them', () => {
    const { messages: edited, applied } = applyEdits(messages, [edit(1)], counting)
    expect(thoughts(edited)).toEqual(['three'])
    expect(applied).toEqual([
      { type: 'clear_thinking_20251015', cleared_thinking_turns: 2, cleared_input_tokens: 3 + 8 + 3 },
    ])
    expect(thoughts(applyEdits(messages, [edit(2)], counting).messages)).toEqual(['two', 'three'])
    expect(edited.map(({ content }) => content)).toEqual(messages.map(({ content }) => content))
  })

  test('all, or as many turns as there are: the very list', () => {
    for (const keep of ['all', 3, 4] as const) {
      expect(applyEdits(messages, [edit(keep)], counting).messages).toBe(messages)
    }
  })

  test('both kinds, in their order, are told apart', () => {
    const { applied } = applyEdits([...messages, ...loop('f', 'f', 'f')], [edit(1), { ...uses, keep: 2 }], counting)
    expect(applied.map(({ type }) => type)).toEqual(['clear_thinking_20251015', 'clear_tool_uses_20250919'])
  })
})
