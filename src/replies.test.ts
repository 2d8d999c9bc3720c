// The goal of kept replies, through the whole server: whatever a client does to the answers that it sends back, the next
// prompt begins with the tokens that were sampled. Real conversations, an answer in a tokenization that is not the canonical
// one, each wire API, each rewrite. bench/replies.ts measures all combinations.

import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createScriptedTokenizer, scriptedPieces } from './backend/scripted-tokenizer.js'
import {
  type AgentHouse,
  openAgentHouse,
  pairedRewrites,
  rewrites,
  speeches,
  type Talk,
  type Turn,
  talk,
} from './testing/agent-client.js'
import { post } from './testing/scripted-program.js'
import { hasTauAirline, tauAirline, thoughtOf } from './testing/tau-airline.js'

const GOAL = 0.98
const exact = rewrites()[0]!

const houses: AgentHouse[] = []
const openHouse = async (options: Record<string, unknown> = {}, flags: Record<string, unknown> = {}) => {
  const house = await openAgentHouse(options, flags)
  houses.push(house)
  return house
}
afterAll(async () => {
  for (const house of houses) await house.close()
})

describe.skipIf(!hasTauAirline).each(Object.entries(speeches))('%s (needs ../shared)', (_, speech) => {
  let house: AgentHouse
  beforeAll(async () => {
    house = await openHouse()
  })

  const ratio = async (lines: Parameters<typeof talk>[1], options: Partial<Talk>, own = house) => {
    const { hits, ideal, requests } = await talk(own, lines, { speech, rewrite: exact, shown: 'all', ...options })
    expect(requests).toBeGreaterThan(1)
    expect(ideal).toBeGreaterThan(0)
    return hits / ideal
  }

  test('every rewrite with every other', async () => {
    const sessions = tauAirline(10, thoughtOf(40)).map((lines) => lines.slice(0, 16))
    for (const [i, rewrite] of pairedRewrites().entries()) {
      const got = await ratio(sessions[i % sessions.length]!, { rewrite, session: `r${i}` })
      expect([rewrite, got]).toEqual([rewrite, expect.toSatisfy((value: number) => value >= GOAL && value <= 1)])
    }
  })

  test('a billing header that changes with every request', async () => {
    const sent = (history: readonly Turn[], n: number): readonly Turn[] =>
      history.map((turn, i) =>
        i === 0 ? { role: 'system', content: `x-anthropic-billing-header: cch=${n}5ee5;\n${turn.content}` } : turn,
      )
    expect(await ratio(tauAirline(1)[0]!, { sent })).toBeGreaterThanOrEqual(GOAL)
  })

  test('a system message in mid-conversation every 3 turns', async () => {
    const [lines] = tauAirline(1, thoughtOf(40))
    const withNudges = lines!.flatMap((line, i) =>
      i > 0 && i % 6 === 1
        ? [line, { role: 'system', content: `<total_tokens>${200_000 - 1000 * i} tokens left</total_tokens>` } as const]
        : [line],
    )
    expect(withNudges.length).toBeGreaterThan(lines!.length + 2)
    expect(await ratio(withNudges, {})).toBeGreaterThanOrEqual(GOAL)
  })

  test.each<[string, Talk['shown']]>([
    ['as-sent', 'all'],
    ['drop-at-user-turn', 'since-user'],
    ['keep-with-tools', 'all'],
  ])('300 tokens of reasoning a turn under %s', async (retention, shown) => {
    const own = await openHouse({ retention })
    for (const reasoning of ['exact', 'dropped'] as const) {
      const [lines] = tauAirline(1, thoughtOf(300))
      const got = await ratio(lines!, { rewrite: { ...exact, reasoning }, shown }, own)
      expect(got).toBeGreaterThanOrEqual(GOAL)
      expect(got).toBeLessThanOrEqual(1)
    }
  })

  test('without kept replies it is below the goal: the yardstick measures', async () => {
    const own = await openHouse({}, { 'replies.memoryBytes': 0 })
    expect(await ratio(tauAirline(1, thoughtOf(300))[0]!, {}, own)).toBeLessThan(GOAL)
  })
})

describe('the whole server', () => {
  const chat = '/v1/chat/completions'
  const user = (content: string) => ({ role: 'user', content })
  const tools = [{ type: 'function', function: { name: 'look', parameters: { type: 'object', properties: {} } } }]
  const ask = async (house: AgentHouse, messages: readonly object[], more: object = {}) => {
    const reply = await post(house.program, chat, { model: 'm', messages, ...more })
    return { reply, text: decoded(house.job().tokens), job: house.job() }
  }
  const decoder = createScriptedTokenizer({ end: '<|im_end|>', specials: ['<|im_start|>'] })
  const decoded = (ids: Int32Array) => decoder.decode(ids, { special: 'keep' })

  test('strict about reasoning: filled in where it is known, else refused in the words that clients know', async () => {
    const house = await openHouse({ strictReasoning: true, retention: 'keep-with-tools' })
    house.say({ content: 'One.', reasoning: 'First.' })
    await ask(house, [user('a')], { tools })
    const known = [user('a'), { role: 'assistant', content: 'One.' }, user('b')]
    expect((await ask(house, known, { tools })).text).toContain('<think>\nFirst.\n</think>\n\nOne.<|im_end|>')
    const foreign = [user('a'), { role: 'assistant', content: 'Two.' }, user('b')]
    const { reply } = await ask(house, foreign, { tools })
    expect([reply.status, reply.json().error]).toEqual([
      400,
      expect.objectContaining({
        code: 'reasoning_missing',
        message: expect.stringContaining(
          'The `reasoning_content` in the thinking mode must be passed back to the API.',
        ),
      }),
    ])
    const blocks = [user('a'), { role: 'assistant', content: 'Two.' }, user('b')]
    const own = [{ name: 'look', input_schema: { type: 'object' } }]
    const body = { model: 'm', max_tokens: 100, tools: own, messages: blocks }
    const other = await post(house.program, '/v1/messages', body)
    expect([other.status, other.text]).toEqual([
      400,
      expect.stringContaining('The `content[].thinking` in the thinking mode must be passed back to the API.'),
    ])
    for (const more of [{}, { tools, chat_template_kwargs: undefined, thinking: { type: 'disabled' } }]) {
      expect((await ask(house, foreign, more)).reply.status).toBe(200)
    }
  })

  test('reasoning in the content, as tags, is the reasoning that it was', async () => {
    const house = await openHouse()
    house.say({ content: 'One.', reasoning: 'First.' })
    const before = await ask(house, [user('a')], { tools })
    const inline = { role: 'assistant', content: '<think>First.</think>One.' }
    const after = await ask(house, [user('a'), inline, user('b')], { tools })
    const begun = [...before.job.tokens, ...scriptedPieces('<think>\nFirst.\n</think>\n\nOne.')]
    expect([...after.job.tokens.subarray(0, begun.length)]).toEqual(begun)
  })

  test('side requests begin with the conversation too, and nothing of them is kept', async () => {
    const house = await openHouse()
    house.say({ content: 'One.\n' })
    const before = await ask(house, [user('a')])
    const side = [user('a'), { role: 'assistant', content: 'One.' }, user('Name this conversation.')]
    house.say({ content: 'Title.\n' })
    const { job, text } = await (async () => {
      const reply = await post(
        house.program,
        chat,
        { model: 'm', messages: side },
        { 'x-claude-code-request-class': 'auxiliary' },
      )
      expect(reply.status).toBe(200)
      return { job: house.job(), text: decoded(house.job().tokens) }
    })()
    expect(job.transient).toBe(true)
    const begun = [...before.job.tokens, ...scriptedPieces('One.\n')]
    expect([...job.tokens.subarray(0, begun.length)]).toEqual(begun)
    expect(text).toContain('One.\n<|im_end|>')
    const again = await ask(house, [...side, { role: 'assistant', content: 'Title.' }, user('b')])
    expect(again.text).toContain('Title.<|im_end|>')
  })

  test('each choice is known when it comes back', async () => {
    const house = await openHouse()
    house.say({ content: 'One.\n' })
    const { job } = await ask(house, [user('a')], { n: 3 })
    const after = await ask(house, [user('a'), { role: 'assistant', content: 'One.' }, user('b')])
    const begun = [...job.tokens, ...scriptedPieces('One.\n')]
    expect([...after.job.tokens.subarray(0, begun.length)]).toEqual(begun)
  })
})
