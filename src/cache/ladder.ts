// The ladder between memory and the slow tier, and the only file that awaits a tier. Up: what a request wants, when it is
// estimated cheaper than computing it. Down: what was committed, behind everybody's back. Invariant: the index says
// `stored` exactly for what the tier holds.
//
//   memory  --demote-->  write-behind queue  --store-->  slow tier
//   memory  <--place---  loads, in order     <--load---  slow tier

import { BLOCK_TOKENS, type BlockHash } from '../core/block.js'
import type { Clock } from '../core/clock.js'
import type { Priority } from '../core/request.js'
import { type CacheMoved, cacheMoved, note } from '../core/signals.js'
import { BringUp, type Wanted } from './bring-up.js'
import type { TierStatus } from './contract.js'
import type { BlockName, Entry, PrefixIndex } from './prefix-index.js'
import { Rate, Throughput } from './rates.js'
import type { MemoryTier } from './tier/memory.js'
import type { DropMode, LoadOutcome, SlowTier, SlowTierDeps } from './tier/tier.js'
import { WriteBehind } from './write-behind.js'

/** 200 MB/s: a slow SSD. */
const PRIOR_READ_PER_MS = 200_000
/** One token per millisecond, 135M on two cores at best (engine-facts): the engine corrects it after its first chunk. */
const PRIOR_TOKENS_PER_MS = 1

export interface LadderOptions {
  /** 'always': bring up whatever is held, for tests and simulations. */
  readonly restore: 'cost' | 'always'
  /** Bytes that may wait to be written. */
  readonly queueBytes: number
  /** Loads at once. */
  readonly readConcurrency: number
  /** Longest wait for a block. */
  readonly patienceMs: number
  /** Longest wait for the writes of a close. */
  readonly drainMs: number
}

export interface LadderParts {
  readonly index: PrefixIndex
  readonly memory: MemoryTier
  readonly clock: Clock
  /** Opens the tier below. */
  open(deps: Pick<SlowTierDeps, 'worth' | 'lost' | 'recovered'>): Promise<SlowTier>
}

/** Opens the slow tier and takes over what it holds. @throws Error when it cannot be opened. */
export async function openLadder(parts: LadderParts, options: LadderOptions): Promise<Ladder> {
  const { index, clock } = parts
  let ladder: Ladder | undefined
  const tier = await parts.open({
    recovered: () => ladder?.resume(),
    worth: (hash) => worth(index, hash),
    lost: (hash) => {
      const entry = index.get(hash)
      if (entry !== undefined) index.leaveStore(entry)
    },
  })
  for (const { hash, root, parent } of tier.held()) {
    const entry = index.name(hash, root, parent, undefined)
    entry.usedAt = clock.now()
    index.placeInStore(entry)
  }
  ladder = new Ladder(parts, tier, options)
  return ladder
}

/** Pinned: infinite. Used within as many uses as half of the stored blocks: its last use. Else nothing. */
function worth(index: PrefixIndex, hash: BlockHash): number {
  const entry = index.get(hash)
  if (entry === undefined) return 0
  if (entry.pins > 0) return Number.POSITIVE_INFINITY
  return index.tick - entry.usedTick <= index.storedBlocks / 2 ? Math.max(0, entry.usedTick) : 0
}

export class Ladder {
  /** Tokens that the engine computes per millisecond. */
  readonly computing = new Rate(PRIOR_TOKENS_PER_MS)
  readonly #parts: LadderParts
  readonly #tier: SlowTier
  readonly #options: LadderOptions
  readonly #isBelow: boolean
  readonly #reading: Throughput
  readonly #writing: Throughput
  readonly #up: BringUp
  readonly #down: WriteBehind

  constructor(parts: LadderParts, tier: SlowTier, options: LadderOptions) {
    const { index, memory, clock } = parts
    this.#parts = parts
    this.#tier = tier
    this.#options = options
    this.#isBelow = tier.status() !== undefined
    this.#reading = new Throughput(clock, PRIOR_READ_PER_MS)
    this.#writing = new Throughput(clock, PRIOR_READ_PER_MS)
    const { readConcurrency: concurrency, patienceMs, queueBytes } = options
    const load = (block: BlockName, into: Uint8Array) => this.#load(block, into)
    this.#up = new BringUp({ index, memory, clock, load, readable: () => tier.readable }, { concurrency, patienceMs })
    const store = (entry: Entry, bytes: Uint8Array) => this.#store(entry, bytes)
    const dropped = () => this.#moved('dropped-write')
    this.#down = new WriteBehind({ index, memory, store, dropped, writable: () => tier.writable }, queueBytes)
  }

  /** Goes on with the writes that waited for a tier that was away. */
  resume(): void {
    this.#down.resume()
  }

  /** Queues the block, which is in memory, to be written; nothing to do where it is written or queued, or no tier is below. */
  demote(entry: Entry): void {
    if (this.#isBelow) this.#down.add(entry)
  }

  /**
   * How many of the first of `wanted` are worth bringing up: those after which computing the rest costs least in all. A
   * block in memory behind some on disk pays for them.
   */
  worthwhile(wanted: readonly Wanted[]): number {
    const gone = wanted.findIndex(({ entry }) => entry.slot === undefined)
    if (gone === -1 || this.#options.restore === 'always') return wanted.length
    if (!this.#tier.readable) return gone
    const readMs = this.#parts.memory.pool.blockBytes / this.#reading.rate.perMs
    const computeMs = BLOCK_TOKENS / this.computing.perMs
    let balance = -this.#up.pending * readMs
    let best = 0
    let count = gone
    for (const [i, { entry }] of wanted.entries()) {
      if (i < gone) continue
      balance += computeMs
      if (entry.slot === undefined && !this.#up.isLoading(entry)) balance -= readMs
      if (balance <= best) continue
      best = balance
      count = i + 1
    }
    return count
  }

  /** Brings `wanted` up, see `BringUp.load`. */
  async promote(wanted: readonly Wanted[], priority: Priority, signal: AbortSignal | undefined): Promise<number> {
    return await this.#up.load(wanted, priority, signal)
  }

  /**
   * Drops the matching blocks that nobody holds, from memory and from the tier. `complete` is false when the tier could
   * not write it down.
   */
  async drop(matches: (entry: Entry) => boolean, mode: DropMode): Promise<{ blocks: number; complete: boolean }> {
    const { index, memory } = this.#parts
    await this.#down.cancel(matches)
    const stored: BlockHash[] = []
    let blocks = 0
    for (const entry of [...index.values()]) {
      if (entry.holds > 0 || (entry.slot === undefined && !entry.stored) || !matches(entry)) continue
      blocks++
      if (entry.stored) stored.push(entry.hash)
      index.leaveStore(entry)
      if (entry.slot !== undefined) memory.drop(entry)
    }
    return { blocks, complete: await this.#tier.drop(stored, mode) }
  }

  /** Overwrites what the tier has left of matching blocks that it no longer holds. */
  async scrub(matches: Parameters<SlowTier['scrub']>[0]): Promise<boolean> {
    return await this.#tier.scrub(matches)
  }

  status(): Omit<TierStatus, 'hits' | 'misses'> | undefined {
    const state = this.#tier.status()
    if (state === undefined) return undefined
    const readRate = this.#reading.rate.measuredPerSecond
    const writeRate = this.#writing.rate.measuredPerSecond
    const pendingWrites = this.#down.pending
    return { ...state, pendingWrites, ...(readRate && { readRate }), ...(writeRate && { writeRate }) }
  }

  async flush(): Promise<void> {
    await this.#down.flush()
    await this.#tier.flush()
  }

  /** Writes what waits, closes the tier. A disk that takes longer than `drainMs` is left as it is. */
  async close(): Promise<void> {
    const { drainMs } = this.#options
    let cancel: () => void = () => undefined
    const late = new Promise<'late'>((resolve) => {
      cancel = this.#parts.clock.after(drainMs, () => resolve('late'))
    })
    const closed = this.#down.flush().then(() => this.#tier.close())
    const outcome = await Promise.race([closed, late])
    cancel()
    if (outcome !== 'late') return
    const text = `cache: ${this.#down.pending} blocks are not written, the disk took more than ${drainMs} ms`
    note.publish({ level: 'warn', text })
  }

  async #load(block: BlockName, into: Uint8Array): Promise<LoadOutcome> {
    const started = this.#parts.clock.now()
    this.#reading.start()
    const outcome = await this.#tier.load(block, into)
    this.#reading.end(outcome === 'loaded' ? into.length : 0)
    if (outcome === 'loaded') this.#moved('restore', this.#parts.clock.now() - started)
    if (outcome === 'collision') this.#moved('collision')
    return outcome
  }

  async #store(entry: Entry, bytes: Uint8Array): Promise<boolean> {
    const { hash, root, parent, tokens } = entry
    if (root === undefined || parent === undefined || tokens === undefined) throw new Error(`block ${hash} has no name`)
    const started = this.#parts.clock.now()
    this.#writing.start()
    const stored = await this.#tier.store({ hash, root, parent, tokens }, bytes)
    this.#writing.end(stored ? bytes.length : 0)
    if (stored) this.#moved('write', this.#parts.clock.now() - started)
    return stored
  }

  #moved(what: CacheMoved['what'], durationMs?: number): void {
    const bytes = this.#parts.memory.pool.blockBytes
    cacheMoved.publish({ what, tier: 'disk', blocks: 1, bytes, ...(durationMs !== undefined && { durationMs }) })
  }
}
