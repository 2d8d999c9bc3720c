import { describe, expect, test } from 'vitest'
import { chunkOf, decodeRuns, outranks, pickNext, type Waiting } from './scheduler.js'

const waiting = (order: number, more: Partial<Waiting> = {}): Waiting => ({
  order,
  priority: 'interactive',
  tenant: 'a',
  ...more,
})

describe('who goes next', () => {
  test('the more urgent class, whatever was served and came first', () => {
    const jobs = [waiting(1, { priority: 'background' }), waiting(2, { priority: 'auxiliary' }), waiting(3)]
    expect(pickNext(jobs, new Map([['a', 1e6]]))?.order).toBe(3)
    expect(outranks('interactive', 'auxiliary') && outranks('auxiliary', 'background')).toBe(true)
  })

  test('within a class the tenant that had least, then the oldest', () => {
    const jobs = [waiting(1), waiting(2), waiting(3, { tenant: 'b' }), waiting(4, { tenant: 'b' })]
    const served = new Map([['a', 500], ['b', 100]]) // biome-ignore format: one line reads better
    expect(pickNext(jobs, served)?.order).toBe(3)
    expect(pickNext(jobs, new Map())?.order).toBe(1)
    expect(pickNext([], served)).toBeUndefined()
  })

  test('a tenant that floods the queue does not keep another one waiting', () => {
    const served = new Map<string, number>()
    let queue = [...Array.from({ length: 50 }, (_, i) => waiting(i)), waiting(50, { tenant: 'b' })]
    const turns: string[] = []
    while (queue.length > 0) {
      const next = pickNext(queue, served) as Waiting
      turns.push(next.tenant)
      served.set(next.tenant, (served.get(next.tenant) ?? 0) + 100)
      queue = queue.filter((job) => job !== next)
    }
    expect(turns.indexOf('b')).toBeLessThanOrEqual(1)
  })
})

describe('a chunk', () => {
  const view = (depth: number, remaining: number) => ({ ...waiting(0), depth, remaining })

  test('is long while nothing streams, short and by depth while something does', () => {
    expect(chunkOf(view(0, 4000), false)).toBe(512)
    expect([0, 2048, 7040].map((depth) => chunkOf(view(depth, 4000), true))).toEqual([128, 64, 64])
  })

  test('ends at a block border, unless it ends the prompt', () => {
    for (const streaming of [true, false]) {
      for (const depth of [0, 1, 63, 64, 100, 511, 2111, 3000]) {
        const count = chunkOf(view(depth, 4000), streaming)
        expect(count).toBeGreaterThan(1)
        expect((depth + count) % 64).toBe(0)
      }
      expect(chunkOf(view(70, 30), streaming)).toBe(30)
    }
  })
})

test('decoding rows go in runs that fit, the urgent ones first', () => {
  const rows = [waiting(0, { priority: 'background' }), ...Array.from({ length: 5 }, (_, i) => waiting(i + 1))]
  const runs = decodeRuns(rows, 4).map((run) => run.map(({ order }) => order))
  expect(runs).toEqual([
    [1, 2, 3, 4],
    [5, 0],
  ])
})
