import fc from 'fast-check'
import { expect, test } from 'vitest'
import { isPattern, MAX_PATTERNS, matchesPattern, NamePatterns } from './name-pattern.js'

test.each([
  ['browser_*', 'browser_open', true],
  ['browser_*', 'browser_', true],
  ['browser_*', 'my_browser_open', false],
  ['*', '', true],
  ['*_read', 'file_read', true],
  ['a*b*a', 'aba', true],
  ['a*a', 'a', false],
  ['a*b*b', 'ab', false],
  ['file.read', 'file_read', false],
  ['read', 'read', true],
  ['read', 'reader', false],
])('%s and %s', (pattern, name, expected) => expect(matchesPattern(pattern, name)).toBe(expected))

test('is what the regular expression says', () => {
  const letters = fc.string({ unit: fc.constantFrom('a', 'b', '.', '*'), maxLength: 7 })
  fc.assert(
    fc.property(letters, letters, (pattern, sent) => {
      const name = sent.replaceAll('*', 'a')
      const source = pattern.replaceAll('.', '\\.').replaceAll('*', '.*')
      expect(matchesPattern(pattern, name)).toBe(new RegExp(`^${source}$`, 's').test(name))
      expect(isPattern(pattern)).toBe(pattern.includes('*'))
    }),
  )
})

test('a set has its names and what fits its patterns, however many names there are', () => {
  const many = Array.from({ length: 50_000 }, (_, i) => `tool${i}`)
  const set = new NamePatterns([...many, 'browser_*'])
  expect(many.every((name) => set.has(name))).toBe(true)
  expect([set.has('browser_open'), set.has('shell'), set.has('tool*')]).toEqual([true, false, false])
  expect(new NamePatterns([...Array(MAX_PATTERNS).fill('a*'), 'b*']).has('b')).toBe(true)
})
