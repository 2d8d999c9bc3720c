// The heap against a sorted list.

import fc from 'fast-check'
import { expect, test } from 'vitest'
import { Heap } from './heap.js'

test('gives what a sorted list gives, under any additions and removals', () => {
  const operation = fc.oneof(
    fc.record({ kind: fc.constant('add' as const), value: fc.integer({ min: 0, max: 50 }) }),
    fc.record({ kind: fc.constant('remove' as const), value: fc.integer({ min: 0, max: 50 }) }),
    fc.record({ kind: fc.constant('shift' as const), value: fc.constant(0) }),
  )
  fc.assert(
    fc.property(fc.array(operation, { maxLength: 200 }), (operations) => {
      const heap = new Heap<number>((a, b) => a < b)
      const model = new Set<number>()
      for (const { kind, value } of operations) {
        const target = kind === 'shift' ? heap.peek() : value
        if (kind === 'add') {
          heap.add(value)
          model.add(value)
        } else if (target !== undefined) {
          expect(heap.remove(target)).toBe(model.delete(target))
        }
        expect(heap.size).toBe(model.size)
        expect(heap.peek()).toBe(model.size === 0 ? undefined : Math.min(...model))
        for (const one of [0, 25, 50]) expect(heap.has(one)).toBe(model.has(one))
      }
    }),
  )
})
