import { describe, expect, test } from 'vitest'
import { LIFECYCLES, parseLifecycle } from './lifecycle.js'

describe('a lifecycle policy', () => {
  test('is the standard one where a card says nothing', () => {
    expect(parseLifecycle(undefined)).toBe(LIFECYCLES['standard'])
    expect(parseLifecycle({})).toEqual(LIFECYCLES['standard'])
  })

  test('s08 has the numbers of its chapter', () => {
    expect(parseLifecycle({ preset: 's08' })).toMatchObject({
      snip: { over: 50, first: 3, last: 47 },
      micro: { keep: 3, chars: 120 },
      history: { chars: 50_000 },
      results: { batchChars: 200_000, singleChars: 30_000, previewChars: 2000 },
    })
  })

  test('is a preset with some members changed', () => {
    const policy = parseLifecycle({ preset: 's08', keep: 4, snip: { last: 9 }, next: ['discard-75'] })
    expect(policy).toEqual({
      ...LIFECYCLES['s08'],
      keep: 4,
      snip: { over: 50, first: 3, last: 9 },
      next: ['discard-75'],
    })
  })

  test.each([
    [{ strategy: 'forget' }, /lifecycle\.strategy: there is no 'forget'; known are .*discard-75, .*summary/],
    [{ steps: ['snip', 'x'] }, /lifecycle\.steps\[1\]/],
    [{ next: ['x'] }, /lifecycle\.next\[0\]/],
    [{ keep: 0 }, /lifecycle\.keep/],
    [{ trigger: { share: 2 } }, /lifecycle\.trigger\.share/],
    [{ relief: 0.9 }, /lifecycle\.relief: must be at most/],
    [{ preset: 's09' }, /lifecycle\.preset/],
    [{ colour: 'red' }, /lifecycle/],
    ['s08', /lifecycle/],
  ])('%j is refused', (section, complaint) => {
    expect(() => parseLifecycle(section)).toThrow(complaint)
  })
})
