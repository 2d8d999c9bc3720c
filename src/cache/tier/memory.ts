// The host memory tier: blocks in pool slots, found through the index. Invariant: the evictor is offered exactly the blocks
// that may go: in memory, a leaf there, neither held nor pinned. Everything here is synchronous: leases read its bytes in
// place.

import Type from 'typebox'
import { type Kind, kindNamed } from '../../core/kind.js'
import type { Priority } from '../../core/request.js'
import { cacheMoved } from '../../core/signals.js'
import { BlockPool } from '../block-pool.js'
import type { Evictor } from '../evictor/evictor.js'
import * as evictors from '../evictor/index.js'
import type { Entry, IndexWatcher, PrefixIndex } from '../prefix-index.js'
import type { Tier, TierState } from './tier.js'

export interface MemoryOptions {
  readonly capacityBytes: number
  /** Bounds the blocks, where their bytes do not. */
  readonly capacityBlocks?: number
  /** A kind of evictor/. */
  readonly evictor: string
}

export interface MemoryDeps {
  readonly blockBytes: number
  readonly index: PrefixIndex
}

export class MemoryTier implements Tier, IndexWatcher {
  readonly pool: BlockPool
  #evicted = 0
  readonly #index: PrefixIndex
  readonly #evictor: Evictor

  constructor(pool: BlockPool, evictor: Evictor, index: PrefixIndex) {
    this.pool = pool
    this.#evictor = evictor
    this.#index = index
    index.watcher = this
  }

  /** A slot for a newcomer of `priority`, if need be another block's; undefined when nobody may go for it. */
  reserve(priority: Priority): number | undefined {
    const slot = this.pool.take()
    if (slot !== undefined) return slot
    const victim = this.#evictor.victim(priority) as Entry | undefined
    if (victim === undefined) return undefined
    this.drop(victim)
    this.#evicted++
    cacheMoved.publish({ what: 'evict', tier: 'memory', blocks: 1, bytes: this.pool.blockBytes })
    return this.pool.take()
  }

  /** Makes the filled `slot` the block's place: visible from now on. */
  place(entry: Entry, slot: number): void {
    this.#index.placeInMemory(entry, slot)
  }

  /** The slot's owner has no use for it. */
  give(slot: number): void {
    this.pool.give(slot)
  }

  /** @throws Error when the block is not in memory. */
  bytes(entry: Entry): Uint8Array {
    if (entry.slot === undefined) throw new Error(`block ${entry.hash} is not in memory`)
    return this.pool.bytes(entry.slot)
  }

  /** Forgets the block here. @throws Error while it is held: somebody reads its bytes. */
  drop(entry: Entry): void {
    if (entry.holds > 0) throw new Error(`block ${entry.hash} is held`)
    this.pool.give(this.#index.leaveMemory(entry))
  }

  reorder(entry: Entry): void {
    this.#evictor.withdraw(entry)
  }

  review(entry: Entry): void {
    const free = entry.slot !== undefined && entry.memoryChildren === 0 && entry.holds === 0 && entry.pins === 0
    if (free) this.#evictor.offer(entry)
    else this.#evictor.withdraw(entry)
  }

  status(): TierState {
    let pinnedBlocks = 0
    for (const entry of this.#index.values()) if (entry.slot !== undefined && entry.pins > 0) pinnedBlocks++
    const { used, capacity, blockBytes } = this.pool
    return {
      tier: 'memory',
      blocks: used,
      usedBytes: used * blockBytes,
      capacityBytes: capacity * blockBytes,
      pinnedBlocks,
      evictedBlocks: this.#evicted,
      healthy: true,
    }
  }
}

export const memory: Kind<MemoryOptions, MemoryDeps, MemoryTier> = {
  options: Type.Object({
    capacityBytes: Type.Integer({ minimum: 0 }),
    capacityBlocks: Type.Optional(Type.Integer({ minimum: 0 })),
    evictor: Type.String({ default: 'priority-lru' }),
  }),
  create(options, { blockBytes, index }) {
    const evictor = kindNamed(evictors, options.evictor, 'cache.evictor').create({}, undefined)
    const { capacityBytes, capacityBlocks } = options
    const pool = new BlockPool({ blockBytes, capacityBytes, ...(capacityBlocks !== undefined && { capacityBlocks }) })
    return new MemoryTier(pool, evictor, index)
  },
}
