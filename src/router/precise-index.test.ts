// The index of members' events against a plain model of it, and what it weighs.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { seeded } from '../testing/random.js'
import type { Medium } from './contract.js'
import { createPreciseIndex } from './precise-index.js'

const MEDIA: readonly Medium[] = ['device', 'host', 'disk', 'remote']
/** Keys of blocks `[from, to)` of a chain that is called `chain`. */
const keysOf = (chain: number, from: number, to: number) =>
  Uint32Array.from({ length: 2 * (to - from) }, (_, i) => (i % 2 === 0 ? from + (i >>> 1) : chain))
const STATE = { connected: true, complete: true, blockTokens: [16], salted: true }

function followed(...members: string[]) {
  const index = createPreciseIndex()
  for (const member of members) index.followed(member, STATE)
  const held = (member: string, chain: number, blocks: number) =>
    index.lookup([{ blockTokens: 16, salted: true, keys: keysOf(chain, 0, blocks) }]).held(member)
  return { index, held }
}

describe('the longest front', () => {
  test.each([1, 2, 31, 32, 33, 63, 64, 65, 500])('of a prompt of 400 blocks where a member holds %i', (blocks) => {
    const { index, held } = followed('a', 'b')
    index.stored('a', { medium: 'device', keys: keysOf(7, 0, blocks) })
    expect(held('a', 7, 400)).toEqual({ device: 16 * Math.min(400, blocks) })
    expect(held('b', 7, 400)).toEqual({})
    expect(held('a', 8, 400)).toEqual({})
  })

  test('by medium: what is not near counts where it is', () => {
    const { index, held } = followed('a')
    index.stored('a', { medium: 'device', keys: keysOf(1, 0, 40) })
    index.stored('a', { medium: 'host', keys: keysOf(1, 20, 90) })
    index.stored('a', { medium: 'disk', keys: keysOf(1, 0, 100) })
    expect(held('a', 1, 200)).toEqual({ device: 640, host: 800, disk: 160 })
    index.cleared('a', 'device')
    expect(held('a', 1, 200)).toEqual({ disk: 1600 })
  })

  test('of many members at once, in more than one word of bits', () => {
    const names = Array.from({ length: 70 }, (_, i) => `member-${i}`)
    const { index, held } = followed(...names)
    for (const [i, name] of names.entries()) index.stored(name, { medium: 'device', keys: keysOf(3, 0, 3 * i) })
    expect(names.map((name) => held(name, 3, 180)?.device ?? 0)).toEqual(names.map((_, i) => 16 * Math.min(180, 3 * i)))
  })

  test('needs keys in the form of the member: its block size, with or without salt', () => {
    const { index } = followed('a')
    index.followed('b', { ...STATE, blockTokens: [64], salted: false })
    index.stored('a', { medium: 'device', keys: keysOf(1, 0, 4) })
    index.stored('b', { medium: 'device', keys: keysOf(2, 0, 4) })
    const found = index.lookup([
      { blockTokens: 16, salted: true, keys: keysOf(1, 0, 9) },
      { blockTokens: 64, salted: false, keys: keysOf(2, 0, 9) },
    ])
    expect([found.held('a'), found.held('b'), found.held('c')]).toEqual([{ device: 64 }, { device: 256 }, undefined])
    expect(index.lookup([{ blockTokens: 16, salted: false, keys: keysOf(1, 0, 9) }]).held('a')).toBeUndefined()
  })

  test('is nothing once the member was lost; others keep theirs', () => {
    const { index, held } = followed('a', 'b')
    for (const member of ['a', 'b']) index.stored(member, { medium: 'device', keys: keysOf(1, 0, 10) })
    index.lost('a')
    expect([held('a', 1, 10), held('b', 1, 10)]).toEqual([{}, { device: 160 }])
  })
})

test('any sequence of events leaves what a plain model has', () => {
  const chains = fc.integer({ min: 0, max: 3 })
  const event = fc.record({
    kind: fc.constantFrom('stored', 'stored', 'stored', 'trimmed', 'cleared'),
    member: fc.integer({ min: 0, max: 2 }),
    medium: fc.integer({ min: 0, max: 3 }),
    chain: chains,
    length: fc.integer({ min: 0, max: 150 }),
  })
  fc.assert(
    fc.property(fc.array(event, { maxLength: 60 }), (events) => {
      const { index, held } = followed('0', '1', '2')
      // Fronts only, as caches have them: member, medium, chain -> blocks.
      const model = new Map<string, number>()
      for (const { kind, member, medium, chain, length } of events) {
        const name = `${member}/${medium}/${chain}`
        const now = model.get(name) ?? 0
        const place = { medium: MEDIA[medium] as Medium }
        if (kind === 'stored') {
          index.stored(String(member), { ...place, keys: keysOf(chain, now, Math.max(now, length)) })
          model.set(name, Math.max(now, length))
        } else if (kind === 'trimmed') {
          index.removed(String(member), { ...place, keys: keysOf(chain, Math.min(now, length), now) })
          model.set(name, Math.min(now, length))
        } else {
          index.cleared(String(member), MEDIA[medium])
          for (const key of model.keys()) if (key.startsWith(`${member}/${medium}/`)) model.delete(key)
        }
      }
      for (const member of [0, 1, 2]) {
        for (const chain of [0, 1, 2, 3]) {
          const longest = Math.max(...MEDIA.map((_, medium) => model.get(`${member}/${medium}/${chain}`) ?? 0))
          const found = held(String(member), chain, 120) ?? {}
          const total = Object.values(found).reduce((sum, tokens) => sum + tokens, 0)
          expect(total).toBe(16 * Math.min(120, longest))
        }
      }
    }),
    { numRuns: 200 },
  )
})

test('a million blocks over 64 members take at most 150 MB, and what is let go makes room', () => {
  const index = createPreciseIndex()
  const fill = (chain: number) => {
    for (let at = 0; at < 1_000_000; at += 1000) {
      const member = String((at / 1000) % 64)
      index.stored(member, { medium: 'device', keys: keysOf(chain, at, at + 1000) })
    }
  }
  fill(1)
  expect(index.bytes).toBeLessThan(150e6)
  const full = index.bytes
  for (let member = 0; member < 64; member++) index.cleared(String(member))
  fill(2)
  expect(index.bytes).toBeLessThanOrEqual(full)
})

test('it grows in small steps, however many blocks it has', () => {
  const index = createPreciseIndex()
  const step = 64
  // As hashes are: every bit of them differs.
  const random = seeded(7)
  let largest = 0
  for (let at = 0; at < 200_000; at += step) {
    const before = index.bytes
    const keys = Uint32Array.from({ length: 2 * step }, () => random.below(2 ** 32))
    index.stored(String((at / step) % 40), { medium: 'device', keys })
    largest = Math.max(largest, index.bytes - before)
  }
  expect(index.bytes).toBeGreaterThan(5e6)
  // Some of the 256 parts at most, at once.
  expect(largest).toBeLessThan(index.bytes / 32)
})
