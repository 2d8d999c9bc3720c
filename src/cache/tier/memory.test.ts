// The memory tier under churn: the evictor is offered exactly who may go, and neither slots nor index entries pile up.

import { expect, test } from 'vitest'
import { seeded } from '../../testing/random.js'
import { toyPrompt } from '../../testing/toy-blocks.js'
import { BlockPool } from '../block-pool.js'
import type { Candidate, Evictor } from '../evictor/evictor.js'
import { lru } from '../evictor/lru.js'
import { type Entry, PrefixIndex } from '../prefix-index.js'
import { MemoryTier } from './memory.js'

const BLOCK = 64
const CAPACITY = 50

test('offers exactly the unused leaves, and keeps index and pool bounded', () => {
  const index = new PrefixIndex()
  const inner = lru.create({}, undefined)
  const offered = new Set<Candidate>()
  const watched: Evictor = {
    get size() {
      return inner.size
    },
    offer: (block) => {
      offered.add(block)
      inner.offer(block)
    },
    withdraw: (block) => {
      offered.delete(block)
      inner.withdraw(block)
    },
    victim: (priority) => inner.victim(priority),
  }
  const pool = new BlockPool({ blockBytes: BLOCK, capacityBytes: CAPACITY * BLOCK, slabBytes: 8 * BLOCK })
  const tier = new MemoryTier(pool, watched, index)
  const { below, next } = seeded(1)
  const held: Entry[] = []
  for (let round = 0; round < 2000; round++) {
    const { chain, tokens } = toyPrompt(Array.from({ length: 1 + below(6) }, () => below(5)))
    const prefix: Entry[] = []
    for (const [i, hash] of chain.hashes.entries()) {
      let entry = index.find(hash, chain.root, tokens, 64 * i) as Entry | undefined
      if (entry?.slot === undefined) {
        const slot = tier.reserve('interactive')
        if (slot === undefined) break
        entry = index.name(hash, chain.root, chain.hashes[i - 1] ?? chain.root, tokens.subarray(64 * i, 64 * i + 64))
        tier.place(entry, slot)
      }
      prefix.push(entry)
    }
    index.touch(prefix, 'interactive', round)
    for (const entry of prefix) {
      if (entry.slot === undefined || next() > 0.1) continue
      index.hold(entry)
      held.push(entry)
    }
    while (held.length > 20) index.unhold(held.splice(below(held.length), 1)[0]!)
    const free = [...index.values()].filter(
      ({ slot, memoryChildren, holds, pins }) =>
        slot !== undefined && memoryChildren === 0 && holds === 0 && pins === 0,
    )
    expect(offered.size).toBe(free.length)
    for (const entry of free) expect(offered.has(entry)).toBe(true)
    expect(index.size).toBeLessThanOrEqual(2 * CAPACITY)
    expect(pool.used).toBeLessThanOrEqual(CAPACITY)
  }
  expect(pool.allocatedBytes).toBeLessThanOrEqual(CAPACITY * BLOCK)
  for (const entry of held) index.unhold(entry)
  for (const entry of [...index.values()]) if (entry.slot !== undefined) tier.drop(entry)
  expect([index.size, pool.used, inner.size]).toEqual([0, 0, 0])
})
