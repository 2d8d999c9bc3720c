// The tree of what is cached: what is shared stands once, the heaviest is shown, tenants' roots stay apart, and reading
// gives the thread back.

import { expect, test } from 'vitest'
import type { BlockHash, Root, TierName } from '../core/block.js'
import { serve, straightPrompt } from '../testing/toy-blocks.js'
import type { HeldBlock } from './contract.js'
import { openKvCache } from './kv-cache.js'
import { readPrefixTree } from './prefix-tree.js'

const root = 'r'.repeat(32) as Root
const atOnce = async () => undefined

/** `abc` is the block c behind b behind a. */
function block(path: string, more: Partial<HeldBlock> = {}): HeldBlock {
  const parent = (path.length === 1 ? (more.root ?? root) : path.slice(0, -1)) as BlockHash
  return { hash: path as BlockHash, root, parent, tier: 'memory', uses: 1, ...more }
}
const chain = (path: string, tier: TierName = 'memory') =>
  [...path].map((_, i) => block(path.slice(0, i + 1), { tier, uses: path.length - i }))

test('what is shared is one node, with what follows it behind', async () => {
  const tree = await readPrefixTree([[...chain('abcd'), ...chain('abef').slice(2)]], { nodes: 10 }, atOnce)
  expect(tree).toMatchObject({ blocks: 6, detachedBlocks: 0, complete: true })
  expect(tree.nodes.map(({ hash, parent, depth, blocks, below }) => ({ hash, parent, depth, blocks, below }))).toEqual([
    { hash: 'a', parent: undefined, depth: 0, blocks: 2, below: 4 },
    { hash: 'abc', parent: 0, depth: 2, blocks: 2, below: 0 },
    { hash: 'abe', parent: 0, depth: 2, blocks: 2, below: 0 },
  ])
})

test('a block is where it is fastest, and stretches are in order', async () => {
  const disk = chain('abcde', 'disk')
  const tree = await readPrefixTree([disk, chain('abc'), chain('a', 'working')], { nodes: 10 }, atOnce)
  expect(tree.nodes[0]?.tiers).toEqual([
    { tier: 'working', blocks: 1 },
    { tier: 'memory', blocks: 2 },
    { tier: 'disk', blocks: 2 },
  ])
  expect(tree.nodes[0]?.uses).toBe(5)
})

test('more than can be shown is counted behind its parent, the lightest first', async () => {
  const branches = [...'bcdefghij'].flatMap((letter, i) => chain(`a${letter}${'z'.repeat(i)}`).slice(1))
  const tree = await readPrefixTree([[...chain('a'), ...branches]], { nodes: 3 }, atOnce)
  expect(tree.nodes.map(({ hash }) => hash)).toEqual(['a', 'aj', 'ai'])
  expect(tree.nodes[0]?.hidden).toEqual({ branches: 7, blocks: 1 + 2 + 3 + 4 + 5 + 6 + 7 })
  const shown = tree.nodes.reduce((sum, { blocks }) => sum + blocks, 0)
  expect(shown + (tree.nodes[0]?.hidden.blocks ?? 0)).toBe(tree.blocks)
})

test('asked for some tenants, others are not in it, salts of theirs are', async () => {
  const other = 's'.repeat(32) as Root
  const theirs = [block('x', { root: other }), block('xy', { root: other })]
  const salted = `${'r'.repeat(16)}${'t'.repeat(16)}` as Root
  const own = await readPrefixTree(
    [[...chain('ab'), ...theirs, block('p', { root: salted })]],
    { nodes: 10, tenants: [root] },
    atOnce,
  )
  expect(own.nodes.map((node) => node.root)).toEqual([root, salted])
  expect(own.blocks).toBe(3)
  const all = await readPrefixTree([[...chain('ab'), ...theirs]], { nodes: 10 }, atOnce)
  expect(all.nodes.map((node) => node.root).sort()).toEqual([root, other])
})

test('what hangs on nothing is counted, not shown', async () => {
  const tree = await readPrefixTree([[...chain('ab'), block('qrs')]], { nodes: 10 }, atOnce)
  expect(tree).toMatchObject({ blocks: 2, detachedBlocks: 1 })
})

test('the thread is given back between slices, and what comes meanwhile is no fault', async () => {
  const many = Array.from({ length: 10_000 }, (_, i) => block(String.fromCodePoint(0x4e00 + i)))
  const source = [...many]
  let pauses = 0
  const tree = await readPrefixTree([source], { nodes: 5 }, async () => {
    pauses++
    if (pauses < 3) source.push(block(String.fromCodePoint(0x3041 + pauses)))
  })
  expect(pauses).toBeGreaterThan(8)
  expect(tree.nodes).toHaveLength(5)
  expect(tree.blocks).toBe(10_002)
})

test('the cache yields what its tiers hold', async () => {
  const cache = await openKvCache({ blockBytes: 64, memoryBytes: 64 * 100 })
  const prompt = straightPrompt(1, 3)
  await serve(cache, prompt)
  const tree = await readPrefixTree([cache.blocks()], { nodes: 10 }, atOnce)
  expect(tree.nodes).toMatchObject([
    { hash: prompt.chain.hashes[0], blocks: 3, tiers: [{ tier: 'memory', blocks: 3 }] },
  ])
  await cache.close()
})
