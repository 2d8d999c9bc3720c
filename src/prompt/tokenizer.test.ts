// The tokenizer against three judges: the vendor's own encoder on the same tokenizer.json, plain merging loops, and itself
// (memo, segments, streams). Vocabularies are toys; real ones are in gguf-tokenizer.test.ts.

import { Tokenizer as Vendor } from '@huggingface/tokenizers'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { TOY_SPECIALS, toyTokenizerMetadata, toyTokens } from '../testing/toy-vocabulary.js'
import type { Tokenizer } from './contract.js'
import { buildTokenizerJson } from './gguf-tokenizer.js'
import { createTokenizer, type TokenizerOptions } from './tokenizer.js'

const PLAIN = { special: 'text', bos: 'none' } as const
const PARSED = { special: 'parse', bos: 'none' } as const

/** As a GGUF reader gives it. */
function toyMetadata(pre: string): Record<string, unknown> {
  const types = toyTokens().map((_, id) => (id < TOY_SPECIALS.length ? 3 : 1))
  return { ...toyTokenizerMetadata(pre), 'tokenizer.ggml.token_type': types }
}

function toy(pre = 'gpt-2', options: Partial<TokenizerOptions> = {}): Tokenizer {
  const json = buildTokenizerJson(toyMetadata(pre))
  return createTokenizer(json, { bosTokenId: 1, addBos: true, eosTokenIds: [2], memoBytes: 1_000_000, ...options })
}

// Pieces that the expressions of pre-tokenizers care about, and characters of every UTF-8 length.
const piece = fc.oneof(
  fc.constantFrom(
    ' the',
    ' and',
    'user',
    'on',
    "'ll",
    "'S",
    '  ',
    '\n',
    '\r\n',
    '\t ',
    '1',
    '234567',
    '.',
    '!?',
    '`$',
    '=+',
  ),
  fc.constantFrom(
    'Été',
    'ПРИВЕТ',
    'mіr',
    '我想在',
    'かな',
    'e\u0301',
    '\u00a0',
    '😀',
    '🚀 ',
    '\ud83d',
    '\ufeff',
    '\u0000',
  ),
  fc.string({ maxLength: 6 }),
)
const text = fc.array(piece, { maxLength: 20 }).map((pieces) => pieces.join(''))
const special = fc.constantFrom('<|im_start|>', '<|im_end|>', '<|endoftext|>', '<|im_', '|>')
const chat = fc.array(fc.oneof(piece, special), { maxLength: 20 }).map((pieces) => pieces.join(''))

/** As UTF-8 keeps it: lone surrogates become U+FFFD. */
const wellFormed = (value: string): string => Buffer.from(value).toString()

const PRE_TOKENIZERS = [
  'gpt-2',
  'smollm',
  'llama-bpe',
  'qwen2',
  'qwen35',
  'tekken',
  'gpt-4o',
  'falcon',
  'deepseek-llm',
  'deepseek-coder',
  'deepseek-v3',
  'default',
]

describe('byte-level', () => {
  test.each(PRE_TOKENIZERS)("%s: the vendor's encoder gives the same ids", (pre) => {
    const json = buildTokenizerJson(toyMetadata(pre))
    const vendor = new Vendor(JSON.parse(json), {})
    const tokenizer = toy(pre)
    fc.assert(
      fc.property(chat, (value) => {
        const expected = value === '' ? [] : vendor.encode(value, { add_special_tokens: false }).ids
        expect([...tokenizer.encode(value, PARSED)]).toEqual(expected)
      }),
      { numRuns: 150 },
    )
  })

  test('decoding gives the text back', () => {
    const tokenizer = toy()
    fc.assert(
      fc.property(chat, (value) => {
        expect(tokenizer.decode(tokenizer.encode(value, PLAIN))).toBe(wellFormed(value))
        expect(tokenizer.decode(tokenizer.encode(value, PARSED), { special: 'keep' })).toBe(wellFormed(value))
      }),
    )
  })

  test('special tokens are parsed or stay text, as asked', () => {
    const tokenizer = toy()
    const value = '<|im_start|>user\nhi<|im_end|>'
    const parsed = [...tokenizer.encode(value, PARSED)]
    expect([parsed[0], parsed.at(-1)]).toEqual([1, 2])
    expect([...tokenizer.encode(value, PLAIN)].filter((id) => tokenizer.isSpecial(id))).toEqual([])
    expect(tokenizer.decode(parsed)).toBe('user\nhi')
    expect(tokenizer.bytesOf(1)).toHaveLength(0)
    expect(tokenizer.spellingOf(1)).toBe('<|im_start|>')
  })

  test('BOS is added once, where the model wants it and where it is asked for', () => {
    const withBos = (value: string, options: Partial<TokenizerOptions> = {}): number[] => [
      ...toy('gpt-2', options).encode(value, { special: 'parse', bos: 'add' }),
    ]
    const plain = [...toy().encode('hi', PLAIN)]
    expect(withBos('hi')).toEqual([1, ...plain])
    expect(withBos('<|im_start|>hi')).toEqual([1, ...plain])
    expect(withBos('')).toEqual([1])
    expect(withBos('hi', { addBos: false })).toEqual(plain)
    expect(withBos('hi', { bosTokenId: undefined })).toEqual(plain)
  })

  test('what is remembered changes nothing, however little fits', () => {
    const plain = toy('smollm', { memoBytes: 0 })
    const memos = [toy('smollm', { memoBytes: 700 }), toy('smollm', { memoBytes: 1_000_000 })]
    fc.assert(
      fc.property(fc.array(text, { maxLength: 8 }), (turns) => {
        let grown = ''
        for (const turn of turns) {
          grown += `<|im_start|>${turn}<|im_end|>\n`
          const expected = plain.encode(grown, PARSED)
          for (const memo of memos) expect(memo.encode(grown, PARSED)).toEqual(expected)
        }
      }),
    )
  })

  test('segments between special tokens do not depend on each other', () => {
    const tokenizer = toy('llama-bpe')
    fc.assert(
      fc.property(text, text, (left, right) => {
        const joined = [...tokenizer.encode(`${left}<|im_end|>${right}`, PARSED)]
        expect(joined).toEqual([...tokenizer.encode(left, PARSED), 2, ...tokenizer.encode(right, PARSED)])
      }),
    )
  })
})

describe('streams', () => {
  const tokenizer = toy()

  function streamed(ids: readonly number[]): string {
    const stream = tokenizer.stream()
    let value = ''
    for (const id of ids) {
      const piece = stream.push(id)
      // Half a character would end in the replacement of what is not complete yet.
      expect(wellFormed(piece)).toBe(piece)
      value += piece
    }
    return value + stream.end()
  }

  test('any ids: the pushes are the whole', () => {
    const id = fc.nat(tokenizer.vocabSize + 2)
    fc.assert(
      fc.property(fc.array(id, { maxLength: 40 }), (ids) => {
        expect(streamed(ids)).toBe(tokenizer.decode(ids))
      }),
    )
  })

  test('any text: no replacement characters, and nothing held without need', () => {
    fc.assert(
      fc.property(text.map(wellFormed), (value) => {
        expect(streamed([...tokenizer.encode(value, PLAIN)])).toBe(value)
      }),
    )
    const stream = tokenizer.stream()
    const [first, ...rest] = tokenizer.encode('😀', PLAIN)
    expect(stream.push(first!)).toBe('')
    expect(rest.map((id) => stream.push(id)).join('')).toBe('😀')
    expect(stream.end()).toBe('')
  })

  test('an incomplete end is one replacement character', () => {
    const stream = tokenizer.stream()
    const ids = [...tokenizer.encode('é', PLAIN)].slice(0, 1)
    expect(stream.push(ids[0]!)).toBe('')
    expect(stream.end()).toBe('\ufffd')
    expect(tokenizer.decode(ids)).toBe('\ufffd')
  })
})

describe('a run without a border', () => {
  // Time that grows with the square would need hours here.
  test.each(['a', 'on', '😀', ' ', '\n', '7', 'A', '我', 'e\u0301', '<|im_', ' x'])('1 MB of %j', (unit) => {
    const value = unit.repeat(1_000_000 / unit.length)
    const tokenizer = toy('smollm')
    expect(tokenizer.decode(tokenizer.encode(value, PARSED))).toHaveLength(value.length)
  })

  test.each(['deepseek-llm', 'qwen2', 'tekken'])('%s: 1 MB of spaces in front of a letter', (pre) => {
    const value = `${' '.repeat(1_000_000)}x`
    const tokenizer = toy(pre)
    expect(tokenizer.decode(tokenizer.encode(value, PLAIN))).toBe(value)
  })
})

describe('SentencePiece', () => {
  const pieces: readonly (readonly [string, number, number])[] = [
    ['<unk>', 0, 2],
    ['<s>', 0, 3],
    ['</s>', 0, 3],
    ...Array.from({ length: 256 }, (_, byte): [string, number, number] => [
      `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`,
      0,
      6,
    ]),
    ...['▁', 'a', 'b', 'c', 'aa', 'ab', 'aaa', '▁a', '▁▁', 'bc', '▁ab', 'é', 'aab', 'abc', 'ca'].map(
      (spelling, i): [string, number, number] => [spelling, -((i * 7) % 15) - 1, 1],
    ),
  ]
  const metadata = (more: object = {}) => ({
    'tokenizer.ggml.model': 'llama',
    'tokenizer.ggml.tokens': pieces.map(([spelling]) => spelling),
    'tokenizer.ggml.scores': pieces.map(([, score]) => score),
    'tokenizer.ggml.token_type': pieces.map(([, , type]) => type),
    'tokenizer.ggml.unknown_token_id': 0,
    ...more,
  })
  const options: TokenizerOptions = { bosTokenId: 1, addBos: true, eosTokenIds: [2], memoBytes: 1000 }
  const tokenizer = createTokenizer(buildTokenizerJson(metadata()), options)
  const idOf = new Map(pieces.map(([spelling], id) => [spelling, id]))
  const spelled = (value: string): string[] =>
    [...tokenizer.encode(value, PARSED)].map((id) => tokenizer.spellingOf(id))

  // Merges the pair that makes the best piece, the leftmost of equals, until there is none.
  function plainly(value: string): number[] {
    const symbols = Array.from(`▁${value.replaceAll(' ', '▁')}`)
    for (;;) {
      let best: number | undefined
      const score = (at: number): number => {
        const id = idOf.get(symbols[at]! + symbols[at + 1]!)
        return id === undefined || pieces[id]![2] !== 1 ? Number.NEGATIVE_INFINITY : pieces[id]![1]
      }
      for (let at = 0; at + 1 < symbols.length; at++) {
        if (score(at) > Number.NEGATIVE_INFINITY && (best === undefined || score(at) > score(best))) best = at
      }
      if (best === undefined) break
      symbols.splice(best, 2, symbols[best]! + symbols[best + 1]!)
    }
    return symbols.flatMap((symbol) => idOf.get(symbol) ?? Array.from(Buffer.from(symbol), (byte) => byte + 3))
  }

  test('merges by score, as a plain loop does', () => {
    const value = fc.string({ unit: fc.constantFrom('a', 'b', 'c', ' ', 'é', 'z', '😀'), minLength: 1, maxLength: 30 })
    fc.assert(
      fc.property(value, (sample) => {
        expect([...tokenizer.encode(sample, PARSED)]).toEqual(plainly(sample))
      }),
      { numRuns: 500 },
    )
  })

  test('every segment gets its own leading space, and decoding takes one away', () => {
    expect(spelled('ab</s>ab')).toEqual(['▁ab', '</s>', '▁ab'])
    const ids = tokenizer.encode('ab c', PARSED)
    expect(tokenizer.decode(ids)).toBe('ab c')
    const stream = tokenizer.stream()
    expect([...ids].map((id) => stream.push(id)).join('') + stream.end()).toBe('ab c')
    expect(Buffer.from(tokenizer.bytesOf(ids[0]!)).toString()).toBe(' ab')
  })

  test('without add_space_prefix there is none', () => {
    const json = buildTokenizerJson(metadata({ 'tokenizer.ggml.add_space_prefix': false }))
    const plain = createTokenizer(json, options)
    const ids = plain.encode(' ab', PARSED)
    expect([...ids].map((id) => plain.spellingOf(id))).toEqual(['▁ab'])
    expect(plain.decode(ids)).toBe(' ab')
  })

  test('characters without a piece are bytes', () => {
    expect(spelled('z')).toEqual(['▁', '<0x7A>'])
    expect(tokenizer.decode(tokenizer.encode('z😀', PARSED))).toBe('z😀')
  })

  test('1 MB without a border', () => {
    for (const unit of ['a', '😀']) {
      const value = unit.repeat(1_000_000 / unit.length)
      expect(tokenizer.decode(tokenizer.encode(value, PARSED))).toBe(value)
    }
  })
})

describe('a tokenizer.json that asks for more is refused by name', () => {
  const json = JSON.parse(buildTokenizerJson(toyMetadata('gpt-2')))
  const create = (more: object) => () =>
    createTokenizer(JSON.stringify({ ...json, ...more }), { addBos: false, eosTokenIds: [], memoBytes: 0 })
  test.each([
    [{ model: { ...json.model, type: 'Unigram' } }, 'Unigram'],
    [{ model: { ...json.model, end_of_word_suffix: '</w>' } }, 'end_of_word_suffix'],
    [{ pre_tokenizer: { type: 'Metaspace' } }, 'Metaspace'],
    [{ pre_tokenizer: { type: 'Split', pattern: { String: ' ' }, behavior: 'Removed', invert: false } }, 'Removed'],
    [{ added_tokens: [{ ...json.added_tokens[0], single_word: true }] }, 'single_word'],
    [{ model: { ...json.model, merges: ['zz zz'] } }, "merge 'zz' \\+ 'zz' is not made of tokens"],
  ])('%#', (more, name) => {
    expect(create(more)).toThrow(new RegExp(name))
  })
})
