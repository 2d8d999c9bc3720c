// Character classes as bytes: exactly the code points of the ranges, each in its one UTF-8 form.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { ANY, GrammarText, literal, oneOf, type Ranges, subtract, union } from './grammar-text.js'

/** The expression over bytes, as a regular expression over characters U+0000 to U+00FF. */
function byteRegExp(expression: string): RegExp {
  return new RegExp(`^(?:${expression.replaceAll(' ', '')})$`)
}

const codePoint = fc.oneof(
  fc.constantFrom(
    1,
    0x7f,
    0x80,
    0x7ff,
    0x800,
    0xfff,
    0x1000,
    0xd7ff,
    0xe000,
    0xffff,
    0x10000,
    0x3ffff,
    0x40000,
    0x10ffff,
  ),
  fc.integer({ min: 1, max: 0x10ffff }),
)
const ranges = fc
  .array(fc.tuple(codePoint, codePoint), { minLength: 1, maxLength: 4 })
  .map((pairs) => subtract(union(pairs.map(([a, b]) => [Math.min(a, b), Math.max(a, b)] as const)), [[0xd800, 0xdfff]]))
  .filter((found) => found.length > 0)

const contains = (set: Ranges, code: number) => set.some(([low, high]) => low <= code && code <= high)

describe('character classes', () => {
  test('match what the ranges hold, and ill-formed bytes never', () => {
    fc.assert(
      fc.property(ranges, fc.array(codePoint), fc.uint8Array({ minLength: 1, maxLength: 4 }), (set, codes, bytes) => {
        const regex = byteRegExp(oneOf(set))
        const edges = set.flatMap(([low, high]) => [low - 1, low, high, high + 1])
        for (const code of [...codes, ...edges]) {
          if (code < 1 || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) continue
          const form = Buffer.from(String.fromCodePoint(code)).toString('latin1')
          expect(regex.test(form), code.toString(16)).toBe(contains(set, code))
        }
        const [only, ...more] = Buffer.from(bytes).toString('utf8')
        const wellFormed = only !== undefined && more.length === 0 && Buffer.from(only).equals(Buffer.from(bytes))
        if (!wellFormed) expect(regex.test(Buffer.from(bytes).toString('latin1'))).toBe(false)
      }),
      { numRuns: 500 },
    )
  })

  test('sets are what they say', () => {
    expect(
      subtract(
        [[1, 10]],
        [
          [3, 4],
          [9, 20],
        ],
      ),
    ).toEqual([
      [1, 2],
      [5, 8],
    ])
    expect(
      union(
        [[5, 6]],
        [
          [1, 2],
          [3, 3],
        ],
        [[6, 9]],
      ),
    ).toEqual([
      [1, 3],
      [5, 9],
    ])
    expect(contains(ANY, 0xd800)).toBe(false)
  })
})

test('literals escape what would end or change them', () => {
  expect(literal('a"\\\nb\u007fé😀')).toBe('"a\\"\\\\\\u000ab\\u007fé😀"')
})

test('equal bodies are one rule, and a grammar has a longest length', () => {
  const text = new GrammarText()
  expect(text.rule('"a"')).toBe(text.rule('"a"'))
  expect(text.rule('"b"')).not.toBe(text.rule('"a"'))
  expect(text.toString('r0 r1')).toBe('r0 ::= "a"\nr1 ::= "b"\nroot ::= r0 r1')
  expect(() => text.rule(literal('x'.repeat(600_000)))).toThrow('longer than')
})
