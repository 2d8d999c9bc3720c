// What is cached, by hash: who a block's parent is, which tokens it stands for, which tiers hold it and who needs it.
// Synchronous and the only truth: a block is cached from the moment that it is placed here. Invariants: a stored entry
// is returned only for equal root and tokens; an entry exists only while a tier, a child, a hold or a pin needs it, so
// there are at most twice as many as blocks are held, plus the pinned ones.
//
//   holds  leases, loads and writes in flight: bytes in memory must stay        pins  operators: bytes in any tier must stay
//   memoryChildren, storedChildren: an entry without children in a tier is a leaf there; leaves go first

import { BLOCK_TOKENS, type BlockHash, type Root } from '../core/block.js'
import type { Priority } from '../core/request.js'
import { blockPlaced } from '../core/signals.js'

/** A block's full name: hashes find it, root and tokens prove it. */
export interface BlockName {
  readonly hash: BlockHash
  readonly root: Root
  /** The block before it; its root for the first one. */
  readonly parent: BlockHash | Root
  /** 64 token ids. */
  readonly tokens: Int32Array
}

/** One block as the index sees it. Only the index and the memory tier change it. */
export interface Entry {
  readonly hash: BlockHash
  /** Undefined: only named by a child so far. */
  root: Root | undefined
  parent: BlockHash | Root | undefined
  /** Undefined: found on disk by its header, not yet loaded; the load compares. */
  tokens: Int32Array | undefined
  /** Slot in host memory. */
  slot: number | undefined
  /** Held by the slow tier. */
  stored: boolean
  /** Waits for its write to the slow tier, or is being written. */
  queued: boolean
  holds: number
  pins: number
  memoryChildren: number
  storedChildren: number
  /** The most urgent class that ever used it; side requests and those that left it for good do not count. */
  priority: Priority
  /** Requests that used it, but for side requests; its own commit is the first. */
  uses: number
  /** Order of last use and of creation: larger is later; a parent's last use is later than its children's. */
  usedTick: number
  bornTick: number
  /** Clock time of last use. */
  usedAt: number
}

/** The memory tier, which keeps the evictor's offers true. */
export interface IndexWatcher {
  /** The order of `entry` is about to change; `review` follows. */
  reorder(entry: Entry): void
  /** Whether `entry` may be evicted may have changed. */
  review(entry: Entry): void
}

const URGENCY: Readonly<Record<Priority, number>> = { background: 0, auxiliary: 1, interactive: 2 }

function tellPlaced(what: 'stored' | 'removed', tier: 'memory' | 'disk', entry: Entry): void {
  if (!blockPlaced.channel.hasSubscribers) return
  const { hash, root, parent, tokens } = entry
  blockPlaced.publish({ what, tier, hash, root, parent, tokens })
}

export class PrefixIndex {
  readonly #entries = new Map<BlockHash, Entry>()
  #tick = 0
  /** Below every tick of a block that is of use. */
  #coldest = 0
  #storedBlocks = 0
  #pinnedBlocks = 0
  #watcher: IndexWatcher | undefined

  set watcher(watcher: IndexWatcher) {
    this.#watcher = watcher
  }

  get size(): number {
    return this.#entries.size
  }

  /** Blocks that the slow tier holds. */
  get storedBlocks(): number {
    return this.#storedBlocks
  }

  /** Blocks with at least one pin. */
  get pinnedBlocks(): number {
    return this.#pinnedBlocks
  }

  /** Grows by one with every use of a block: the distance of two ticks bounds how many blocks were used between. */
  get tick(): number {
    return this.#tick
  }

  get(hash: BlockHash): Entry | undefined {
    return this.#entries.get(hash)
  }

  values(): IterableIterator<Entry> {
    return this.#entries.values()
  }

  /** The entry that some tier holds under this name; 'collision' when the hash is there for other tokens or another root. */
  find(hash: BlockHash, root: Root, tokens: Int32Array, at: number): Entry | 'collision' | undefined {
    const entry = this.#entries.get(hash)
    if (entry === undefined || (entry.slot === undefined && !entry.stored)) return undefined
    if (entry.root !== root) return 'collision'
    const own = entry.tokens
    if (own === undefined) return entry
    for (let i = 0; i < BLOCK_TOKENS; i++) if (own[i] !== tokens[at + i]) return 'collision'
    return entry
  }

  /** The entry of this name, made when there is none; `tokens` are copied, undefined ones leave what is known. */
  name(hash: BlockHash, root: Root, parent: BlockHash | Root, tokens: Int32Array | undefined): Entry {
    const entry = this.#ensure(hash)
    if (entry.slot === undefined && !entry.stored) {
      // Not while a tier holds it: its parent counts it by the name that it was placed under.
      entry.root = root
      entry.parent = parent
    }
    if (tokens !== undefined && entry.tokens === undefined) entry.tokens = tokens.slice(0, BLOCK_TOKENS)
    return entry
  }

  placeInMemory(entry: Entry, slot: number): void {
    if (entry.slot !== undefined) throw new Error(`block ${entry.hash} is in memory already`)
    entry.slot = slot
    tellPlaced('stored', 'memory', entry)
    this.#adopt(entry, 'memoryChildren', 1)
    this.#watcher?.review(entry)
  }

  /** Returns the slot, which is the caller's again. */
  leaveMemory(entry: Entry): number {
    const { slot } = entry
    if (slot === undefined) throw new Error(`block ${entry.hash} is not in memory`)
    entry.slot = undefined
    tellPlaced('removed', 'memory', entry)
    this.#adopt(entry, 'memoryChildren', -1)
    this.#watcher?.review(entry)
    this.#prune(entry)
    return slot
  }

  placeInStore(entry: Entry): void {
    if (entry.stored) return
    entry.stored = true
    tellPlaced('stored', 'disk', entry)
    this.#storedBlocks++
    this.#adopt(entry, 'storedChildren', 1)
  }

  leaveStore(entry: Entry): void {
    if (!entry.stored) return
    entry.stored = false
    tellPlaced('removed', 'disk', entry)
    this.#storedBlocks--
    this.#adopt(entry, 'storedChildren', -1)
    this.#prune(entry)
  }

  hold(entry: Entry): void {
    entry.holds++
    this.#watcher?.review(entry)
  }

  unhold(entry: Entry): void {
    if (entry.holds === 0) throw new Error(`block ${entry.hash} is not held`)
    entry.holds--
    this.#watcher?.review(entry)
    this.#prune(entry)
  }

  pin(entry: Entry): void {
    if (entry.pins++ === 0) this.#pinnedBlocks++
    this.#watcher?.review(entry)
  }

  unpin(entry: Entry): void {
    if (entry.pins === 0) throw new Error(`block ${entry.hash} is not pinned`)
    if (--entry.pins === 0) this.#pinnedBlocks--
    this.#watcher?.review(entry)
    this.#prune(entry)
  }

  /** One more request, of class `priority`, uses the blocks of this prefix. */
  touch(prefix: readonly Entry[], priority: Priority, now: number): void {
    for (const entry of prefix) {
      this.#watcher?.reorder(entry)
      entry.uses++
      if (URGENCY[priority] > URGENCY[entry.priority]) entry.priority = priority
    }
    this.refresh(prefix, now)
  }

  /** The blocks of one prefix are as fresh as can be. From the tail on, so that a trunk is always fresher than its leaves. */
  refresh(prefix: readonly Entry[], now: number): void {
    for (let i = prefix.length - 1; i >= 0; i--) {
      const entry = prefix[i]!
      this.#watcher?.reorder(entry)
      entry.usedTick = ++this.#tick
      entry.usedAt = now
      this.#watcher?.review(entry)
    }
  }

  /** The blocks of `hashes` and what follows them become the stalest, children before parents; how many. */
  demote(hashes: readonly BlockHash[]): number {
    const doomed = new Set(hashes.flatMap((hash) => this.#entries.get(hash) ?? []))
    if (doomed.size === 0) return 0
    const children = new Map<BlockHash | Root, Entry[]>()
    for (const entry of this.#entries.values()) {
      if (entry.parent === undefined) continue
      const siblings = children.get(entry.parent)
      if (siblings === undefined) children.set(entry.parent, [entry])
      else siblings.push(entry)
    }
    let count = 0
    // What is added while it is walked is walked too: parents come before their children.
    for (const entry of doomed) {
      for (const child of children.get(entry.hash) ?? []) doomed.add(child)
      if (entry.pins > 0) continue
      this.#watcher?.reorder(entry)
      entry.priority = 'background'
      entry.usedTick = --this.#coldest
      this.#watcher?.review(entry)
      count++
    }
    return count
  }

  #ensure(hash: BlockHash): Entry {
    const known = this.#entries.get(hash)
    if (known !== undefined) return known
    const tick = ++this.#tick
    const entry: Entry = {
      hash,
      root: undefined,
      parent: undefined,
      tokens: undefined,
      slot: undefined,
      stored: false,
      queued: false,
      holds: 0,
      pins: 0,
      memoryChildren: 0,
      storedChildren: 0,
      priority: 'background',
      uses: 0,
      usedTick: tick,
      bornTick: tick,
      usedAt: 0,
    }
    this.#entries.set(hash, entry)
    return entry
  }

  /** Counts `entry` in or out as a child of its parent, which is made when unknown: counts survive a parent's absence. */
  #adopt(entry: Entry, field: 'memoryChildren' | 'storedChildren', by: 1 | -1): void {
    if (entry.parent === undefined || entry.parent === entry.root) return
    const parent = this.#ensure(entry.parent as BlockHash)
    parent[field] += by
    this.#watcher?.review(parent)
    this.#prune(parent)
  }

  #prune(entry: Entry): void {
    if (entry.slot !== undefined || entry.stored || entry.holds > 0 || entry.pins > 0) return
    if (entry.memoryChildren > 0 || entry.storedChildren > 0) return
    this.#entries.delete(entry.hash)
  }
}
