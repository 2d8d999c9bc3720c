// What tests of constrained output share: a small vocabulary of bytes and awkward tokens, random walks under the masks,
// and whether a grammar takes a given text.

import type { CompiledGrammar, GrammarVocabulary } from '../engine/grammar.js'
import type { Random } from './random.js'

/** Tokens that cross every border that a grammar has: quotes, commas, escapes, characters cut in the middle. */
const AWKWARD = [
  ...[
    '": ',
    '": "',
    '", "',
    '"}',
    '"]',
    '"}]}',
    '{"',
    '["',
    ', ',
    ': ',
    '{}',
    '[]',
    '""',
    'true',
    'false',
    'null',
    'tru',
  ],
  ...[
    '\\u',
    '\\ud',
    '\\u00',
    '\\n',
    '\\"',
    '\\\\',
    'abc',
    'ab',
    'a"',
    'é',
    'éa',
    '世',
    '世界',
    '😀',
    '-1',
    '12',
    '0.',
    '00',
    'e',
  ],
].map((text) => Buffer.from(text))
const CUT = [
  [0xc3],
  [0xa9, 0x61],
  [0xe4, 0xb8],
  [0x96, 0x22],
  [0xf0, 0x9f],
  [0x98, 0x80],
  [0xed, 0xa0],
  [0xff, 0x80],
  [0xe0, 0x80],
]

/** One token for each byte, the awkward ones, then two that are special: the end token is the last. */
export function awkwardVocabulary(): GrammarVocabulary {
  const single = Array.from({ length: 256 }, (_, byte) => Uint8Array.of(byte))
  const tokens = [
    ...single,
    ...AWKWARD,
    ...CUT.map((bytes) => Uint8Array.from(bytes)),
    new Uint8Array(),
    new Uint8Array(),
  ]
  return {
    vocabSize: tokens.length,
    bytesOf: (id) => tokens[id]!,
    eosTokenIds: [tokens.length - 1],
    spellingOf: (id) => (tokens[id]!.length === 0 ? `<|${id}|>` : Buffer.from(tokens[id]!).toString()),
  }
}

export interface Walk {
  readonly bytes: Uint8Array
  /** False: it was given up after `most` tokens. */
  readonly complete: boolean
}

/**
 * Takes allowed tokens at random until nothing but an end token may follow; after a while mostly ones that close
 * something, so that it comes to an end.
 * @throws Error when a mask and `accept` disagree.
 */
export function walk(grammar: CompiledGrammar, vocabulary: GrammarVocabulary, random: Random, most = 400): Walk {
  const matcher = grammar.matcher()
  const taken: Uint8Array[] = []
  while (!matcher.finished && taken.length < most) {
    const mask = matcher.mask()
    if (mask === undefined) throw new Error('no mask before the end')
    const allowed: number[] = []
    for (let id = 0; id < vocabulary.vocabSize; id++) if (((mask[id >> 5] ?? 0) >>> (id & 31)) & 1) allowed.push(id)
    const ends = allowed.filter((id) => vocabulary.eosTokenIds.includes(id))
    const closing =
      taken.length < 12
        ? []
        : allowed.filter((id) => /^["}\]\\]|[0-9]$/.test(Buffer.from(vocabulary.bytesOf(id)).toString('latin1')))
    const pool =
      ends.length > 0 && random.next() < 0.4 ? ends : closing.length > 0 && random.next() < 0.8 ? closing : allowed
    const id = pool[Math.floor(random.next() * pool.length)]!
    if (!matcher.accept(id)) throw new Error(`the mask allows token ${id}, accept refuses it`)
    taken.push(vocabulary.bytesOf(id))
  }
  const complete = matcher.finished
  matcher.dispose()
  return { bytes: Buffer.concat(taken), complete }
}

/** Whether the grammar takes `text` byte by byte and may end there. The first 256 tokens must be the bytes. */
export function takes(grammar: CompiledGrammar, vocabulary: GrammarVocabulary, text: string): boolean {
  const matcher = grammar.matcher()
  const taken = [...Buffer.from(text)].every((byte) => matcher.accept(byte))
  const ends = taken && (matcher.finished || matcher.accept(vocabulary.eosTokenIds[0]!))
  matcher.dispose()
  return ends
}
