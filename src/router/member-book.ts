// What the router itself keeps of each member: its ledger, the size of its cache, how well that is known. Members come and
// go; one that is gone for good leaves a few numbers behind. Invariant: a member's number is never another's.

import { Ledger } from './ledger.js'
import { Predictions } from './predictions.js'
import type { CacheMemory } from './segment-index.js'

export interface MemberMemory extends CacheMemory {
  /** Tokens that its cache was seen to hold at least. */
  proven: number
  trustsRecalled: boolean
}

export interface MemberState {
  readonly ledger: Ledger
  readonly memory: MemberMemory
  readonly predictions: Predictions
}

export class MemberBook {
  readonly #states = new Map<string, MemberState>()
  readonly #byIndex: MemberState[] = []

  state(id: string): MemberState {
    let state = this.#states.get(id)
    if (state === undefined) {
      const index = this.#byIndex.length
      const ledger = new Ledger()
      const memory = {
        index,
        computed: 0,
        capacity: Number.POSITIVE_INFINITY,
        clearedBelow: 0,
        proven: 0,
        trustsRecalled: false,
        get pendingAbove() {
          return ledger.oldestBefore ?? Number.POSITIVE_INFINITY
        },
      }
      state = { ledger, memory, predictions: new Predictions() }
      this.#states.set(id, state)
      this.#byIndex.push(state)
    }
    return state
  }

  memory(index: number): MemberMemory {
    return (this.#byIndex[index] as MemberState).memory
  }
}
