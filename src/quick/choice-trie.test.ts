// The tree of choices: shared tokens once, last tokens not at all.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { choiceTrie } from './choice-trie.js'

const trieOf = (...choices: number[][]) => choiceTrie(choices.map((ids) => Int32Array.from(ids)))

describe('a trie', () => {
  test('of single tokens has no nodes', () => {
    const { ids, paths } = trieOf([1], [2], [3])
    expect(ids).toEqual([])
    expect(paths).toEqual([1, 2, 3].map((id) => [{ node: -1, id }]))
  })

  test('shares what choices have in common', () => {
    const { ids, parents, paths } = trieOf([5], [1, 2], [1, 3, 4])
    expect(ids).toEqual([1, 3])
    expect(parents).toEqual([-1, 0])
    expect(paths[2]).toEqual([
      { node: -1, id: 1 },
      { node: 0, id: 3 },
      { node: 1, id: 4 },
    ])
  })

  test.each([
    [[1], [1, 2]],
    [[1, 2], [1]],
    [[7], [7]],
  ])('refuses a choice that begins with another: %j %j', (a, b) => {
    expect(() => trieOf(a, b)).toThrow('begins with')
  })

  test('says every choice again, with as many nodes as there are distinct beginnings', () => {
    const word = fc.array(fc.integer({ min: 0, max: 3 }), { minLength: 0, maxLength: 5 })
    fc.assert(
      fc.property(fc.uniqueArray(word, { maxLength: 12, selector: String, minLength: 1 }), (words) => {
        // A last token of its own keeps any word from being the beginning of another.
        const choices = words.map((ids) => [...ids, 9])
        const { ids, parents, paths } = trieOf(...choices)
        expect(paths.map((path) => path.map(({ id }) => id))).toEqual(choices)
        const beginnings = new Set(choices.flatMap((ids) => ids.slice(0, -1).map((_, i) => ids.slice(0, i + 1).join())))
        expect(ids.length).toBe(beginnings.size)
        expect(parents.every((parent, i) => parent < i)).toBe(true)
      }),
      { numRuns: 200 },
    )
  })
})
