// The disk tier: blocks in segment files of a folder that this process owns. Invariants: a load gives the stored bytes or
// none; a fault of the disk is a miss and a complaint, and heals by itself; changes of the log run one after the other,
// loads beside them. The format is docs/block-file.md's, the files are disk/segment-log.ts's, health is disk/breaker.ts's.

import { randomBytes } from 'node:crypto'
import { join } from 'node:path'
import Type from 'typebox'
import type { BlockHash } from '../../core/block.js'
import type { Kind } from '../../core/kind.js'
import { cacheMoved } from '../../core/signals.js'
import {
  encodeRecord,
  RECORD_HEAD_BYTES,
  RECORD_HEADER_BYTES,
  recordBytes,
  SEGMENT_HEADER_BYTES,
} from '../block-file.js'
import { Breaker, describe, noSpace } from '../disk/breaker.js'
import { checkRecord, openRecord } from '../disk/check-record.js'
import { type Scan, scanFolder } from '../disk/scan.js'
import type { Location } from '../disk/segment.js'
import { SegmentLog } from '../disk/segment-log.js'
import type { BlockName } from '../prefix-index.js'
import type { DropMode, LoadOutcome, SlowTier, SlowTierDeps, TierState } from './tier.js'

const MB = 1024 * 1024
/** Open files that the tier takes at most, give or take the segments of one run. */
const MOST_SEGMENTS = 256
const PROBE = 'probe.tmp'
/** Syncs and reclaims move many blocks: they may take this much longer than one operation before they are stalls. */
const LONG = 10

export interface DiskOptions {
  readonly folder: string
  readonly capacityBytes: number
  /** Length of a segment file; at most an eighth of the capacity, at least a 256th and one block. */
  readonly segmentBytes?: number
  /** What is written reaches the medium after at most this long. */
  readonly syncMs?: number
  /** An operation that takes longer is a stall. */
  readonly slowMs?: number
  /** First pause after a fault, and the longest: it doubles in between. */
  readonly retryMs?: number
  readonly longestRetryMs?: number
  /** Bytes of the volume that are left to others. */
  readonly keepFreeBytes?: number
}

const DEFAULTS = {
  segmentBytes: 256 * MB,
  syncMs: 5000,
  slowMs: 2000,
  retryMs: 1000,
  longestRetryMs: 60_000,
  keepFreeBytes: 128 * MB,
}

class DiskTier implements SlowTier {
  readonly #options: Required<DiskOptions>
  readonly #deps: SlowTierDeps
  readonly #stride: number
  readonly #reading: Breaker
  readonly #writing: Breaker
  readonly #log: SegmentLog
  readonly #unlock: () => Promise<void>
  #last: Promise<unknown> = Promise.resolve()
  #evicted = 0
  #closed = false
  #cancelSync: (() => void) | undefined

  constructor(options: Required<DiskOptions>, deps: SlowTierDeps, found: { scan: Scan; unlock: () => Promise<void> }) {
    const { scan, unlock } = found
    this.#options = options
    this.#deps = deps
    this.#unlock = unlock
    this.#stride = recordBytes(deps.blockBytes)
    const { retryMs, longestRetryMs } = options
    const shared = { clock: deps.clock, retryMs, longestRetryMs }
    this.#reading = new Breaker({ ...shared, name: 'reading', probe: () => this.#probeReading() })
    this.#writing = new Breaker({
      ...shared,
      name: 'writing',
      probe: () => this.#probeWriting(),
      closed: deps.recovered,
    })
    this.#log = this.#logOf(scan)
    if (scan.corrupt > 0) this.#moved('corrupt', scan.corrupt)
    if (scan.complaint !== undefined) this.#reading.fail(scan.complaint)
  }

  /** Finishes what an earlier process left half done, and fits the folder to its budget. */
  async tidy(): Promise<void> {
    await this.#change(async () => {
      await this.#removeProbe()
      await this.#log.killDoubles()
      await this.#log.dropEmpty()
      await this.#log.shrink()
      await this.#log.compact(MOST_SEGMENTS)
    })
  }

  get writable(): boolean {
    return !this.#closed && this.#writing.complaint === undefined
  }

  get readable(): boolean {
    return !this.#closed && this.#reading.complaint === undefined
  }

  held(): Iterable<Location> {
    return this.#log.locations.values()
  }

  async load(block: BlockName, into: Uint8Array): Promise<LoadOutcome> {
    const location = this.#log.locations.get(block.hash)
    if (location === undefined) return 'absent'
    if (!this.readable) return 'failed'
    const head = Buffer.allocUnsafe(RECORD_HEAD_BYTES)
    let read: number
    try {
      read = await this.#timed(this.#reading, location.segment.read(location.number, [head, into]))
    } catch (error) {
      this.#fault(this.#reading, error)
      this.#lose(location)
      return 'failed'
    }
    this.#reading.succeed()
    const header = read === this.#stride ? checkRecord(head, into, location, this.#deps.crc32c) : undefined
    const outcome = header === undefined ? 'corrupt' : openRecord({ header, head, body: into }, block, this.#deps.keys)
    if (outcome === 'corrupt') this.#moved('corrupt', 1)
    if (outcome === 'corrupt' || outcome === 'absent') {
      this.#lose(location)
      void this.#change(() => location.segment.kill(location.number, 'mark'))
    }
    return outcome
  }

  async store(block: BlockName, bytes: Uint8Array): Promise<boolean> {
    let stored = false
    await this.#change(async () => {
      if (!this.writable) return
      stored = this.#log.locations.has(block.hash) || (await this.#append(block, bytes))
    })
    return stored
  }

  async #append(block: BlockName, bytes: Uint8Array): Promise<boolean> {
    const { crc32c, keys } = this.#deps
    const key = keys?.keyOf(block.root)
    const room = this.#log.makeRoom(this.#stride)
    if (!(await this.#timed(this.#writing, room, LONG * this.#options.slowMs))) return false
    await this.#timed(
      this.#writing,
      this.#log.append(block, (place) => {
        const encryption = key && { key, nonce: randomBytes(12) }
        return encodeRecord({ block, bytes, place, writtenAt: Date.now(), ...(encryption && { encryption }) }, crc32c)
      }),
    )
    this.#writing.succeed()
    this.#syncLater()
    return true
  }

  async drop(hashes: readonly BlockHash[], mode: DropMode): Promise<boolean> {
    return await this.#change(async () => {
      const gone = hashes.flatMap((hash) => this.#log.forget(hash) ?? [])
      // A segment in which nothing is left is unlinked as a whole; only an erasure overwrites it before.
      for (const { segment, number } of gone) {
        if (mode === 'erase') await segment.kill(number, 'overwrite')
        else if (segment.live.size > 0) await segment.kill(number, 'mark')
      }
      if (mode === 'erase') await this.#log.sync()
      await this.#log.dropEmpty()
    })
  }

  async scrub(matches: (block: Pick<Location, 'hash' | 'root'>) => boolean): Promise<boolean> {
    return await this.#change(async () => {
      await this.#log.scrub(matches)
      await this.#log.sync()
    })
  }

  status(): TierState {
    const { worth } = this.#deps
    let pinnedBlocks = 0
    for (const hash of this.#log.locations.keys()) if (worth(hash) === Number.POSITIVE_INFINITY) pinnedBlocks++
    const complaint = this.#reading.complaint ?? this.#writing.complaint
    return {
      tier: 'disk',
      blocks: this.#log.locations.size,
      usedBytes: this.#log.usedBytes,
      capacityBytes: this.#options.capacityBytes,
      pinnedBlocks,
      evictedBlocks: this.#evicted,
      healthy: complaint === undefined,
      ...(complaint !== undefined && { complaint }),
    }
  }

  async flush(): Promise<void> {
    await this.#change(() => this.#timed(this.#writing, this.#log.sync(), LONG * this.#options.slowMs))
  }

  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    this.#cancelSync?.()
    this.#reading.close()
    this.#writing.close()
    await this.flush()
    await this.#change(() => this.#log.close())
    await this.#unlock()
  }

  /** Runs changes of the log one after the other. False: the disk failed, and the breaker knows. */
  #change(change: () => Promise<unknown>): Promise<boolean> {
    const run = async () => {
      try {
        await change()
        return true
      } catch (error) {
        this.#fault(this.#writing, error)
        return false
      }
    }
    const result = this.#last.then(run)
    this.#last = result
    return result
  }

  /** A fault of the system opens the breaker; one of ours goes on up. */
  #fault(breaker: Breaker, error: unknown): void {
    if (!isSystemFault(error)) throw error
    breaker.fail(describe(error))
  }

  async #timed<T>(breaker: Breaker, operation: Promise<T>, limitMs = this.#options.slowMs): Promise<T> {
    const cancel = this.#deps.clock.after(limitMs, () => breaker.fail(`an operation takes more than ${limitMs} ms`))
    try {
      return await operation
    } finally {
      cancel()
    }
  }

  #syncLater(): void {
    if (this.#closed) return
    this.#cancelSync ??= this.#deps.clock.after(this.#options.syncMs, () => {
      this.#cancelSync = undefined
      void this.flush()
    })
  }

  #lose(location: Location): void {
    // Unless it was copied elsewhere meanwhile.
    if (this.#log.locations.get(location.hash) !== location) return
    this.#log.forget(location.hash)
    this.#deps.lost(location.hash)
  }

  async #probeReading(): Promise<void> {
    const [location] = this.#log.locations.values()
    if (location === undefined) await this.#deps.files.list(this.#options.folder)
    else await location.segment.read(location.number, [Buffer.alloc(RECORD_HEADER_BYTES)])
  }

  /** Writes as much as a block needs, so that a full volume fails here. */
  async #probeWriting(): Promise<void> {
    const { files } = this.#deps
    const path = join(this.#options.folder, PROBE)
    await this.#removeProbe()
    const free = await files.freeBytes(this.#options.folder)
    if (free < this.#options.keepFreeBytes + 2 * this.#stride) throw noSpace()
    const file = await files.create(path)
    try {
      await file.write([new Uint8Array(this.#stride)], 0)
      await file.sync()
    } finally {
      await file.close()
      await files.unlink(path)
    }
  }

  async #removeProbe(): Promise<void> {
    const { folder } = this.#options
    const { files } = this.#deps
    if ((await files.list(folder)).includes(PROBE)) await files.unlink(join(folder, PROBE))
  }

  #moved(what: 'corrupt' | 'evict', blocks: number): void {
    cacheMoved.publish({ what, tier: 'disk', blocks, bytes: blocks * this.#deps.blockBytes })
  }

  #logOf(scan: Scan): SegmentLog {
    const { files, crc32c, blockBytes, worth, lost } = this.#deps
    const { folder, capacityBytes, keepFreeBytes, segmentBytes } = this.#options
    const segmentRecords = Math.floor((segmentBytes - SEGMENT_HEADER_BYTES) / this.#stride)
    return new SegmentLog(scan, {
      ...{ files, folder, crc32c, blockBytes, capacityBytes, keepFreeBytes, segmentRecords, worth },
      lost: ({ hash }) => {
        this.#evicted++
        this.#moved('evict', 1)
        lost(hash)
      },
    })
  }
}

/** Errors of system calls have a number; Node's own complaints about arguments and our faults have none. */
function isSystemFault(error: unknown): boolean {
  return error instanceof Error && typeof (error as NodeJS.ErrnoException).errno === 'number'
}

/** @throws Error when the capacity does not hold four segments of one block. */
function settle(options: DiskOptions, blockBytes: number): Required<DiskOptions> {
  const block = SEGMENT_HEADER_BYTES + recordBytes(blockBytes)
  if (options.capacityBytes < 4 * block) {
    const budget = `cache.diskBytes: ${options.capacityBytes} bytes`
    throw new Error(`${budget} hold less than four blocks of ${block} bytes: raise it, or set it to 0 for no disk tier`)
  }
  const all = { ...DEFAULTS, ...options }
  const least = Math.max(block, Math.ceil(options.capacityBytes / MOST_SEGMENTS))
  const most = Math.max(block, Math.floor(options.capacityBytes / 8))
  return { ...all, segmentBytes: Math.min(most, Math.max(least, all.segmentBytes)) }
}

export const disk: Kind<DiskOptions, SlowTierDeps, Promise<SlowTier>> = {
  options: Type.Object({
    folder: Type.String({ minLength: 1 }),
    capacityBytes: Type.Integer({ minimum: 1 }),
    segmentBytes: Type.Integer({ minimum: 1, default: DEFAULTS.segmentBytes }),
    syncMs: Type.Integer({ minimum: 1, default: DEFAULTS.syncMs }),
    slowMs: Type.Integer({ minimum: 1, default: DEFAULTS.slowMs }),
    retryMs: Type.Integer({ minimum: 1, default: DEFAULTS.retryMs }),
    longestRetryMs: Type.Integer({ minimum: 1, default: DEFAULTS.longestRetryMs }),
    keepFreeBytes: Type.Integer({ minimum: 0, default: DEFAULTS.keepFreeBytes }),
  }),
  create: (options, deps) => openDisk(settle(options, deps.blockBytes), deps),
}

/** @throws Error when the folder cannot be made, listed or owned. */
async function openDisk(options: Required<DiskOptions>, deps: SlowTierDeps): Promise<SlowTier> {
  const { files, blockBytes, crc32c } = deps
  const { folder } = options
  await files.makeFolder(folder)
  const unlock = await files.lock(folder)
  try {
    const scan = await scanFolder({ files, folder, blockBytes, crc32c })
    const tier = new DiskTier(options, deps, { scan, unlock })
    await tier.tidy()
    return tier
  } catch (error) {
    await unlock()
    throw error
  }
}
