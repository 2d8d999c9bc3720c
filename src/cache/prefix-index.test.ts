// What the index finds, counts, forgets and refuses.

import { beforeEach, describe, expect, test } from 'vitest'
import { toyPrompt, toyRoot, toyTokens } from '../testing/toy-blocks.js'
import { type Entry, PrefixIndex } from './prefix-index.js'

const { chain, tokens } = toyPrompt([1, 2, 3])
const names = chain.hashes.map((hash, i) => ({
  hash,
  parent: i === 0 ? chain.root : chain.hashes[i - 1]!,
  tokens: tokens.subarray(64 * i, 64 * (i + 1)),
}))

let index: PrefixIndex
beforeEach(() => {
  index = new PrefixIndex()
})

function placed(i: number, slot = i): Entry {
  const { hash, parent, tokens } = names[i]!
  const entry = index.name(hash, chain.root, parent, tokens)
  index.placeInMemory(entry, slot)
  return entry
}

describe('find', () => {
  test('gives what a tier holds under the same root and tokens', () => {
    const entry = placed(0)
    expect(index.find(entry.hash, chain.root, tokens, 0)).toBe(entry)
    expect(index.find(chain.hashes[1]!, chain.root, tokens, 64)).toBeUndefined()
  })

  test('takes equal hashes of other tokens or another root for a collision', () => {
    const entry = placed(0)
    const other = toyTokens([1])
    other[63]!++
    expect(index.find(entry.hash, chain.root, other, 0)).toBe('collision')
    expect(index.find(entry.hash, toyRoot('other'), tokens, 0)).toBe('collision')
  })

  test('does not give an entry that only a child needs', () => {
    placed(1)
    expect(index.get(chain.hashes[0]!)).toBeDefined()
    expect(index.find(chain.hashes[0]!, chain.root, tokens, 0)).toBeUndefined()
  })
})

describe('children', () => {
  test('are counted by tier, also when the parent comes after them', () => {
    placed(1)
    const parent = placed(0)
    expect(parent.memoryChildren).toBe(1)
    index.placeInStore(index.get(chain.hashes[1]!)!)
    expect(parent.storedChildren).toBe(1)
    index.leaveMemory(index.get(chain.hashes[1]!)!)
    expect(parent).toMatchObject({ memoryChildren: 0, storedChildren: 1 })
    index.leaveStore(index.get(chain.hashes[1]!)!)
    expect(parent).toMatchObject({ memoryChildren: 0, storedChildren: 0 })
  })

  test('survive their parent, which survives as long as they do', () => {
    const [parent, child] = [placed(0), placed(1)]
    index.leaveMemory(parent)
    expect(index.get(parent.hash)).toBe(parent)
    index.leaveMemory(child)
    expect(index.size).toBe(0)
  })
})

describe('entries', () => {
  test('go when nothing needs them', () => {
    const entry = placed(0)
    index.hold(entry)
    index.pin(entry)
    index.leaveMemory(entry)
    index.unhold(entry)
    expect(index.get(entry.hash)).toBe(entry)
    expect(index.pinnedBlocks).toBe(1)
    index.unpin(entry)
    expect(index.size).toBe(0)
    expect(index.pinnedBlocks).toBe(0)
  })

  test('refuse what would be somebody else’s undoing', () => {
    const entry = placed(0)
    expect(() => index.unhold(entry)).toThrow('not held')
    expect(() => index.unpin(entry)).toThrow('not pinned')
    expect(() => index.placeInMemory(entry, 9)).toThrow('already')
    index.leaveMemory(entry)
    expect(() => index.leaveMemory(entry)).toThrow('not in memory')
  })
})

test('a use leaves a trunk fresher than its leaves, and keeps the most urgent class', () => {
  const entries = [placed(0), placed(1), placed(2)]
  index.touch(entries, 'auxiliary', 5)
  const ticks = entries.map(({ usedTick }) => usedTick)
  expect(ticks).toEqual([...ticks].sort((a, b) => b - a))
  index.touch(entries, 'interactive', 6)
  index.touch(entries, 'background', 7)
  expect(entries.every(({ priority, usedAt, uses }) => priority === 'interactive' && usedAt === 7 && uses === 3)).toBe(
    true,
  )
})
