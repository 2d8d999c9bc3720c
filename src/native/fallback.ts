// The kernels in TypeScript: the specification that kernels/ is held to, and what runs where no compiler was at hand.
// Invariant: only bits are moved, never a NaN through a floating-point register, so results do not depend on the engine.
// Rounding is to nearest, ties to even; subnormals are kept; overflow is infinity; a NaN keeps its sign and the upper ten
// bits of its payload and comes out quiet (what F16C and AVX-512 do).

import type { Kernels } from './contract.js'

const LEAST_NORMAL = 0x38800000 // 2^-14 as fp32 bits
const TOO_LARGE = 0x47800000 // 2^16
const INFINITE = 0x7f800000
const HALF_OF_LEAST = 0x33000000 // 2^-25: the tie between zero and the least subnormal
const REBIAS = 0x38000000 // (127 - 15) << 23

/** The fp16 bits, sign aside, of an fp32 magnitude that is not a normal fp16: subnormal, zero, too large, infinite, NaN. */
function packUncommon(magnitude: number): number {
  if (magnitude > INFINITE) return 0x7e00 | ((magnitude >>> 13) & 0x3ff)
  if (magnitude >= TOO_LARGE) return 0x7c00
  if (magnitude <= HALF_OF_LEAST) return 0
  const shift = 126 - (magnitude >>> 23)
  const mantissa = (magnitude & 0x7fffff) | 0x800000
  return (mantissa + (1 << (shift - 1)) - 1 + ((mantissa >>> shift) & 1)) >>> shift
}

/** The fp32 bits of fp16 bits; exact. */
function unpackBits(half: number): number {
  const sign = (half & 0x8000) << 16
  const magnitude = half & 0x7fff
  if (magnitude > 0x7c00) return sign | INFINITE | 0x400000 | ((magnitude & 0x3ff) << 13)
  if (magnitude === 0x7c00) return sign | INFINITE
  if (magnitude >= 0x400) return sign | ((magnitude << 13) + REBIAS)
  if (magnitude === 0) return sign
  // magnitude * 2^-24: its highest bit becomes the implicit one.
  const top = 31 - Math.clz32(magnitude)
  return sign | ((top + 103) << 23) | ((magnitude << (23 - top)) & 0x7fffff)
}

let unpacked: Uint32Array | undefined

/** All 65,536 answers of `unpackBits`: a third faster than computing, 256 KB, made when first needed. */
function unpackTable(): Uint32Array {
  if (unpacked === undefined) {
    unpacked = new Uint32Array(0x10000)
    for (let half = 0; half < 0x10000; half++) unpacked[half] = unpackBits(half)
  }
  return unpacked
}

let folded: Int32Array | undefined

/** Eight tables of 256, one after another: table k is what a byte does to a CRC-32C after k more zero bytes. */
function crcTables(): Int32Array {
  if (folded === undefined) {
    folded = new Int32Array(8 * 256)
    for (let byte = 0; byte < 256; byte++) {
      let crc = byte
      for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0x82f63b78 : 0)
      folded[byte] = crc
    }
    for (let at = 256; at < folded.length; at++) {
      const before = folded[at - 256]!
      folded[at] = (before >>> 8) ^ folded[before & 0xff]!
    }
  }
  return folded
}

function packRow(from: Uint32Array, into: Uint16Array): void {
  for (let i = 0; i < into.length; i++) {
    const bits = from[i]!
    const sign = (bits >>> 16) & 0x8000
    const magnitude = bits & 0x7fffffff
    if (magnitude >= LEAST_NORMAL && magnitude < TOO_LARGE) {
      // Rounding may carry into the exponent, and from the largest exponent into infinity, as it should.
      const rebiased = magnitude - REBIAS
      into[i] = sign | ((rebiased + 0xfff + ((rebiased >>> 13) & 1)) >>> 13)
    } else {
      into[i] = sign | packUncommon(magnitude)
    }
  }
}

function unpackRow(from: Uint16Array, into: Uint32Array, table: Uint32Array): void {
  for (let i = 0; i < into.length; i++) into[i] = table[from[i]!]!
}

/** Feeds `data` to the register `crc` (not inverted), eight bytes a turn. */
function crcState(crc: number, data: Uint8Array, table: Int32Array): number {
  let state = crc
  let at = 0
  const whole = data.length - 7
  for (; at < whole; at += 8) {
    state =
      table[0x700 | ((state ^ data[at]!) & 0xff)]! ^
      table[0x600 | (((state >>> 8) ^ data[at + 1]!) & 0xff)]! ^
      table[0x500 | (((state >>> 16) ^ data[at + 2]!) & 0xff)]! ^
      table[0x400 | ((state >>> 24) ^ data[at + 3]!)]! ^
      table[0x300 | data[at + 4]!]! ^
      table[0x200 | data[at + 5]!]! ^
      table[0x100 | data[at + 6]!]! ^
      table[data[at + 7]!]!
  }
  for (; at < data.length; at++) state = (state >>> 8) ^ table[(state ^ data[at]!) & 0xff]!
  return state
}

function bitsOf(values: Float32Array): Uint32Array {
  return new Uint32Array(values.buffer, values.byteOffset, values.length)
}

function checkIntegers(...numbers: number[]): void {
  for (const number of numbers) {
    if (!Number.isSafeInteger(number) || number < 0) {
      throw new RangeError('offsets, strides and counts must be non-negative integers')
    }
  }
}

interface Side {
  readonly what: 'source' | 'target'
  readonly length: number
  readonly offset: number
  readonly stride: number
}

function checkRows(side: Side, rows: number, rowElements: number): void {
  if (side.offset + (rows - 1) * side.stride + rowElements > side.length) {
    throw new RangeError(`a row lies outside the ${side.what}`)
  }
}

export const fallback: Kernels = {
  name: 'fallback',

  packRows(source, sourceOffset, sourceStride, rows, rowElements, target, targetOffset) {
    checkIntegers(sourceOffset, sourceStride, rows, rowElements, targetOffset)
    if (rows === 0 || rowElements === 0) return
    checkRows({ what: 'source', length: source.length, offset: sourceOffset, stride: sourceStride }, rows, rowElements)
    checkRows({ what: 'target', length: target.length, offset: targetOffset, stride: rowElements }, rows, rowElements)
    const from = bitsOf(source)
    for (let row = 0; row < rows; row++) {
      const start = sourceOffset + row * sourceStride
      const end = targetOffset + (row + 1) * rowElements
      packRow(from.subarray(start, start + rowElements), target.subarray(end - rowElements, end))
    }
  },

  unpackRows(source, sourceOffset, rows, rowElements, target, targetOffset, targetStride) {
    checkIntegers(sourceOffset, rows, rowElements, targetOffset, targetStride)
    if (rows === 0 || rowElements === 0) return
    checkRows({ what: 'source', length: source.length, offset: sourceOffset, stride: rowElements }, rows, rowElements)
    checkRows({ what: 'target', length: target.length, offset: targetOffset, stride: targetStride }, rows, rowElements)
    const into = bitsOf(target)
    const table = unpackTable()
    for (let row = 0; row < rows; row++) {
      const start = sourceOffset + row * rowElements
      const to = targetOffset + row * targetStride
      unpackRow(source.subarray(start, start + rowElements), into.subarray(to, to + rowElements), table)
    }
  },

  crc32c(data, seed = 0) {
    return ~crcState(~seed, data, crcTables()) >>> 0
  },
}
