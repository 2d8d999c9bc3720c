// Reads one member out of a wheel, which is a zip archive: the directory at the end names it, its bytes are inflated as
// they stream. Offsets and sizes are held against the archive's own length. No zip64: a wheel of 4 GiB is refused.
//
//   [local header | data]...  [central entry]...  [end record: entries, directory size, directory offset]
//
// Source: PKWARE APPNOTE 6.3, sections 4.3.7, 4.3.12 and 4.3.16.

import { createReadStream } from 'node:fs'
import { type FileHandle, open } from 'node:fs/promises'
import { pipeline } from 'node:stream'
import { createInflateRaw } from 'node:zlib'
import { SourceFailure } from './failure.js'

const END_SIGNATURE = 0x06054b50
const ENTRY_SIGNATURE = 0x02014b50
const LOCAL_SIGNATURE = 0x04034b50
const END_BYTES = 22
const ENTRY_BYTES = 46
const LOCAL_BYTES = 30
const MAX_COMMENT_BYTES = 65_535
const STORED = 0
const DEFLATED = 8

interface Entry {
  readonly method: number
  readonly encrypted: boolean
  readonly packedBytes: number
  readonly bytes: number
  /** Where its local header starts. */
  readonly offset: number
}

/** The member's bytes in order. @throws SourceFailure where the archive is damaged or has no such member. */
export async function* readMember(path: string, member: string): AsyncGenerator<Uint8Array, void> {
  const handle = await open(path, 'r')
  let entry: Entry
  let start: number
  try {
    const { size } = await handle.stat()
    entry = await findEntry(handle, size, member)
    start = await dataStart(handle, entry)
    if (start + entry.packedBytes > size) throw new SourceFailure('the wheel is cut off')
  } finally {
    await handle.close()
  }
  if (entry.encrypted || (entry.method !== STORED && entry.method !== DEFLATED)) {
    throw new SourceFailure(`'${member}' is packed in a way that is not read (method ${entry.method})`)
  }
  if (entry.packedBytes === 0) return
  let bytes = 0
  for await (const chunk of unpacked(path, start, entry)) {
    bytes += chunk.length
    yield chunk
  }
  if (bytes !== entry.bytes) throw new SourceFailure(`'${member}' has ${bytes} bytes, its entry says ${entry.bytes}`)
}

async function* unpacked(path: string, start: number, entry: Entry): AsyncGenerator<Uint8Array, void> {
  const packed = createReadStream(path, { start, end: start + entry.packedBytes - 1, highWaterMark: 1 << 20 })
  if (entry.method === STORED) {
    yield* packed
    return
  }
  // An error of either stream comes out of the loop below, so the callback has nothing to do.
  const inflate = pipeline(packed, createInflateRaw({ chunkSize: 1 << 18 }), () => undefined)
  try {
    yield* inflate
  } catch (error) {
    throw new SourceFailure(`the wheel is damaged: ${(error as Error).message}`, { cause: error })
  }
}

async function findEntry(handle: FileHandle, size: number, member: string): Promise<Entry> {
  const directory = await readDirectory(handle, size)
  for (let at = 0; at + ENTRY_BYTES <= directory.length; ) {
    if (directory.readUInt32LE(at) !== ENTRY_SIGNATURE) break
    const nameBytes = directory.readUInt16LE(at + 28)
    const name = directory.toString('utf8', at + ENTRY_BYTES, at + ENTRY_BYTES + nameBytes)
    if (name === member) {
      const [packedBytes, bytes] = [directory.readUInt32LE(at + 20), directory.readUInt32LE(at + 24)]
      const offset = directory.readUInt32LE(at + 42)
      if ([packedBytes, bytes, offset].includes(0xffffffff)) throw new SourceFailure('the wheel is larger than 4 GiB')
      const encrypted = (directory.readUInt16LE(at + 8) & 1) !== 0
      return { method: directory.readUInt16LE(at + 10), encrypted, packedBytes, bytes, offset }
    }
    at += ENTRY_BYTES + nameBytes + directory.readUInt16LE(at + 30) + directory.readUInt16LE(at + 32)
  }
  throw new SourceFailure(`the wheel has no '${member}'`)
}

async function readDirectory(handle: FileHandle, size: number): Promise<Buffer> {
  const tail = await readAt(handle, Math.max(0, size - END_BYTES - MAX_COMMENT_BYTES), size)
  let at = tail.length - END_BYTES
  while (at >= 0 && tail.readUInt32LE(at) !== END_SIGNATURE) at--
  if (at < 0) throw new SourceFailure('it is not a wheel (no zip directory)')
  const bytes = tail.readUInt32LE(at + 12)
  const offset = tail.readUInt32LE(at + 16)
  if (offset + bytes > size) throw new SourceFailure('the wheel is cut off')
  return readAt(handle, offset, offset + bytes)
}

async function dataStart(handle: FileHandle, { offset }: Entry): Promise<number> {
  const local = await readAt(handle, offset, offset + LOCAL_BYTES)
  if (local.length < LOCAL_BYTES || local.readUInt32LE(0) !== LOCAL_SIGNATURE) {
    throw new SourceFailure('the wheel is damaged: an entry leads nowhere')
  }
  return offset + LOCAL_BYTES + local.readUInt16LE(26) + local.readUInt16LE(28)
}

async function readAt(handle: FileHandle, from: number, to: number): Promise<Buffer> {
  const buffer = Buffer.alloc(to - from)
  const { bytesRead } = await handle.read(buffer, 0, buffer.length, from)
  return buffer.subarray(0, bytesRead)
}
