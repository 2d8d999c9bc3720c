// The chain over a log: each event's digest covers the one before, its place and its bytes as they are stored. Where bodies
// are encrypted those are ciphertext, so that a digest tells nothing of the text, and the chain can be checked without a key.

import { createHash } from 'node:crypto'
import type { EventKind } from './event.js'

/** What the first event of a log comes after. */
export const NO_DIGEST = '0'.repeat(64)

export interface EventPlace {
  readonly session: string
  readonly position: number
  readonly id: string
  /** Unix milliseconds. */
  readonly at: number
  readonly kind: EventKind
}

/** One line of text that no other place has: no field but the last may hold a space. */
export function placeLine({ session, position, id, at, kind }: EventPlace): string {
  return `${session} ${position} ${id} ${at} ${kind}`
}

/** SHA-256 in hex. `previous`: 64 hex digits. */
export function eventDigest(previous: string, place: EventPlace, stored: Uint8Array): string {
  return createHash('sha256')
    .update(`event-1 ${previous} ${placeLine(place)}\n`)
    .update(stored)
    .digest('hex')
}
