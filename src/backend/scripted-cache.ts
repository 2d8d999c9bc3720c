// What an ideal 64-token prefix cache of bounded size does, without any KV: which blocks of a chain would be there. The
// yardstick that real caches are measured against. Invariant: at most `capacity` blocks, least recently used leave first,
// pinned ones stay.

import type { BlockHash } from '../core/block.js'
import type { Clock } from '../core/clock.js'

interface Pin {
  readonly hashes: readonly BlockHash[]
  readonly expiresAt: number
}

export class ScriptedCache {
  /** Insertion order is use order: the first key is the least recently used. */
  readonly #blocks = new Map<BlockHash, true>()
  readonly #pins = new Map<string, Pin>()
  hits = 0
  misses = 0
  evicted = 0

  constructor(
    readonly capacity: number,
    readonly clock: Clock,
  ) {}

  get size(): number {
    return this.#blocks.size
  }

  /** Blocks of the longest cached prefix, `most` at most; they count as used now. */
  acquire(hashes: readonly BlockHash[], most: number): number {
    let count = 0
    while (count < most && count < hashes.length && this.#blocks.has(hashes[count] as BlockHash)) count++
    this.hits += count
    this.misses += hashes.length - count
    // The trunk is touched last, so that leaves are evicted before what they stand on.
    for (let i = count - 1; i >= 0; i--) this.#touch(hashes[i] as BlockHash)
    return count
  }

  /** Keeps blocks `[from, to)` of the chain, of which `[0, from)` are kept already; returns how many were new. */
  commit(hashes: readonly BlockHash[], from: number, to: number): number {
    const end = Math.min(to, hashes.length)
    let fresh = 0
    for (let i = end - 1; i >= 0; i--) {
      const hash = hashes[i] as BlockHash
      if (!this.#blocks.has(hash)) {
        if (i < from) continue
        fresh++
      }
      this.#touch(hash)
    }
    this.#evict()
    return fresh
  }

  pin(id: string, hashes: readonly BlockHash[], ttlMs: number): void {
    const held = hashes.filter((hash) => this.#blocks.has(hash))
    this.#pins.set(id, { hashes: held, expiresAt: this.clock.now() + ttlMs })
  }

  unpin(id: string): boolean {
    this.#expire()
    return this.#pins.delete(id)
  }

  pins(): { id: string; blocks: number; expiresInMs: number }[] {
    this.#expire()
    const now = this.clock.now()
    return [...this.#pins].map(([id, pin]) => ({ id, blocks: pin.hashes.length, expiresInMs: pin.expiresAt - now }))
  }

  /** Drops all unpinned blocks; returns how many. */
  clear(): number {
    const pinned = this.#pinned()
    const before = this.#blocks.size
    for (const hash of [...this.#blocks.keys()]) if (!pinned.has(hash)) this.#blocks.delete(hash)
    return before - this.#blocks.size
  }

  #touch(hash: BlockHash): void {
    this.#blocks.delete(hash)
    this.#blocks.set(hash, true)
  }

  #evict(): void {
    if (this.#blocks.size <= this.capacity) return
    const pinned = this.#pinned()
    for (const hash of this.#blocks.keys()) {
      if (this.#blocks.size <= this.capacity) return
      if (pinned.has(hash)) continue
      this.#blocks.delete(hash)
      this.evicted++
    }
  }

  #pinned(): Set<BlockHash> {
    this.#expire()
    return new Set([...this.#pins.values()].flatMap((pin) => pin.hashes))
  }

  #expire(): void {
    const now = this.clock.now()
    for (const [id, pin] of this.#pins) if (pin.expiresAt <= now) this.#pins.delete(id)
  }
}
