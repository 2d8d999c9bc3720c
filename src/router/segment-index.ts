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
  /** `usedAt` when the clock's hand came by. */
  seenAt: number
  /** Pairs: the member's number, and what it had computed, in tokens, when it last got this front. */
  readonly holders: number[]
  /** Whose conversation went through here last; undefined: a head, which is everybody's. */
  owner: Owner | undefined
  /** When all in front of it were last looked at, by a prompt that ended here. */
  walk: Walk<Owner> | undefined
}

/** A prompt that went to a member, looked at segment by segment. */
interface Walk<Owner> {
  readonly index: number
  readonly owner: Owner | undefined
  readonly at: number
  /** Of the member, then. */
  readonly computed: number
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
  /** What was recalled of before this process began (got while `computed` was 0) has proven to be there. */
  readonly trustsRecalled: boolean
}

/** Of members, by their numbers. */
export interface Memories {
  memory(index: number): CacheMemory
}

export interface SegmentMatch<Owner> {
  /** Segments of the longest known front. */
  readonly depth: number
  /** Whose conversations the longest known fronts are, longest first; each with its segments. */
  readonly owners: readonly { readonly depth: number; readonly owner: Owner }[]
  /** By the member's number: tokens of the longest front that it is believed to hold. */
  readonly tokens: ReadonlyMap<number, number>
  /** Of these, tokens of the longest front that was sent there while requests of that time are still under way. */
  readonly pending: ReadonlyMap<number, number>
  /** Tokens of the longest front that a member had when an earlier process ended; its server may have ended, too. */
  readonly recalled: ReadonlyMap<number, number>
}

const NONE = new Map<number, number>()
const NOTHING: SegmentMatch<never> = { depth: 0, owners: [], tokens: NONE, pending: NONE, recalled: NONE }

export class SegmentIndex<Owner> {
  readonly #options: SegmentIndexOptions
  /** By scope, then by hash; in the order of arrival. */
  readonly #scopes = new Map<string, Map<string, Segment<Owner>>>()
  #size = 0
  readonly #hand = this.#walk()

  constructor(options: SegmentIndexOptions) {
    this.#options = options
  }

  get size(): number {
    return this.#size
  }

  match(scope: string, chain: SegmentChain, now: number, memories: Memories): SegmentMatch<Owner> {
    const segments = this.#scopes.get(scope)
    if (segments === undefined) return NOTHING
    const search = new Search<Owner>({ segments, hashes: chain.hashes, since: now - this.#options.ttlMs, memories })
    const last = search.lastOf(chain.hashes.length)
    if (last < 0) return NOTHING
    search.down(last)
    // After a restart the head and the last prompts are known, and nothing between.
    if (chain.head > 0) search.see(Math.min(chain.head - 1, last))
    const tokens = new Map<number, number>()
    let pending = NONE
    let recalled = NONE
    for (const front of search.fronts) {
      const { index } = front
      if (front.held >= 0) tokens.set(index, chain.tokens[front.held] as number)
      if (front.pending >= 0) {
        if (pending === NONE) pending = new Map()
        pending.set(index, chain.tokens[front.pending] as number)
      }
      if (front.recalled >= 0) {
        if (recalled === NONE) recalled = new Map()
        recalled.set(index, chain.tokens[front.recalled] as number)
      }
    }
    return { depth: last + 1, owners: search.ownersFrom(last), tokens, pending, recalled }
  }

  /**
   * The whole of `chain` was sent to a member; what stands behind the head is `owner`'s from now on. A turn that goes on
   * where the last one ended looks at the new segments, a few in front of them and the head: what stands between was
   * looked at when a sixteenth of the cache's worth, or of the time to live, had not gone by.
   */
  hold(scope: string, chain: SegmentChain, memory: CacheMemory, more: { now: number; owner: Owner | undefined }): void {
    const { now, owner } = more
    let segments = this.#scopes.get(scope)
    if (segments === undefined) {
      segments = new Map()
      this.#scopes.set(scope, segments)
    }
    const { hashes, head } = chain
    const last = hashes.length - 1
    const before = this.#size
    let known = last
    while (known >= 0 && !segments.has(hashes[known] as string)) known--
    const earlier = known < 0 ? undefined : (segments.get(hashes[known] as string) as Segment<Owner>).walk
    const walk = earlier !== undefined && this.#isFresh(earlier, memory, more) ? earlier : undefined
    const from = walk === undefined ? 0 : Math.max(0, known - NEAR)
    for (let i = 0; i <= last; i++) {
      if (i === head && i < from) i = from
      const hash = hashes[i] as string
      let segment = segments.get(hash)
      if (segment === undefined) {
        // Room for one holder: most have no other, and a list that grows takes room for many.
        const holders = [memory.index, memory.computed]
        segment = { usedAt: now, seenAt: Number.NEGATIVE_INFINITY, holders, owner: undefined, walk: undefined }
        segments.set(hash, segment)
        this.#size++
      } else holdAt(segment.holders, memory)
      segment.usedAt = now
      if (i >= head) segment.owner = owner ?? segment.owner
      // Of a chain of one, what stands in front is not known.
      if (i === last && i > 0) segment.walk = walk ?? { index: memory.index, owner, at: now, computed: memory.computed }
    }
    if (this.#size > this.#options.segments) this.#shrink(this.#size - before)
  }

  #isFresh(
    { index, owner, at, computed }: Walk<Owner>,
    memory: CacheMemory,
    more: { now: number; owner: Owner | undefined },
  ): boolean {
    if (index !== memory.index || owner !== more.owner || computed < memory.clearedBelow) return false
    return more.now - at <= this.#options.ttlMs / STALE && memory.computed - computed <= memory.capacity / STALE
  }

  /** A front of `chain` turned out to be gone, or never to have been there: all behind `depth` segments. */
  drop(scope: string, chain: SegmentChain, memory: CacheMemory, depth: number): void {
    const segments = this.#scopes.get(scope)
    if (segments === undefined) return
    for (let i = depth; i < chain.hashes.length; i++) {
      const segment = segments.get(chain.hashes[i] as string)
      if (segment === undefined) continue
      const at = placeOf(segment.holders, memory.index)
      if (at >= 0) segment.holders.splice(at, 2)
      segment.walk = undefined
    }
  }

  /** How long ago, in tokens that were computed since, a member got this front; undefined: not that is known. */
  distance(scope: string, hash: string, memory: CacheMemory): number | undefined {
    const holders = this.#scopes.get(scope)?.get(hash)?.holders
    const at = holders === undefined ? -1 : placeOf(holders, memory.index)
    return at < 0 ? undefined : memory.computed - (holders![at + 1] as number)
  }

  /**
   * The hand of a clock goes round and lets go of what was not used since it came by last: a few steps for every new
   * segment, never all at once.
   */
  #shrink(added: number): void {
    const { segments: max } = this.#options
    for (let steps = STEPS * (added + 1); steps > 0 && this.#size > max; steps--) {
      const { segments, hash, segment } = this.#hand.next().value as Visit<Owner>
      const isUsed = segment.usedAt > segment.seenAt && this.#size <= max * SLACK
      if (isUsed) segment.seenAt = segment.usedAt
      else if (segments.delete(hash)) this.#size--
    }
  }

  *#walk(): Generator<Visit<Owner>, never> {
    for (;;) {
      for (const [scope, segments] of this.#scopes) {
        for (const [hash, segment] of segments) yield { segments, hash, segment }
        if (segments.size === 0) this.#scopes.delete(scope)
      }
    }
  }
}

/** Segments in front of a turn's end that are looked at in any case: clients go back that far. */
const NEAR = 32
/** Of a cache's worth, and of the time to live, what may go by until all of a chain is looked at again. */
const STALE = 16

/** Of the clock's hand, for every new segment; and by how much the bound may be passed while all are in use. */
const STEPS = 8
const SLACK = 1.125

interface Visit<Owner> {
  readonly segments: Map<string, Segment<Owner>>
  readonly hash: string
  readonly segment: Segment<Owner>
}

/** The last segments of a chain that one member holds, and that were sent there lately; -1: none. */
interface Front {
  /** The member's number. */
  readonly index: number
  /** What a front must have been sent after to be there still. */
  readonly heldFrom: number
  readonly pendingAbove: number
  /** Whether what was recalled may be there. */
  readonly mayRecall: boolean
  held: number
  pending: number
  recalled: number
}

function frontOf({ index, computed, capacity, clearedBelow, pendingAbove, trustsRecalled }: CacheMemory): Front {
  const heldFrom = Math.max(clearedBelow, computed - capacity, trustsRecalled ? 0 : 1)
  return { index, heldFrom, pendingAbove, mayRecall: clearedBelow === 0, held: -1, pending: -1, recalled: -1 }
}

interface SearchIn<Owner> {
  readonly segments: ReadonlyMap<string, Segment<Owner>>
  readonly hashes: readonly string[]
  /** Segments that were not used since are forgotten. */
  readonly since: number
  readonly memories: Memories
}

/** Segments of one leap. */
const LEAP = 16

/**
 * Goes through a chain from its last known segment to the first, in leaps: who got a prompt got all that stands before, so
 * that between two segments only members need a closer look that have the one and not the other.
 */
class Search<Owner> {
  readonly fronts: Front[] = []
  readonly #in: SearchIn<Owner>

  constructor(within: SearchIn<Owner>) {
    this.#in = within
  }

  #segmentAt(i: number): Segment<Owner> | undefined {
    const { segments, hashes, since } = this.#in
    const segment = segments.get(hashes[i] as string)
    return segment !== undefined && segment.usedAt >= since ? segment : undefined
  }

  #frontOf(index: number): Front {
    for (const front of this.fronts) if (front.index === index) return front
    const front = frontOf(this.#in.memories.memory(index))
    this.fronts.push(front)
    return front
  }

  /** The last known one of the first `count` segments; -1: none is. */
  lastOf(count: number): number {
    for (let i = count - 1; i >= 0; i--) if (this.#segmentAt(i) !== undefined) return i
    return -1
  }

  ownersFrom(last: number): { depth: number; owner: Owner }[] {
    const owners: { depth: number; owner: Owner }[] = []
    for (let i = last; i >= 0 && i > last - LEAP; i--) {
      const owner = this.#segmentAt(i)?.owner
      if (owner !== undefined) owners.push({ depth: i + 1, owner })
    }
    return owners
  }

  down(last: number): void {
    this.see(last)
    for (let above = last; above > 0; ) {
      const at = Math.max(0, above - LEAP)
      if (this.see(at)) for (let i = at + 1; i < above; i++) this.see(i)
      above = at
    }
  }

  /** Looks at one segment. Returns whether a member has it that has none of those behind it. */
  see(i: number): boolean {
    const holders = this.#segmentAt(i)?.holders
    if (holders === undefined) return false
    let isNew = false
    for (let at = 0; at < holders.length; at += 2) {
      const index = holders[at] as number
      const computed = holders[at + 1] as number
      const front = this.#frontOf(index)
      if (computed >= front.heldFrom && i > front.held) {
        isNew ||= front.held < 0
        front.held = i
      }
      if (computed > front.pendingAbove && i > front.pending) {
        isNew ||= front.pending < 0
        front.pending = i
      }
      if (computed === 0 && front.mayRecall && i > front.recalled) {
        isNew ||= front.recalled < 0
        front.recalled = i
      }
    }
    return isNew
  }
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
