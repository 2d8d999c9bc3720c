// Regular expressions as constraints: what walks give matches for JavaScript's own engine, what matches is taken, and what
// cannot be expressed is refused by name.

import fc from 'fast-check'
import { afterAll, describe, expect, test } from 'vitest'
import { awkwardVocabulary, takes, walk } from '../testing/grammar-walk.js'
import { seeded } from '../testing/random.js'
import { createGrammars, GRAMMAR_LIMITS } from './grammar.js'
import { lengthsOf, parseRegex } from './grammar-regex.js'

const vocabulary = awkwardVocabulary()
const grammars = createGrammars(vocabulary, { ...GRAMMAR_LIMITS, compileMs: 60_000 })
afterAll(() => grammars.close())

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

/** Walks match, and strings that match are taken. */
async function compare(source: string, walks: number): Promise<number> {
  const grammar = await grammars.compile({ kind: 'regex', regex: source })
  const whole = new RegExp(`^(?:${source})$`, 'u')
  let complete = 0
  for (let seed = 0; seed < walks; seed++) {
    const { bytes, complete: ended } = walk(grammar, vocabulary, seeded(seed), 60)
    if (!ended) continue
    complete++
    const text = utf8.decode(bytes)
    expect(whole.test(text), `${JSON.stringify(text)} under ${source}`).toBe(true)
  }
  return complete
}

const PATTERNS = [
  ...['abc', 'a|b|cd', 'a*', 'a+b?', '(ab){2,3}', 'a{3}', 'a{2,}b', '(?:x|y)z', '(?<year>\\d{4})-\\d\\d', 'a*?b+?', ''],
  ...[
    '[a-z]+',
    '[^a-z]',
    '[^\\n]{2}',
    '[\\d_-]+',
    '[a\\-z]',
    '[\\]x]',
    '[^]',
    '\\w+@\\w+\\.com',
    '\\s\\S',
    '\\D\\W',
    '.{2}',
  ],
  ...[
    '[а-яё]{2}',
    '[一-龥]{1,2}',
    '[😀-😿]',
    'é+',
    '[\\u00e0-\\u{1f600}]',
    '\\u{1f600}',
    '\\ud83d\\ude00',
    '[\\ud83d\\ude00é]',
  ],
  ...[
    '\\x41\\n1',
    '\\t\\x0ab',
    '"\\\\"',
    '\\$\\^\\.\\*',
    '^abc$',
    '^a|b$',
    '(a|)b',
    '((a))',
    'x{0}y',
    '[a-cb-d]',
    '\\cA?a',
    '(?:(?:a*)+)*b',
    '(a+)+',
  ],
]

describe('a regex', () => {
  for (const pattern of PATTERNS) {
    test(JSON.stringify(pattern), async () => {
      expect(await compare(pattern, 12)).toBeGreaterThan(0)
    })
  }

  test.each(['[a-z]{2,5}\\d', '(ab|c){1,3}', '[^a]{0,2}x', '\\w+-\\w*', '[а-я]+', '(?:a|b)*c'])(
    '%s takes what matches',
    async (pattern) => {
      const grammar = await grammars.compile({ kind: 'regex', regex: pattern })
      fc.assert(
        fc.property(fc.stringMatching(new RegExp(`^(?:${pattern})$`, 'u')), (text) => {
          if (!text.includes('\0')) expect(takes(grammar, vocabulary, text), JSON.stringify(text)).toBe(true)
        }),
        { numRuns: 60 },
      )
    },
  )

  test('at random, takes and gives what JavaScript matches', async () => {
    const { node } = fc.letrec<{ node: string }>((tie) => ({
      node: fc.oneof(
        { depthSize: 'small', withCrossShrink: true },
        fc.constantFrom('a', 'b', 'é', '[ab]', '[^a]', '\\d', '.', '"'),
        fc.tuple(tie('node'), tie('node')).map(([a, b]) => a + b),
        fc.tuple(tie('node'), tie('node')).map(([a, b]) => `(?:${a}|${b})`),
        fc.tuple(tie('node'), fc.constantFrom('?', '*', '+', '{2}', '{1,3}')).map(([a, times]) => `(?:${a})${times}`),
      ),
    }))
    await fc.assert(
      fc.asyncProperty(
        node,
        fc.array(fc.stringMatching(/^[ab1é"]{0,6}$/), { maxLength: 12 }),
        async (pattern, texts) => {
          await compare(pattern, 3)
          const grammar = await grammars.compile({ kind: 'regex', regex: pattern })
          const whole = new RegExp(`^(?:${pattern})$`, 'u')
          for (const text of texts)
            expect(takes(grammar, vocabulary, text), `${text} under ${pattern}`).toBe(whole.test(text))
        },
      ),
      { numRuns: 40, seed: 5 },
    )
  })
})

describe('a regex is refused', () => {
  test.each([
    ['(?=a)b', 'looking ahead'],
    ['(?!a)b', 'looking ahead'],
    ['(?<=a)b', 'looking behind'],
    ['(a)\\1', 'back references'],
    ['\\k<x>', 'back references'],
    ['\\bfoo', 'word borders'],
    ['\\p{L}+', 'Unicode properties'],
    ['(?i)abc', 'flags'],
    ['a**', 'nothing to repeat'],
    ['+a', 'nothing to repeat'],
    ['^*', 'an anchor cannot be repeated'],
    ['a{3,1}', 'out of order'],
    ['[z-a]', 'out of order'],
    ['[]', 'a class has no character'],
    ['[a', 'a bracket is not closed'],
    ['[a-', 'a bracket is not closed'],
    ['(a', 'a parenthesis is not closed'],
    ['a)', 'a parenthesis closes nothing'],
    ['a\\', 'a backslash ends it'],
    ['\\x4', 'hexadecimal digits'],
    ['\\u{110000}', 'no such code point'],
    ['\\u{', 'hexadecimal digits'],
    ['\\y', '\\y is unknown'],
    ['a$b', 'at the ends of an alternative'],
    ['x(^a)', 'at the ends of an alternative'],
    ['(([a-z]{100}){100}){100}', 'stand for more than'],
    [`${'('.repeat(100)}a${')'.repeat(100)}`, 'nested deeper'],
    [`${'a'.repeat(70_000)}`, 'longer than'],
  ])('%s: %s', async (regex, sentence) => {
    await expect(grammars.compile({ kind: 'regex', regex })).rejects.toMatchObject({ code: 'invalid_grammar' })
    await expect(grammars.compile({ kind: 'regex', regex })).rejects.toThrow(sentence)
  })
})

test('lengths of matches', () => {
  expect(lengthsOf(parseRegex('a{2,3}(b|cde)?'))).toEqual([2, 6])
  expect(lengthsOf(parseRegex('(a*){0}x'))).toEqual([1, 1])
  expect(lengthsOf(parseRegex('(|a)+b'))).toEqual([1, undefined])
})
