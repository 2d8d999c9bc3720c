import { describe, expect, test } from 'vitest'
import { type Played, playContext } from './context-play.js'
import { countedPlays, messagesPlay, STRATEGIES, TOKEN_CHARS, textbook } from './context-plays.js'

const countTokens = (text: string) => Math.ceil(text.length / TOKEN_CHARS)
const named = (name: string) => STRATEGIES.find((each) => each.name === name) ?? expect.unreachable(name)
const textbookBy = (name: string, window = 1_000_000) => playContext(textbook(), named(name), { window, countTokens })

describe('the textbook case', () => {
  test('append-only: 2.95 million tokens, and a cache makes them at least 6.5 times cheaper', async () => {
    const [cached, plain, broken] = (await Promise.all(
      ['append-only', 'no cache', 'prefix broken each step'].map((name) => textbookBy(name)),
    )) as [Played, Played, Played]
    expect(Math.abs(cached.inputTokens / 2_950_000 - 1)).toBeLessThan(0.01)
    expect(plain.cost / cached.cost).toBeGreaterThan(6.5)
    // What is written is never read.
    expect(broken.cost / plain.cost).toBeCloseTo(1.25, 5)
  })

  test('pruning in place saves tokens and loses the cache', async () => {
    const [append, pruned] = [await textbookBy('append-only'), await textbookBy('pruned in place each step')]
    expect(pruned.inputTokens).toBeLessThan(append.inputTokens / 2)
    expect(pruned.cachedTokens / pruned.inputTokens).toBeLessThan(append.cachedTokens / append.inputTokens)
  })

  test.each(['summary', 'micro, then summary', 'discard-75', 'discard-all', 's08'])(
    '%s keeps under the window',
    async (name) => {
      const played = await textbookBy(name, 60_000)
      expect(played.overflows).toBe(0)
      expect(played.boundaries).toBeGreaterThan(0)
      expect(played.rejected).toBe(0)
      expect(played.requests).toBe(50)
    },
  )
})

test('what a later call needs and no longer sees is counted', async () => {
  const filled = 'x'.repeat(6000)
  const play = messagesPlay([
    { role: 'user', content: 'go' },
    ...['A', 'B', 'C'].flatMap((letter): Parameters<typeof messagesPlay>[0] => [
      {
        role: 'assistant',
        content: `look ${letter}`,
        tool_calls: [{ id: letter, function: { name: 'look', arguments: '{}' } }],
      },
      { role: 'tool', tool_call_id: letter, content: `id ${letter}12345 ${filled}` },
    ]),
    {
      role: 'assistant',
      content: 'use',
      tool_calls: [{ id: 'u', function: { name: 'use', arguments: '{"ids":["A12345","C12345"]}' } }],
    },
  ])
  const by = (name: string) => playContext(play, named(name), { window: 7000, countTokens })
  expect(await by('append-only')).toMatchObject({ needed: 2, missed: 0, hiddenTokens: 0 })
  expect(await by('discard-all')).toMatchObject({ needed: 2, missed: 1, boundaries: 1 })
})

test('counts alone become plays that have them', async () => {
  const requests = [
    { promptTokens: 1000, outputTokens: 50 },
    { promptTokens: 1500, outputTokens: 20 },
    { promptTokens: 900, outputTokens: 10 },
  ]
  const plays = countedPlays(requests, 300)
  expect(plays.map(({ steps }) => steps.length)).toEqual([2, 1])
  const { inputTokens } = await playContext(plays[0]!, named('append-only'), { window: 9000, countTokens })
  expect(Math.abs(inputTokens - 2500)).toBeLessThan(25)
})
