// What was sent where, by the chained hashes of prompts' segments: the learned knowledge of caches that say nothing of
// themselves. Invariant: equal hashes in one scope (model and salt) are equal fronts; what is forgotten costs hits only.
// A member is believed to hold a front until more than its cache's worth of other text was computed there since.

import type { SegmentChain } from './contract.js'

export interface SegmentIndexOptions {
  /** Segments that are remembered; those that were used last stay. */
  readonly segments: number
  readonly ttlMs: number
}

/** A front that was sent: who has it, and since how much of other text. */
interface Segment<Owner> {
  usedAt: number
  /** Pairs: the member's number, and what it had computed, in tokens, when it last got this front. */
  readonly holders: number[]
  /** Whose conversation it is a part of; undefined: a head, which is everybody's. */
  owner: Owner | undefined
}

/** How much a member's cache holds, as its own counts have shown. */
export interface CacheMemory {
  /** A number of its own, never used again. */
  readonly index: number
  /** Tokens that it computed so far. */
  computed: number
  /** Other tokens that may be computed there before a front is gone. */
  capacity: number
  /** Fronts that it got while `computed` was below this are gone. */
  clearedBelow: number
  /** Fronts that it got while `computed` was above this are on their way: events may not tell of them yet. */
  readonly pendingAbove: number
}

export interface SegmentMatch<Owner> {
  /** Segments of the longest known front. */
  readonly depth: number
  /** Whose conversation the longest known front is. */
  readonly owner: Owner | undefined
  /** By the member's number: tokens of the longest front that it is believed to hold. */
  readonly tokens: ReadonlyMap<number, number>
  /** Of these, tokens of the longest front that was sent there while requests of that time are still under way. */
  readonly pending: ReadonlyMap<number, number>
}

const NOTHING: SegmentMatch<never> = { depth: 0, owner: undefined, tokens: new Map(), pending: new Map() }

export class SegmentIndex<Owner> {
  readonly #options: SegmentIndexOptions
  /** By scope, then by hash; in the order of arrival. */
  readonly #scopes = new Map<string, Map<string, Segment<Owner>>>()
  #size = 0

  constructor(options: SegmentIndexOptions) {
    this.#options = options
  }

  get size(): number {
    return this.#size
  }

  match(
    scope: string,
    chain: SegmentChain,
    now: number,
    memoryOf: (index: number) => CacheMemory,
  ): SegmentMatch<Owner> {
    const segments = this.#scopes.get(scope)
    if (segments === undefined) return NOTHING
    const tokens = new Map<number, number>()
    const pending = new Map<number, number>()
    let owner: Owner | undefined
    let depth = 0
    // Those between may have been forgotten, or were never told: a hash covers all before it.
    for (let i = 0; i < chain.hashes.length; i++) {
      const segment = segments.get(chain.hashes[i] as string)
      if (segment === undefined || now - segment.usedAt > this.#options.ttlMs) continue
      depth = i + 1
      const { holders } = segment
      for (let at = 0; at < holders.length; at += 2) {
        const index = holders[at] as number
        const computed = holders[at + 1] as number
        const memory = memoryOf(index)
        if (isHeld(computed, memory)) tokens.set(index, chain.tokens[i] as number)
        if (computed > memory.pendingAbove) pending.set(index, chain.tokens[i] as number)
      }
      owner = segment.owner
    }
    return { depth, owner, tokens, pending }
  }

  /** The whole of `chain` was sent to a member; what stands behind the head is `owner`'s, unless it was another's before. */
  hold(scope: string, chain: SegmentChain, memory: CacheMemory, more: { now: number; owner: Owner | undefined }): void {
    const { now, owner } = more
    let segments = this.#scopes.get(scope)
    if (segments === undefined) {
      segments = new Map()
      this.#scopes.set(scope, segments)
    }
    const last = chain.hashes.length - 1
    for (let i = 0; i <= last; i++) {
      const hash = chain.hashes[i] as string
      let segment = segments.get(hash)
      if (segment === undefined) {
        segment = { usedAt: now, holders: [], owner: undefined }
        segments.set(hash, segment)
        this.#size++
      }
      segment.usedAt = now
      if (i >= chain.head) segment.owner = i === last ? owner : (segment.owner ?? owner)
      holdAt(segment.holders, memory)
    }
    if (this.#size > this.#options.segments) this.#shrink(now)
  }

  /** A front of `chain` turned out to be gone, or never to have been there: all behind `depth` segments. */
  drop(scope: string, chain: SegmentChain, memory: CacheMemory, depth: number): void {
    const segments = this.#scopes.get(scope)
    if (segments === undefined) return
    for (let i = depth; i < chain.hashes.length; i++) {
      const holders = segments.get(chain.hashes[i] as string)?.holders
      const at = holders === undefined ? -1 : placeOf(holders, memory.index)
      if (at >= 0) holders!.splice(at, 2)
    }
  }

  /** How long ago, in tokens that were computed since, a member got this front; undefined: not that is known. */
  distance(scope: string, hash: string, memory: CacheMemory): number | undefined {
    const holders = this.#scopes.get(scope)?.get(hash)?.holders
    const at = holders === undefined ? -1 : placeOf(holders, memory.index)
    return at < 0 ? undefined : memory.computed - (holders![at + 1] as number)
  }

  /** Lets go of an eighth, oldest arrivals first; those that were used since go to the end instead. */
  #shrink(now: number): void {
    const target = Math.floor(this.#options.segments * 0.875)
    for (let recentMs = this.#options.ttlMs / 2; this.#size > target; recentMs /= 4) {
      for (const [scope, segments] of this.#scopes) {
        for (let left = segments.size; left > 0 && this.#size > target; left--) {
          const [hash, segment] = segments.entries().next().value as [string, Segment<Owner>]
          segments.delete(hash)
          if (now - segment.usedAt < recentMs && recentMs > 1) segments.set(hash, segment)
          else this.#size--
        }
        if (segments.size === 0) this.#scopes.delete(scope)
      }
    }
  }
}

function isHeld(computedThen: number, { computed, capacity, clearedBelow }: CacheMemory): boolean {
  return computedThen >= clearedBelow && computed - computedThen <= capacity
}

function placeOf(holders: readonly number[], index: number): number {
  for (let i = 0; i < holders.length; i += 2) if (holders[i] === index) return i
  return -1
}

function holdAt(holders: number[], { index, computed }: CacheMemory): void {
  const at = placeOf(holders, index)
  if (at >= 0) holders[at + 1] = computed
  else holders.push(index, computed)
}
