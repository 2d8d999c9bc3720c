// One request's right to a prefix, see `Lease` in contract.ts. Invariants: what it shows by `block` is held in memory until
// `release`; what it commits is visible to all at once and held by nobody, so that a long answer can't fill the memory with
// itself; `release` undoes all of it, once.
//
//   0 ........ resident ............ ready ............ chain end ............ generated
//   | the engine has them | held, or own commits | claimed, or others' | no claim needed |

import { BLOCK_TOKENS, type BlockHash, type Chain, type Root } from '../core/block.js'
import type { Clock } from '../core/clock.js'
import type { Priority } from '../core/request.js'
import { cacheMoved } from '../core/signals.js'
import { nextHash } from './chain.js'
import type { Claims } from './claims.js'
import type { Lease } from './contract.js'
import type { Ladder } from './ladder.js'
import type { Entry, PrefixIndex } from './prefix-index.js'
import type { MemoryTier } from './tier/memory.js'

/** What leases share. */
export interface LeaseParts {
  readonly index: PrefixIndex
  readonly memory: MemoryTier
  readonly ladder: Ladder
  readonly claims: Claims<Lease>
  readonly clock: Clock
  /** A block was found in memory by `extend`. */
  hit(): void
}

export interface LeaseStart {
  readonly chain: Chain
  readonly tokens: Int32Array
  readonly priority: Priority
  /** Its uses do not count, see `AcquireRequest`. */
  readonly transient: boolean
  readonly resident: number
  readonly limit: number
  /** Held entries of the blocks from `resident` on. */
  readonly held: readonly Entry[]
  readonly found: { readonly memory: number; readonly disk: number }
}

export class CacheLease implements Lease {
  readonly chain: Chain
  readonly #parts: LeaseParts
  readonly #start: LeaseStart
  /** By block; a hole where the engine has the block itself. */
  readonly #held = new Map<number, Entry>()
  /** Hashes of the blocks past the chain's end. */
  readonly #past: BlockHash[] = []
  #ready: number
  #found: { memory: number; disk: number }
  /** A block was not kept: what follows it would be out of reach. */
  #halted = false
  #released = false

  constructor(start: LeaseStart, parts: LeaseParts) {
    this.#start = start
    this.#parts = parts
    this.chain = start.chain
    this.#found = { ...start.found }
    this.#ready = start.resident
    for (const entry of start.held) this.#held.set(this.#ready++, entry)
  }

  get ready(): number {
    return this.#ready
  }

  get found(): { readonly memory: number; readonly disk: number } {
    return this.#found
  }

  block(index: number): Uint8Array {
    this.#live()
    const entry = this.#held.get(index)
    if (entry === undefined) throw new RangeError(`block ${index} is not leased`)
    return this.#parts.memory.bytes(entry)
  }

  extend(): number {
    this.#live()
    const { index, ladder, claims, hit } = this.#parts
    const { chain, tokens, limit } = this.#start
    while (this.#ready < Math.min(limit, chain.hashes.length)) {
      const hash = chain.hashes[this.#ready]!
      const entry = index.find(hash, chain.root, tokens, this.#ready * BLOCK_TOKENS)
      if (entry === undefined || entry === 'collision' || entry.slot === undefined) break
      index.hold(entry)
      this.#use(entry)
      // A side request may have left it unwritten.
      if (isWorthWriting(entry)) ladder.demote(entry)
      claims.settle(hash)
      this.#held.set(this.#ready++, entry)
      this.#found.memory++
      hit()
    }
    return this.#ready
  }

  claim(): boolean {
    this.#live()
    const { chain, limit } = this.#start
    // What this lease may not use, or will not publish, nobody needs to wait for.
    if (this.#halted || this.#ready >= Math.min(limit, chain.hashes.length)) return true
    return this.#parts.claims.claim(chain.hashes, this.#ready, this)
  }

  commit(index: number, hash: BlockHash, tokens: Int32Array, fill: (into: Uint8Array) => void): boolean {
    this.#live()
    if (index !== this.#ready) throw new RangeError(`block ${index} is committed, block ${this.#ready} is next`)
    const parent = this.#parent(index)
    if (nextHash(parent, tokens) !== hash) throw new Error(`block ${index} is not named by its own hash`)
    const planned = this.chain.hashes[index]
    if (planned === undefined) this.#past.push(hash)
    else if (planned !== hash) throw new Error(`block ${index} is not the chain's`)
    this.#ready++
    const kept = !this.#halted && this.#keep({ hash, parent, tokens }, fill)
    this.#parts.claims.settle(hash)
    return kept
  }

  release(): void {
    this.#live()
    this.#released = true
    const { index, claims, clock } = this.#parts
    for (const entry of this.#held.values()) index.unhold(entry)
    this.#held.clear()
    claims.release(this)
    // Commits and extensions came one by one: now the whole prefix gets its order, trunk freshest.
    const used = [...this.chain.hashes.slice(0, this.#ready), ...this.#past].flatMap((hash) => index.get(hash) ?? [])
    index.refresh(used, clock.now())
  }

  #live(): void {
    if (this.#released) throw new Error('the lease was released')
  }

  #parent(index: number): BlockHash | Root {
    if (index === 0) return this.chain.root
    const { hashes } = this.chain
    return hashes[index - 1] ?? this.#past[index - 1 - hashes.length]!
  }

  /** Whether the block's bytes were taken. */
  #keep(
    block: { readonly hash: BlockHash; readonly parent: BlockHash | Root; readonly tokens: Int32Array },
    fill: (into: Uint8Array) => void,
  ): boolean {
    const { index, memory, ladder } = this.#parts
    const { root } = this.chain
    const known = index.find(block.hash, root, block.tokens, 0)
    if (known === 'collision') {
      this.#moved('collision')
      this.#halt()
      return false
    }
    if (known?.slot !== undefined) return false
    const slot = this.#reserve(block.parent)
    if (slot === undefined) {
      this.#halt()
      return false
    }
    try {
      fill(memory.pool.bytes(slot))
    } catch (error) {
      memory.give(slot)
      throw error
    }
    const entry = index.name(block.hash, root, block.parent, block.tokens)
    memory.place(entry, slot)
    this.#use(entry)
    this.#moved('commit')
    if (isWorthWriting(entry)) ladder.demote(entry)
    return true
  }

  #use(entry: Entry): void {
    const { index, clock } = this.#parts
    if (this.#start.transient) index.refresh([entry], clock.now())
    else index.touch([entry], this.#start.priority, clock.now())
  }

  /** A slot for a child of `parent`, whose place is not given away for it unless it is on disk too. */
  #reserve(parent: BlockHash | Root): number | undefined {
    const { index, memory } = this.#parts
    const entry = index.get(parent as BlockHash)
    if (entry === undefined || entry.stored) return memory.reserve(this.#start.priority)
    index.hold(entry)
    const slot = memory.reserve(this.#start.priority)
    index.unhold(entry)
    return slot
  }

  #halt(): void {
    this.#halted = true
    this.#parts.claims.release(this)
  }

  #moved(what: 'commit' | 'collision'): void {
    cacheMoved.publish({ what, tier: 'memory', blocks: 1, bytes: this.#parts.memory.pool.blockBytes })
  }
}

/** A side request's blocks go to disk only once somebody came back for them. */
export function isWorthWriting(entry: Entry): boolean {
  return entry.priority === 'interactive' || entry.uses > 1 || entry.pins > 0
}
