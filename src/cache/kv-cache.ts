// The door of the cache: acquire, commit, release, and what operators do to it. It joins index, memory, ladder, claims and
// pins; each of them keeps its own invariants. Invariant here: whatever goes wrong below is a shorter prefix, never an
// error and never other bytes. Step 9 of a request's path.

import Type from 'typebox'
import { BLOCK_TOKENS, type BlockHash, type Chain } from '../core/block.js'
import { type Clock, systemClock } from '../core/clock.js'
import { cacheMoved } from '../core/signals.js'
import { kernels } from '../native/index.js'
import type { Crc32c } from './block-file.js'
import type { Wanted } from './bring-up.js'
import { Claims } from './claims.js'
import type { AcquireRequest, ErasableBlock, HeldBlock, KvCache, Lease, TierStatus } from './contract.js'
import { type FileDoor, systemFiles } from './disk/file-door.js'
import { type Ladder, openLadder } from './ladder.js'
import { CacheLease, isWorthWriting, type LeaseParts } from './lease.js'
import { Pins } from './pins.js'
import { type Entry, PrefixIndex } from './prefix-index.js'
import type { DiskOptions } from './tier/disk.js'
import * as tiers from './tier/index.js'
import type { MemoryTier } from './tier/memory.js'
import type { BlockKeys } from './tier/tier.js'

const MB = 1024 * 1024

export interface KvCacheOptions {
  /** Bytes of one block; 0 runs everything but the bytes, for simulations. */
  readonly blockBytes: number
  /** Budget of host memory. */
  readonly memoryBytes: number
  /** Bound in blocks; needed when `blockBytes` is 0. */
  readonly memoryBlocks?: number
  /** A kind of evictor/. */
  readonly evictor?: string
  /** Absent: no disk tier. */
  readonly disk?: DiskOptions
  readonly restore?: 'cost' | 'always'
  /** Bytes that may wait to be written; half of the memory at most. */
  readonly queueBytes?: number
  readonly readConcurrency?: number
  /** Longest wait of a request for one block from disk. */
  readonly patienceMs?: number
  /** Longest wait of `close` for the disk. */
  readonly drainMs?: number
  /** Share of the memory's blocks that pins may take. */
  readonly pinnedShare?: number
  /** Blocks that nobody used for so long are dropped; absent: never. */
  readonly idleMs?: number
}

const DEFAULTS = {
  evictor: 'priority-lru',
  restore: 'cost',
  queueBytes: 256 * MB,
  // All of a long prefix is asked for at once: answers are only heard between the engine's steps.
  readConcurrency: 64,
  patienceMs: 2000,
  drainMs: 10_000,
  pinnedShare: 0.5,
} as const

/** The schema of what an operator may set beside the budgets and the disk. */
export const kvCacheOptions = Type.Object({
  evictor: Type.String({ default: DEFAULTS.evictor }),
  restore: Type.Union([Type.Literal('cost'), Type.Literal('always')], { default: DEFAULTS.restore }),
  queueBytes: Type.Integer({ minimum: 0, default: DEFAULTS.queueBytes }),
  readConcurrency: Type.Integer({ minimum: 1, maximum: 64, default: DEFAULTS.readConcurrency }),
  patienceMs: Type.Integer({ minimum: 1, default: DEFAULTS.patienceMs }),
  drainMs: Type.Integer({ minimum: 0, default: DEFAULTS.drainMs }),
  pinnedShare: Type.Number({ minimum: 0, maximum: 1, default: DEFAULTS.pinnedShare }),
  idleMs: Type.Optional(Type.Integer({ minimum: 1 })),
})

/** What the cache stands on; all but `keys` has a default. */
export interface KvCacheDeps {
  readonly clock?: Clock
  /** Times the tiers' devices; stands still while the thread can't listen to them. Default: `clock`. */
  readonly deviceClock?: Clock
  readonly crc32c?: Crc32c
  readonly files?: FileDoor
  /** Absent: blocks lie on disk in the clear, in files of mode 0600. */
  readonly keys?: BlockKeys
}

export interface Erased {
  readonly blocks: number
  /** Matching blocks that a request was using: ask again when it is through. */
  readonly inUse: number
  /** False: the disk could not be overwritten. */
  readonly complete: boolean
}

export interface ErasableKvCache extends KvCache {
  /** Removes the matching blocks from every tier, pinned ones too, and overwrites all that is left of them on disk. */
  erase(matches: (block: ErasableBlock) => boolean): Promise<Erased>
}

/**
 * Opens the cache and takes over what the disk holds.
 * @throws Error when the folder is not to be had (another process owns it, no permission) or an option makes no sense.
 */
export async function openKvCache(options: KvCacheOptions, deps: KvCacheDeps = {}): Promise<ErasableKvCache> {
  const settled = { ...DEFAULTS, ...options }
  const { blockBytes, memoryBytes, memoryBlocks, evictor, disk, restore, readConcurrency, patienceMs, drainMs } =
    settled
  const { clock = systemClock, crc32c = kernels.crc32c, files = systemFiles, keys } = deps
  const { deviceClock = clock } = deps
  const index = new PrefixIndex()
  const memoryOptions = {
    capacityBytes: memoryBytes,
    evictor,
    ...(memoryBlocks !== undefined && { capacityBlocks: memoryBlocks }),
  }
  const memory = tiers.memory.create(memoryOptions, { blockBytes, index })
  const ladder = await openLadder(
    {
      index,
      memory,
      clock: deviceClock,
      open: (hooks) => {
        const below = { blockBytes, clock: deviceClock, crc32c, files, ...(keys && { keys }), ...hooks }
        return disk === undefined ? tiers.none.create({}, below) : tiers.disk.create(disk, below)
      },
    },
    {
      ...{ restore, readConcurrency, patienceMs, drainMs },
      queueBytes: Math.min(settled.queueBytes, memoryBytes / 2),
    },
  )
  return new TieredCache(settled, { index, memory, ladder, clock })
}

interface Parts {
  readonly index: PrefixIndex
  readonly memory: MemoryTier
  readonly ladder: Ladder
  readonly clock: Clock
}

class TieredCache implements ErasableKvCache {
  readonly #parts: Parts
  readonly #pins: Pins
  readonly #leaseParts: LeaseParts
  readonly #counts = { memory: { hits: 0, misses: 0 }, disk: { hits: 0, misses: 0 } }
  #cancelSweep: () => void = () => undefined

  constructor(options: { blockBytes: number; pinnedShare: number; idleMs?: number }, parts: Parts) {
    const { index, memory, clock } = parts
    this.#parts = parts
    const { blockBytes, pinnedShare, idleMs } = options
    this.#pins = new Pins(index, clock, { limitBlocks: Math.floor(memory.pool.capacity * pinnedShare), blockBytes })
    const hit = () => {
      this.#counts.memory.hits++
    }
    this.#leaseParts = { ...parts, claims: new Claims<Lease>(), hit }
    if (idleMs !== undefined) this.#sweepLater(idleMs)
  }

  async acquire(request: AcquireRequest): Promise<Lease> {
    const { index, ladder, clock } = this.#parts
    const { chain, tokens, maxBlocks, signal, transient = false } = request
    const priority = transient ? 'background' : request.priority
    signal?.throwIfAborted()
    const limit = Math.min(maxBlocks, chain.hashes.length)
    const resident = Math.min(request.resident, limit)
    const wanted = this.#walk(chain, tokens, resident, limit)
    const kept = chain.hashes.slice(0, resident).flatMap((hash) => index.get(hash) ?? [])
    const used = [...kept, ...wanted.map(({ entry }) => entry)]
    if (transient) index.refresh(used, clock.now())
    else index.touch(used, priority, clock.now())
    this.#count(wanted, limit - resident)
    const useful = wanted.slice(0, ladder.worthwhile(wanted))
    const fromDisk = useful.map(({ entry }) => entry.slot === undefined)
    const ready = await ladder.promote(useful, priority, signal)
    const held = useful.slice(0, ready).map(({ entry }) => entry)
    // What was not written when it was committed (a side request's, or the disk was out of reach) gets another chance.
    for (const entry of [...kept, ...held]) {
      if (entry.slot !== undefined && isWorthWriting(entry)) ladder.demote(entry)
    }
    const disk = fromDisk.slice(0, ready).filter((from) => from).length
    const found = { memory: ready - disk, disk }
    const start = { chain, tokens, priority, transient, resident, limit, held, found }
    const lease = new CacheLease(start, this.#leaseParts)
    // What was committed by others while the disk was read.
    lease.extend()
    return lease
  }

  match(chain: Chain, tokens: Int32Array): { readonly memory: number; readonly disk: number } {
    const found = this.#walk(chain, tokens, 0, chain.hashes.length)
    const memory = found.filter(({ entry }) => entry.slot !== undefined).length
    return { memory, disk: found.length - memory }
  }

  pin(id: string, chain: Chain, tokens: Int32Array, ttlMs: number): number {
    const found = this.#walk(chain, tokens, 0, chain.hashes.length).map(({ entry }) => entry)
    const pinned = this.#pins.set(id, found, ttlMs)
    for (const entry of pinned) if (entry.slot !== undefined) this.#parts.ladder.demote(entry)
    return pinned.length
  }

  demote(hashes: readonly BlockHash[]): number {
    return this.#parts.index.demote(hashes)
  }

  unpin(id: string): boolean {
    return this.#pins.remove(id)
  }

  pins(): readonly { readonly id: string; readonly blocks: number; readonly expiresInMs: number }[] {
    return this.#pins.list()
  }

  observeCompute(tokens: number, ms: number): void {
    this.#parts.ladder.computing.observe(tokens, ms)
  }

  async clear(): Promise<number> {
    const { blocks } = await this.#parts.ladder.drop((entry) => entry.pins === 0, 'forget')
    return blocks
  }

  async erase(matches: (block: ErasableBlock) => boolean): Promise<Erased> {
    const { index, ladder } = this.#parts
    const asked = (entry: Entry) => entry.root !== undefined && matches({ hash: entry.hash, root: entry.root })
    const dropped = await ladder.drop(asked, 'erase')
    const scrubbed = await ladder.scrub(matches)
    const { blocks } = dropped
    const complete = dropped.complete && scrubbed
    let inUse = 0
    for (const entry of index.values()) if ((entry.slot !== undefined || entry.stored) && asked(entry)) inUse++
    return { blocks, inUse, complete }
  }

  status(): readonly TierStatus[] {
    const { memory, ladder } = this.#parts
    const below = ladder.status()
    return [{ ...memory.status(), ...this.#counts.memory }, ...(below ? [{ ...below, ...this.#counts.disk }] : [])]
  }

  *blocks(): Generator<HeldBlock> {
    for (const { hash, root, parent, slot, stored, uses } of this.#parts.index.values()) {
      if (root === undefined || parent === undefined || (slot === undefined && !stored)) continue
      yield { hash, root, parent, tier: slot === undefined ? 'disk' : 'memory', uses }
    }
  }

  async flush(): Promise<void> {
    await this.#parts.ladder.flush()
  }

  async close(): Promise<void> {
    this.#cancelSweep()
    this.#pins.clear()
    await this.#parts.ladder.close()
  }

  /** The longest run of blocks from `from` on that some tier holds under these names. */
  #walk(chain: Chain, tokens: Int32Array, from: number, to: number): Wanted[] {
    const { index, memory } = this.#parts
    const found: Wanted[] = []
    for (let i = from; i < to; i++) {
      const hash = chain.hashes[i]!
      const at = i * BLOCK_TOKENS
      const entry = index.find(hash, chain.root, tokens, at)
      if (entry === 'collision') {
        cacheMoved.publish({ what: 'collision', tier: 'memory', blocks: 1, bytes: memory.pool.blockBytes })
        break
      }
      if (entry === undefined) break
      const parent = i === 0 ? chain.root : chain.hashes[i - 1]!
      found.push({ entry, name: { hash, root: chain.root, parent, tokens: tokens.subarray(at, at + BLOCK_TOKENS) } })
    }
    return found
  }

  /** Counts hits and misses by block: a block that memory misses is asked of the disk. */
  #count(found: readonly Wanted[], asked: number): void {
    const inMemory = found.filter(({ entry }) => entry.slot !== undefined).length
    const { memory, disk } = this.#counts
    memory.hits += inMemory
    memory.misses += asked - inMemory
    disk.hits += found.length - inMemory
    disk.misses += asked - found.length
  }

  #sweepLater(idleMs: number): void {
    this.#cancelSweep = this.#parts.clock.after(idleMs / 4, () => {
      this.#sweepLater(idleMs)
      void this.#sweep(idleMs)
    })
  }

  async #sweep(idleMs: number): Promise<void> {
    const { ladder, clock, memory } = this.#parts
    const stale = (entry: Entry) => entry.pins === 0 && clock.now() - entry.usedAt >= idleMs
    const { blocks } = await ladder.drop(stale, 'forget')
    const bytes = blocks * memory.pool.blockBytes
    if (blocks > 0) cacheMoved.publish({ what: 'expired', tier: 'memory', blocks, bytes })
  }
}
