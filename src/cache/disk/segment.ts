// One segment file and what is live in it. Invariants: records have one length, so record i stands where arithmetic says
// and a damaged one hides no other; records are only appended, in place changes at most the four bytes that mark one dead
// (or zeros over its body); the file stays open until its last reader is done, also after it was unlinked.

import type { BlockHash, Root } from '../../core/block.js'
import { deadMark, recordBytes, SEGMENT_HEADER_BYTES, type SegmentHeader } from '../block-file.js'
import type { OpenFile } from './file-door.js'

/** A block's place on disk. */
export interface Location {
  readonly segment: Segment
  readonly number: number
  readonly hash: BlockHash
  readonly root: Root
  readonly parent: BlockHash | Root
}

export class Segment {
  readonly path: string
  readonly header: SegmentHeader
  /** Live records by number. */
  readonly live = new Map<number, Location>()
  /** Records that the file holds, dead ones too. */
  records: number
  /** Length of the file, what is being written included. */
  fileBytes: number
  /** Written since the last sync. */
  dirty = false
  /** Dead records whose body is zeros. */
  readonly #zeroed = new Set<number>()
  /** The tail holds bytes that could not be taken back: nothing may be appended. */
  broken = false
  readonly #file: OpenFile
  #readers = 0
  #drained: (() => void) | undefined
  #closed = false

  constructor(path: string, header: SegmentHeader, file: OpenFile, fileBytes: number) {
    this.path = path
    this.header = header
    this.#file = file
    this.fileBytes = fileBytes
    this.records = Math.max(0, Math.floor((fileBytes - SEGMENT_HEADER_BYTES) / this.stride))
  }

  get stride(): number {
    return recordBytes(this.header.blockBytes)
  }

  #offset(number: number): number {
    return SEGMENT_HEADER_BYTES + number * this.stride
  }

  /** Appends a record of two pieces. On rejection the file is as before, or it is `broken` and weighs a record more. */
  async append(head: Uint8Array, body: Uint8Array): Promise<void> {
    const before = this.fileBytes
    this.fileBytes = before + this.stride
    this.dirty = true
    try {
      await this.#file.write([head, body], this.#offset(this.records))
      this.records++
    } catch (error) {
      await this.#file.truncate(before)
      this.fileBytes = before
      throw error
    } finally {
      this.broken = this.fileBytes !== this.#offset(this.records)
    }
  }

  /** Reads the first bytes of record `number` into the buffers; returns how many there were. */
  async read(number: number, into: readonly Uint8Array[]): Promise<number> {
    this.#readers++
    try {
      return await this.#file.read(into, this.#offset(number))
    } finally {
      if (--this.#readers === 0) this.#drained?.()
    }
  }

  /**
   * Marks a record dead in the file, so that no scan finds it again; `overwrite` also zeroes token ids and KV. Nothing to
   * do once the segment is closed: then its file is gone.
   */
  async kill(number: number, overwrite: 'mark' | 'overwrite'): Promise<void> {
    if (this.#closed) return
    const { bytes, offset } = deadMark()
    this.dirty = true
    const at = this.#offset(number) + offset
    if (overwrite === 'mark') {
      await this.#file.write([bytes], at)
      return
    }
    await this.#file.write([bytes, new Uint8Array(this.stride - offset - bytes.length)], at)
    this.#zeroed.add(number)
  }

  /** Numbers of dead records whose bytes may still be there. */
  unclean(): number[] {
    const all = Array.from({ length: this.records }, (_, number) => number)
    return all.filter((number) => !this.live.has(number) && !this.#zeroed.has(number))
  }

  async sync(): Promise<void> {
    this.dirty = false
    try {
      await this.#file.sync()
    } catch (error) {
      this.dirty = true
      throw error
    }
  }

  /** Closes the file once nobody reads it. */
  async close(): Promise<void> {
    this.#closed = true
    if (this.#readers > 0) {
      await new Promise<void>((resolve) => {
        this.#drained = resolve
      })
    }
    await this.#file.close()
  }
}
