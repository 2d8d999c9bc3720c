import fc from 'fast-check'
import { expect, test } from 'vitest'
import { isPattern, matchesPattern } from './name-pattern.js'

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
