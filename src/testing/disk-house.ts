// A disk tier on a faulty disk, for its tests: blocks go in under their names and come out looked at.

import { recordBytes } from '../cache/block-file.js'
import type { BlockName } from '../cache/prefix-index.js'
import { type DiskOptions, disk as diskKind } from '../cache/tier/disk.js'
import type { BlockKeys, SlowTier } from '../cache/tier/tier.js'
import type { BlockHash } from '../core/block.js'
import { fallback } from '../native/fallback.js'
import { FaultyDisk } from './faulty-disk.js'
import { ManualClock } from './manual-clock.js'
import { toyBytes } from './toy-blocks.js'

export const BLOCK = 600
export const STRIDE = recordBytes(BLOCK)

/** `open` may be called again after the tier was closed, or after the disk's `kill` or `crash`. */
export class DiskHouse {
  readonly disk: FaultyDisk
  readonly clock = new ManualClock()
  /** What the tier said that it lost. */
  readonly lost: BlockHash[] = []
  /** What blocks are worth; nothing when absent. */
  readonly worth = new Map<BlockHash, number>()
  keys: BlockKeys | undefined
  tier!: SlowTier

  constructor(disk = new FaultyDisk()) {
    this.disk = disk
  }

  async open(more: Partial<DiskOptions> = {}): Promise<this> {
    const options = {
      folder: '/cache',
      capacityBytes: 64 * STRIDE,
      segmentBytes: 8 * STRIDE,
      keepFreeBytes: 0,
      ...more,
    }
    this.tier = await diskKind.create(options, {
      ...{ blockBytes: BLOCK, clock: this.clock, crc32c: fallback.crc32c, files: this.disk.door() },
      ...(this.keys && { keys: this.keys }),
      worth: (hash) => this.worth.get(hash) ?? 0,
      lost: (hash) => this.lost.push(hash),
      recovered: () => undefined,
    })
    return this
  }

  async put(block: BlockName): Promise<boolean> {
    return await this.tier.store(block, toyBytes(block.hash, BLOCK))
  }

  /** Whether the block is there. @throws Error on wrong bytes. */
  async has(block: BlockName): Promise<boolean> {
    const into = new Uint8Array(BLOCK)
    if ((await this.tier.load(block, into)) !== 'loaded') return false
    if (Buffer.compare(into, toyBytes(block.hash, BLOCK)) !== 0) throw new Error(`block ${block.hash} has wrong bytes`)
    return true
  }

  /** How many of the blocks are there. */
  async found(blocks: readonly BlockName[]): Promise<number> {
    let found = 0
    for (const block of blocks) if (await this.has(block)) found++
    return found
  }

  /** Paths of the segment files. */
  get segments(): string[] {
    return this.disk.paths.filter((path) => path.endsWith('.kv'))
  }
}
