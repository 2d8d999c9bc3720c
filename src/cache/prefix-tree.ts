// What is cached, as a tree that can be looked at: blocks joined into runs between branchings, the heaviest runs first, a
// bounded number of them. Invariant: reading is cut into slices, and between two of them the thread is free; what changes
// meanwhile is seen or not, but never an error. Names and counts only, never tokens.
//
//   blocks   a-b-c-d      nodes   [a b] - [c d]
//               \e-f                  \- [e f]

import type { BlockHash, Root, TierName } from '../core/block.js'
import { isOfTenant } from './chain.js'
import type { HeldBlock, PrefixNode, PrefixTree, PrefixTreeAsk } from './contract.js'

/** Blocks between two turns of the event loop: one to two milliseconds. */
const SLICE_BLOCKS = 1024
/** Blocks that are looked at. */
export const READ_BLOCKS = 262_144
/** Stretches of one tier within a node; what is left over counts to the last. */
const TIER_STRETCHES = 16

const SPEED: Readonly<Record<TierName, number>> = { working: 0, memory: 1, disk: 2 }

interface Item {
  readonly hash: BlockHash
  readonly root: Root
  readonly parent: BlockHash | Root
  tier: TierName
  uses: number
  /** The first of its children and, as theirs, the next of its siblings: a list each would be most of the work. */
  child: Item | undefined
  sibling: Item | undefined
  /** Blocks of it and of all that follows. */
  weight: number
}

type Pause = () => Promise<void>

/**
 * The tree of what `sources` yield; a block that comes twice is where it is fastest.
 * `pause` resolves when the thread has done what else it has to do.
 */
export async function readPrefixTree(
  sources: readonly Iterable<HeldBlock>[],
  ask: PrefixTreeAsk,
  pause: Pause,
): Promise<PrefixTree> {
  const turn = slices(pause)
  const { items, complete } = await collect(sources, ask.tenants, turn)
  const { roots, linked } = await link(items, turn)
  return { ...select(roots, ask.nodes), blocks: linked, detachedBlocks: items.size - linked, complete }
}

/** Returns a function that pauses once in a slice. */
function slices(pause: Pause): () => Promise<void> | undefined {
  let count = 0
  return () => (++count % SLICE_BLOCKS === 0 ? pause() : undefined)
}

async function collect(
  sources: readonly Iterable<HeldBlock>[],
  tenants: readonly Root[] | undefined,
  turn: () => Promise<void> | undefined,
) {
  const items = new Map<BlockHash, Item>()
  for (const source of sources) {
    for (const { hash, root, parent, tier, uses } of source) {
      const waits = turn()
      if (waits) await waits
      if (tenants !== undefined && !tenants.some((tenant) => isOfTenant(root, tenant))) continue
      const known = items.get(hash)
      if (known === undefined) {
        if (items.size >= READ_BLOCKS) return { items, complete: false }
        items.set(hash, { hash, root, parent, tier, uses, child: undefined, sibling: undefined, weight: 1 })
      } else {
        if (SPEED[tier] < SPEED[known.tier]) known.tier = tier
        known.uses = Math.max(known.uses, uses)
      }
    }
  }
  return { items, complete: true }
}

/** Joins children to parents and weighs them; what hangs on no root stays unlinked. */
async function link(items: ReadonlyMap<BlockHash, Item>, turn: () => Promise<void> | undefined) {
  const roots: Item[] = []
  for (const item of items.values()) {
    const waits = turn()
    if (waits) await waits
    if (item.parent === item.root) {
      roots.push(item)
      continue
    }
    const parent = items.get(item.parent as BlockHash)
    if (parent === undefined) continue
    item.sibling = parent.child
    parent.child = item
  }
  const order = [...roots]
  // What is added while it is walked is walked too: parents come before their children.
  for (const item of order) {
    const waits = turn()
    if (waits) await waits
    for (let child = item.child; child !== undefined; child = child.sibling) order.push(child)
  }
  for (let i = order.length - 1; i >= 0; i--) {
    const item = order[i] as Item
    for (let child = item.child; child !== undefined; child = child.sibling) item.weight += child.weight
  }
  return { roots, linked: order.length }
}

interface Draft extends Omit<PrefixNode, 'hidden'> {
  readonly hidden: { branches: number; blocks: number }
}

interface Candidate {
  readonly item: Item
  readonly parent: number | undefined
  readonly depth: number
}

/** The heaviest first, each behind its parent. */
function select(roots: readonly Item[], most: number): { readonly nodes: readonly PrefixNode[] } {
  const nodes: Draft[] = []
  let open: Candidate[] = heaviest(roots, most).map((item) => ({ item, parent: undefined, depth: 0 }))
  while (open.length > 0 && nodes.length < most) {
    const best = takeHeaviest(open)
    const { node, last } = runFrom(best)
    const index = nodes.push(node) - 1
    const children = childrenOf(last)
    const shown = heaviest(children, most)
    for (const item of shown) open.push({ item, parent: index, depth: node.depth + node.blocks })
    hide(node, children.length - shown.length, node.below - sum(shown))
    // No more than can still be shown: the rest is looked through once a turn.
    if (open.length > 2 * most) open = leave(nodes, open, most)
  }
  leave(nodes, open, 0)
  return { nodes }
}

/** Takes the heaviest out of `open`, which has one and loses its order. */
function takeHeaviest(open: Candidate[]): Candidate {
  let at = 0
  for (let i = 1; i < open.length; i++) {
    if ((open[i] as Candidate).item.weight > (open[at] as Candidate).item.weight) at = i
  }
  const best = open[at] as Candidate
  const last = open.pop() as Candidate
  if (last !== best) open[at] = last
  return best
}

/** Keeps the heaviest `most` candidates; the others are hidden behind their parents. */
function leave(nodes: readonly Draft[], open: readonly Candidate[], most: number): Candidate[] {
  const ordered = [...open].sort((a, b) => b.item.weight - a.item.weight)
  for (const { item, parent } of ordered.slice(most)) {
    if (parent !== undefined) hide(nodes[parent] as Draft, 1, item.weight)
  }
  return ordered.slice(0, most)
}

function childrenOf(item: Item): Item[] {
  const children: Item[] = []
  for (let child = item.child; child !== undefined; child = child.sibling) children.push(child)
  return children.reverse()
}

function heaviest(items: readonly Item[], most: number): readonly Item[] {
  if (items.length <= most) return items
  return [...items].sort((a, b) => b.weight - a.weight).slice(0, most)
}

function sum(items: readonly Item[]): number {
  return items.reduce((total, { weight }) => total + weight, 0)
}

function hide({ hidden }: Draft, branches: number, blocks: number): void {
  hidden.branches += branches
  hidden.blocks += blocks
}

/** The blocks from the candidate on to the next branching. */
function runFrom({ item, parent, depth }: Candidate): { node: Draft; last: Item } {
  const tiers: { tier: TierName; blocks: number }[] = []
  let last = item
  let blocks = 0
  for (let at: Item | undefined = item; at !== undefined; at = at.child?.sibling === undefined ? at.child : undefined) {
    const stretch = tiers.at(-1)
    if (stretch !== undefined && (stretch.tier === at.tier || tiers.length === TIER_STRETCHES)) stretch.blocks++
    else tiers.push({ tier: at.tier, blocks: 1 })
    blocks++
    last = at
  }
  const { hash, root, uses, weight } = item
  const node: Draft = {
    ...{ hash, root, depth, blocks, tiers, uses },
    below: weight - blocks,
    hidden: { branches: 0, blocks: 0 },
    ...(parent !== undefined && { parent }),
  }
  return { node, last }
}
