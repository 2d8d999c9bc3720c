// What the kinds of this family share: the offered blocks in one heap per priority class. Invariant: `pick` sees only
// blocks of classes that the newcomer may displace.

import type { Priority } from '../../core/request.js'
import { Heap } from '../heap.js'
import type { Candidate, Evictor } from './evictor.js'

const LEAST_URGENT_FIRST = ['background', 'auxiliary', 'interactive'] as const

export type Before = (a: Candidate, b: Candidate) => boolean

/** An evictor whose `before` orders each class and whose `pick` chooses among the classes' first, least urgent class first. */
export function classEvictor(before: Before, pick: (tops: readonly Candidate[]) => Candidate | undefined): Evictor {
  const heaps: Readonly<Record<Priority, Heap<Candidate>>> = {
    background: new Heap(before),
    auxiliary: new Heap(before),
    interactive: new Heap(before),
  }
  return {
    get size() {
      return heaps.background.size + heaps.auxiliary.size + heaps.interactive.size
    },
    offer: (block) => heaps[block.priority].add(block),
    withdraw: (block) => {
      heaps[block.priority].remove(block)
    },
    victim(priority) {
      // A loop: it runs for every block that is committed to a full memory.
      const tops: Candidate[] = []
      for (const name of LEAST_URGENT_FIRST) {
        const top = name !== 'interactive' || priority === 'interactive' ? heaps[name].peek() : undefined
        if (top !== undefined) tops.push(top)
      }
      return pick(tops)
    },
  }
}

/** The one of `candidates` that goes first in the order of `before`. */
export function firstOf(candidates: readonly Candidate[], before: Before): Candidate | undefined {
  return candidates.reduce<Candidate | undefined>((a, b) => (a === undefined || before(b, a) ? b : a), undefined)
}
