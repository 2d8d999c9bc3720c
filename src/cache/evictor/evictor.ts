// Who leaves memory when a newcomer needs room. The memory tier offers only blocks that may go: leaves, neither held nor
// pinned. Invariant of every kind: a victim is among the offered, and an auxiliary or background newcomer never displaces
// an interactive block. Synchronous, called on the path of every commit.

import type { Kind } from '../../core/kind.js'
import type { Priority } from '../../core/request.js'

/** What a kind may look at. Its values do not change while the block is offered. */
export interface Candidate {
  /** The most urgent class that ever used the block. */
  readonly priority: Priority
  /** Order of last use; larger is later. A parent's is larger than its children's. */
  readonly usedTick: number
  /** Order of creation; larger is later. */
  readonly bornTick: number
}

export interface Evictor {
  /** Blocks on offer. */
  readonly size: number
  /** The block may be evicted from now on. Offered again: no change. */
  offer(block: Candidate): void
  /** The block is used, held, pinned, has children or is gone. Not on offer: no change. */
  withdraw(block: Candidate): void
  /** Whom to evict for a newcomer of `priority`; stays on offer until withdrawn. Undefined: nobody may go. */
  victim(priority: Priority): Candidate | undefined
}

export type EvictorKind = Kind<Readonly<Record<string, never>>, undefined, Evictor>
