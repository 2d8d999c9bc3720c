// Digests of pieces of a body, and the chain of them: what the router compares prompts by. Not cryptographic: two pieces
// that meet by chance cost a hit, never a wrong answer, since backends look for themselves. Marks of where a client wants
// its cache to end (`cache_control`) move from turn to turn and are no part of it.

import { hash } from 'node:crypto'

/** Two halves of 64 bits. */
export interface Digest {
  readonly high: number
  readonly low: number
}

const MARK = Buffer.from('"cache_control"')

/** Of `bytes[start, end)`. */
export function digestOf(bytes: Buffer, start: number, end: number): Digest {
  if (!bytes.subarray(start, end).includes(MARK)) return plainDigest(bytes, start, end)
  const text = bytes.toString('latin1', start, end)
  const rest = text.replace(
    /,\s*"cache_control"\s*:\s*(\{[^{}]*\}|null)|"cache_control"\s*:\s*(\{[^{}]*\}|null)\s*,?/g,
    '',
  )
  const plain = Buffer.from(rest, 'latin1')
  return plainDigest(plain, 0, plain.length)
}

/** Shorter pieces are done before the runtime's own hash has begun. */
const SHORT_BYTES = 512

function plainDigest(bytes: Buffer, start: number, end: number): Digest {
  if (end - start < SHORT_BYTES) return shortDigest(bytes, start, end)
  const digest = hash('sha1', bytes.subarray(start, end), 'buffer')
  return { high: digest.readUInt32LE(0), low: digest.readUInt32LE(4) }
}

/** Two lanes of 32 bits. */
function shortDigest(bytes: Buffer, start: number, end: number): Digest {
  let a = 0x2c1b3c6d ^ (end - start)
  let b = 0x165667b1
  for (let i = start; i < end; i++) {
    const byte = bytes[i] as number
    a = turn(Math.imul(a ^ byte, 0x9e3779b1))
    b = turn(Math.imul(b ^ byte, 0xc2b2ae3d))
  }
  return { high: mixed(a ^ Math.imul(b, 0x85ebca6b)), low: mixed(b ^ Math.imul(turn(a), 0xcc9e2d51)) }
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
  return (y ^ (y >>> 16)) >>> 0
}

export const CHAIN_START: Digest = { high: 0x6a09e667, low: 0xbb67ae85 }

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
