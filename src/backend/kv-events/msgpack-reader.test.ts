// The reader against another's encoder, and against bytes that are none of anybody's.

import fc from 'fast-check'
import { Packr, pack } from 'msgpackr'
import { describe, expect, test } from 'vitest'
import { MalformedFrame, MsgpackReader, type Value } from './msgpack-reader.js'

const packr = new Packr({ useRecords: false, variableMapSize: true, largeBigIntToFloat: false })

const values = fc.letrec<{ value: Value; leaf: Value }>((tie) => ({
  leaf: fc.oneof(
    fc.constant(undefined),
    fc.boolean(),
    fc.integer(),
    fc.maxSafeInteger(),
    fc.double({ noNaN: true, noDefaultInfinity: true }),
    fc.bigInt({ min: 2n ** 53n, max: 2n ** 64n - 1n }),
    fc.bigInt({ min: -(2n ** 63n), max: -(2n ** 53n) }),
    fc.string({ unit: 'binary', maxLength: 300 }),
    fc.uint8Array({ maxLength: 300 }),
  ),
  value: fc.oneof(
    { maxDepth: 4 },
    tie('leaf'),
    fc.array(tie('value'), { maxLength: 20 }),
    fc.array(fc.tuple(fc.string(), tie('value')), { maxLength: 20 }).map((pairs) => new Map(pairs)),
  ),
})).value

/** As the encoder takes it: absent is nil. */
function wire(value: Value): unknown {
  if (value instanceof Uint8Array) return Buffer.from(value)
  if (Array.isArray(value)) return value.map(wire)
  if (value instanceof Map) return new Map([...value].map(([key, each]) => [key, wire(each)]))
  return value ?? null
}

/** As the reader gives it: bytes as a plain array, numbers that have no fraction as what they are. */
function plain(value: Value): unknown {
  if (value instanceof Uint8Array) return { bytes: [...value] }
  if (Array.isArray(value)) return value.map(plain)
  if (value instanceof Map) return { map: [...value].map(([key, each]) => [key, plain(each)]) }
  if (typeof value === 'number' && Object.is(value, -0)) return 0
  return value
}

describe('MsgpackReader', () => {
  test('reads what another encoder wrote, and steps over it', () => {
    fc.assert(
      fc.property(values, (value) => {
        const bytes = packr.pack(wire(value))
        const reader = new MsgpackReader(bytes)
        expect(plain(reader.value())).toEqual(plain(value))
        expect(reader.isAtEnd).toBe(true)
        reader.at = 0
        reader.skip()
        expect(reader.isAtEnd).toBe(true)
      }),
      { numRuns: 400 },
    )
  })

  test('any bytes are a value or a MalformedFrame', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), (bytes) => {
        for (const read of ['value', 'skip', 'number'] as const) {
          const reader = new MsgpackReader(bytes)
          try {
            reader[read]()
          } catch (fault) {
            expect(fault).toBeInstanceOf(MalformedFrame)
          }
        }
      }),
      { numRuns: 2000 },
    )
  })

  test('believes no length: four billion elements in six bytes are malformed at once', () => {
    for (const head of [0xdd, 0xdf]) {
      const bytes = Uint8Array.of(head, 0xff, 0xff, 0xff, 0xff, 0x01)
      expect(() => new MsgpackReader(bytes).value()).toThrow(MalformedFrame)
      expect(() => new MsgpackReader(bytes).skip()).toThrow(MalformedFrame)
    }
  })

  test('a hundred thousand lists in each other are stepped over, and not built', () => {
    const bytes = Buffer.concat([Buffer.alloc(100_000, 0x91), pack(1)])
    const reader = new MsgpackReader(bytes)
    reader.skip()
    expect(reader.isAtEnd).toBe(true)
    expect(() => new MsgpackReader(bytes).value()).toThrow(/nested too deep/)
  })
})
