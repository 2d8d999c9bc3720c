// What a folder of segment files holds, found by reading record headers alone: after a clean end, a kill -9 or a loss of
// power, all the same. Invariant: nothing is believed that fails its checksum or stands where it was not written; a torn
// tail is cut, a file that is not ours is left alone.

import { join } from 'node:path'
import {
  type Crc32c,
  decodeRecordHeader,
  decodeSegmentHeader,
  RECORD_HEADER_BYTES,
  SEGMENT_HEADER_BYTES,
} from '../block-file.js'
import type { FileDoor, OpenFile } from './file-door.js'
import { Segment } from './segment.js'

const NAME = /^segment-([0-9a-f]{16})\.kv$/

/** Headers read at once: each is one read of a cold disk, and libuv has four threads by default. */
const BATCH = 64

/** A segment that is intact but not for us (another model's, another version's) or can't be read now. */
export interface Foreign {
  readonly path: string
  readonly fileBytes: number
}

export interface Scan {
  /** In order of creation. */
  readonly segments: Segment[]
  readonly foreign: Foreign[]
  /** Records and files that were dropped. */
  readonly corrupt: number
  /** First that no file has. */
  readonly nextSequence: number
  /** What the system said about a file that could not be read. */
  readonly complaint: string | undefined
}

export interface ScanOptions {
  readonly files: FileDoor
  readonly folder: string
  readonly blockBytes: number
  readonly crc32c: Crc32c
}

export function segmentPath(folder: string, sequence: number): string {
  return join(folder, `segment-${sequence.toString(16).padStart(16, '0')}.kv`)
}

/** @throws what the system says when the folder itself cannot be listed. */
export async function scanFolder(options: ScanOptions): Promise<Scan> {
  const { files, folder } = options
  const segments: Segment[] = []
  const foreign: Foreign[] = []
  let corrupt = 0
  let nextSequence = 1
  let complaint: string | undefined
  for (const name of (await files.list(folder)).sort()) {
    const sequence = NAME.exec(name)?.[1]
    if (sequence === undefined) continue
    nextSequence = Math.max(nextSequence, Number.parseInt(sequence, 16) + 1)
    const path = join(folder, name)
    try {
      const found = await scanFile(path, options)
      if (found === 'corrupt') {
        corrupt++
        await files.unlink(path)
      } else if ('segment' in found) {
        segments.push(found.segment)
        corrupt += found.corrupt
      } else foreign.push(found)
    } catch (error) {
      complaint = `${name}: ${(error as Error).message}`
      foreign.push({ path, fileBytes: 0 })
    }
  }
  segments.sort((a, b) => a.header.sequence - b.header.sequence)
  return { segments, foreign, corrupt, nextSequence, complaint }
}

async function scanFile(
  path: string,
  options: ScanOptions,
): Promise<{ segment: Segment; corrupt: number } | Foreign | 'corrupt'> {
  const file = await options.files.open(path)
  let keep = false
  try {
    const fileBytes = await file.size()
    const bytes = Buffer.alloc(SEGMENT_HEADER_BYTES)
    const read = await file.read([bytes], 0)
    const header = decodeSegmentHeader(bytes.subarray(0, read), options.blockBytes, options.crc32c)
    if (header === 'corrupt') return 'corrupt'
    if (header === 'foreign') return { path, fileBytes }
    const segment = new Segment(path, header, file, fileBytes)
    const corrupt = await scanRecords(segment, options.crc32c)
    await cutTail(segment, file)
    keep = true
    return { segment, corrupt }
  } finally {
    if (!keep) await file.close()
  }
}

/** Fills `segment.live`; returns how many records are damaged. */
async function scanRecords(segment: Segment, crc32c: Crc32c): Promise<number> {
  const headers = Buffer.alloc(BATCH * RECORD_HEADER_BYTES)
  let corrupt = 0
  for (let first = 0; first < segment.records; first += BATCH) {
    const numbers = Array.from({ length: Math.min(BATCH, segment.records - first) }, (_, i) => first + i)
    await Promise.all(
      numbers.map(async (number) => {
        const at = (number - first) * RECORD_HEADER_BYTES
        const bytes = headers.subarray(at, at + RECORD_HEADER_BYTES)
        const read = await segment.read(number, [bytes])
        const header = decodeRecordHeader(bytes.subarray(0, read), crc32c)
        if (header === 'dead') return
        const right =
          header !== 'corrupt' &&
          header.segmentId === segment.header.id &&
          header.number === number &&
          header.bodyBytes === segment.header.blockBytes
        if (right) segment.live.set(number, { segment, number, ...pick(header) })
        else corrupt++
      }),
    )
  }
  return corrupt
}

function pick<T extends { hash: unknown; root: unknown; parent: unknown }>(
  header: T,
): Pick<T, 'hash' | 'root' | 'parent'> {
  const { hash, root, parent } = header
  return { hash, root, parent }
}

/** Cuts a record that was not written to its end: the space counts, and nothing can read it. */
async function cutTail(segment: Segment, file: OpenFile): Promise<void> {
  const whole = SEGMENT_HEADER_BYTES + segment.records * segment.stride
  if (segment.fileBytes === whole) return
  await file.truncate(whole)
  segment.fileBytes = whole
}
