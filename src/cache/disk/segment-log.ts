// The segment files as one log with a budget: append, forget, reclaim. Invariants: the bytes of all files, those being
// written included, never exceed `capacityBytes`; a byte is reserved before it is written; one call at a time changes the
// log (its caller sees to that), while reads go on beside it.
//
//   sealed ... sealed  active            reclaim: sealed -> copies of what is worth it -> active, then unlink
//   |<------------- usedBytes ------------->|<- kept free: copies of half a segment ->|   = capacityBytes

import { randomBytes } from 'node:crypto'
import type { BlockHash } from '../../core/block.js'
import {
  type Crc32c,
  encodeSegmentHeader,
  placeRecord,
  RECORD_HEAD_BYTES,
  RECORD_HEADER_BYTES,
  recordBytes,
  recordName,
  SEGMENT_HEADER_BYTES,
} from '../block-file.js'
import { noSpace } from './breaker.js'
import { checkRecord } from './check-record.js'
import type { FileDoor } from './file-door.js'
import { chooseReclaim } from './reclaim.js'
import { type Foreign, type Scan, segmentPath } from './scan.js'
import { type Location, Segment } from './segment.js'

export interface SegmentLogOptions {
  readonly files: FileDoor
  readonly folder: string
  readonly crc32c: Crc32c
  readonly blockBytes: number
  readonly capacityBytes: number
  /** Records of a segment. */
  readonly segmentRecords: number
  /** Bytes of the volume that are left to others. */
  readonly keepFreeBytes: number
  /** See `SlowTierDeps`. */
  worth(hash: BlockHash): number
  lost(location: Location): void
}

export class SegmentLog {
  readonly locations = new Map<BlockHash, Location>()
  readonly #options: SegmentLogOptions
  readonly #sealed = new Set<Segment>()
  #foreign: Foreign[]
  /** Files of ours that could not be unlinked. */
  #rubbish: Foreign[] = []
  #doubles: Location[] = []
  #active: Segment | undefined
  #nextSequence: number
  #usedBytes = 0
  #namesDirty = false

  constructor(scan: Scan, options: SegmentLogOptions) {
    this.#options = options
    this.#nextSequence = scan.nextSequence
    this.#foreign = [...scan.foreign]
    for (const { fileBytes } of scan.foreign) this.#usedBytes += fileBytes
    for (const segment of scan.segments) {
      this.#sealed.add(segment)
      this.#usedBytes += segment.fileBytes
      for (const location of segment.live.values()) {
        // A copy that a crash left beside its original: the later one counts.
        const original = this.forget(location.hash)
        if (original !== undefined) this.#doubles.push(original)
        this.locations.set(location.hash, location)
      }
    }
  }

  /** Marks the originals of copies dead in their files, lest one comes back after its copy was erased. */
  async killDoubles(): Promise<void> {
    for (const { segment, number } of this.#doubles) await segment.kill(number, 'mark')
    this.#doubles = []
  }

  get usedBytes(): number {
    return this.#usedBytes
  }

  get dirty(): boolean {
    return this.#namesDirty || [...this.#segments()].some((segment) => segment.dirty)
  }

  /** Blocks that may be copied in one reclaim. */
  get copyLimit(): number {
    return Math.floor(this.#options.segmentRecords / 2)
  }

  *#segments(): Iterable<Segment> {
    yield* this.#sealed
    if (this.#active !== undefined) yield this.#active
  }

  /**
   * Room for one more record, by reclaiming segments if need be. False: what is there is pinned.
   * @throws what the system says.
   */
  async makeRoom(stride: number): Promise<boolean> {
    // At least one record: a probe of the volume writes as much.
    const kept = Math.max(1, this.copyLimit) * stride + 2 * SEGMENT_HEADER_BYTES
    while (this.#usedBytes + SEGMENT_HEADER_BYTES + stride + kept > this.#options.capacityBytes) {
      if (!(await this.#reclaimOne(this.copyLimit))) return false
    }
    return true
  }

  /** Gives up whole segments, copying nothing, until the files fit the budget; for a folder that was larger before. */
  async shrink(): Promise<void> {
    while (this.#usedBytes > this.#options.capacityBytes && (await this.#reclaimOne(0)));
  }

  /**
   * Appends the record that `encode` makes for the place it gets.
   * @throws what the system says; the log is then as before.
   */
  async append(
    block: Pick<Location, 'hash' | 'root' | 'parent'>,
    encode: (place: { segmentId: string; number: number }) => { head: Buffer; body: Uint8Array },
  ): Promise<void> {
    const segment = await this.#activeSegment()
    const number = segment.records
    const { head, body } = encode({ segmentId: segment.header.id, number })
    const before = segment.fileBytes
    this.#usedBytes += segment.stride
    try {
      await segment.append(head, body)
    } catch (error) {
      this.#usedBytes += segment.fileBytes - (before + segment.stride)
      if (segment.broken) this.#seal()
      throw error
    }
    this.forget(block.hash)
    const location = { segment, number, hash: block.hash, root: block.root, parent: block.parent }
    segment.live.set(number, location)
    this.locations.set(block.hash, location)
  }

  /**
   * Copies the smallest segments together until there are at most `limit`: every opening starts a new one, and each is an
   * open file.
   */
  async compact(limit: number): Promise<void> {
    while (this.#sealed.size > limit) {
      const [smallest] = [...this.#sealed].sort((a, b) => a.live.size - b.live.size)
      if (smallest === undefined || smallest.live.size > this.copyLimit) return
      await this.#copy([...smallest.live.values()])
      await this.#remove(smallest)
    }
  }

  /** Removes a block from what is live; the bytes stay until its segment goes. */
  forget(hash: BlockHash): Location | undefined {
    const location = this.locations.get(hash)
    if (location === undefined) return undefined
    this.locations.delete(hash)
    location.segment.live.delete(location.number)
    return location
  }

  /** Overwrites the matching records that are dead already: of blocks that were evicted, replaced or found damaged. */
  async scrub(matches: (block: Pick<Location, 'hash' | 'root'>) => boolean): Promise<void> {
    const header = Buffer.alloc(RECORD_HEADER_BYTES)
    for (const segment of [...this.#segments()]) {
      for (const number of segment.unclean()) {
        if ((await segment.read(number, [header])) < RECORD_HEADER_BYTES) continue
        const name = recordName(header, this.#options.crc32c)
        if (name !== undefined && matches(name)) await segment.kill(number, 'overwrite')
      }
    }
  }

  /** Unlinks the segments in which nothing is live; those that are foreign stay. */
  async dropEmpty(): Promise<void> {
    await this.#sweep()
    if (this.#active?.live.size === 0) this.#seal()
    for (const segment of [...this.#sealed]) if (segment.live.size === 0) await this.#remove(segment)
  }

  /** Everything written so far survives a loss of power. */
  async sync(): Promise<void> {
    for (const segment of [...this.#segments()]) if (segment.dirty) await segment.sync()
    if (!this.#namesDirty) return
    this.#namesDirty = false
    await this.#options.files.syncFolder(this.#options.folder)
  }

  async close(): Promise<void> {
    for (const segment of this.#segments()) await segment.close()
  }

  async #activeSegment(): Promise<Segment> {
    if (this.#active !== undefined && this.#active.records >= this.#options.segmentRecords) this.#seal()
    this.#active ??= await this.#create()
    return this.#active
  }

  #seal(): void {
    if (this.#active !== undefined) this.#sealed.add(this.#active)
    this.#active = undefined
  }

  async #create(): Promise<Segment> {
    const { files, folder, blockBytes, crc32c, keepFreeBytes } = this.#options
    const free = await files.freeBytes(folder)
    if (free < keepFreeBytes + SEGMENT_HEADER_BYTES + recordBytes(blockBytes)) throw noSpace()
    const sequence = this.#nextSequence++
    const header = { blockBytes, sequence, id: randomBytes(8).toString('hex'), createdAt: Date.now() }
    const path = segmentPath(folder, sequence)
    const file = await files.create(path)
    this.#namesDirty = true
    this.#usedBytes += SEGMENT_HEADER_BYTES
    try {
      await file.write([encodeSegmentHeader(header, crc32c)], 0)
    } catch (error) {
      await file.close()
      this.#rubbish.push({ path, fileBytes: SEGMENT_HEADER_BYTES })
      await this.#sweep()
      throw error
    }
    return new Segment(path, header, file, SEGMENT_HEADER_BYTES)
  }

  /** Gives up one file. False: none may go. */
  async #reclaimOne(copyLimit: number): Promise<boolean> {
    const foreign = this.#foreign.shift()
    if (foreign !== undefined) this.#rubbish.push(foreign)
    if (await this.#sweep()) return true
    if (this.#sealed.size === 0) this.#seal()
    const choice = chooseReclaim(this.#sealed, (hash) => this.#options.worth(hash), copyLimit)
    if (choice === undefined) return false
    const copied = await this.#copy(choice.copies)
    if (copied > 0) await this.sync()
    await this.#remove(choice.segment)
    return true
  }

  /** Copies records to the active segment as they are, checked on the way; returns how many. */
  async #copy(copies: readonly Location[]): Promise<number> {
    const { blockBytes, crc32c } = this.#options
    let copied = 0
    if (copies.length === 0) return 0
    const head = Buffer.alloc(RECORD_HEAD_BYTES)
    const body = Buffer.alloc(blockBytes)
    for (const location of copies) {
      if (this.locations.get(location.hash) !== location) continue
      const read = await location.segment.read(location.number, [head, body])
      if (read !== location.segment.stride || checkRecord(head, body, location, crc32c) === undefined) continue
      await this.append(location, (place) => {
        placeRecord(head, place, crc32c)
        return { head, body }
      })
      copied++
    }
    return copied
  }

  /** Unlinks what is of no use. False: there was nothing. */
  async #sweep(): Promise<boolean> {
    const found = this.#rubbish.length > 0
    for (const { path, fileBytes } of [...this.#rubbish]) {
      await this.#options.files.unlink(path)
      this.#rubbish.shift()
      this.#usedBytes -= fileBytes
    }
    return found
  }

  async #remove(segment: Segment): Promise<void> {
    for (const location of [...segment.live.values()]) {
      this.forget(location.hash)
      this.#options.lost(location)
    }
    this.#sealed.delete(segment)
    this.#namesDirty = true
    try {
      await this.#options.files.unlink(segment.path)
    } catch (error) {
      // The file is still there and weighs what it weighs: the next reclaim tries again.
      this.#rubbish.push(segment)
      throw error
    } finally {
      // The volume has the space again only when the last reader is done.
      await segment.close()
    }
    this.#usedBytes -= segment.fileBytes
  }
}
