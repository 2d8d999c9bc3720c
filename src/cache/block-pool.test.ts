// Slots of host memory: as many as the budget holds, apart from each other, with one owner each.

import { describe, expect, test } from 'vitest'
import { BlockPool } from './block-pool.js'

describe('BlockPool', () => {
  test('gives as many slots as the budget holds, aligned, and no more', () => {
    const pool = new BlockPool({ blockBytes: 100, capacityBytes: 128 * 5 + 127, slabBytes: 128 * 2 })
    const slots = Array.from({ length: 5 }, () => pool.take()!)
    expect(new Set(slots).size).toBe(5)
    expect(pool.take()).toBeUndefined()
    expect(pool.allocatedBytes).toBe(128 * 5)
    for (const slot of slots) {
      expect(pool.bytes(slot).length).toBe(100)
      expect(pool.bytes(slot).byteOffset % 64).toBe(0)
    }
  })

  test('allocates when first needed and reuses what was given back', () => {
    const pool = new BlockPool({ blockBytes: 64, capacityBytes: 64 * 1000, slabBytes: 640 })
    expect(pool.allocatedBytes).toBe(0)
    for (let i = 0; i < 100; i++) pool.give(pool.take()!)
    expect(pool.allocatedBytes).toBe(640)
    expect(pool.used).toBe(0)
  })

  test('keeps slots apart', () => {
    const pool = new BlockPool({ blockBytes: 70, capacityBytes: 128 * 20, slabBytes: 128 * 3 })
    const slots = Array.from({ length: 20 }, () => pool.take()!)
    for (const slot of slots) pool.bytes(slot).fill(slot + 1)
    for (const slot of slots) expect(pool.bytes(slot).every((byte) => byte === slot + 1)).toBe(true)
  })

  test('holds a block that is larger than a slab', () => {
    const pool = new BlockPool({ blockBytes: 1000, capacityBytes: 2048, slabBytes: 10 })
    const slots = [pool.take()!, pool.take()!]
    expect(pool.take()).toBeUndefined()
    pool.bytes(slots[0]!).fill(1)
    expect(pool.bytes(slots[1]!).every((byte) => byte === 0)).toBe(true)
  })

  test('has slots without bytes for simulations', () => {
    const pool = new BlockPool({ blockBytes: 0, capacityBytes: 0, capacityBlocks: 3 })
    expect([pool.take(), pool.take(), pool.take(), pool.take()]).toEqual([0, 1, 2, undefined])
    expect(pool.bytes(0).length).toBe(0)
    expect(pool.allocatedBytes).toBe(0)
    expect(() => new BlockPool({ blockBytes: 0, capacityBytes: 10 })).toThrow(RangeError)
  })

  test('refuses a second owner', () => {
    const pool = new BlockPool({ blockBytes: 64, capacityBytes: 640 })
    const slot = pool.take()!
    pool.give(slot)
    expect(() => pool.give(slot)).toThrow('twice')
    expect(() => pool.bytes(slot)).toThrow('owner')
  })
})
