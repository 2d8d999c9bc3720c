import { describe, expect, test } from 'vitest'
import type { ResultLimits } from './contract.js'
import { parseLifecycle } from './lifecycle.js'
import { type BudgetDeps, budgetResults, stubText } from './result-budget.js'

const { results: limits } = parseLifecycle({ preset: 's08' })
const deps = (more: Partial<BudgetDeps> & { readonly caps?: Partial<ResultLimits> } = {}): BudgetDeps => ({
  limits: { ...limits, ...more.caps },
  earlierChars: more.earlierChars ?? 0,
  countTokens: (text) => Math.ceil(text.length / 4),
  locatorOf: ({ callId }) => `res_${callId}`,
})
const entering = (...chars: number[]) =>
  chars.map((length, i) => ({
    event: { kind: 'tool_result' as const, callId: `c${i}`, content: String(i).repeat(length) },
    tool: 'read',
  }))
const spilled = (given: ReturnType<typeof budgetResults>) =>
  given.events.flatMap(({ spilled: to, callId }) => (to === undefined ? [] : [callId]))

describe('a batch of results', () => {
  test('that fits stays as it came', () => {
    const given = entering(100_000, 99_999)
    expect(budgetResults(given, deps())).toEqual({ events: given.map(({ event }) => event), stored: [] })
  })

  test('over 200,000 characters: the largest are stored until it fits', () => {
    expect(spilled(budgetResults(entering(50_000, 90_000, 80_000), deps()))).toEqual(['c1'])
    expect(spilled(budgetResults(entering(150_000, 190_000, 180_000), deps()))).toEqual(['c1', 'c2'])
    // Those of up to 30,000 stay, even where it does not fit for them.
    expect(spilled(budgetResults(entering(...Array<number>(8).fill(30_000)), deps()))).toEqual([])
    expect(spilled(budgetResults(entering(...Array<number>(7).fill(30_000), 30_001), deps()))).toEqual(['c7'])
  })

  test('counts what came before in the same batch', () => {
    expect(spilled(budgetResults(entering(50_000), deps({ earlierChars: 150_000 })))).toEqual([])
    expect(spilled(budgetResults(entering(50_000), deps({ earlierChars: 150_001 })))).toEqual(['c0'])
  })

  test('a stub has the locator, the first 2,000 characters, and says how to read on', () => {
    const { events, stored } = budgetResults(entering(250_000), deps())
    expect(stored).toEqual([{ locator: 'res_c0', text: '0'.repeat(250_000) }])
    expect(events[0]).toMatchObject({ callId: 'c0', spilled: { locator: 'res_c0', chars: 250_000 } })
    expect(events[0]?.content).toBe(
      '[This result has 250000 characters and was stored as "res_c0"; here are the first 2000. ' +
        `read_result with this locator, offset 2000 and a length reads on.]\n${'0'.repeat(2000)}`,
    )
  })

  test('a preview ends between characters', () => {
    expect(stubText(`a${'😀'.repeat(9)}`, 'x', { ...limits, previewChars: 4 })).toMatch(/first 3\. .*\na😀$/s)
  })
})

describe('a cap per result', () => {
  const caps = { capTokens: 1500 }

  test('is off unless it is asked for; asked for without a number it is 1,500 tokens', () => {
    expect(spilled(budgetResults(entering(20_000), deps()))).toEqual([])
    expect(parseLifecycle({ results: { capTokens: true } }).results.capTokens).toBe(1500)
    expect(parseLifecycle({ results: { capTokens: 9 } }).results.capTokens).toBe(9)
    expect(parseLifecycle({ results: { capTokens: false } }).results).not.toHaveProperty('capTokens')
  })

  test('stores what has more tokens', () => {
    expect(spilled(budgetResults(entering(6000, 6001), deps({ caps })))).toEqual(['c1'])
  })

  test('is not for what a stub would make no shorter, nor for what is read out of the store', () => {
    expect(spilled(budgetResults(entering(2200), deps({ caps: { capTokens: 10 } })))).toEqual([])
    const [first] = entering(250_000)
    expect(budgetResults([{ event: first!.event, tool: 'read_result' }], deps({ caps })).stored).toEqual([])
  })
})
