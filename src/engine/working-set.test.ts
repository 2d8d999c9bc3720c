import { describe, expect, test } from 'vitest'
import type { KvLayout } from '../core/block.js'
import { capacityClass, slotBytes } from './slot.js'
import { WorkingSet } from './working-set.js'

const layout: KvLayout = { layers: 1, kvHeads: 1, headDim: 2, dtype: 'fp16' }
const contextLength = 1024
const ids = (seed: number, count: number) => Int32Array.from({ length: count }, (_, i) => seed * 1000 + i)

function open(slots: number, reuse = true): WorkingSet {
  return new WorkingSet({ layout, contextLength, capacityBytes: slotBytes(layout, contextLength) * slots, reuse })
}

/** Takes a slot and fills it as a sequence would. */
function run(set: WorkingSet, tokens: Int32Array, root = 'r'): number | undefined {
  const seat = set.take(root, tokens, { capacity: tokens.length })
  if (seat === undefined) return undefined
  seat.slot.length = seat.resident
  const rest = tokens.subarray(seat.resident)
  if (rest.length > 0) seat.slot.append(rest, () => new Float32Array(rest.length * 2))
  set.release(seat.slot)
  return seat.resident
}

test('capacity classes are steps of at most 1.25x above 512, multiples of 64, and end at the window', () => {
  let last = 512
  for (let tokens = 513; tokens <= 8192; tokens++) {
    const capacity = capacityClass(tokens, 8192)
    expect(capacity).toBeGreaterThanOrEqual(tokens)
    if (capacity !== last) {
      expect(capacity % 64).toBe(0)
      expect(capacity / last).toBeLessThanOrEqual(1.25)
      last = capacity
    }
  }
  expect(last).toBe(8192)
})

describe('taking a slot', () => {
  test('goes on in the warm slot that holds the prompt’s beginning', () => {
    const set = open(4)
    expect(run(set, ids(1, 100))).toBe(0)
    expect(run(set, Int32Array.of(...ids(1, 100), 7, 8))).toBe(100)
    expect(run(set, ids(1, 102).with(99, -5))).toBe(99)
  })

  test('never shares rows between roots', () => {
    const set = open(4)
    run(set, ids(1, 100), 'one')
    expect(run(set, ids(1, 100), 'other')).toBe(0)
  })

  test('leaves a long session its slot when only the head is the same', () => {
    const set = open(4)
    const session = ids(1, 400)
    run(set, session)
    expect(run(set, Int32Array.of(...ids(1, 100), 5, 6, 7))).toBe(0)
    expect(run(set, session)).toBe(400)
  })

  test('gives up the least recently used slot when room is short, never a busy one', () => {
    const set = open(1)
    const busy = set.take('r', ids(1, 300), { capacity: 300 })
    expect(set.take('r', ids(2, 900), { capacity: 900 })).toBeUndefined()
    set.release(busy!.slot)
    expect(run(set, ids(2, 900))).toBe(0)
    expect(set.status().usedBytes).toBeLessThanOrEqual(set.status().capacityBytes)
  })

  test('stays within its budget under churn', () => {
    const set = open(3)
    for (let i = 0; i < 500; i++) {
      run(set, ids(i % 17, 1 + ((i * 37) % 1000)))
      const { usedBytes, capacityBytes, usedSlots } = set.status()
      expect(usedBytes).toBeLessThanOrEqual(capacityBytes)
      expect(usedSlots).toBe(0)
    }
  })

  test('a warm slot stays where it is when it holds what is needed at least', () => {
    const set = open(4)
    run(set, ids(1, 100))
    const take = (least?: number) =>
      set.take('r', ids(1, 100), { capacity: 600, ...(least !== undefined && { least }) })
    const kept = take(128)!
    expect(kept.slot.capacity).toBe(128)
    set.release(kept.slot)
    const moved = take()!
    expect([moved.slot.capacity, moved.resident]).toEqual([640, 100])
    set.release(moved.slot)
    // A slot that is made anew has room for all, where there is room.
    expect(set.take('r', ids(2, 10), { capacity: 600, least: 10 })!.slot.capacity).toBe(640)
    const tight = open(1)
    expect(tight.take('r', ids(1, 10), { capacity: 1000 })!.slot.capacity).toBe(1024)
    expect(tight.take('r', ids(2, 10), { capacity: 600, least: 10 })).toBeUndefined()
    const half = open(1)
    expect(half.take('r', ids(1, 10), { capacity: 600 })!.slot.capacity).toBe(640)
    expect(half.take('r', ids(2, 10), { capacity: 600, least: 10 })!.slot.capacity).toBe(64)
  })

  test('without reuse a slot that is left is empty', () => {
    const set = open(2, false)
    run(set, ids(1, 100))
    expect(run(set, ids(1, 100))).toBe(0)
  })

  test('a budget below one window is refused with the numbers', () => {
    expect(() => new WorkingSet({ layout, contextLength, capacityBytes: 1000, reuse: true })).toThrow(
      /1000.*1024 tokens/,
    )
  })

  test('a slot is released once', () => {
    const set = open(1)
    const seat = set.take('r', ids(1, 10), { capacity: 10 })
    set.release(seat!.slot)
    expect(() => set.release(seat!.slot)).toThrow('twice')
  })
})
