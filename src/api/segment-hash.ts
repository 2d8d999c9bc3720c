// Digests of pieces of a body, and the chain of them: what the router compares prompts by. Not cryptographic: two pieces
// that meet by chance cost a hit, never a wrong answer, since backends look for themselves. Marks of where a client wants
// its cache to end (`cache_control`) move from turn to turn and are no part of it.

import { hash } from 'node:crypto'
import zlib from 'node:zlib'

/** Two halves of 64 bits, signed: integers that the runtime keeps without a box. */
export interface Digest {
  readonly high: number
  readonly low: number
}

const MARK = Buffer.from('"cache_control"')

/** Of `bytes[start, end)`. */
export function digestOf(bytes: Buffer, start: number, end: number): Digest {
  const piece = bytes.subarray(start, end)
  if (!piece.includes(MARK)) return plainDigest(piece)
  const text = piece.toString('latin1')
  const rest = text.replace(
    /,\s*"cache_control"\s*:\s*(\{[^{}]*\}|null)|"cache_control"\s*:\s*(\{[^{}]*\}|null)\s*,?/g,
    '',
  )
  return plainDigest(Buffer.from(rest, 'latin1'))
}

/** Checksums by the runtime, which are fast from the first one on; Node has them since 20.15. */
const { crc32 } = zlib as { readonly crc32?: (bytes: Uint8Array) => number }

/** Words that are looked at beside the checksum. */
const SAMPLES = 16

const plainDigest: (piece: Buffer) => Digest =
  crc32 === undefined
    ? (piece) => {
        const digest = hash('sha1', piece, 'buffer')
        return { high: digest.readInt32LE(0), low: digest.readInt32LE(4) }
      }
    : (piece) => {
        const sum = crc32(piece)
        const low = sampled(piece)
        return { high: mixed(sum ^ Math.imul(low, 0x85ebca6b)), low }
      }

/** Of its length and of bytes from all over it. */
function sampled(piece: Buffer): number {
  const { length } = piece
  const step = Math.max(1, length / (4 * SAMPLES))
  let a = 0x165667b1 ^ length
  for (let at = 0; at < length; at += step) a = turn(Math.imul(a ^ (piece[at | 0] as number), 0xc2b2ae35))
  return mixed(a)
}

function turn(x: number): number {
  return (x << 13) | (x >>> 19)
}

/** Every bit of it changes about half of the bits that come out. */
function mixed(x: number): number {
  let y = x ^ (x >>> 16)
  y = Math.imul(y, 0x85ebca6b)
  y ^= y >>> 13
  y = Math.imul(y, 0xc2b2ae35)
  return y ^ (y >>> 16)
}

export const CHAIN_START: Digest = { high: 0x6a09e667, low: 0xbb67ae85 | 0 }

/** What stands for everything up to `link`, where `chain` stands for all before it. */
export function chained(chain: Digest, link: Digest): Digest {
  return {
    high: mixed(Math.imul(chain.high ^ link.high, 0x9e3779b1) ^ chain.low),
    low: mixed(Math.imul(chain.low ^ link.low, 0x85ebca77) ^ turn(chain.high) ^ link.high),
  }
}

/** 60 bits of it as text: enough to tell apart all that a router sees. Small integers are written fastest. */
export function nameOf({ high, low }: Digest): string {
  return `${(high >>> 2).toString(36)}.${(low >>> 2).toString(36)}`
}
