// A place that holds blocks. Host memory is the tier at the door: synchronous, known to the index block by block. A slow
// tier lies below it and is awaited by ladder.ts alone. Invariants of a slow tier: `load` gives the very bytes that were
// stored under that name or no bytes; it never rejects and never throws: a fault is a miss; it keeps within its budget.

import type { BlockHash, Root } from '../../core/block.js'
import type { Clock } from '../../core/clock.js'
import type { BlockKey, Crc32c } from '../block-file.js'
import type { TierStatus } from '../contract.js'
import type { FileDoor } from '../disk/file-door.js'
import type { BlockName } from '../prefix-index.js'

/**
 * 'absent': not held; 'collision': held for other tokens or another root; 'corrupt': held, but not what was stored, dropped
 * now; 'failed': held, but out of reach.
 */
export type LoadOutcome = 'loaded' | 'absent' | 'collision' | 'corrupt' | 'failed'

/** 'forget': may be found again after a crash; 'erase': the bytes are overwritten, and it is on the medium on return. */
export type DropMode = 'forget' | 'erase'

/** What a tier knows of itself; the ladder and the door measure the rest of a `TierStatus`. */
export type TierState = Omit<TierStatus, 'hits' | 'misses' | 'readRate' | 'writeRate' | 'pendingWrites'>

export interface Tier {
  /** Undefined: there is nothing to say (the tier 'none'). */
  status(): TierState | undefined
}

export interface SlowTier extends Tier {
  /** False: `store` would drop the block. */
  readonly writable: boolean
  /** False: `load` would fail. */
  readonly readable: boolean
  /** What was found when it was opened and what was stored since. */
  held(): Iterable<{ readonly hash: BlockHash; readonly root: Root; readonly parent: BlockHash | Root }>
  /** Fills `into`, whose bytes mean nothing unless 'loaded'. Settles only when `into` is no longer written to. */
  load(block: BlockName, into: Uint8Array): Promise<LoadOutcome>
  /** False: not kept. `bytes` must not change until it settles. */
  store(block: BlockName, bytes: Uint8Array): Promise<boolean>
  /** False: the medium could not be written, so that a restart may find some of them again. */
  drop(hashes: readonly BlockHash[], mode: DropMode): Promise<boolean>
  /**
   * Overwrites what is left of the matching blocks that are no longer held: evicted, replaced, damaged. On the medium on
   * return. False: it could not be written.
   */
  scrub(matches: (block: { readonly hash: BlockHash; readonly root: Root }) => boolean): Promise<boolean>
  /** What was stored before the call survives a loss of power. */
  flush(): Promise<void>
  /** Flushes and lets go of everything. */
  close(): Promise<void>
}

/** Keys for blocks at rest. */
export interface BlockKeys {
  /** The key that blocks of `root` are written under; undefined: in the clear. */
  keyOf(root: Root): BlockKey | undefined
  /** The key of that name; undefined: gone, and all blocks under it with it. */
  keyNamed(id: string): Uint8Array | undefined
}

export interface SlowTierDeps {
  readonly blockBytes: number
  readonly clock: Clock
  readonly crc32c: Crc32c
  readonly files: FileDoor
  readonly keys?: BlockKeys
  /** How much a held block is worth keeping: infinite when pinned, 0 when it may go. */
  worth(hash: BlockHash): number
  /** The tier no longer holds the block, by its own decision. Not called for `drop`. */
  lost(hash: BlockHash): void
  /** `writable` is true again. */
  recovered(): void
}
