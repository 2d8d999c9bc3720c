// What was sent where: against a plain model, and within its bound.

import fc from 'fast-check'
import { describe, expect, test, vi } from 'vitest'
import type { SegmentChain } from './contract.js'
import { type CacheMemory, SegmentIndex } from './segment-index.js'

type Memory = CacheMemory & { pendingAbove: number }

const memoryOf = (index: number): Memory => ({
  index,
  computed: 0,
  capacity: Number.POSITIVE_INFINITY,
  clearedBelow: 0,
  pendingAbove: Number.POSITIVE_INFINITY,
  trustsRecalled: false,
})

/** A chain of `length` segments of 100 tokens that leaves `trunk` behind its first `shared`. */
function chainOf(name: string, length: number, shared = 0, trunk = 'trunk'): SegmentChain {
  const hashes = Array.from({ length }, (_, i) => (i < shared ? `${trunk} ${i}` : `${name} ${i}`))
  return { hashes, tokens: hashes.map((_, i) => 100 * (i + 1)), head: Math.min(2, length) }
}

function made(segments = 1000, ttlMs = 1000) {
  const index = new SegmentIndex<string>({ segments, ttlMs })
  const memories = [0, 1, 2].map(memoryOf)
  const hold = (chain: SegmentChain, member: number, more: { now?: number; owner?: string; scope?: string } = {}) => {
    const memory = memories[member]!
    memory.computed += 1
    index.hold(more.scope ?? 's', chain, memory, { now: more.now ?? 0, owner: more.owner })
  }
  const match = (chain: SegmentChain, now = 0, scope = 's') =>
    index.match(scope, chain, now, { memory: (i) => memories[i]! })
  return { index, memories, hold, match }
}

describe('a match', () => {
  test('is the longest front of each member, whose it is, and how much is known', () => {
    const { hold, match } = made()
    hold(chainOf('a', 50, 2), 0, { owner: 'A' })
    hold(chainOf('b', 20, 10, 'a'), 1, { owner: 'B' })
    const found = match(chainOf('c', 60, 30, 'a'))
    expect([...found.tokens]).toEqual(expect.arrayContaining([[1, 1000]]))
    expect(match(chainOf('a', 60, 2)).tokens).toEqual(new Map([[0, 5000]]))
    expect([match(chainOf('a', 60, 2)).owners[0]?.owner, match(chainOf('a', 60, 2)).depth]).toEqual(['A', 50])
    expect(match(chainOf('x', 60, 2)).owners).toEqual([])
    expect(match(chainOf('a', 60, 2), 0, 'other scope').tokens.size).toBe(0)
  })

  test('ends with its time, by what was computed since, with what was cleared and with what is dropped', () => {
    const { index, memories, hold, match } = made()
    const chain = chainOf('a', 5)
    hold(chain, 0)
    expect(match(chain, 1000).tokens.size).toBe(1)
    expect(match(chain, 1001).tokens.size).toBe(0)
    memories[0]!.computed += 500
    memories[0]!.capacity = 499
    expect(match(chain).tokens.size).toBe(0)
    memories[0]!.capacity = 500
    expect(match(chain).tokens.size).toBe(1)
    index.drop('s', chain, memories[0]!, 3)
    expect(match(chain).tokens).toEqual(new Map([[0, 300]]))
    memories[0]!.clearedBelow = 2
    expect(match(chain).tokens.size).toBe(0)
  })

  test('finds a tail and a head though nothing between is known', () => {
    const { hold, match } = made()
    const chain = chainOf('a', 300)
    hold({ hashes: [chain.hashes[1]!], tokens: [200], head: 1 }, 1)
    hold({ hashes: [chain.hashes[297]!], tokens: [29_800], head: 0 }, 0, { owner: 'A' })
    const found = match(chain)
    expect([found.owners, found.depth]).toEqual([[{ depth: 298, owner: 'A' }], 298])
    expect(found.tokens).toEqual(
      new Map([
        [0, 29_800],
        [1, 200],
      ]),
    )
  })

  test('is what looking at every segment finds', () => {
    const step = fc.record({
      member: fc.integer({ min: 0, max: 2 }),
      shared: fc.integer({ min: 0, max: 60 }),
      length: fc.integer({ min: 1, max: 80 }),
      name: fc.constantFrom('trunk', 'a', 'b'),
    })
    // Equal hashes have equal fronts.
    const branch = (name: string, length: number, shared: number) =>
      chainOf(name === 'trunk' ? name : `${name}${shared}`, length, shared)
    fc.assert(
      fc.property(fc.array(step, { maxLength: 12 }), step, (steps, asked) => {
        const { hold, match } = made()
        const held = [0, 1, 2].map(() => new Set<string>())
        for (const { member, shared, length, name } of steps) {
          const chain = branch(name, length, shared)
          hold(chain, member)
          for (const hash of chain.hashes) held[member]!.add(hash)
        }
        const chain = branch(asked.name, asked.length, asked.shared)
        const expected = held.flatMap((hashes, member) => {
          const last = chain.hashes.findLastIndex((hash) => hashes.has(hash))
          return last < 0 ? [] : [[member, 100 * (last + 1)] as const]
        })
        expect(new Map([...match(chain).tokens].sort())).toEqual(new Map(expected))
      }),
      { numRuns: 300 },
    )
  })
})

test('a turn of a long conversation looks at few segments, now and then at all', () => {
  const { hold, memories, match } = made(10_000, 16_000)
  const get = vi.spyOn(Map.prototype, 'get')
  const looks = (chain: SegmentChain, more: { now: number; owner: string }, member = 0) => {
    get.mockClear()
    hold(chain, member, more)
    return get.mock.calls.length
  }
  const turn = (length: number) => chainOf('a', length)
  expect(looks(turn(1000), { now: 0, owner: 'A' })).toBeGreaterThan(1000)
  for (let n = 1002; n < 1020; n += 2) expect(looks(turn(n), { now: 1, owner: 'A' })).toBeLessThan(100)
  // A sixteenth of the time to live has gone by; another conversation, another member, a cleared cache.
  expect(looks(turn(1020), { now: 1001, owner: 'A' })).toBeGreaterThan(1000)
  expect(looks(turn(1022), { now: 1001, owner: 'A' })).toBeLessThan(100)
  expect(looks(turn(1022), { now: 1001, owner: 'B' })).toBeGreaterThan(1000)
  expect(looks(turn(1022), { now: 1001, owner: 'B' }, 1)).toBeGreaterThan(1000)
  const [memory] = memories as [Memory]
  hold(turn(1024), 0, { now: 1001, owner: 'B' })
  memory.clearedBelow = memory.computed + 1
  memory.computed++
  expect(looks(turn(1026), { now: 1001, owner: 'B' })).toBeGreaterThan(1000)
  expect(looks(turn(1028), { now: 1001, owner: 'B' })).toBeLessThan(100)
  memory.capacity = 160
  memory.computed += 11
  expect(looks(turn(1030), { now: 1001, owner: 'B' })).toBeGreaterThan(1000)
  get.mockRestore()
  // All of it is the member's, wherever somebody leaves it.
  expect(match(chainOf('other', 600, 500, 'a'), 1001).tokens.get(0)).toBe(50_000)
})

test('a session that is recalled by its end alone is looked at whole with its next turn', () => {
  const { hold, match } = made()
  const chain = chainOf('a', 100)
  hold({ hashes: [chain.hashes[97] as string], tokens: [9800], head: 0 }, 0, { owner: 'A' })
  hold(chain, 0, { owner: 'A' })
  expect(match(chainOf('b', 60, 50, 'a')).tokens.get(0)).toBe(5000)
})

test('the bound is met, and what is used stays', () => {
  const { index, hold, match } = made(1000)
  const kept = chainOf('kept', 20)
  for (let i = 0; i < 500; i++) {
    hold(kept, 0, { now: i })
    hold(chainOf(`once ${i}`, 10, 2, 'kept'), 1, { now: i, scope: i % 3 === 0 ? 's' : 'other' })
    expect(index.size).toBeLessThanOrEqual(1125)
  }
  expect(match(kept, 500).depth).toBe(20)
  expect(match(chainOf('once 498', 10, 2, 'kept'), 500).depth).toBe(10)
  expect(match(chainOf('once 3', 10, 2, 'kept'), 500).depth).toBe(2)
})
