// The kernels against vectors that neither form computes itself: arithmetic in doubles, RFC 3720, hand-written bits. All
// forms that run here (the fallback, and native: AVX-512, F16C, scalar) go through the same cases.

import { describe, expect, test } from 'vitest'
import { loadAddon } from './addon.js'
import type { Kernels } from './contract.js'
import { fallback } from './fallback.js'

const addon = loadAddon()
const native = 'forms' in addon ? addon.forms : []
const forms: readonly (readonly [string, Kernels])[] = [
  ['fallback', fallback],
  ...native.map((form) => [`native ${form.instructions}`, form] as const),
]

const bitsOf = (values: Float32Array) => new Uint32Array(values.buffer, values.byteOffset, values.length)

function floats(bits: readonly number[]): Float32Array {
  return new Float32Array(Uint32Array.from(bits).buffer)
}

function packAll(kernels: Kernels, source: Float32Array): Uint16Array {
  const target = new Uint16Array(source.length)
  kernels.packRows(source, 0, source.length, 1, source.length, target, 0)
  return target
}

/** A seeded sequence of 32-bit numbers (xorshift), so that a failure can be repeated. */
function randomBits(count: number, seed: number): Uint32Array {
  let state = seed
  return Uint32Array.from({ length: count }, () => {
    state ^= state << 13
    state ^= state >>> 17
    state ^= state << 5
    return state >>> 0
  })
}

/** What a half means, by the definition of binary16. */
function meaning(half: number): number {
  const sign = half & 0x8000 ? -1 : 1
  const exponent = (half >> 10) & 31
  const fraction = (half & 0x3ff) / 1024
  if (exponent === 31) return fraction === 0 ? sign * Number.POSITIVE_INFINITY : Number.NaN
  return exponent === 0 ? sign * fraction * 2 ** -14 : sign * (1 + fraction) * 2 ** (exponent - 15)
}

/** The nearest half of a non-NaN number by bisection over all finite ones; between two equally near the even one. */
function nearest(value: number): number {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0
  const magnitude = Math.abs(value)
  if (magnitude >= 65520) return sign | 0x7c00
  let low = 0
  let high = 0x7bff
  while (low < high) {
    const middle = (low + high + 1) >> 1
    if (meaning(middle) <= magnitude) low = middle
    else high = middle - 1
  }
  const below = magnitude - meaning(low)
  const above = (low === 0x7bff ? 65536 : meaning(low + 1)) - magnitude
  return sign | (below < above || (below === above && low % 2 === 0) ? low : low + 1)
}

const NAMED: readonly (readonly [what: string, fp32: number, fp16: number])[] = [
  ['zero', 0x00000000, 0x0000],
  ['minus zero', 0x80000000, 0x8000],
  ['one', 0x3f800000, 0x3c00],
  ['minus two', 0xc0000000, 0xc000],
  ['1 + 2^-11: a tie, down to even', 0x3f801000, 0x3c00],
  ['1 + 3 * 2^-11: a tie, up to even', 0x3f803000, 0x3c02],
  ['just over the first tie', 0x3f801001, 0x3c01],
  ['rounds up into the next exponent', 0x3fffffff, 0x4000],
  ['the largest half', 0x477fe000, 0x7bff],
  ['just under 65520', 0x477fefff, 0x7bff],
  ['65520: a tie, up to infinity', 0x477ff000, 0x7c00],
  ['65536', 0x47800000, 0x7c00],
  ['the largest float', 0x7f7fffff, 0x7c00],
  ['infinity', 0x7f800000, 0x7c00],
  ['minus infinity', 0xff800000, 0xfc00],
  ['the least normal half', 0x38800000, 0x0400],
  ['just under it rounds up to it', 0x387fffff, 0x0400],
  ['the largest subnormal half', 0x387fc000, 0x03ff],
  ['a tie between subnormals, to even', 0x387fe000, 0x0400],
  ['the least subnormal half', 0x33800000, 0x0001],
  ['2^-25: a tie, down to zero', 0x33000000, 0x0000],
  ['just over 2^-25', 0x33000001, 0x0001],
  ['1.5 * 2^-24: a tie, up to even', 0x33c00000, 0x0002],
  ['the least subnormal float', 0x00000001, 0x0000],
  ['its negative keeps the sign', 0x80000001, 0x8000],
  ['quiet NaN', 0x7fc00000, 0x7e00],
  ['negative NaN with a payload', 0xffd56000, 0xfeab],
  ['a signalling NaN comes out quiet', 0x7f802000, 0x7e01],
  ['a NaN whose payload is all in the lower bits', 0x7f800001, 0x7e00],
]

describe.each(forms)('%s', (_, kernels) => {
  test.each(NAMED)('packs %s', (_what, fp32, fp16) => {
    // 40 of them, so that whole vectors and the rest of a row are both seen.
    const packed = packAll(kernels, floats(Array<number>(40).fill(fp32)))
    expect([...new Set(packed)]).toEqual([fp16])
  })

  test('unpacks all 65,536 halves', () => {
    const halves = Uint16Array.from({ length: 0x10000 }, (_v, i) => i)
    const values = new Float32Array(halves.length)
    kernels.unpackRows(halves, 0, 1, halves.length, values, 0, halves.length)
    const bits = bitsOf(values)
    const wrong = [...halves].filter((half) => {
      const expected = meaning(half)
      if (!Number.isNaN(expected)) return !Object.is(values[half], expected)
      return bits[half] !== (((half & 0x8000) << 16) | 0x7fc00000 | ((half & 0x3ff) << 13)) >>> 0
    })
    expect(wrong).toEqual([])
  })

  test('packs what it unpacked to the same halves, NaN made quiet', () => {
    const halves = Uint16Array.from({ length: 0x10000 }, (_v, i) => i)
    const values = new Float32Array(halves.length)
    kernels.unpackRows(halves, 0, 1, halves.length, values, 0, halves.length)
    const quiet = halves.map((half) => ((half & 0x7fff) > 0x7c00 ? half | 0x200 : half))
    expect(packAll(kernels, values)).toEqual(quiet)
  })

  test('packs to the nearest half: around every tie, and 100,000 random patterns', () => {
    const ties: number[] = []
    for (let half = 0; half < 0x7c00; half++) {
      const middle = (meaning(half) + (half === 0x7bff ? 65536 : meaning(half + 1))) / 2
      const at = bitsOf(Float32Array.of(middle))[0]!
      ties.push(at - 1, at, at + 1, (at | 0x80000000) >>> 0)
    }
    const source = floats([...ties.filter((bits) => bits >= 0), ...randomBits(100_000, 7)])
    const packed = packAll(kernels, source)
    const wrong = [...source.keys()].filter((i) => !Number.isNaN(source[i]) && packed[i] !== nearest(source[i]!))
    expect(wrong.map((i) => bitsOf(source)[i]!.toString(16))).toEqual([])
  })

  test.each([1, 7, 15, 16, 17, 31, 64, 80])('takes strided rows of %i apart and puts them back', (rowElements) => {
    const rows = 5
    const stride = rowElements + 3
    const source = Float32Array.from({ length: 2 + rows * stride }, (_v, i) => i / 4)
    const packed = new Uint16Array(1 + rows * rowElements + 1).fill(0xffff)
    kernels.packRows(source, 2, stride, rows, rowElements, packed, 1)
    expect([packed[0], packed.at(-1)]).toEqual([0xffff, 0xffff])

    const back = new Float32Array(source.length).fill(-1)
    kernels.unpackRows(packed, 1, rows, rowElements, back, 2, stride)
    const expected = source.map((value, i) => (i >= 2 && (i - 2) % stride < rowElements ? value : -1))
    expect(back).toEqual(expected)
  })

  test('rows next to each other are one run, and views may start anywhere', () => {
    const memory = new Float32Array(300).map((_v, i) => i)
    const packed = new Uint16Array(new ArrayBuffer(1000), 2, 256)
    kernels.packRows(memory.subarray(11), 4, 64, 4, 64, packed, 0)
    const back = new Float32Array(256)
    kernels.unpackRows(packed, 0, 4, 64, back, 0, 64)
    expect(back).toEqual(memory.subarray(15, 271))
  })

  test('works on shared memory', () => {
    const source = new Float32Array(new SharedArrayBuffer(128)).fill(1.5)
    const target = new Uint16Array(new SharedArrayBuffer(64))
    kernels.packRows(source, 0, 32, 1, 32, target, 0)
    expect(target[31]).toBe(0x3e00)
  })

  test('nothing to do is no error', () => {
    const target = new Uint16Array(0)
    kernels.packRows(new Float32Array(0), 9, 9, 0, 64, target, 9)
    kernels.unpackRows(target, 0, 3, 0, new Float32Array(1), 5, 5)
    expect(kernels.crc32c(new Uint8Array(0))).toBe(0)
    expect(kernels.crc32c(new Uint8Array(0), 0x1234)).toBe(0x1234)
  })

  test.each([
    ['source too short', [0, 8, 4, 9, 0], 'a row lies outside the source'],
    ['source offset past the end', [40, 8, 1, 1, 0], 'a row lies outside the source'],
    ['target too short', [0, 8, 4, 8, 1], 'a row lies outside the target'],
    ['a product past 2^53', [0, 2 ** 52, 2 ** 52, 1, 0], 'a row lies outside the source'],
    ['negative', [-1, 8, 4, 8, 0], 'non-negative integers'],
    ['a fraction', [0, 8, 4, 0.5, 0], 'non-negative integers'],
    ['NaN', [0, Number.NaN, 4, 8, 0], 'non-negative integers'],
    ['past 2^53', [0, 2 ** 54, 1, 8, 0], 'non-negative integers'],
  ])('refuses to pack: %s', (_what, [offset, stride, rows, elements, to], message) => {
    const target = new Uint16Array(32)
    const pack = () => kernels.packRows(new Float32Array(32).fill(1), offset!, stride!, rows!, elements!, target, to!)
    expect(pack).toThrow(RangeError)
    expect(pack).toThrow(message)
    expect(target.every((half) => half === 0)).toBe(true)
  })

  test.each([
    ['source too short', [1, 4, 8, 0, 8], 'a row lies outside the source'],
    ['target too short', [0, 4, 8, 0, 9], 'a row lies outside the target'],
    ['target offset past the end', [0, 1, 1, 33, 8], 'a row lies outside the target'],
    ['negative stride', [0, 4, 8, 0, -8], 'non-negative integers'],
  ])('refuses to unpack: %s', (_what, [offset, rows, elements, to, stride], message) => {
    const target = new Float32Array(32)
    const unpack = () =>
      kernels.unpackRows(new Uint16Array(32).fill(0x3c00), offset!, rows!, elements!, target, to!, stride!)
    expect(unpack).toThrow(RangeError)
    expect(unpack).toThrow(message)
    expect(target.every((value) => value === 0)).toBe(true)
  })

  test('exactly fitting last row of a strided source is allowed', () => {
    const target = new Uint16Array(16)
    kernels.packRows(new Float32Array(28).fill(2), 0, 24, 2, 4, target, 8)
    expect([...target.subarray(8)]).toEqual(Array(8).fill(0x4000))
  })
})

const RFC_3720: readonly (readonly [what: string, data: Uint8Array, crc: number])[] = [
  ['32 bytes of zeros', new Uint8Array(32), 0x8a9136aa],
  ['32 bytes of ones', new Uint8Array(32).fill(0xff), 0x62a8ab43],
  ['32 bytes rising', Uint8Array.from({ length: 32 }, (_v, i) => i), 0x46dd794e],
  ['32 bytes falling', Uint8Array.from({ length: 32 }, (_v, i) => 31 - i), 0x113fdb5c],
  [
    'an iSCSI read command',
    Buffer.from(
      '01c00000' +
        '00000000'.repeat(3) +
        '14000000' +
        '00000400' +
        '00000014' +
        '00000018' +
        '28000000' +
        '0000000002000000' +
        '00000000',
      'hex',
    ),
    0xd9963a56,
  ],
  ['the digits 1 to 9', Buffer.from('123456789'), 0xe3069283],
]

/** CRC-32C a bit at a time, straight from the polynomial. */
function slowCrc(data: Uint8Array): number {
  let crc = 0xffffffff
  for (const byte of data) {
    crc ^= byte
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1
  }
  return ~crc >>> 0
}

describe.each(forms)('crc32c, %s', (_, kernels) => {
  test.each(RFC_3720)('%s', (_what, data, crc) => {
    expect(kernels.crc32c(data)).toBe(crc)
  })

  test('every length to 70, around each stream size, at every alignment', () => {
    const memory = new Uint8Array(randomBits(6200, 3).buffer)
    const around = [768, 1536, 12_288, 24_576].flatMap((at) => [at - 1, at, at + 1, at + 9])
    for (const length of [...Array(71).keys(), ...around]) {
      const offset = length % 8
      const data = memory.subarray(offset, offset + length)
      expect([length, kernels.crc32c(data)]).toEqual([length, slowCrc(data)])
    }
  })

  test('goes on from an earlier result, wherever the data is cut', () => {
    const data = new Uint8Array(randomBits(8000, 5).buffer)
    const whole = kernels.crc32c(data)
    for (const cut of [0, 1, 7, 8, 1000, 12_288, 31_999, 32_000]) {
      expect(kernels.crc32c(data.subarray(cut), kernels.crc32c(data.subarray(0, cut)))).toBe(whole)
    }
  })

  test('one flipped bit changes it', () => {
    const data = new Uint8Array(randomBits(4000, 9).buffer)
    const before = kernels.crc32c(data)
    for (const at of [0, 1, 4095, 15_999]) {
      data[at]! ^= 0x10
      expect(kernels.crc32c(data)).not.toBe(before)
      data[at]! ^= 0x10
    }
    expect(kernels.crc32c(data)).toBe(before)
  })
})

describe('native against fallback', () => {
  test.skipIf(native.length === 0)(
    'same bits on a million random patterns, NaN included (needs build/, a compiler)',
    () => {
      const source = new Float32Array(randomBits(1_000_003, 11).buffer)
      const expected = packAll(fallback, source)
      for (const form of native) expect(Buffer.compare(asBytes(packAll(form, source)), asBytes(expected))).toBe(0)
    },
  )

  test.skipIf(native.length === 0)('the last form uses no instruction of its own (needs build/, a compiler)', () => {
    expect(native.at(-1)!.instructions).toBe('scalar+scalar')
  })
})

function asBytes(halves: Uint16Array): Buffer {
  return Buffer.from(halves.buffer, halves.byteOffset, halves.byteLength)
}
