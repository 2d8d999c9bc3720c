// What an ideal 64-token prefix cache of bounded size does, without any KV: which blocks of a chain would be there. The
// yardstick that real caches are measured against. Invariant: at most `capacity` blocks, least recently used leave first,
// leaves before what they stand on; pinned ones stay. What side requests left, and dead branches, leave before all others,
// and side requests make nothing else leave.
//
//   ring.next ..  least recently used  <->  ...  <->  most recently used  .. ring.previous         one ring of each kind

import type { HeldBlock } from '../cache/contract.js'
import type { BlockHash, Chain, Root } from '../core/block.js'
import type { Clock } from '../core/clock.js'

interface Pin {
  readonly hashes: readonly BlockHash[]
  readonly expiresAt: number
}

interface Node {
  readonly hash: BlockHash
  /** The block before it; undefined for the first of a chain. */
  parent: BlockHash | undefined
  previous: Node
  next: Node
}

/** Whose use of a block it is. */
export type User = 'session' | 'side'

export class ScriptedCache {
  readonly #blocks = new Map<BlockHash, Node>()
  readonly #ring = emptyRing()
  /** Of side requests, and of dead branches. */
  readonly #spare = emptyRing()
  /** The blocks of `#spare`. */
  readonly #spares = new Set<Node>()
  readonly #pins = new Map<string, Pin>()
  /** By the first block of a chain. */
  readonly #roots = new Map<BlockHash, Root>()
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

  /** Blocks of the longest cached prefix, `most` at most; they count as used now, by a session or by a side request. */
  acquire(hashes: readonly BlockHash[], most: number, by: User = 'session'): number {
    const found: Node[] = []
    while (found.length < most && found.length < hashes.length) {
      const node = this.#blocks.get(hashes[found.length] as BlockHash)
      if (node === undefined) break
      found.push(node)
    }
    this.hits += found.length
    this.misses += hashes.length - found.length
    // The trunk is touched last, so that leaves are evicted before what they stand on.
    for (let i = found.length - 1; i >= 0; i--) this.#touch(found[i] as Node, by)
    return found.length
  }

  /** Keeps blocks `[from, to)` of the chain, of which `[0, from)` are kept already; returns how many were new. */
  commit(hashes: readonly BlockHash[], from: number, to: number, by: User = 'session'): number {
    const end = Math.min(to, hashes.length)
    if (end <= from) return 0
    if (by === 'side') return this.#commitSpare(hashes, from, end)
    let fresh = 0
    for (let i = end - 1; i >= 0; i--) {
      const hash = hashes[i] as BlockHash
      const node = this.#blocks.get(hash)
      if (node !== undefined) this.#touch(node, by)
      else if (i >= from) {
        this.#add(hash, hashes[i - 1], by)
        fresh++
      }
    }
    this.#evict()
    return fresh
  }

  /** From the first on, and only as long as there is room that is nobody's. */
  #commitSpare(hashes: readonly BlockHash[], from: number, end: number): number {
    const own = new Set(hashes)
    let fresh = 0
    for (let i = from; i < end; i++) {
      const hash = hashes[i] as BlockHash
      if (this.#blocks.has(hash)) continue
      if (this.#blocks.size >= this.capacity && !this.#evictSpare(own)) break
      this.#add(hash, hashes[i - 1], 'side')
      fresh++
    }
    // Leaves first: the trunk is the freshest.
    for (let i = end - 1; i >= 0; i--) {
      const node = this.#blocks.get(hashes[i] as BlockHash)
      if (node !== undefined) this.#touch(node, 'side')
    }
    return fresh
  }

  #evictSpare(but: ReadonlySet<BlockHash>): boolean {
    const pinned = this.#pinned()
    for (const node of walk(this.#spare)) {
      if (pinned.has(node.hash) || but.has(node.hash)) continue
      this.#remove(node)
      this.evicted++
      return true
    }
    return false
  }

  /** These blocks and what follows them are the first to go. Returns how many that are. */
  demote(hashes: readonly BlockHash[]): number {
    const doomed = new Set(hashes.flatMap((hash) => this.#blocks.get(hash) ?? []))
    const children = new Map<BlockHash, Node[]>()
    for (const node of this.#blocks.values()) {
      if (node.parent !== undefined) children.set(node.parent, [...(children.get(node.parent) ?? []), node])
    }
    for (const node of doomed) for (const child of children.get(node.hash) ?? []) doomed.add(child)
    // Parents first, each in front of all: children end up staler.
    for (const node of doomed) {
      unlink(node)
      this.#spares.add(node)
      link(node, this.#spare.next)
    }
    return doomed.size
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

  /** Chains that begin as this one does start from its root: for `blocks` alone. */
  rooted({ root, hashes: [first] }: Chain): void {
    if (first !== undefined) this.#roots.set(first, root)
  }

  *blocks(): Generator<HeldBlock> {
    const known = new Map<BlockHash, Root | undefined>(this.#roots)
    for (const { hash, parent } of this.#blocks.values()) {
      const path: BlockHash[] = []
      let at: BlockHash | undefined = hash
      for (; at !== undefined && !known.has(at); at = this.#blocks.get(at)?.parent) path.push(at)
      const root = at && known.get(at)
      for (const each of path) known.set(each, root)
      if (root !== undefined) yield { hash, root, parent: parent ?? root, tier: 'memory', uses: 1 }
    }
  }

  /** Drops all unpinned blocks; returns how many. */
  clear(): number {
    const pinned = this.#pinned()
    const doomed = [...this.#blocks.values()].filter(({ hash }) => !pinned.has(hash))
    for (const node of doomed) this.#remove(node)
    return doomed.length
  }

  /** Removes these blocks, and with a tenant named all: whose a block is, is not known here. Returns how many. */
  erase(hashes: readonly BlockHash[], tenants: readonly Root[]): number {
    const named = new Set(hashes)
    const doomed = [...this.#blocks.values()].filter(({ hash }) => tenants.length > 0 || named.has(hash))
    for (const node of doomed) this.#remove(node)
    return doomed.length
  }

  #add(hash: BlockHash, parent: BlockHash | undefined, by: User): void {
    const node = { hash, parent } as Node
    if (by === 'side') this.#spares.add(node)
    link(node, by === 'side' ? this.#spare : this.#ring)
    this.#blocks.set(hash, node)
  }

  /** A session's use makes a block a session's. */
  #touch(node: Node, by: User): void {
    unlink(node)
    if (by === 'session') this.#spares.delete(node)
    link(node, this.#spares.has(node) ? this.#spare : this.#ring)
  }

  #remove(node: Node): void {
    unlink(node)
    this.#spares.delete(node)
    this.#blocks.delete(node.hash)
    this.#roots.delete(node.hash)
  }

  #evict(): void {
    if (this.#blocks.size <= this.capacity) return
    const pinned = this.#pinned()
    for (const node of this.#stalest()) {
      if (this.#blocks.size <= this.capacity) return
      if (pinned.has(node.hash)) continue
      this.#remove(node)
      this.evicted++
    }
  }

  *#stalest(): Generator<Node> {
    yield* walk(this.#spare)
    yield* walk(this.#ring)
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

function emptyRing(): Node {
  const ring = { hash: '' as BlockHash } as Node
  ring.previous = ring
  ring.next = ring
  return ring
}

/** Puts `node` in front of `next`: of a ring's own head, as its freshest. */
function link(node: Node, next: Node): void {
  node.previous = next.previous
  node.next = next
  next.previous.next = node
  next.previous = node
}

function unlink(node: Node): void {
  node.previous.next = node.next
  node.next.previous = node.previous
}

/** From the stalest on; a node may be taken out while it is the one at hand. */
function* walk(ring: Node): Generator<Node> {
  for (let node = ring.next; node !== ring; ) {
    const { next } = node
    yield node
    node = next
  }
}
