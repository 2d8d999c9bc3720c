// The bytes of a segment file: encode and decode, no input or output. docs/block-file.md is the specification and holds
// the golden vectors; a change of the bytes is a new FILE_VERSION. Invariant: a decoder returns fields only after magic,
// version and checksum have been found right. All numbers are little-endian.
//
//   segment = header (64) | record | record | ...           every record of a segment has the same length
//   record  = header (160) | token ids (256) | KV bytes     the last two encrypted together where flags say so

import { createCipheriv, createDecipheriv } from 'node:crypto'
import { BLOCK_TOKENS, type BlockHash, type Root } from '../core/block.js'
import type { BlockName } from './prefix-index.js'

export const FILE_VERSION = 1
export const SEGMENT_HEADER_BYTES = 64
export const RECORD_HEADER_BYTES = 160
export const TOKEN_BYTES = 4 * BLOCK_TOKENS
/** What precedes the KV bytes of a record: header and token ids. */
export const RECORD_HEAD_BYTES = RECORD_HEADER_BYTES + TOKEN_BYTES

const SEGMENT_MAGIC = Buffer.from('RFRNSEG\0', 'latin1')
const RECORD_MAGIC = 0x4b4c4252 // 'RBLK'
const FLAG_ENCRYPTED = 1
const LIVE = 0x4556494c // 'LIVE'
const DEAD = 0x44414544 // 'DEAD'
/** Header bytes that the authentication of an encrypted record covers: all but where and when it was written. */
const SEALED_BYTES = 96
const CHECKED_BYTES = 152
const STATE_OFFSET = 156

export type Crc32c = (data: Uint8Array, seed?: number) => number

export interface SegmentHeader {
  readonly blockBytes: number
  /** Order of creation: among two records of one block, the one in the later segment counts. */
  readonly sequence: number
  /** 16 hex digits, random: records name it, so that bytes of another file are not taken for this one's. */
  readonly id: string
  /** Unix milliseconds. */
  readonly createdAt: number
}

/** Length of a record in a segment of blocks of `blockBytes`. */
export function recordBytes(blockBytes: number): number {
  return RECORD_HEAD_BYTES + blockBytes
}

export function encodeSegmentHeader(header: SegmentHeader, crc32c: Crc32c): Buffer {
  const out = Buffer.alloc(SEGMENT_HEADER_BYTES)
  SEGMENT_MAGIC.copy(out)
  out.writeUInt32LE(FILE_VERSION, 8)
  out.writeUInt32LE(BLOCK_TOKENS, 12)
  out.writeBigUInt64LE(BigInt(header.blockBytes), 16)
  out.writeBigUInt64LE(BigInt(header.sequence), 24)
  out.write(header.id, 32, 8, 'hex')
  out.writeBigUInt64LE(BigInt(header.createdAt), 40)
  out.writeUInt32LE(crc32c(out.subarray(0, 60)), 60)
  return out
}

/**
 * The header of a segment; 'foreign': intact, but of another version or block length, so that nothing here can read it;
 * 'corrupt': none of ours.
 */
export function decodeSegmentHeader(
  bytes: Buffer,
  blockBytes: number,
  crc32c: Crc32c,
): SegmentHeader | 'foreign' | 'corrupt' {
  if (bytes.length < SEGMENT_HEADER_BYTES || !bytes.subarray(0, 8).equals(SEGMENT_MAGIC)) return 'corrupt'
  if (bytes.readUInt32LE(60) !== crc32c(bytes.subarray(0, 60))) return 'corrupt'
  if (bytes.readUInt32LE(8) !== FILE_VERSION || bytes.readUInt32LE(12) !== BLOCK_TOKENS) return 'foreign'
  if (bytes.readBigUInt64LE(16) !== BigInt(blockBytes)) return 'foreign'
  return {
    blockBytes,
    sequence: Number(bytes.readBigUInt64LE(24)),
    id: bytes.toString('hex', 32, 40),
    createdAt: Number(bytes.readBigUInt64LE(40)),
  }
}

/** A 256-bit key and its public name. */
export interface BlockKey {
  /** 32 hex digits; stored in the record. */
  readonly id: string
  readonly key: Uint8Array
}

/** Where a record stands; part of its header, so that a record found elsewhere is not taken for one. */
export interface RecordPlace {
  readonly segmentId: string
  /** Counted from 0 in its segment. */
  readonly number: number
}

export interface RecordHeader extends RecordPlace {
  readonly root: Root
  readonly hash: BlockHash
  readonly parent: BlockHash | Root
  readonly encrypted: boolean
  readonly keyId: string
  readonly nonce: Buffer
  readonly tag: Buffer
  readonly bodyBytes: number
  readonly writtenAt: number
  /** CRC-32C of token ids and KV bytes as they stand in the file. */
  readonly bodyCrc: number
}

export interface RecordInput {
  readonly block: BlockName
  readonly bytes: Uint8Array
  readonly place: RecordPlace
  readonly writtenAt: number
  readonly encryption?: { readonly key: BlockKey; readonly nonce: Buffer }
}

/** A record as two pieces to write one after the other. `body` is the given array itself unless it is encrypted. */
export function encodeRecord(input: RecordInput, crc32c: Crc32c): { readonly head: Buffer; readonly body: Uint8Array } {
  const { block, place, encryption } = input
  const head = Buffer.alloc(RECORD_HEAD_BYTES)
  head.writeUInt32LE(RECORD_MAGIC, 0)
  head.writeUInt16LE(FILE_VERSION, 4)
  head.writeUInt16LE(encryption === undefined ? 0 : FLAG_ENCRYPTED, 6)
  head.write(block.root, 8, 16, 'hex')
  head.write(block.hash, 24, 16, 'hex')
  head.write(block.parent, 40, 16, 'hex')
  if (encryption !== undefined) {
    head.write(encryption.key.id, 56, 16, 'hex')
    encryption.nonce.copy(head, 72)
  }
  head.writeUInt32LE(BLOCK_TOKENS, 84)
  head.writeBigUInt64LE(BigInt(input.bytes.length), 88)
  for (let i = 0; i < BLOCK_TOKENS; i++) head.writeInt32LE(block.tokens[i]!, RECORD_HEADER_BYTES + 4 * i)
  let body = input.bytes
  if (encryption !== undefined) {
    const cipher = createCipheriv('aes-256-gcm', encryption.key.key, encryption.nonce)
    cipher.setAAD(head.subarray(0, SEALED_BYTES))
    cipher.update(head.subarray(RECORD_HEADER_BYTES)).copy(head, RECORD_HEADER_BYTES)
    body = cipher.update(input.bytes)
    cipher.final()
    cipher.getAuthTag().copy(head, 96)
  }
  head.writeBigUInt64LE(BigInt(input.writtenAt), 128)
  head.writeUInt32LE(crc32c(body, crc32c(head.subarray(RECORD_HEADER_BYTES))), 136)
  placeRecord(head, place, crc32c)
  head.writeUInt32LE(LIVE, STATE_OFFSET)
  return { head, body }
}

/** Rewrites where the record of `head` stands, as a copy to another segment needs it. */
export function placeRecord(head: Buffer, place: RecordPlace, crc32c: Crc32c): void {
  head.write(place.segmentId, 112, 8, 'hex')
  head.writeUInt32LE(place.number, 120)
  head.writeUInt32LE(crc32c(head.subarray(0, CHECKED_BYTES)), CHECKED_BYTES)
}

/** The header at the start of `bytes`; 'dead': erased or replaced; 'corrupt': not what was written. */
export function decodeRecordHeader(bytes: Buffer, crc32c: Crc32c): RecordHeader | 'dead' | 'corrupt' {
  if (bytes.length < RECORD_HEADER_BYTES || bytes.readUInt32LE(0) !== RECORD_MAGIC) return 'corrupt'
  if (bytes.readUInt32LE(CHECKED_BYTES) !== crc32c(bytes.subarray(0, CHECKED_BYTES))) return 'corrupt'
  if (bytes.readUInt16LE(4) !== FILE_VERSION || bytes.readUInt32LE(84) !== BLOCK_TOKENS) return 'corrupt'
  const flags = bytes.readUInt16LE(6)
  if ((flags & ~FLAG_ENCRYPTED) !== 0) return 'corrupt'
  const state = bytes.readUInt32LE(STATE_OFFSET)
  if (state !== LIVE) return state === DEAD ? 'dead' : 'corrupt'
  return {
    root: bytes.toString('hex', 8, 24) as Root,
    hash: bytes.toString('hex', 24, 40) as BlockHash,
    parent: bytes.toString('hex', 40, 56) as BlockHash,
    encrypted: flags !== 0,
    keyId: bytes.toString('hex', 56, 72),
    nonce: bytes.subarray(72, 84),
    tag: bytes.subarray(96, 112),
    bodyBytes: Number(bytes.readBigUInt64LE(88)),
    segmentId: bytes.toString('hex', 112, 120),
    number: bytes.readUInt32LE(120),
    writtenAt: Number(bytes.readBigUInt64LE(128)),
    bodyCrc: bytes.readUInt32LE(136),
  }
}

/** Whose the record at the start of `bytes` is or was, dead ones too; undefined: no intact header. */
export function recordName(bytes: Buffer, crc32c: Crc32c): Pick<RecordHeader, 'hash' | 'root'> | undefined {
  if (bytes.length < RECORD_HEADER_BYTES || bytes.readUInt32LE(0) !== RECORD_MAGIC) return undefined
  if (bytes.readUInt32LE(CHECKED_BYTES) !== crc32c(bytes.subarray(0, CHECKED_BYTES))) return undefined
  return {
    root: bytes.toString('hex', 8, 24) as Root,
    hash: bytes.toString('hex', 24, 40) as BlockHash,
  }
}

/** What marks a record dead in place: four bytes and where in the record they go. */
export function deadMark(): { readonly bytes: Buffer; readonly offset: number } {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32LE(DEAD)
  return { bytes, offset: STATE_OFFSET }
}

/**
 * Decrypts `body` in place and returns the token ids' bytes; undefined when the key or a byte is not the one of writing.
 * `head` is the record's header and token ids.
 */
export function decryptRecord(head: Buffer, body: Uint8Array, key: Uint8Array): Buffer | undefined {
  const cipher = createDecipheriv('aes-256-gcm', key, head.subarray(72, 84))
  cipher.setAAD(head.subarray(0, SEALED_BYTES))
  cipher.setAuthTag(head.subarray(96, 112))
  const tokens = cipher.update(head.subarray(RECORD_HEADER_BYTES))
  body.set(cipher.update(body))
  try {
    cipher.final()
  } catch {
    // Thrown for one reason only: the tag does not fit.
    return undefined
  }
  return tokens
}

/** Whether the 256 bytes are these token ids. */
export function sameTokens(bytes: Buffer, tokens: Int32Array): boolean {
  for (let i = 0; i < BLOCK_TOKENS; i++) if (bytes.readInt32LE(4 * i) !== tokens[i]) return false
  return true
}
