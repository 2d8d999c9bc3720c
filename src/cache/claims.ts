// Who computes what: single flight. A lease claims the blocks of its chain that nobody else computes; others with the same
// prefix wait for its commits. Invariant: a block has at most one claimant, and a claim ends with the block's commit or
// with its lease, so nobody waits for a block that will not come.

import type { BlockHash } from '../core/block.js'

export class Claims<Owner> {
  readonly #owners = new Map<BlockHash, Owner>()
  readonly #claimed = new Map<Owner, Set<BlockHash>>()

  /** Blocks that somebody computes. */
  get size(): number {
    return this.#owners.size
  }

  /** Claims `hashes[from]` and what follows it as far as unclaimed. False: another computes `hashes[from]`. */
  claim(hashes: readonly BlockHash[], from: number, owner: Owner): boolean {
    const first = this.#owners.get(hashes[from]!)
    if (first !== undefined) return first === owner
    const own = this.#claimed.get(owner) ?? new Set()
    this.#claimed.set(owner, own)
    for (let i = from; i < hashes.length; i++) {
      const hash = hashes[i]!
      if (this.#owners.has(hash)) continue
      this.#owners.set(hash, owner)
      own.add(hash)
    }
    return true
  }

  /** The block is there: nobody needs to compute it. */
  settle(hash: BlockHash): void {
    const owner = this.#owners.get(hash)
    if (owner === undefined) return
    this.#owners.delete(hash)
    this.#claimed.get(owner)?.delete(hash)
  }

  /** Ends all claims of `owner`. */
  release(owner: Owner): void {
    for (const hash of this.#claimed.get(owner) ?? []) this.#owners.delete(hash)
    this.#claimed.delete(owner)
  }
}
