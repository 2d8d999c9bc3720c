// A prompt of pieces has the same tokens whatever prompts came before it: turns that grow, branch, lose pieces or have
// others in the middle.

import fc from 'fast-check'
import { expect, test } from 'vitest'
import { createScriptedTokenizer } from '../backend/scripted-tokenizer.js'
import { PieceMemo } from './piece-memo.js'
import { encodePieces, type PromptPiece } from './splice.js'

const options = { special: 'parse', bos: 'none' } as const
const made = () => createScriptedTokenizer({ end: '<end>', specials: ['<a>'] })

const piece: fc.Arbitrary<PromptPiece> = fc.oneof(
  fc
    .record({ word: fc.constantFrom('on', 'the <a>', 'way<end>'), times: fc.integer({ min: 1, max: 9000 }) })
    .map(({ word, times }) => ({ kind: 'text', text: word.repeat(times), at: 0, until: 0 }) as const),
  fc
    .array(fc.integer({ min: 1, max: 9 }), { minLength: 1, maxLength: 4 })
    .map((ids) => ({ kind: 'ids', ids: Int32Array.from(ids) }) as const),
)
const turn = fc.record({ keep: fc.nat({ max: 12 }), more: fc.array(piece, { minLength: 1, maxLength: 4 }) })

test('gives what encoding all of it gives', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(turn, { maxLength: 8 }), async (turns) => {
      const tokenizer = made()
      let pieces: PromptPiece[] = []
      for (const { keep, more } of turns) {
        pieces = [...structuredClone(pieces.slice(0, keep)), ...more]
        const known = await encodePieces(pieces, { tokenizer, options })
        const fresh = await encodePieces(pieces, { tokenizer: made(), options })
        expect(known.tokens.length).toBe(fresh.tokens.length)
        expect(known.tokens.findIndex((id, i) => id !== fresh.tokens[i])).toBe(-1)
      }
    }),
    { numRuns: 25 },
  )
})

test('takes over what is the same from the start, and forgets what was used least', () => {
  const memo = new PieceMemo()
  const text = (name: string): PromptPiece => ({ kind: 'text', text: name.repeat(1_000_000), at: 0, until: 0 })
  const keep = (...names: string[]) => {
    const pieces = names.map(text)
    const known = memo.start('k', pieces)
    const ends = names.map((_, i) => (i + 1) * 1_000_000)
    memo.keep('k', pieces, { ...known, tokens: new Int32Array(names.length * 1_000_000), ends })
    return known.ends.length
  }
  expect([keep('a', 'b'), keep('a', 'b', 'c'), keep('x'), keep('a', 'b', 'd')]).toEqual([0, 2, 0, 2])
  expect(memo.start('other', ['a', 'b'].map(text)).ends).toEqual([])
  // 6 MB a piece: the three that stand now, and no more than one of them beside the next.
  expect(keep('p', 'q', 'r', 's')).toBe(0)
  expect(memo.start('k', [text('x')]).ends).toEqual([])
  expect(memo.start('k', ['p', 'q'].map(text)).ends).toHaveLength(2)
})
