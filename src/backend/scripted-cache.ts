// What an ideal 64-token prefix cache of bounded size does, without any KV: which blocks of a chain would be there. The
// yardstick that real caches are measured against. Invariant: at most `capacity` blocks, least recently used leave first,
// leaves before what they stand on; pinned ones stay.
//
//   #ring.next ..  least recently used  <->  ...  <->  most recently used  .. #ring.previous

import type { BlockHash } from '../core/block.js'
import type { Clock } from '../core/clock.js'

interface Pin {
  readonly hashes: readonly BlockHash[]
  readonly expiresAt: number
}

interface Node {
  readonly hash: BlockHash
  previous: Node
  next: Node
}

export class ScriptedCache {
  readonly #blocks = new Map<BlockHash, Node>()
  readonly #ring: Node
  readonly #pins = new Map<string, Pin>()
  hits = 0
  misses = 0
  evicted = 0

  constructor(
    readonly capacity: number,
    readonly clock: Clock,
  ) {
    const ring = { hash: '' as BlockHash } as Node
    ring.previous = ring
    ring.next = ring
    this.#ring = ring
  }

  get size(): number {
    return this.#blocks.size
  }

  /** Blocks of the longest cached prefix, `most` at most; they count as used now. */
  acquire(hashes: readonly BlockHash[], most: number): number {
    const found: Node[] = []
    while (found.length < most && found.length < hashes.length) {
      const node = this.#blocks.get(hashes[found.length] as BlockHash)
      if (node === undefined) break
      found.push(node)
    }
    this.hits += found.length
    this.misses += hashes.length - found.length
    // The trunk is touched last, so that leaves are evicted before what they stand on.
    for (let i = found.length - 1; i >= 0; i--) this.#touch(found[i] as Node)
    return found.length
  }

  /** Keeps blocks `[from, to)` of the chain, of which `[0, from)` are kept already; returns how many were new. */
  commit(hashes: readonly BlockHash[], from: number, to: number): number {
    const end = Math.min(to, hashes.length)
    if (end <= from) return 0
    let fresh = 0
    for (let i = end - 1; i >= 0; i--) {
      const hash = hashes[i] as BlockHash
      const node = this.#blocks.get(hash)
      if (node !== undefined) this.#touch(node)
      else if (i >= from) {
        this.#add(hash)
        fresh++
      }
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
    const doomed = [...this.#blocks.values()].filter(({ hash }) => !pinned.has(hash))
    for (const node of doomed) this.#remove(node)
    return doomed.length
  }

  #add(hash: BlockHash): void {
    const node = { hash } as Node
    this.#link(node)
    this.#blocks.set(hash, node)
  }

  #touch(node: Node): void {
    node.previous.next = node.next
    node.next.previous = node.previous
    this.#link(node)
  }

  #link(node: Node): void {
    const last = this.#ring.previous
    node.previous = last
    node.next = this.#ring
    last.next = node
    this.#ring.previous = node
  }

  #remove(node: Node): void {
    node.previous.next = node.next
    node.next.previous = node.previous
    this.#blocks.delete(node.hash)
  }

  #evict(): void {
    if (this.#blocks.size <= this.capacity) return
    const pinned = this.#pinned()
    for (let node = this.#ring.next; node !== this.#ring && this.#blocks.size > this.capacity; node = node.next) {
      if (pinned.has(node.hash)) continue
      this.#remove(node)
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
