// Ids that were taken over are the ids that there would have been: for texts that grow, are cut, branch and are rewritten,
// with special tokens that strip white space or begin like others; and what is remembered stays bounded.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { createScriptedTokenizer } from '../backend/scripted-tokenizer.js'
import { TOY_SPECIALS, toyTokenizerMetadata, toyTokens } from '../testing/toy-vocabulary.js'
import type { Tokenizer } from './contract.js'
import { buildTokenizerJson } from './gguf-tokenizer.js'
import { NOTHING, PrefixMemo } from './prefix-memo.js'
import { createTokenizer } from './tokenizer.js'

const PLAIN = { special: 'text', bos: 'none' } as const
const SPECIALS = ['<a>', '<a><b>', '<left>', '<right>'] as const

function tokenizer(memoBytes: number): Tokenizer {
  const types = toyTokens().map((_, id) => (id < TOY_SPECIALS.length ? 3 : 1))
  const json = JSON.parse(
    buildTokenizerJson({ ...toyTokenizerMetadata('gpt-2'), 'tokenizer.ggml.token_type': types }),
  ) as { added_tokens: object[]; model: { vocab: Record<string, number> } }
  let id = Math.max(...Object.values(json.model.vocab)) + 1
  for (const content of SPECIALS) {
    const strips = { lstrip: content === '<left>', rstrip: content === '<right>' }
    json.added_tokens.push({ id: id++, content, special: true, single_word: false, normalized: false, ...strips })
  }
  return createTokenizer(JSON.stringify(json), {
    ...{ bosTokenId: 1, addBos: true, eosTokenIds: [2], memoBytes, prefixUnits: 8 },
  })
}

const piece = fc.oneof(
  fc.constantFrom(...SPECIALS, ...TOY_SPECIALS),
  fc.constantFrom('<a', '><b>', '<b>', '  ', '\n', ' the user ', 'é😀', "it's 1234"),
)
const change = fc.record({
  from: fc.integer({ min: 0, max: 9 }),
  keep: fc.double({ min: 0, max: 1, noNaN: true }),
  more: fc.array(piece, { maxLength: 6 }),
  special: fc.constantFrom('parse', 'text'),
  bos: fc.constantFrom('add', 'none'),
})

/** Each text is a start of one of the last ten, and more behind it. */
function compare(
  fast: Tokenizer,
  slow: Tokenizer,
  changes: readonly (typeof change extends fc.Arbitrary<infer T> ? T : never)[],
) {
  const texts = ['']
  for (const { from, keep, more, special, bos } of changes) {
    const base = texts.at(-1 - (from % Math.min(10, texts.length))) ?? ''
    const text = base.slice(0, Math.round(keep * base.length)) + more.join('')
    texts.push(text)
    expect([...fast.encode(text, { special, bos })], text).toEqual([...slow.encode(text, { special, bos })])
  }
}

describe('a tokenizer that remembers long texts', () => {
  test('gives the ids of one that remembers nothing', () => {
    const slow = tokenizer(0)
    fc.assert(
      fc.property(fc.array(change, { minLength: 1, maxLength: 30 }), (changes) => {
        compare(tokenizer(100_000), slow, changes)
        // So little that texts are forgotten all the time.
        compare(tokenizer(2000), slow, changes)
      }),
      { numRuns: 150 },
    )
  })

  test('and so does the scripted one, also in long text without special tokens', () => {
    const long = Array.from({ length: 40 }, (_, i) => `${'on the way '.repeat(9 * i)}${i % 7 === 6 ? 'é' : ''}${i}`)
    const texts = long.map((_, i) => long.slice(0, i).join(''))
    const fast = createScriptedTokenizer({ prefixUnits: 8 })
    const slow = createScriptedTokenizer({ prefixUnits: Number.POSITIVE_INFINITY })
    for (const text of texts) expect(fast.encode(text, PLAIN)).toEqual(slow.encode(text, PLAIN))

    const options = { end: '<end>', specials: ['<a>', '<a><b>'] }
    fc.assert(
      fc.property(fc.array(change, { minLength: 1, maxLength: 30 }), (changes) => {
        const slow = createScriptedTokenizer({ ...options, prefixUnits: Number.POSITIVE_INFINITY })
        compare(createScriptedTokenizer({ ...options, prefixUnits: 8 }), slow, changes)
      }),
      { numRuns: 150 },
    )
  })
})

describe('what is remembered', () => {
  const text = (name: string) => `${name} `.repeat(1000)
  const kept = (memo: PrefixMemo, name: string, key = 'k') => memo.start(key, `${text(name)} and more`).at > 0
  const keep = (memo: PrefixMemo, name: string, key = 'k') =>
    memo.keep(key, text(name), { start: NOTHING, ids: new Int32Array(1000), cuts: [{ text: 100, ids: 100 }] })

  test('is forgotten in the order of its last use, and never more than allowed', () => {
    const one = 200 + 2 * text('a').length + 4000 + 40
    const memo = new PrefixMemo({ maxBytes: 3 * one, margin: 8, leastUnits: 8 })
    for (const name of ['a', 'b', 'c']) keep(memo, name)
    // All of it is shared with what is asked for here, so it stays.
    expect(memo.start('k', text('a'))).toMatchObject({ at: 100, isKept: true })
    keep(memo, 'd')
    expect([kept(memo, 'a'), kept(memo, 'b'), kept(memo, 'c'), kept(memo, 'd')]).toEqual([true, false, true, true])
  })

  test('belongs to its key', () => {
    const memo = new PrefixMemo({ maxBytes: 1_000_000, margin: 8, leastUnits: 8 })
    keep(memo, 'a', 'k')
    expect(memo.start('other', text('a')).at).toBe(0)
    expect(memo.start('k', text('a')).at).toBe(100)
  })

  test('is taken over only as far as the tokenizer saw the same text', () => {
    const memo = new PrefixMemo({ maxBytes: 1_000_000, margin: 8, leastUnits: 8 })
    keep(memo, 'a')
    expect(memo.start('k', `${text('a').slice(0, 107)}#and more`).at).toBe(0)
    expect(memo.start('k', `${text('a').slice(0, 108)}#and more`).at).toBe(100)
  })
})
