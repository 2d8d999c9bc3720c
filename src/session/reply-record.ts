// The bytes of a kept reply in a log's segment. Invariant: a record is believed only when its checksums hold and it names
// what was asked for; the head can be read, and believed, without the body.
//
//   0   magic 'RPLY', or 'XPLY' once erased (then all behind the lengths is zeros)
//   4   bytes of the head, bytes of the body
//   12  CRC-32C of bytes 4..12 and the head   16  CRC-32C of the body
//   20  head: JSON { v, t, c, s, a, i }
//   ..  body: count of ids, ids (int32), JSON { opening, rest, message }           all numbers little-endian

import type { Reply, ReplyMessage } from '../core/reply.js'
import { kernels } from '../native/index.js'

export const PREFIX_BYTES = 20
const MAGIC = 0x594c5052
const ERASED = 0x594c5058
const VERSION = 1
const MAX_HEAD_BYTES = 4096
const MAX_BODY_BYTES = 1 << 28

/** What a reply is found by. */
export interface RecordHead {
  readonly transcript: string
  readonly call: string | undefined
  readonly session: string | undefined
  readonly after: string
  readonly id: string
}

export interface ScannedRecord {
  readonly offset: number
  readonly bytes: number
  /** Undefined: erased. */
  readonly head: RecordHead | undefined
}

export function encodeRecord(head: RecordHead, reply: Reply): Buffer {
  const { transcript: t, call: c, session: s, after: a, id: i } = head
  const headBytes = Buffer.from(JSON.stringify({ v: VERSION, t, c, s, a, i }))
  const { opening, rest, message, ids } = reply
  const text = Buffer.from(JSON.stringify({ opening, rest, message }))
  const record = Buffer.alloc(PREFIX_BYTES + headBytes.length + 4 + 4 * ids.length + text.length)
  const bodyAt = PREFIX_BYTES + headBytes.length
  headBytes.copy(record, PREFIX_BYTES)
  record.writeInt32LE(ids.length, bodyAt)
  for (let n = 0; n < ids.length; n++) record.writeInt32LE(ids[n] as number, bodyAt + 4 + 4 * n)
  text.copy(record, bodyAt + 4 + 4 * ids.length)
  record.writeUInt32LE(MAGIC, 0)
  record.writeUInt32LE(headBytes.length, 4)
  record.writeUInt32LE(record.length - bodyAt, 8)
  record.writeUInt32LE(headSum(record, bodyAt), 12)
  record.writeUInt32LE(kernels.crc32c(record.subarray(bodyAt)), 16)
  return record
}

/** The reply in a whole record; undefined where it is not whole or not `id`. */
export function decodeRecord(record: Buffer, id: string): Reply | undefined {
  const scanned = scanRecord(record, 0)
  if (scanned?.head?.id !== id || scanned.bytes !== record.length) return undefined
  const bodyAt = PREFIX_BYTES + record.readUInt32LE(4)
  const body = record.subarray(bodyAt)
  if (kernels.crc32c(body) !== record.readUInt32LE(16) || body.length < 4) return undefined
  const count = body.readInt32LE(0)
  if (count < 0 || 4 + 4 * count > body.length) return undefined
  const ids = Int32Array.from({ length: count }, (_, n) => body.readInt32LE(4 + 4 * n))
  const text = body.toString('utf8', 4 + 4 * count)
  const { opening, rest, message } = JSON.parse(text) as { opening: string; rest: string; message: ReplyMessage }
  return { id, opening, rest, message, ids }
}

/** The record that begins at `offset`; undefined: none does, or it is cut off. */
export function scanRecord(bytes: Buffer, offset: number): ScannedRecord | undefined {
  if (offset + PREFIX_BYTES > bytes.length) return undefined
  const magic = bytes.readUInt32LE(offset)
  const headBytes = bytes.readUInt32LE(offset + 4)
  const bodyBytes = bytes.readUInt32LE(offset + 8)
  if (headBytes > MAX_HEAD_BYTES || bodyBytes > MAX_BODY_BYTES) return undefined
  const length = PREFIX_BYTES + headBytes + bodyBytes
  if (offset + length > bytes.length) return undefined
  if (magic === ERASED) return { offset, bytes: length, head: undefined }
  const record = bytes.subarray(offset, offset + length)
  if (magic !== MAGIC || headSum(record, PREFIX_BYTES + headBytes) !== record.readUInt32LE(12)) return undefined
  const head = JSON.parse(record.toString('utf8', PREFIX_BYTES, PREFIX_BYTES + headBytes))
  if (head.v !== VERSION) return undefined
  const { t: transcript, c: call, s: session, a: after, i: id } = head
  return { offset, bytes: length, head: { transcript, call, session, after, id } }
}

/** What takes the place of a record: as long, and nothing in it. */
export function erasedRecord(bytes: Buffer, { offset, bytes: length }: ScannedRecord): Buffer {
  const erased = Buffer.alloc(length)
  erased.writeUInt32LE(ERASED, 0)
  bytes.copy(erased, 4, offset + 4, offset + 12)
  return erased
}

function headSum(record: Buffer, bodyAt: number): number {
  return kernels.crc32c(record.subarray(PREFIX_BYTES, bodyAt), kernels.crc32c(record.subarray(4, 12)))
}
