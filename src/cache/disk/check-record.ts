// Whether bytes from a segment file are the record that is asked for. Invariant: every byte of a record is covered by one
// of the checks, so that a flipped, torn, moved or stale record is told from the right one before anybody uses it.

import {
  type Crc32c,
  decodeRecordHeader,
  decryptRecord,
  RECORD_HEADER_BYTES,
  type RecordHeader,
  sameTokens,
} from '../block-file.js'
import type { BlockName } from '../prefix-index.js'
import type { BlockKeys, LoadOutcome } from '../tier/tier.js'
import type { Location } from './segment.js'

/** The header of the record at `location` when header and body are as written; `head` is header and token ids. */
export function checkRecord(
  head: Buffer,
  body: Uint8Array,
  location: Location,
  crc32c: Crc32c,
): RecordHeader | undefined {
  const header = decodeRecordHeader(head, crc32c)
  if (header === 'dead' || header === 'corrupt') return undefined
  const { segment, number } = location
  const right =
    header.segmentId === segment.header.id &&
    header.number === number &&
    header.bodyBytes === body.length &&
    header.hash === location.hash &&
    header.root === location.root &&
    header.parent === location.parent
  if (!right || crc32c(body, crc32c(head.subarray(RECORD_HEADER_BYTES))) !== header.bodyCrc) return undefined
  return header
}

/**
 * Turns what was read into the block's bytes, in place in `body`. 'absent': its key is gone, or it lies in the clear where
 * blocks of its root must not.
 */
export function openRecord(
  record: { readonly header: RecordHeader; readonly head: Buffer; readonly body: Uint8Array },
  block: BlockName,
  keys: BlockKeys | undefined,
): LoadOutcome {
  const { header, head, body } = record
  if (header.root !== block.root || header.hash !== block.hash) return 'collision'
  if (header.parent !== block.parent) return 'collision'
  let tokens = head.subarray(RECORD_HEADER_BYTES)
  if (header.encrypted) {
    const key = keys?.keyNamed(header.keyId)
    if (key === undefined) return 'absent'
    const opened = decryptRecord(head, body, key)
    if (opened === undefined) return 'corrupt'
    tokens = opened
  } else if (keys?.keyOf(block.root) !== undefined) return 'absent'
  return sameTokens(tokens, block.tokens) ? 'loaded' : 'collision'
}
