// Stored weights as sums of 4-bit products, exactly: what lets every quantization run on the one kernel that is fast for
// one row and for many and computes in fp32 (MatMulNBits at accuracy_level 1). No weight is rounded; a test holds the sum
// against dequantize.ts, where the block layouts are drawn.
//
//   w[r, c] = sum over products of scale[r, block] * (q[r, c] - zeroPoint)  +  offset[r, block]
//
// A fifth bit h, or the upper two bits of six, is a product of its own, centred so that the kernel's default zero point
// fits: 16 h + l - 16 = 8 (2h - 1) + (l - 8), and 16 h + l - 32 = 8 (2h - 3) + (l - 8).

import { readU32, runMin, runScale } from './dequantize.js'
import { halfTable } from './half.js'
import { TENSOR_TYPES, type TensorType, tensorBytes } from './tensor-type.js'

export interface Product {
  /** [rows, cols / blockSize, blockSize / 2]: element 2i in the low nibble of byte i, 2i + 1 in the high one. */
  readonly q: Uint8Array
  /** [rows, cols / blockSize] */
  readonly scales: Float32Array
  /** The same for every block; 8 is what the kernel takes where none is given. */
  readonly zeroPoint: number
}

export interface Decomposition {
  /** Elements that share a scale and an offset: 32, or 16 for Q6_K. */
  readonly blockSize: 16 | 32
  readonly products: readonly Product[]
  /** [rows, cols / blockSize], added to every weight of the block. */
  readonly offsets?: Float32Array
}

/**
 * The decomposition of a matrix; undefined for F32, F16 and BF16, which have no 4-bit form. `raw` holds `rows` rows of
 * `cols` values; a slice of a matrix's rows is as good as the whole.
 */
export function decompose(type: TensorType, raw: Uint8Array, rows: number, cols: number): Decomposition | undefined {
  if (cols % TENSOR_TYPES[type].elements !== 0 || raw.length < tensorBytes(type, rows * cols)) {
    throw new RangeError(`${raw.length} bytes do not hold ${rows} x ${cols} values of ${type}`)
  }
  const count = rows * cols
  switch (type) {
    case 'Q4_0':
      return fourBits(raw, count, { bytes: 18, min: false })
    case 'Q4_1':
      return fourBits(raw, count, { bytes: 20, min: true })
    case 'Q5_0':
      return fiveBits(raw, count, { bytes: 22, min: false })
    case 'Q5_1':
      return fiveBits(raw, count, { bytes: 24, min: true })
    case 'Q8_0':
      return eightBits(raw, count)
    case 'Q4_K':
      return runs(raw, count, { bytes: 144, quants: 16, high: undefined })
    case 'Q5_K':
      return runs(raw, count, { bytes: 176, quants: 48, high: 16 })
    case 'Q6_K':
      return sixBits(raw, count)
    default:
      return undefined
  }
}

interface BlockLayout {
  readonly bytes: number
  readonly min: boolean
}

function fourBits(raw: Uint8Array, count: number, { bytes, min }: BlockLayout): Decomposition {
  const half = halfTable()
  const product = empty(count, 32, 8)
  const offsets = min ? new Float32Array(count / 32) : undefined
  for (let block = 0, at = 0; block < count / 32; block++, at += bytes) {
    const d = half[raw[at]! | (raw[at + 1]! << 8)]!
    product.scales[block] = d
    // d q + m = d (q - 8) + (m + 8 d)
    if (offsets !== undefined) offsets[block] = half[raw[at + 2]! | (raw[at + 3]! << 8)]! + 8 * d
    packNibbles(raw, at + bytes - 16, 16, product.q, block * 16)
  }
  return { blockSize: 32, products: [product], ...(offsets && { offsets }) }
}

function fiveBits(raw: Uint8Array, count: number, { bytes, min }: BlockLayout): Decomposition {
  const half = halfTable()
  const high = empty(count, 32, 8)
  const low = empty(count, 32, 8)
  const offsets = min ? new Float32Array(count / 32) : undefined
  for (let block = 0, at = 0; block < count / 32; block++, at += bytes) {
    const d = half[raw[at]! | (raw[at + 1]! << 8)]!
    low.scales[block] = d
    high.scales[block] = 8 * d
    if (offsets !== undefined) offsets[block] = half[raw[at + 2]! | (raw[at + 3]! << 8)]! + 16 * d
    packNibbles(raw, at + bytes - 16, 16, low.q, block * 16)
    const bits = readU32(raw, at + bytes - 20)
    for (let i = 0; i < 16; i++) high.q[block * 16 + i] = ONE_BIT[(bits >>> (2 * i)) & 3]!
  }
  return { blockSize: 32, products: [high, low], ...(offsets && { offsets }) }
}

function eightBits(raw: Uint8Array, count: number): Decomposition {
  const half = halfTable()
  const high = empty(count, 32, 8)
  const low = empty(count, 32, 0)
  for (let block = 0, at = 0; block < count / 32; block++, at += 34) {
    const d = half[raw[at]! | (raw[at + 1]! << 8)]!
    high.scales[block] = 16 * d
    low.scales[block] = d
    for (let i = 0, from = at + 2, to = block * 16; i < 16; i++, from += 2, to++) {
      const first = raw[from]!
      const second = raw[from + 1]!
      // The upper nibble is signed: flipping its top bit adds 8.
      high.q[to] = ((first >> 4) | (second & 0xf0)) ^ 0x88
      low.q[to] = (first & 15) | ((second & 15) << 4)
    }
  }
  return { blockSize: 32, products: [high, low] }
}

interface RunLayout {
  readonly bytes: number
  readonly quants: number
  readonly high: number | undefined
}

/** Q4_K and Q5_K: d s q - dmin m per run of 32. */
function runs(raw: Uint8Array, count: number, { bytes, quants, high }: RunLayout): Decomposition {
  const half = halfTable()
  const low = empty(count, 32, 8)
  const upper = high === undefined ? undefined : empty(count, 32, 8)
  const offsets = new Float32Array(count / 32)
  const centre = upper === undefined ? 8 : 16
  for (let block = 0, at = 0; block < count / 32; block += 8, at += bytes) {
    const d = half[raw[at]! | (raw[at + 1]! << 8)]!
    const dmin = half[raw[at + 2]! | (raw[at + 3]! << 8)]!
    for (let run = 0; run < 8; run++) {
      const scale = d * runScale(raw, at + 4, run)
      low.scales[block + run] = scale
      offsets[block + run] = centre * scale - dmin * runMin(raw, at + 4, run)
      if (upper === undefined || high === undefined) continue
      upper.scales[block + run] = 8 * scale
      for (let i = 0, from = at + high, to = (block + run) * 16; i < 16; i++, from += 2, to++) {
        upper.q[to] = ONE_BIT[((raw[from]! >> run) & 1) | (((raw[from + 1]! >> run) & 1) << 1)]!
      }
    }
    for (let pair = 0; pair < 4; pair++) packNibbles(raw, at + quants + pair * 32, 32, low.q, (block + pair * 2) * 16)
  }
  return { blockSize: 32, products: upper === undefined ? [low] : [upper, low], offsets }
}

/** Q6_K: d s (q - 32) per run of 16. */
function sixBits(raw: Uint8Array, count: number): Decomposition {
  const half = halfTable()
  const high = empty(count, 16, 8)
  const low = empty(count, 16, 8)
  for (let block = 0, at = 0; block < count / 16; block += 16, at += 210) {
    const d = half[raw[at + 208]! | (raw[at + 209]! << 8)]!
    for (let run = 0; run < 16; run++) {
      const scale = d * ((raw[at + 192 + run]! << 24) >> 24)
      low.scales[block + run] = scale
      high.scales[block + run] = 8 * scale
    }
    for (let side = 0; side < 2; side++) {
      const to = (block + side * 8) * 8
      packNibbles(raw, at + side * 64, 64, low.q, to)
      for (let quarter = 0, shift = 0; quarter < 4; quarter++, shift += 2) {
        for (let i = 0, from = at + 128 + side * 32; i < 16; i++, from += 2) {
          const pair = ((raw[from]! >> shift) & 3) | (((raw[from + 1]! >> shift) & 3) << 2)
          high.q[to + quarter * 16 + i] = TWO_BITS[pair]!
        }
      }
    }
  }
  return { blockSize: 16, products: [high, low] }
}

/** Two bits b0 b1 -> the byte of 2 b0 - 1 and 2 b1 - 1 around the zero point 8. */
const ONE_BIT = Uint8Array.from({ length: 4 }, (_, bits) => 7 + 2 * (bits & 1) + ((7 + 2 * (bits >> 1)) << 4))

/** Two pairs of bits -> the byte of 2 h - 3 for each around the zero point 8. */
const TWO_BITS = Uint8Array.from({ length: 16 }, (_, bits) => 5 + 2 * (bits & 3) + ((5 + 2 * (bits >> 2)) << 4))

function empty(count: number, blockSize: number, zeroPoint: number): Product {
  return { q: new Uint8Array(count / 2), scales: new Float32Array(count / blockSize), zeroPoint }
}

/**
 * From GGUF's order (low nibbles of `bytes` bytes, then their high nibbles) to neighbours in one byte: the low nibbles
 * fill the first half of the `bytes` bytes at `to`, the high ones the second.
 */
function packNibbles(raw: Uint8Array, from: number, bytes: number, out: Uint8Array, to: number): void {
  const half = bytes / 2
  for (let i = 0; i < half; i++) {
    const first = raw[from + 2 * i]!
    const second = raw[from + 2 * i + 1]!
    out[to + i] = (first & 15) | ((second & 15) << 4)
    out[to + half + i] = (first >> 4) | (second & 0xf0)
  }
}
