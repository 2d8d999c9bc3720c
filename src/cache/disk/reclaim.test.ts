// Which segment goes, and what of it is copied.

import { describe, expect, test } from 'vitest'
import type { BlockHash, Root } from '../../core/block.js'
import { chooseReclaim } from './reclaim.js'
import { Segment } from './segment.js'

const FILE = {
  read: async () => 0,
  write: async () => undefined,
  truncate: async () => undefined,
  size: async () => 0,
  sync: async () => undefined,
  close: async () => undefined,
}

/** A segment with one live record per name; `w3` is worth 3, `p` is pinned, `c` is worth nothing. */
function segment(sequence: number, names: string[]): Segment {
  const header = { blockBytes: 84, sequence, id: '00', createdAt: 0 }
  const made = new Segment(`/${sequence}`, header, FILE, 64 + 500 * names.length)
  for (const [number, name] of names.entries()) {
    made.live.set(number, { segment: made, number, hash: name as BlockHash, root: '' as Root, parent: '' as Root })
  }
  return made
}

const worth = (hash: string) =>
  hash[0] === 'p' ? Number.POSITIVE_INFINITY : hash[0] === 'w' ? Number(hash.slice(1)) : 0
const choose = (segments: Segment[], limit = 2) => {
  const choice = chooseReclaim(segments, worth, limit)
  return choice && { path: choice.segment.path, copies: choice.copies.map(({ hash }) => hash as string) }
}

describe('chooseReclaim', () => {
  test('takes the segment with the fewest blocks worth keeping, the oldest of equals', () => {
    const segments = [
      segment(3, ['c', 'c', 'w1', 'c']),
      segment(2, ['w9', 'c', 'c', 'c']),
      segment(1, ['w1', 'w2', 'c', 'c']),
    ]
    expect(choose(segments)).toEqual({ path: '/2', copies: ['w9'] })
  })

  test('looks no further into a segment than where it cannot be the one', () => {
    let asked = 0
    const counting = (hash: string) => {
      asked++
      return worth(hash)
    }
    const many = Array.from({ length: 1000 }, () => 'w1')
    const choice = chooseReclaim([segment(1, ['w1', 'c']), segment(2, many), segment(3, ['c', 'c'])], counting, 2)
    expect([choice?.segment.path, asked]).toEqual(['/3', 2 + 1 + 2])
  })

  test('copies the most worth first, at most half of what the segment has', () => {
    expect(choose([segment(1, ['w1', 'w3', 'w2', 'c'])], 9)).toEqual({ path: '/1', copies: ['w3', 'w2'] })
    expect(choose([segment(1, ['w1', 'w3', 'p', 'w2'])])).toEqual({ path: '/1', copies: ['p', 'w3'] })
  })

  test('never gives up what is pinned', () => {
    expect(choose([segment(1, ['p', 'p', 'p', 'c']), segment(2, ['w1', 'w2', 'w3', 'w4'])])!.path).toBe('/2')
    expect(choose([segment(1, ['p', 'p', 'p', 'c'])])).toBeUndefined()
    expect(choose([segment(1, ['p'])])).toBeUndefined()
    expect(choose([])).toBeUndefined()
  })
})
