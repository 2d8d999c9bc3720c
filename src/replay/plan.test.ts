// What is sent, and what it waits for: texts that share their beginnings as the trace's blocks do, sub-agents beside their
// parent, conversations as transcripts and as logged bodies.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { readClaudeCode } from '../trace/claude-code.js'
import type { Trace } from '../trace/trace.js'
import { readConversations } from './conversations.js'
import { planBlocks, planConversations } from './plan.js'
import { Prompts, type Speech } from './prompts.js'
import { WordText } from './words.js'

const speech: Speech = {
  ...{
    api: 'chat',
    model: 'm',
    wordsPerToken: 1,
    tokenIds: [1000, 30_000],
    shrink: 1,
    salt: '',
    mostOutput: 16,
    ignoreEos: false,
  },
}

const traceOf = (prompts: readonly (readonly number[])[], rest = 0): Trace => ({
  ...{ name: 'made', blockTokens: 64 },
  requests: prompts.map((blocks, i) => ({
    ...{ at: i, session: 'a', turn: i + 1, promptTokens: 64 * blocks.length + rest, outputTokens: 5, blocks, scope: 0 },
  })),
})

interface ChatBody {
  readonly messages: readonly { readonly role: string; readonly content: string }[]
}

const bodyOf = (trace: Trace, index: number, more: Partial<Speech> = {}) => {
  const plan = planBlocks(trace)
  return new Prompts(plan).of(plan.requests[index]!, { ...speech, ...more }).body
}
const flat = (body: object) => (body as ChatBody).messages.map(({ role, content }) => `<|${role}|>${content}`).join('')
const textOf = (trace: Trace, index: number) => bodyOf(trace, index, { api: 'completions' })['prompt'] as string
const wordsIn = (text: string) => text.split(' ').length - 1

function shared(a: string, b: string): string {
  let i = 0
  while (i < a.length && a[i] === b[i]) i++
  return a.slice(0, i)
}

describe('text in place of blocks', () => {
  test('is as long as the block, the same for the same name, and other within a few words for another', () => {
    const words = new WordText()
    fc.assert(
      fc.property(fc.string(), fc.string(), fc.integer({ min: 16, max: 512 }), (one, other, count) => {
        expect(wordsIn(words.of(one, count))).toBe(count)
        expect(new WordText().of(one, count)).toBe(words.of(one, count))
        expect(words.of(one, count).startsWith(words.of(one, count / 2))).toBe(true)
        if (one !== other) expect(wordsIn(shared(words.of(one, count), words.of(other, count)))).toBeLessThan(8)
      }),
      { numRuns: 50 },
    )
  })

  test('repeats no sixteen words within a prompt', () => {
    const text = textOf(traceOf([Array.from({ length: 400 }, (_, i) => i)]), 0)
    const words = text.trim().split(' ')
    const seen = new Set<string>()
    for (let i = 0; i + 16 <= words.length; i += 16) seen.add(words.slice(i, i + 16).join(' '))
    expect(seen.size).toBe(Math.floor(words.length / 16))
  })
})

describe('prompts', () => {
  const blocks = fc.array(fc.nat(30), { minLength: 1, maxLength: 60 })
  test('share exactly the blocks that they share in the trace', () => {
    fc.assert(
      fc.property(blocks, blocks, blocks, (common, one, other) => {
        const prompts = [
          [...common, 100, ...one],
          [...common, 200, ...other],
        ]
        const [a, b] = [textOf(traceOf(prompts), 0), textOf(traceOf(prompts), 1)]
        expect(Math.floor(wordsIn(shared(a, b)) / 64)).toBe(common.length)
      }),
      { numRuns: 40 },
    )
  })

  test('as chats share them too, whatever stands between', () => {
    fc.assert(
      fc.property(blocks, blocks, (common, added) => {
        const trace = traceOf([common, [...common, ...added]], 20)
        const [a, b] = [bodyOf(trace, 0), bodyOf(trace, 1)] as unknown as [ChatBody, ChatBody]
        const words = wordsIn(shared(flat(a), flat(b)))
        expect(words).toBeGreaterThanOrEqual(64 * common.length + 20 - 1)
        expect(a.messages.at(-1)?.role).toBe('user')
        expect(a.messages.map(({ role }) => role).slice(0, 3)).toEqual(
          ['system', 'user', 'assistant'].slice(0, a.messages.length),
        )
        for (const [i, { role }] of b.messages.entries())
          if (i > 0) expect(role).toBe(i % 2 === 1 ? 'user' : 'assistant')
      }),
      { numRuns: 40 },
    )
  })

  test('of tokens are as long as the trace says, and shrink', () => {
    const ids = bodyOf(traceOf([[1, 2]], 10), 0, { api: 'tokens' })['prompt'] as number[]
    expect(ids).toHaveLength(138)
    expect(Math.min(...ids)).toBeGreaterThanOrEqual(1000)
    expect(bodyOf(traceOf([[1, 2]], 16), 0, { api: 'tokens', shrink: 16 })['prompt']).toHaveLength(9)
  })

  test('with another salt share nothing, and with one what they share', () => {
    const prompts = traceOf([
      [1, 2],
      [1, 3],
    ])
    const salted = (index: number, salt: string) =>
      bodyOf(prompts, index, { api: 'completions', salt })['prompt'] as string
    expect(wordsIn(shared(salted(0, 'a'), salted(0, 'b')))).toBeLessThan(8)
    expect(Math.floor(wordsIn(shared(salted(0, 'a'), salted(1, 'a'))) / 64)).toBe(1)
  })

  test('what lies behind the last full block is the beginning of the next turn’s', () => {
    const trace = traceOf([[1], [1, 2]], 30)
    expect(textOf(trace, 1).startsWith(textOf(trace, 0))).toBe(true)
    const rewritten = traceOf([[1], [3, 2]], 30)
    expect(wordsIn(shared(textOf(rewritten, 0), textOf(rewritten, 1)))).toBeLessThan(8)
  })

  test('answers are as long as in the trace, within what is allowed', () => {
    const trace = traceOf([[1]])
    expect(bodyOf(trace, 0)).toMatchObject({ max_tokens: 5, stream_options: { include_usage: true } })
    expect(bodyOf(trace, 0, { mostOutput: 2, ignoreEos: true })).toMatchObject({ max_tokens: 2, ignore_eos: true })
  })
})

describe('plans', () => {
  const request = (t: number, time: number, ids: number[]) => ({
    t,
    api_time: time,
    in: 64 * ids.length,
    hash_ids: ids,
  })
  const session = readClaudeCode(
    {
      ...{ id: 's', block_size: 64 },
      requests: [
        request(0, 2, [1]),
        { t: 3, type: 'subagent', agent_id: 'x', requests: [request(0, 1, [7]), request(2, 10, [7, 8])] },
        { t: 3.5, type: 'subagent', agent_id: 'y', requests: [request(0, 1, [7])] },
        request(10, 1, [1, 2]),
        request(20, 1, [1, 2, 3]),
      ],
    },
    's',
  )

  test('a turn follows the one before, a sub-agent its parent, and a parent what its sub-agents had ended', () => {
    const { requests } = planBlocks(session)
    const named = (index: number) => `${requests[index]!.session}#${requests[index]!.turn}`
    expect(Object.fromEntries(requests.map(({ index, after }) => [named(index), after.map(named)]))).toEqual({
      's#1': [],
      's/x#1': ['s#1'],
      's/y#1': ['s#1'],
      's/x#2': ['s#1', 's/x#1'],
      // x's second request had not ended by then.
      's#2': ['s#1', 's/y#1'],
      's#3': ['s/y#1', 's/x#2', 's#2'],
    })
    expect(new Set(requests.map(({ family }) => family))).toEqual(new Set(['s']))
    expect(requests.map(({ pause }) => pause)).toEqual([0, 1, 1.5, 1, 5.5, 5])
  })

  test('the ideal is what was there before, and never the last token', () => {
    const shares = planBlocks(
      traceOf(
        [
          [1, 2],
          [1, 2],
          [1, 3, 4, 5],
        ],
        0,
      ),
    ).requests.map(({ idealShare }) => idealShare)
    expect(shares).toEqual([0, 0.5, 0.25])
  })

  test('limits leave out, and say how much', () => {
    const plan = planBlocks(traceOf([[1], [1, 2], [1], [1]]), { limit: 2, maxPrompt: 64 })
    expect([plan.requests.length, plan.leftOut]).toEqual([2, { long: 1, limit: 1 }])
    expect(plan.digest).not.toBe(planBlocks(traceOf([[1]])).digest)
  })

  test('a trace without times or conversations has neither', () => {
    const trace = traceOf([[1], [1]])
    const bare = { ...trace, requests: trace.requests.map((each) => ({ ...each, at: 0, session: undefined, turn: 0 })) }
    const plan = planBlocks(bare)
    expect([plan.hasTimes, plan.requests.map(({ after, session: of }) => [after, of])]).toEqual([
      false,
      [
        [[], undefined],
        [[], undefined],
      ],
    ])
  })
})

describe('conversations', () => {
  const user = (content: string) => ({ role: 'user', content })
  const answer = (content: string | null) => ({ role: 'assistant', content })

  test('a transcript is a turn an answer, sent as it was recorded', () => {
    const messages = [user('a'), answer('b'), user('c'), answer(null), user('d')]
    const plan = planConversations(readConversations(JSON.stringify({ id: 0, messages }), 'tau'))
    expect(plan.requests.map(({ turn, after, outputTokens }) => [turn, after, outputTokens])).toEqual([
      [1, [], 1],
      [2, [0], 1],
    ])
    const body = new Prompts(plan).of(plan.requests[1]!, speech).body as unknown as ChatBody
    expect(body.messages).toEqual([user('a'), answer('b'), user('c')])
    expect(plan.requests[1]!.idealShare).toBeCloseTo(1 / 3)
  })

  test('logged bodies are one request each, of the session that they name or go on from', () => {
    const bodies = [
      { model: 'm', messages: [user('a')], max_tokens: 9 },
      { body: { model: 'm', messages: [user('other')] }, session: 'x' },
      { request: { body: { model: 'm', messages: [user('a'), answer('b'), user('c')] } }, timestamp: 2000 },
    ]
    const { requests } = readConversations(bodies.map((body) => JSON.stringify(body)).join('\n'), 'log')
    expect(requests.map(({ session, turn, outputTokens }) => [session, turn, outputTokens])).toEqual([
      ['unnamed 1', 1, 9],
      ['x', 1, undefined],
      ['unnamed 1', 2, undefined],
    ])
  })

  test.each([
    ['not json', /log:2: it is not JSON/],
    ['{"messages": []}', /log:2: it has no messages with roles/],
    ['{"messages": [{"role": "user", "content": "a"}]}', /log:2: the conversation has no answer/],
  ])('refuses %s', (line, complaint) => {
    const fine = JSON.stringify({ model: 'm', messages: [user('a')] })
    expect(() => readConversations(`${fine}\n${line}\n`, 'log')).toThrow(complaint)
  })
})
