// The goal of kept replies, through the whole server: whatever a client does to the answers that it sends back, the next
// prompt begins with the tokens that were sampled. Real conversations, an answer in a tokenization that is not the canonical
// one, each wire API, each rewrite. bench/replies.ts measures all combinations.

import { afterAll, beforeAll, describe, expect, test } from 'vitest'
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
