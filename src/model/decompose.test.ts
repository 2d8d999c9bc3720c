import { describe, expect, test } from 'vitest'
import { seeded } from '../testing/random.js'
import { type Decomposition, decompose } from './decompose.js'
import { dequantize } from './dequantize.js'
import { halfBits } from './half.js'
import { TENSOR_TYPES, type TensorType, tensorBytes } from './tensor-type.js'

/** Offsets of half-precision scales in a block: random bytes there could be infinities. */
const scaleOffsets = {
  Q4_0: [0],
  Q4_1: [0, 2],
  Q5_0: [0],
  Q5_1: [0, 2],
  Q8_0: [0],
  Q4_K: [0, 2],
  Q5_K: [0, 2],
  Q6_K: [208],
} as const

function randomBlocks(type: keyof typeof scaleOffsets, count: number, seed: number): Uint8Array {
  const random = seeded(seed)
  const raw = Uint8Array.from({ length: tensorBytes(type, count) }, () => random.below(256))
  for (let at = 0; at < raw.length; at += TENSOR_TYPES[type].bytes) {
    for (const offset of scaleOffsets[type]) {
      const bits = halfBits(random.normal() * 2 ** (random.below(12) - 8))
      raw[at + offset] = bits & 255
      raw[at + offset + 1] = bits >> 8
    }
  }
  return raw
}

/** The sum that the decomposition stands for, and the size of its terms: what rounding is relative to. */
function recompose(parts: Decomposition, count: number): { values: Float64Array; sizes: Float64Array } {
  const values = new Float64Array(count)
  const sizes = new Float64Array(count)
  for (let i = 0; i < count; i++) {
    const block = Math.floor(i / parts.blockSize)
    const terms = parts.products.map(({ q, scales, zeroPoint }) => {
      const nibble = (q[i >> 1]! >> ((i & 1) * 4)) & 15
      return scales[block]! * (nibble - zeroPoint)
    })
    terms.push(parts.offsets?.[block] ?? 0)
    values[i] = terms.reduce((sum, term) => sum + term, 0)
    sizes[i] = terms.reduce((sum, term) => sum + Math.abs(term), 0)
  }
  return { values, sizes }
}

describe('decompose', () => {
  for (const type of Object.keys(scaleOffsets) as (keyof typeof scaleOffsets)[]) {
    test(`${type} is represented exactly`, () => {
      const rows = 12
      const cols = 512
      const raw = randomBlocks(type, rows * cols, 5)
      const parts = decompose(type, raw, rows, cols)!
      const blocks = (rows * cols) / parts.blockSize
      for (const { q, scales, zeroPoint } of parts.products) {
        expect(q.length).toBe((rows * cols) / 2)
        expect(scales.length).toBe(blocks)
        expect(zeroPoint).toBeGreaterThanOrEqual(0)
        expect(zeroPoint).toBeLessThan(16)
      }
      if (parts.offsets !== undefined) expect(parts.offsets.length).toBe(blocks)
      const expected = dequantize(type, raw, rows * cols)
      const { values, sizes } = recompose(parts, rows * cols)
      for (let i = 0; i < expected.length; i++) {
        if (Math.abs(values[i]! - expected[i]!) > 2 ** -23 * sizes[i]!) {
          expect.fail(`element ${i}: ${values[i]} instead of ${expected[i]}`)
        }
      }
    })
  }

  test('types without offsets are exact to the last bit', () => {
    for (const type of ['Q4_0', 'Q5_0', 'Q8_0', 'Q6_K'] as const) {
      const raw = randomBlocks(type, 4096, 9)
      const parts = decompose(type, raw, 8, 512)!
      expect(parts.offsets).toBeUndefined()
      // Signs of zeros may differ: a sum of two zeros is positive.
      const expected = dequantize(type, raw, 4096)
      const differing = Float32Array.from(recompose(parts, 4096).values).findIndex((value, i) => value !== expected[i])
      expect(differing).toBe(-1)
    }
  })

  test('a slice of rows decomposes as the whole does', () => {
    const raw = randomBlocks('Q5_K', 8 * 512, 3)
    const whole = decompose('Q5_K', raw, 8, 512)!
    const half = decompose('Q5_K', raw.subarray(raw.length / 2), 4, 512)!
    half.products.forEach(({ q, scales }, i) => {
      expect(q).toEqual(whole.products[i]!.q.subarray(q.length))
      expect(scales).toEqual(whole.products[i]!.scales.subarray(scales.length))
    })
    expect(half.offsets).toEqual(whole.offsets!.subarray(half.offsets!.length))
  })

  test('plain types have no 4-bit form, and short input is refused', () => {
    for (const type of ['F32', 'F16', 'BF16'] satisfies TensorType[]) {
      expect(decompose(type, new Uint8Array(tensorBytes(type, 64)), 2, 32)).toBeUndefined()
    }
    expect(() => decompose('Q4_0', new Uint8Array(18), 2, 32)).toThrow(RangeError)
    expect(() => decompose('Q4_K', new Uint8Array(144), 1, 32)).toThrow(RangeError)
  })
})
