// Structures against a plain matcher of the same: what the grammar takes is what the structure says, whole texts and
// random walks, on a small vocabulary and, where its weights were pulled, on SmolLM2's. Special tokens that show.

import fc from 'fast-check'
import { afterAll, describe, expect, test } from 'vitest'
import type { Structure } from '../core/request.js'
import { awkwardVocabulary, takes, walk } from '../testing/grammar-walk.js'
import { seeded } from '../testing/random.js'
import { createGrammars, GRAMMAR_LIMITS, type GrammarVocabulary } from './grammar.js'
import { jsonText } from './grammar-json.js'

const vocabulary = awkwardVocabulary()
const grammars = createGrammars(vocabulary, { ...GRAMMAR_LIMITS, compileMs: 60_000 })
afterAll(() => grammars.close())

const compile = (structure: Structure) => grammars.compile({ kind: 'structure', structure })

/** Where a match that begins at `from` may end. */
function endsOf(structure: Structure, text: string, from: number): ReadonlySet<number> {
  const rest = Array.from({ length: text.length - from + 1 }, (_, i) => from + i)
  const where = (fits: (part: string) => boolean) => new Set(rest.filter((end) => fits(text.slice(from, end))))
  const after = (ends: Iterable<number>, next: Structure) =>
    new Set([...ends].flatMap((end) => [...endsOf(next, text, end)]))
  switch (structure.kind) {
    case 'literal':
      return text.startsWith(structure.text, from) ? new Set([from + structure.text.length]) : new Set()
    case 'regex':
      return where((part) => new RegExp(`^(?:${structure.regex})$`, 'su').test(part))
    case 'json':
      return where((part) => /^\{.*\}$/su.test(part) && isOurJson(part))
    case 'json-schema':
      throw new Error('grammar-schema.test.ts looks at schemas')
    case 'free':
      return where((part) => !structure.without.some((each) => part.includes(each)))
    case 'until': {
      const at = text.indexOf(structure.stop, from)
      return at < 0 ? new Set() : new Set([at + structure.stop.length])
    }
    case 'sequence':
      return structure.parts.reduce<ReadonlySet<number>>(after, new Set([from]))
    case 'choice':
      return new Set(structure.parts.flatMap((part) => [...endsOf(part, text, from)]))
    case 'repeat': {
      const { part, min, max = text.length + 2, separator = '' } = structure
      const found = new Set<number>(min === 0 ? [from] : [])
      let ends: ReadonlySet<number> = new Set([from])
      for (let count = 1; count <= max && ends.size > 0; count++) {
        const begun = count === 1 ? ends : after(ends, { kind: 'literal', text: separator })
        ends = after(begun, part)
        if (count >= min) for (const end of ends) found.add(end)
      }
      return found
    }
  }
}

function isOurJson(text: string): boolean {
  try {
    return jsonText(JSON.parse(text)) === text
  } catch {
    // Not JSON, then.
    return false
  }
}

const matches = (structure: Structure, text: string) => endsOf(structure, text, 0).has(text.length)

const word = (maxLength: number, minLength = 0) =>
  fc.string({ unit: fc.constantFrom('a', 'b', '<', 'é', '世'), minLength, maxLength })

const structures = fc.letrec<{ any: Structure; flat: Structure; deep: Structure }>((tie) => ({
  flat: fc.oneof(
    fc.record({ kind: fc.constant('literal' as const), text: word(3) }),
    fc.record({ kind: fc.constant('regex' as const), regex: fc.constantFrom('a|b', '[ab]{1,2}', 'é?<', '[^a]') }),
    fc.record({
      kind: fc.constant('free' as const),
      without: fc.array(word(3, 1), { maxLength: 2 }),
    }),
    fc.record({ kind: fc.constant('until' as const), stop: word(3, 1) }),
  ),
  deep: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    tie('flat'),
    fc.record({ kind: fc.constant('sequence' as const), parts: fc.array(tie('any'), { maxLength: 3 }) }),
    fc.record({ kind: fc.constant('choice' as const), parts: fc.array(tie('any'), { minLength: 1, maxLength: 3 }) }),
    fc
      .record({
        kind: fc.constant('repeat' as const),
        // What matches nothing would be repeated without end.
        part: fc.record({
          kind: fc.constant('sequence' as const),
          parts: fc.tuple(fc.constant<Structure>({ kind: 'literal', text: 'b' }), tie('any')),
        }),
        min: fc.nat(2),
        max: fc.constantFrom(2, 3, undefined),
        separator: fc.constantFrom('', 'a', '<'),
      })
      .map(({ max, ...rest }): Structure => (max === undefined ? rest : { ...rest, max })),
  ),
  any: tie('deep'),
}))

describe('a structure', () => {
  test('takes what a plain matcher takes, and walks stay inside', async () => {
    await fc.assert(
      fc.asyncProperty(
        structures.any,
        fc.array(word(6), { minLength: 4, maxLength: 8 }),
        fc.nat(),
        async (structure, texts, seed) => {
          const grammar = await compile(structure)
          for (const text of texts)
            expect(takes(grammar, vocabulary, text), JSON.stringify(text)).toBe(matches(structure, text))
          const { bytes, complete } = walk(grammar, vocabulary, seeded(seed), 20)
          const text = bytes.toString()
          // Free text may have broken characters, which the plain matcher cannot see.
          if (complete && !text.includes('\ufffd')) expect(matches(structure, text), JSON.stringify(text)).toBe(true)
        },
      ),
      { numRuns: 40 },
    )
  }, 60_000)

  test('free text in front of what it is kept from', async () => {
    const texts = fc.array(fc.string({ unit: fc.constantFrom('a', '<', '<t', '<t>', '!', 'é'), maxLength: 6 }), {
      minLength: 6,
      maxLength: 6,
    })
    const call: Structure = { kind: 'literal', text: '<t>!' }
    const repeated: Structure = { kind: 'repeat', part: call, min: 1, separator: '<' }
    const behind: Structure[] = [call, repeated, { kind: 'repeat', part: repeated, min: 0, max: 1 }]
    for (const [i, next] of behind.entries()) {
      const structure: Structure = { kind: 'sequence', parts: [{ kind: 'free', without: ['<t>'] }, next] }
      const grammar = await compile(structure)
      await fc.assert(
        fc.asyncProperty(texts, async (all) => {
          for (const text of all) {
            expect(takes(grammar, vocabulary, text), JSON.stringify(text)).toBe(matches(structure, text))
            const called = `${text}<t>!`
            expect(takes(grammar, vocabulary, called), called).toBe(matches(structure, called))
          }
        }),
        { numRuns: 60, seed: i },
      )
    }
  })

  test.each<[Structure, string[], string[]]>([
    [{ kind: 'json' }, ['{}', '{"a": [1, {"b": null}]}'], ['[]', '1', '{"a":1}', '']],
    [{ kind: 'sequence', parts: [] }, [''], ['a']],
    [{ kind: 'repeat', part: { kind: 'literal', text: 'a' }, min: 0, max: 0 }, [''], ['a']],
    [{ kind: 'free', without: [] }, ['', 'a"\n\u0001'], []],
    [{ kind: 'literal', text: 'a"\\\n\u001b é😀' }, ['a"\\\n\u001b é😀'], ['a']],
    [
      {
        kind: 'choice',
        parts: [
          { kind: 'json-schema', schema: '{"type": "string", "maxLength": 3}' },
          { kind: 'json-schema', schema: '{"type": "integer", "maximum": 12}' },
        ],
      },
      ['"abc"', '12', '-4'],
      ['"abcd"', '13', '"ab'],
    ],
  ])('%j', async (structure, yes, no) => {
    const grammar = await compile(structure)
    for (const text of yes) expect(takes(grammar, vocabulary, text), text).toBe(true)
    for (const text of no) expect(takes(grammar, vocabulary, text), text).toBe(false)
  })

  test('bytes that are no character stand in free text alone', async () => {
    for (const kind of [
      { kind: 'free', without: ['é'] },
      { kind: 'until', stop: 'é' },
    ] as const) {
      const matcher = (await compile(kind)).matcher()
      expect([0xff, 0xc3, 0x61].map((id) => matcher.accept(id))).toEqual([true, true, true])
    }
  })
})

describe('schemas', () => {
  const odd = '{"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)"}}}'
  const call = (schema: string, more: object): Structure => ({
    kind: 'sequence',
    parts: [
      { kind: 'literal', text: 'f(' },
      { kind: 'json-schema', schema, ...more },
      { kind: 'literal', text: ')' },
    ],
  })

  test('what cannot be written is any JSON where it is lenient, and refused by its field where not', async () => {
    const grammar = await compile(call(odd, { lenient: true }))
    expect(takes(grammar, vocabulary, 'f({"b": 1})')).toBe(true)
    expect(takes(grammar, vocabulary, 'f([])')).toBe(false)
    const value = await compile(call('{"pattern": "(?=x)"}', { lenient: true }))
    expect(takes(value, vocabulary, 'f([])')).toBe(true)
    await expect(compile(call(odd, { param: 'tools[3]' }))).rejects.toMatchObject({
      code: 'invalid_grammar',
      param: 'tools[3]',
      message: expect.stringContaining('looking ahead'),
    })
    await expect(compile(call('{', {}))).rejects.toMatchObject({ code: 'invalid_grammar', param: 'response_format' })
  })

  test('a lenient one that can be written is kept to, until all of them are too much', async () => {
    const bounds = (count: number, from: number) =>
      Array.from({ length: count }, (_, i) => ({ type: 'string', maxLength: from + i }))
    const many = (count: number): Structure => ({
      kind: 'choice',
      parts: [0, 1].map((half) =>
        call(JSON.stringify({ type: 'array', prefixItems: bounds(count, 3 + 100 * half), items: false }), {
          lenient: true,
        }),
      ),
    })
    const few = await compile(many(2))
    expect(takes(few, vocabulary, 'f(["abc"])')).toBe(true)
    expect(takes(few, vocabulary, 'f([1])')).toBe(false)
    // More different bounds than one grammar can count.
    expect(takes(await compile(many(40)), vocabulary, 'f([1])')).toBe(true)
  })

  test('what is too much to compile gives way too, or is refused by the field of its schemas', async () => {
    const small = createGrammars(vocabulary, { ...GRAMMAR_LIMITS, grammarBytes: 17 * 1024 * 1024 })
    const big = JSON.stringify({ enum: Array.from({ length: 12_000 }, (_, i) => `value ${i * 7919}`) })
    const grammar = await small.compile({ kind: 'structure', structure: call(big, { lenient: true }) })
    expect(takes(grammar, vocabulary, 'f({"b": 1})')).toBe(true)
    const strict = small.compile({ kind: 'structure', structure: call(big, { param: 'tools' }) })
    await expect(strict).rejects.toMatchObject({ code: 'invalid_grammar', param: 'tools' })
    await small.close()
  })

  test.each<[Structure, string]>([
    [{ kind: 'choice', parts: [] }, 'nothing'],
    [{ kind: 'free', without: ['a', ''] }, 'empty text'],
    [{ kind: 'literal', text: 'a\0' }, 'NUL'],
    [{ kind: 'regex', regex: '(?=a)' }, 'looking ahead'],
    [{ kind: 'regex', regex: 'a'.repeat(70_000) }, 'longer than'],
  ])('%j is refused', async (structure, words) => {
    await expect(compile(structure)).rejects.toThrow(words)
  })
})

describe('special tokens that show', () => {
  const [END] = vocabulary.eosTokenIds as [number]
  const [open, close] = [END + 1, END + 2]
  const spelled: GrammarVocabulary = {
    vocabSize: END + 3,
    eosTokenIds: [END],
    bytesOf: (id) => (id > END ? new Uint8Array() : vocabulary.bytesOf(id)),
    spellingOf: (id) => (id === open ? '<|open|>' : id === close ? '<｜close｜>' : '<|end|>'),
  }
  const structure: Structure = {
    kind: 'sequence',
    parts: [
      { kind: 'free', without: ['<|open|>'] },
      { kind: 'literal', text: '<|open|>call<｜close｜>' },
    ],
  }

  test('stand for their text beside plain tokens, and only there', async () => {
    const own = createGrammars(spelled, GRAMMAR_LIMITS)
    const plainIds = (text: string) => [...Buffer.from(text)]
    const runs = async (visible: readonly number[], ids: readonly number[]) => {
      const matcher = (await own.compile({ kind: 'structure', structure }, visible)).matcher()
      return ids.every((id) => matcher.accept(id)) && matcher.finished
    }
    const both = [open, close, END]
    expect(await runs(both, [...plainIds('so: '), open, ...plainIds('call'), close])).toBe(true)
    expect(await runs(both, plainIds('<|open|>call<｜close｜>'))).toBe(true)
    expect(await runs(both, [open, ...plainIds('call<｜close｜>')])).toBe(true)
    expect(await runs(both, [close, ...plainIds('<|open|>call'), close])).toBe(true)
    expect(await runs(both, [open, open])).toBe(false)
    expect(await runs([], [open, ...plainIds('call'), close])).toBe(false)
    expect(await runs([], plainIds('<|open|>call<｜close｜>'))).toBe(true)
    await own.close()
  })

  test('the end token ends, though it is named among them', async () => {
    const own = createGrammars(spelled, GRAMMAR_LIMITS)
    const matcher = (
      await own.compile({ kind: 'structure', structure: { kind: 'free', without: [] } }, [open, END])
    ).matcher()
    expect(matcher.accept(open)).toBe(true)
    expect(matcher.accept(END)).toBe(true)
    expect(matcher.finished).toBe(true)
    await own.close()
  })
})
