// The bytes on disk are those of docs/block-file.md, and every single bit of a record matters.

import { readFileSync } from 'node:fs'
import { describe, expect, test } from 'vitest'
import type { BlockHash, Root } from '../core/block.js'
import { fallback } from '../native/fallback.js'
import {
  deadMark,
  decodeRecordHeader,
  decodeSegmentHeader,
  decryptRecord,
  encodeRecord,
  encodeSegmentHeader,
  RECORD_HEAD_BYTES,
  type RecordInput,
  sameTokens,
} from './block-file.js'

const { crc32c } = fallback
const SEGMENT = { blockBytes: 16, sequence: 7, id: '0123456789abcdef', createdAt: 1_700_000_000_000 }
const BLOCK = {
  root: '00112233445566778899aabbccddeeff' as Root,
  hash: '0f1e2d3c4b5a69788796a5b4c3d2e1f0' as BlockHash,
  parent: '102132435465768798a9bacbdcedfe0f' as BlockHash,
  tokens: Int32Array.from({ length: 64 }, (_, i) => (i === 63 ? -1 : i * 3)),
}
const PLAIN: RecordInput = {
  block: BLOCK,
  bytes: Uint8Array.from({ length: 16 }, (_, i) => 0xa0 + i),
  place: { segmentId: SEGMENT.id, number: 5 },
  writtenAt: 1_700_000_000_123,
}
const KEY = new Uint8Array(32).fill(0x42)
const ENCRYPTED: RecordInput = {
  ...PLAIN,
  encryption: {
    key: { id: '000102030405060708090a0b0c0d0e0f', key: KEY },
    nonce: Buffer.from('a0a1a2a3a4a5a6a7a8a9aaab', 'hex'),
  },
}

const page = readFileSync(new URL('../../docs/block-file.md', import.meta.url), 'utf8')
const vectors = [...page.matchAll(/```hex\n([0-9a-f\n]+)```/g)].map((match) => match[1]!.replaceAll('\n', ''))

function record(input: RecordInput): Buffer {
  const { head, body } = encodeRecord(input, crc32c)
  return Buffer.concat([head, body])
}

describe('golden vectors', () => {
  test.each([
    ['segment header', 0, () => encodeSegmentHeader(SEGMENT, crc32c)],
    ['record in the clear', 1, () => record(PLAIN)],
    ['record encrypted', 2, () => record(ENCRYPTED)],
  ])('%s', (_, number, write) => {
    expect(vectors).toHaveLength(3)
    expect(write().toString('hex')).toBe(vectors[number])
  })

  test('are read back', () => {
    expect(decodeSegmentHeader(Buffer.from(vectors[0]!, 'hex'), 16, crc32c)).toEqual(SEGMENT)
    const plain = Buffer.from(vectors[1]!, 'hex')
    const { root, hash, parent } = BLOCK
    expect(decodeRecordHeader(plain, crc32c)).toMatchObject({
      ...{ root, hash, parent, encrypted: false, bodyBytes: 16, segmentId: SEGMENT.id, number: 5 },
      writtenAt: 1_700_000_000_123,
      bodyCrc: crc32c(plain.subarray(160)),
    })
    const encrypted = Buffer.from(vectors[2]!, 'hex')
    expect(decodeRecordHeader(encrypted, crc32c)).toMatchObject({
      ...{ encrypted: true, keyId: '000102030405060708090a0b0c0d0e0f' },
      bodyCrc: crc32c(encrypted.subarray(160)),
    })
    const body = Uint8Array.from(encrypted.subarray(RECORD_HEAD_BYTES))
    const tokens = decryptRecord(encrypted.subarray(0, RECORD_HEAD_BYTES), body, KEY)!
    expect(sameTokens(tokens, BLOCK.tokens)).toBe(true)
    expect(body).toEqual(PLAIN.bytes)
  })
})

describe('damage', () => {
  const flipped = (bytes: Buffer, bit: number) => {
    const copy = Buffer.from(bytes)
    copy[bit >> 3]! ^= 1 << (bit & 7)
    return copy
  }

  test('any flipped bit of a segment header shows', () => {
    const bytes = encodeSegmentHeader(SEGMENT, crc32c)
    for (let bit = 0; bit < bytes.length * 8; bit++) {
      expect(decodeSegmentHeader(flipped(bytes, bit), 16, crc32c), `bit ${bit}`).toBe('corrupt')
    }
  })

  test('any flipped bit of a record header shows', () => {
    const bytes = record(PLAIN)
    for (let bit = 0; bit < 160 * 8; bit++) {
      expect(decodeRecordHeader(flipped(bytes, bit), crc32c), `bit ${bit}`).toBe('corrupt')
    }
  })

  test('any flipped bit of a body shows by its checksum', () => {
    const bytes = record(PLAIN)
    for (let bit = 160 * 8; bit < bytes.length * 8; bit++) {
      expect(crc32c(flipped(bytes, bit).subarray(160))).not.toBe(bytes.readUInt32LE(136))
    }
  })

  test('a wrong key, tag, body or header does not decrypt', () => {
    const bytes = record(ENCRYPTED)
    const open = (from: Buffer, key = KEY) =>
      decryptRecord(from.subarray(0, RECORD_HEAD_BYTES), Buffer.from(from.subarray(RECORD_HEAD_BYTES)), key)
    expect(open(bytes)).toBeDefined()
    expect(open(bytes, new Uint8Array(32).fill(0x43))).toBeUndefined()
    for (const at of [8, 24, 40, 60, 75, 96, 200, RECORD_HEAD_BYTES + 3]) {
      expect(open(flipped(bytes, at * 8)), `byte ${at}`).toBeUndefined()
    }
  })

  test('short bytes are corrupt', () => {
    expect(decodeSegmentHeader(encodeSegmentHeader(SEGMENT, crc32c).subarray(0, 63), 16, crc32c)).toBe('corrupt')
    expect(decodeRecordHeader(record(PLAIN).subarray(0, 159), crc32c)).toBe('corrupt')
    expect(decodeRecordHeader(Buffer.alloc(160), crc32c)).toBe('corrupt')
  })
})

test('another version or block length is foreign, not corrupt', () => {
  const bytes = encodeSegmentHeader(SEGMENT, crc32c)
  expect(decodeSegmentHeader(bytes, 32, crc32c)).toBe('foreign')
  bytes.writeUInt32LE(2, 8)
  bytes.writeUInt32LE(crc32c(bytes.subarray(0, 60)), 60)
  expect(decodeSegmentHeader(bytes, 16, crc32c)).toBe('foreign')
})

test('a dead mark is dead, whatever else the record says', () => {
  const bytes = record(PLAIN)
  const mark = deadMark()
  mark.bytes.copy(bytes, mark.offset)
  expect(decodeRecordHeader(bytes, crc32c)).toBe('dead')
})
