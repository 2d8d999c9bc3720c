// Sums, shares and prices of a report, and the page as one file that needs nothing else.

import { writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { costOf, plainCost, pricesFrom, USUAL_PRICES } from './prices.js'
import { type Report, runReport, type Sample } from './report.js'
import { pageOf } from './write-report.js'

const sample = (more: Partial<Sample> = {}): Sample => ({
  ...{ at: 0, turn: 1, promptTokens: 1000, reusedTokens: 0, idealTokens: 0, outputTokens: 100, ttftMs: 10 },
  ...more,
})
const run = (samples: readonly Sample[], failures: readonly string[] = []) =>
  runReport({ name: 'r', detail: '', samples, failures, prices: USUAL_PRICES })

describe('a run', () => {
  test('sums over its requests, by turn and over time', () => {
    const report = run([
      sample(),
      sample({ at: 60, turn: 2, reusedTokens: 500, idealTokens: 900, ttftMs: 30 }),
      sample({ at: 120, turn: 2, reusedTokens: 900, idealTokens: 900, ttftMs: 20 }),
    ])
    expect(report).toMatchObject({
      requests: 3,
      promptTokens: 3000,
      reusedTokens: 1400,
      idealTokens: 1800,
      idealHitRate: 0.6,
    })
    expect(report.turns).toEqual([
      { turn: 1, requests: 1, hitRate: 0, idealHitRate: 0 },
      { turn: 2, requests: 2, hitRate: 0.7, idealHitRate: 0.9 },
    ])
    const { computed, reused } = report.timeline
    const sum = (list: readonly number[]) => list.reduce((a, b) => a + b, 0)
    expect([sum(computed), sum(reused), computed[0], reused.at(-1)]).toEqual([1600, 1400, 1000, 900])
    expect(report.ttft).toMatchObject({ meanMs: 20, p50Ms: 20, p99Ms: 30 })
    expect(report.ttft?.percentiles).toHaveLength(101)
  })

  test('costs by what was read, written and said, and saves against no cache', () => {
    const { cost } = run([sample(), sample({ reusedTokens: 1000, idealTokens: 1000 })])
    expect(cost.none).toBeCloseTo((2000 * 3 + 200 * 15) / 1e6)
    expect(cost.actual?.all).toBeCloseTo((1000 * 0.3 + 1000 * 3.75 + 200 * 15) / 1e6)
    expect(cost.savedShare).toBeCloseTo(1 - 7.05 / 9)
    // A cache that never hits costs more than none.
    expect(run([sample()]).cost.savedShare).toBeLessThan(0)
  })

  test('without requests, or where nobody says what was reused, there are no figures made up', () => {
    expect(run([])).toMatchObject({ requests: 0, hitRate: undefined, ttft: undefined, turns: [] })
    const silent = run([sample({ reusedTokens: undefined })], ['b', 'a', 'b'])
    expect([silent.hitRate, silent.reusedTokens, silent.cost.actual, silent.cost.savedShare]).toEqual([
      ...[undefined, undefined, undefined, undefined],
    ])
    expect(silent.errors).toEqual([
      { what: 'b', count: 2 },
      { what: 'a', count: 1 },
    ])
  })
})

describe('prices', () => {
  test('follow from the one of input where they are not given', () => {
    expect(pricesFrom(undefined)).toBe(USUAL_PRICES)
    expect(pricesFrom('input=10,output=1')).toEqual({ currency: 'USD', input: 10, read: 1, write: 12.5, output: 1 })
    const file = join(tmpdir(), `refrain-prices-${process.pid}.yaml`)
    writeFileSync(file, 'currency: EUR\ninput: 1\nread: 0\n')
    expect(pricesFrom(file)).toEqual({ currency: 'EUR', input: 1, read: 0, write: 1.25, output: 15 })
    expect(costOf({ promptTokens: 1e6, reusedTokens: 0, outputTokens: 0 }, pricesFrom('input=2')).all).toBe(2.5)
    expect(plainCost({ promptTokens: 1e6, outputTokens: 1e6 }, pricesFrom('input=2,output=3'))).toBe(5)
  })

  test.each([
    ['cheap=1', /'cheap' is none of/],
    ['input=x', /input must be a number/],
    ['input=-1', /input must be a number/],
    ['none.yaml', /there is no file none\.yaml/],
  ])('refuses %s', (text, complaint) => {
    expect(() => pricesFrom(text)).toThrow(complaint)
  })
})

describe('the page', () => {
  const report: Report = {
    ...{ kind: 'replay', title: '</title><script>alert(1)</script>', subtitle: '<b>', notes: ['</script><img src=x>'] },
    ...{ prices: USUAL_PRICES, runs: [run([sample()])] },
  }
  const page = pageOf(report)

  test('holds the report as data, which can end no script', () => {
    const [, data] = /<script type="application\/json" id="report">([^<]*)<\/script>/.exec(page) ?? []
    expect(JSON.parse(data!)).toEqual(JSON.parse(JSON.stringify(report)))
    expect(page).not.toContain('<script>alert')
    expect(page).not.toContain('<img src=x')
  })

  test('names no other file and no server', () => {
    expect(page).not.toMatch(/<(?:link|img|iframe|script)[^>]*\s(?:src|href)=/)
    expect(page).not.toMatch(/url\(\s*['"]?(?!data:)/)
    expect(page).not.toMatch(/@import|\bfetch\(|XMLHttpRequest|import\(/)
    expect(page).toContain("default-src 'none'")
    expect(page).toContain('uPlot')
  })
})
