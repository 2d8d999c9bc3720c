// The face of the KV cache: acquire, commit, release is the only door. It keeps blocks in host memory and on disk and
// knows neither text nor a model's name, only a root. Called from the engine's worker thread, by the engine alone.
//
//   engine                    cache
//   acquire(chain, tokens) -> pins the longest cached prefix, brings it up to memory          (async: disk)
//   lease.extend()         -> pins what others committed since                                 (sync)
//   lease.claim()          -> true: compute it yourself; false: another lease is computing the next block (sync)
//   lease.commit(i, ...)   -> block i is full: visible to all from this moment, written to disk behind   (sync)
//   lease.release()        -> unpins, gives up claims; once

import type { BlockHash, Chain, Root, TierName } from '../core/block.js'
import type { Priority } from '../core/request.js'

export interface AcquireRequest {
  readonly chain: Chain
  /** The prompt; `tokens.length >= chain.hashes.length * 64`. Compared with the stored ids: a collision is a miss. */
  readonly tokens: Int32Array
  readonly priority: Priority
  /** Blocks that the engine has in its working set already: kept, touched, not brought up. */
  readonly resident: number
  /** Blocks at most that may be used: the engine must compute at least the last token itself. */
  readonly maxBlocks: number
  /**
   * A side request: what it commits is the first to go and is not written to disk, unless others come for it; it evicts
   * no interactive block, whatever its priority, and its use of a block is no reason to keep it.
   */
  readonly transient?: boolean
  readonly signal?: AbortSignal
}

/**
 * The right to use a pinned prefix. Blocks `[0, resident)` stand in the engine's working set, `[resident, ready)` are
 * pinned in host memory. Nothing pinned is evicted. `release` exactly once; after it every other call throws.
 */
export interface Lease {
  readonly chain: Chain
  /** Blocks `[0, ready)` need no computing. Grows by `extend` and `commit`. */
  readonly ready: number
  /** Where the blocks `[resident, ready-at-acquire)` and later extended ones were found. */
  readonly found: { readonly memory: number; readonly disk: number }
  /** The bytes of block i, `resident <= i < ready` and not committed by this lease itself; valid until `release`. */
  block(index: number): Uint8Array
  /** Pins the following blocks of this chain that are in memory by now; returns the new `ready`. */
  extend(): number
  /**
   * Takes it on this lease to compute the blocks from `ready` on. False when another lease is computing block `ready`:
   * wait for its commit (or release), then `extend` again. Blocks past the chain's end (the partial tail, generated
   * text) need no claim: true.
   */
  claim(): boolean
  /**
   * Block `index` (which must be `ready`) is full. `hash` and `tokens` name it (generated blocks lie past the chain's
   * end, so the caller hashes them); `fill` writes its bytes into the buffer that the cache gives, synchronously.
   * Without room (everything pinned) the block is not kept and that is no error: later blocks of this lease are then
   * not kept either. Returns whether it was newly kept.
   */
  commit(index: number, hash: BlockHash, tokens: Int32Array, fill: (into: Uint8Array) => void): boolean
  release(): void
}

export interface TierStatus {
  readonly tier: 'memory' | 'disk'
  readonly blocks: number
  readonly usedBytes: number
  readonly capacityBytes: number
  readonly pinnedBlocks: number
  readonly hits: number
  readonly misses: number
  readonly evictedBlocks: number
  /** False: slow, full or failing; the sentence says why. */
  readonly healthy: boolean
  readonly complaint?: string
  /** Measured, bytes per second; undefined until measured. */
  readonly readRate?: number
  readonly writeRate?: number
  readonly pendingWrites?: number
}

/** A block that some tier holds. */
export interface HeldBlock {
  readonly hash: BlockHash
  readonly root: Root
  /** The block before it; its root for the first one. */
  readonly parent: BlockHash | Root
  /** The fastest that holds it. */
  readonly tier: TierName
  /** Requests that used it, but for side requests. */
  readonly uses: number
}

/** What is cached, as a tree of prefixes without text: runs of blocks between two branchings, the largest of them. */
export interface PrefixTree {
  /** Parents before their children. */
  readonly nodes: readonly PrefixNode[]
  /** Blocks that hang together from a root, shown or not. */
  readonly blocks: number
  /** Blocks whose front is gone: no prompt can use them. */
  readonly detachedBlocks: number
  /** False: only so many blocks were looked at. */
  readonly complete: boolean
}

/** Blocks that follow each other without a branching. */
export interface PrefixNode {
  /** Of its first block. */
  readonly hash: BlockHash
  readonly root: Root
  /** Index among the nodes; undefined: it begins at the root. */
  readonly parent?: number
  /** Blocks in front of it. */
  readonly depth: number
  readonly blocks: number
  /** Front to back. */
  readonly tiers: readonly { readonly tier: TierName; readonly blocks: number }[]
  /** Of its first block. */
  readonly uses: number
  /** Blocks of all that follows it, shown or not. */
  readonly below: number
  /** Branches behind it that are not among the nodes. */
  readonly hidden: { readonly branches: number; readonly blocks: number }
}

export interface PrefixTreeAsk {
  /** Of these tenants alone, by their roots without a salt. */
  readonly tenants?: readonly Root[]
  /** Nodes at most. */
  readonly nodes: number
}

/** A block as `erase` asks about it. */
export interface ErasableBlock {
  readonly hash: BlockHash
  readonly root: Root
}

/** What is to be erased. Absent fields ask for nothing. */
export interface EraseAsk {
  readonly hashes?: readonly BlockHash[]
  /** Everything of these tenants, whatever salt their requests had: their roots without one. */
  readonly tenants?: readonly Root[]
}

export interface CacheErased {
  readonly blocks: number
  /** False: requests are still using some, or the disk cannot be overwritten. What is left is tried again by itself. */
  readonly complete: boolean
}

export interface KvCache {
  /** Never rejects for a cache fault: a fault is a shorter prefix. Rejects only with the signal's reason. */
  acquire(request: AcquireRequest): Promise<Lease>
  /** Blocks of `chain` that are held by tier right now, longest prefix only; pins nothing. */
  match(chain: Chain, tokens: Int32Array): { readonly memory: number; readonly disk: number }
  /**
   * Protects the blocks of `chain` that are cached from eviction and expiry until released or `ttlMs` is over; asked
   * again for the same id, the ttl starts anew. Returns how many blocks are held.
   */
  pin(id: string, chain: Chain, tokens: Int32Array, ttlMs: number): number
  /**
   * These blocks and all that follow them are done with: they are the first to go from every tier, until somebody uses
   * them. Pinned ones stay as they are. Returns how many blocks that are.
   */
  demote(hashes: readonly BlockHash[]): number
  /** False: no such pin. */
  unpin(id: string): boolean
  pins(): readonly { readonly id: string; readonly blocks: number; readonly expiresInMs: number }[]
  /** Measured seconds that the engine needs to compute one token; decides whether a restore is worth it. */
  observeCompute(tokens: number, ms: number): void
  /** Drops everything that is not pinned, in all tiers. Returns the blocks dropped. */
  clear(): Promise<number>
  status(): readonly TierStatus[]
  /** What the tiers hold, in no order; may be read on while it changes. */
  blocks(): Iterable<HeldBlock>
  /** Resolves once every committed block that will be written is on disk. */
  flush(): Promise<void>
  /** Flushes and closes the tiers. */
  close(): Promise<void>
}
