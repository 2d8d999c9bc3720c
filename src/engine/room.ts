// Room in the slots of sequences that run: for the next token of an answer, for the branches beside it. Invariant: an answer
// goes before its branches, and branches cost no session its place.

import type { KvCache } from '../cache/contract.js'
import { RefrainError } from '../core/errors.js'
import type { Branches } from './branches.js'
import type { Choice, Sequence } from './sequence.js'
import { isBacked } from './side.js'
import type { Spares, WorkingSet } from './working-set.js'

/** Tokens of room that a sequence is seated with beyond its prompt, when it may generate more. */
export const RESERVE_TOKENS = 512

/**
 * What a fresh slot is made larger by, in parts of its prompt: the session's next turn and questions beside it then go on
 * in place, instead of waiting until all rows were moved.
 */
export const HEADROOM = 1 / 4

interface GrowDeps {
  readonly workingSet: WorkingSet
  readonly spares: Spares | undefined
}

/** Makes room for one more token of `choice`. False: there is none. */
export function growRoom(sequence: Sequence, choice: Choice, { workingSet, spares }: GrowDeps): boolean {
  const { slot } = choice
  if (slot.length < slot.room) return true
  const grown = workingSet.grow(slot, slot.length + 1, spares)
  if (grown !== undefined) {
    if (sequence.slot === slot) sequence.moveTo(grown)
    else choice.slot = grown
  }
  if (choice.slot.length < choice.slot.room) return true
  if (choice.slot.reserved === 0) return false
  const text = 'the answer beside it has outgrown the room of the working set'
  sequence.branches?.fail(new RefrainError('out_of_memory', text, { retryAfterMs: 5000 }))
  choice.slot.reserved = 0
  return choice.slot.length < choice.slot.room
}

interface SeatDeps {
  readonly workingSet: WorkingSet
  readonly cache: KvCache
}

/** Reserves rows for branches behind what their request needs itself. */
export function seatBranches(sequence: Sequence, branches: Branches, { workingSet, cache }: SeatDeps): void {
  const { slot } = sequence.held()
  const { job, depth, isStreaming, phase } = sequence
  const still = isStreaming || phase === 'prefill' ? Math.min(job.maxTokens, RESERVE_TOKENS) : 0
  const own = Math.max(depth, job.tokens.length) + still
  if (slot.capacity < own + branches.rows) {
    const grown = workingSet.grow(slot, own + branches.rows, (other) => isBacked(other, cache))
    if (grown !== undefined) sequence.moveTo(grown)
  }
  branches.begin(sequence.held().slot, own)
}
