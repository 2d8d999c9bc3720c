import { describe, expect, test } from 'vitest'
import { quantize } from '../testing/quantize.js'
import { seeded } from '../testing/random.js'
import { dequantize } from './dequantize.js'
import { halfBits } from './half.js'
import { TENSOR_TYPES, type TensorType } from './tensor-type.js'

// Expected values come from the Python package `gguf` (gguf.quants.dequantize) on the same bytes: the first field is the
// offsets of half-precision scales in a block, then values at `samples`, then sum of (i + 1) * w[i].
const samples = (count: number) => [0, 1, 17, 31, count / 2, count / 2 + (count > 64 ? 33 : 30), count - 1]
const golden: Partial<Record<TensorType, [number[], number[], number]>> = {
  Q4_0: [
    [0],
    [
      -0.032257080078125, -0.225799560546875, -0.1290283203125, -0.161285400390625, -0.5078125, -0.0634765625,
      -0.5078125,
    ],
    1.45343017578125,
  ],
  Q4_1: [
    [0, 2],
    [
      -0.409881591796875, -0.216339111328125, -0.216339111328125, -0.442138671875, -0.3828125, -0.63671875,
      0.1884765625,
    ],
    -485.3434143066406,
  ],
  Q5_0: [
    [0],
    [0.258056640625, 0.32257080078125, -0.032257080078125, 0.0, 0.634765625, 0.634765625, 0.634765625],
    211.18710327148438,
  ],
  Q5_1: [
    [0, 2],
    [0.13848876953125, -0.280853271484375, -0.63568115234375, 0.2030029296875, -0.12890625, -0.63671875, -0.4462890625],
    425.7318115234375,
  ],
  Q8_0: [
    [0],
    [
      3.838592529296875, 2.096710205078125, -4.032135009765625, -0.483856201171875, -5.2685546875, -6.85546875,
      -0.888671875,
    ],
    -2992.4934997558594,
  ],
  Q4_K: [
    [0, 2],
    [7.001953125, 9.421234130859375, 7.808380126953125, 18.29193115234375, 38.6748046875, 69.0908203125, 15.9580078125],
    4862967.646850586,
  ],
  Q5_K: [
    [0, 2],
    [
      17.485504150390625, 23.936920166015625, 23.1304931640625, 9.421234130859375, 15.6884765625, 39.6494140625,
      34.30859375,
    ],
    5082403.24407959,
  ],
  Q6_K: [
    [208],
    [
      -9.386810302734375, 84.48129272460938, 26.418548583984375, -30.482940673828125, -20.8203125, -61.69921875,
      213.28125,
    ],
    171080.4612121582,
  ],
}

/** Two blocks of bytes by a formula, with tame scales so that nothing is infinite. */
function formulaBlocks(bytes: number, scaleOffsets: readonly number[]): Uint8Array {
  const raw = Uint8Array.from({ length: 2 * bytes }, (_, i) => i * 167 + 13 + ((i * i * 7) % 251))
  for (let block = 0; block < 2; block++) {
    scaleOffsets.forEach((offset, which) => {
      const bits = halfBits(which === 0 ? 0.03125 * (1 + block) + 0.001 : -0.7)
      raw[block * bytes + offset] = bits & 255
      raw[block * bytes + offset + 1] = bits >> 8
    })
  }
  return raw
}

describe('dequantize', () => {
  for (const [type, [scaleOffsets, values, checksum]] of Object.entries(golden)) {
    test(`${type} reads as the reference implementation reads it`, () => {
      const { bytes, elements } = TENSOR_TYPES[type as TensorType]
      const read = dequantize(type as TensorType, formulaBlocks(bytes, scaleOffsets), 2 * elements)
      expect(samples(read.length).map((i) => read[i])).toEqual(values)
      const sum = read.reduce((total, value, i) => total + value * (i + 1), 0)
      expect(Math.abs(sum - checksum)).toBeLessThan(1e-6 * Math.max(1, Math.abs(checksum)))
    })
  }

  test('plain types', () => {
    const values = Float32Array.from([1, -2.5, 0.5, 0, 3.140625, -65504])
    for (const type of ['F32', 'F16'] as const) {
      expect([...dequantize(type, quantize(type, values), 6)]).toEqual([...values])
    }
    expect([...dequantize('BF16', Uint8Array.of(0x80, 0x3f, 0x49, 0xc0), 2)]).toEqual([1, -3.140625])
  })

  test.each([
    ['F32', 0],
    ['F16', 2 ** -11],
    ['BF16', 2 ** -8],
    ['Q8_0', 0.006],
    ['Q6_K', 0.025],
    ['Q5_K', 0.05],
    ['Q5_1', 0.05],
    ['Q5_0', 0.07],
    ['Q4_K', 0.1],
    ['Q4_1', 0.1],
    ['Q4_0', 0.15],
  ] as const)('%s loses no more than its bits say', (type, share) => {
    const random = seeded(11)
    const values = Float32Array.from({ length: 1024 }, () => random.normal())
    const most = values.reduce((top, value) => Math.max(top, Math.abs(value)), 0)
    const read = dequantize(type, quantize(type, values), values.length)
    values.forEach((value, i) => {
      expect(Math.abs(read[i]! - value)).toBeLessThanOrEqual(share * most)
    })
  })

  test('works at any alignment and refuses short input', () => {
    const raw = formulaBlocks(18, [0])
    const shifted = new Uint8Array(raw.length + 1)
    shifted.set(raw, 1)
    expect(dequantize('Q4_0', shifted.subarray(1), 64)).toEqual(dequantize('Q4_0', raw, 64))
    expect(() => dequantize('Q4_0', raw, 96)).toThrow(RangeError)
    expect(() => dequantize('Q4_0', raw, 33)).toThrow(RangeError)
  })
})
