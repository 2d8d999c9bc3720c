import { describe, expect, test } from 'vitest'
import { bfloat16Bits, halfBits, halfTable, roundToHalf } from './half.js'

describe('half', () => {
  test('known values', () => {
    const table = halfTable()
    const known: [number, number][] = [
      [0x3c00, 1],
      [0xc000, -2],
      [0x7bff, 65504],
      [0x0400, 2 ** -14],
      [0x0001, 2 ** -24],
      [0x7c00, Number.POSITIVE_INFINITY],
      [0x3555, 0.333251953125],
    ]
    for (const [bits, value] of known) {
      expect(table[bits]).toBe(value)
      expect(halfBits(value)).toBe(bits)
    }
    expect(table[0x7e00]).toBeNaN()
    expect(halfBits(Number.NaN)).toBe(0x7e00)
    expect(Object.is(table[0x8000], -0)).toBe(true)
  })

  test('every half survives the way there and back', () => {
    const table = halfTable()
    for (let bits = 0; bits < 65536; bits++) {
      if ((bits & 0x7fff) > 0x7c00) continue
      if (halfBits(table[bits]!) !== bits) expect.fail(`bits ${bits} come back as ${halfBits(table[bits]!)}`)
    }
  })

  test('rounds to the nearest, ties to even', () => {
    const table = halfTable()
    for (let bits = 0; bits < 0x7bff; bits++) {
      const below = table[bits]!
      const above = table[bits + 1]!
      const middle = (below + above) / 2
      const even = bits % 2 === 0 ? below : above
      if (roundToHalf(middle) !== even) expect.fail(`the tie after ${bits} does not go to the even neighbour`)
      if (roundToHalf(below + (above - below) * 0.49) !== below) expect.fail(`just below the tie after ${bits}`)
      if (roundToHalf(below + (above - below) * 0.51) !== above) expect.fail(`just above the tie after ${bits}`)
    }
    expect(roundToHalf(65519)).toBe(65504)
    expect(roundToHalf(65520)).toBe(Number.POSITIVE_INFINITY)
    expect(Object.is(roundToHalf(-1e-12), -0)).toBe(true)
  })

  test('bfloat16 rounds to even and keeps NaN', () => {
    expect(bfloat16Bits(1)).toBe(0x3f80)
    expect(bfloat16Bits(1 + 2 ** -8)).toBe(0x3f80)
    expect(bfloat16Bits(1 + 3 * 2 ** -8)).toBe(0x3f82)
    expect(bfloat16Bits(Number.NaN) & 0x7fff).toBeGreaterThan(0x7f80)
  })
})
