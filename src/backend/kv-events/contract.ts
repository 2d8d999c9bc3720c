// What is heard of caches elsewhere: which blocks a member holds, told as changes. The sink is the router's index
// (router/precise-index.ts); it sees own keys of blocks (core/block-keys.ts), never an engine's hashes, never tokens.
// Invariant: a sink hears of a key in a medium as stored once, and then as removed once at most, until it is stored again.

import type { Medium } from '../../router/contract.js'

/** Some blocks. They need not follow each other. Keys of different block sizes differ (`FollowState.blockTokens`). */
export interface HeldBlocks {
  readonly medium: Medium
  /** Two 32-bit words a block, `[2i, 2i + 1]`. The sink may not keep the array: it is used again. */
  readonly keys: Uint32Array
}

/**
 * Hears of all members. Calls are synchronous, come in the order of the events, and must not throw.
 * A member is named by its `Member.id`.
 */
export interface EventSink {
  stored(member: string, blocks: HeldBlocks): void
  removed(member: string, blocks: HeldBlocks): void
  /** The member holds nothing any more, in `medium` or at all. */
  cleared(member: string, medium?: Medium): void
  /** What was known of the member is worth nothing: forget all of it. Its live events follow. */
  lost(member: string): void
  /** How well the member is followed; whenever it changes. */
  followed(member: string, state: FollowState): void
}

export interface FollowState {
  /** A connection stands and something was heard by it. */
  readonly connected: boolean
  /** Everything that the member holds is known; else blocks that it held before are missing. */
  readonly complete: boolean
  /** Block sizes that were seen, smallest first. */
  readonly blockTokens: readonly number[]
  /** Keys carry the tenant's salt; false: its engine's events do not tell salts, and keys are those without one. */
  readonly salted: boolean
}

/** Where a member publishes what its cache does; config `backends[].events`. */
export interface EventsOptions {
  /** The PUB socket: `tcp://host:port`. `tcp://*:port` or `bind` true: the engine connects here. */
  readonly endpoint: string
  /** The ROUTER socket that gives old batches again; undefined: it offers none. */
  readonly replay?: string
  /** Topic prefix to subscribe to. */
  readonly topic: string
  readonly bind: boolean
  /** Ranks of data parallelism behind this member; rank r publishes at the port + r. */
  readonly ranks: number
  /** Engine hashes that are remembered for removals, per member; the oldest go first, and their blocks with them. */
  readonly aliases: number
}
