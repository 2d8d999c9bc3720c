import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { depthOf, elementRanges, memberRanges, RawIndex, withoutMember } from './json-ranges.js'

const rawAt = (text: string, path: (string | number)[]) => new RawIndex(text).at(path)

describe('json ranges', () => {
  test('values are found as they were written', () => {
    const text = ' {"a" : {"b":[1.0, "x\\"]}" , {"c" :\t1e3 } ]},"d":null}'
    expect(rawAt(text, ['a', 'b', 0])).toBe('1.0')
    expect(rawAt(text, ['a', 'b', 1])).toBe('"x\\"]}"')
    expect(rawAt(text, ['a', 'b', 2])).toBe('{"c" :\t1e3 }')
    expect(rawAt(text, ['a', 'b', 2, 'c'])).toBe('1e3')
    expect(rawAt(text, ['d'])).toBe('null')
    expect(rawAt(text, ['a', 'x'])).toBeUndefined()
    expect(rawAt(text, ['a', 'b', 3])).toBeUndefined()
  })

  test('of a repeated key the last counts, and an escaped key is the same key', () => {
    expect(rawAt('{"a":1,"\\u0061":2}', ['a'])).toBe('2')
  })

  test('every value of any JSON parses to what JSON.parse gives', () => {
    fc.assert(
      fc.property(fc.jsonValue(), fc.constantFrom(undefined, 1, '\t'), (value, indent) => {
        const wrapped = { list: [value, value], 'k"\\': value }
        const text = JSON.stringify(wrapped, null, indent)
        const list = elementRanges(text, memberRanges(text, 0)?.get('list')?.start ?? -1)
        expect(list?.map((range) => JSON.parse(text.slice(range.start, range.end)))).toEqual(
          JSON.parse(JSON.stringify(wrapped.list)),
        )
        expect(JSON.parse(rawAt(text, ['k"\\']) ?? '')).toEqual(JSON.parse(JSON.stringify(value)))
      }),
      { numRuns: 200 },
    )
  })

  test('on text that is not JSON it returns, whatever it finds', () => {
    fc.assert(
      fc.property(fc.string({ unit: fc.constantFrom('{', '}', '[', ']', '"', ',', ':', '\\', '1', ' ') }), (text) => {
        memberRanges(text, 0)
        elementRanges(text, 0)
        depthOf(text, 10)
      }),
    )
  })

  test('a hundred thousand look-ups in one text take linear time', () => {
    const count = 100_000
    const index = new RawIndex(`{"a":[${'{"b":{}},'.repeat(count)}1]}`)
    const started = performance.now()
    let found = 0
    for (let i = 0; i < count; i++) if (index.at(['a', i, 'b']) === '{}') found++
    expect(found).toBe(count)
    // Linear takes a fifth of a second; each scan of the whole text would make it minutes.
    expect(performance.now() - started).toBeLessThan(10_000)
  })

  test('a member is taken out with its comma, the rest stays', () => {
    expect(withoutMember('{"a": 1, "cc": {"t":1}, "b" :2.0}', 'cc')).toBe('{"a": 1, "b" :2.0}')
    expect(withoutMember('{"cc": 1, "b" :2.0}', 'cc')).toBe('{"b" :2.0}')
    expect(withoutMember('{"a":[1] , "cc":"x"}', 'cc')).toBe('{"a":[1]}')
    expect(withoutMember('{"cc":1}', 'cc')).toBe('{}')
    expect(withoutMember('{"a":"cc"}', 'cc')).toBe('{"a":"cc"}')
    expect(withoutMember('{"cc":1,"a":2,"cc":3}', 'cc')).toBe('{"a":2}')
  })

  test('depth counts brackets outside strings and stops at the limit', () => {
    expect(depthOf('{"a":[[]],"b":"[[[["}', 64)).toBe(3)
    expect(depthOf('['.repeat(100_000), 64)).toBe(65)
  })
})
