// The tree of what is cached, as one viewer sees it: tokens in place of blocks, names that can't be turned back into
// prompts, and the sessions whose last prompts go through each node.

import { hash as digest, randomBytes } from 'node:crypto'
import type { PrefixNode, PrefixTree } from '../cache/contract.js'
import { BLOCK_TOKENS, type Chain, type Root } from '../core/block.js'
import type { TreeNode, TreePage } from './contract.js'

/** Sessions of a node that are named. */
const NAMES = 6

/** A session's last prompt. */
export interface SessionPrefix {
  readonly session: string
  readonly tenant: string
  readonly chain: Chain
}

export interface TreeViewParts {
  readonly prefixes: Iterable<SessionPrefix>
  /** Undefined: whose a root is is not shown. */
  readonly ownersOf: ((root: Root) => readonly string[]) | undefined
  readonly at: number
}

/** A hash of a short known text could be tried out; under the process's own key, in front of names of one length, it can't. */
const secret = randomBytes(32).toString('hex')
const nameOf = (hash: string) => digest('sha256', secret + hash, 'hex').slice(0, 16)

export function treeView(tree: PrefixTree, { prefixes, ownersOf, at }: TreeViewParts): TreePage {
  const byHash = new Map<string, { readonly node: PrefixNode; readonly sessions: string[]; count: number }>(
    tree.nodes.map((node) => [node.hash, { node, sessions: [], count: 0 }]),
  )
  for (const { session, chain } of prefixes) {
    for (let i = 0; i < chain.hashes.length; ) {
      const found = byHash.get(chain.hashes[i] as string)
      if (found === undefined) break
      found.count++
      if (found.sessions.length < NAMES) found.sessions.push(session)
      i += found.node.blocks
    }
  }
  const ids = tree.nodes.map(({ hash }) => nameOf(hash))
  const nodes = tree.nodes.map((node, i): TreeNode => {
    const { parent, tiers, hidden } = node
    const { count, sessions } = byHash.get(node.hash) ?? { count: 0, sessions: [] }
    const owners = parent === undefined ? ownersOf?.(node.root) : undefined
    return {
      id: ids[i] as string,
      ...(parent !== undefined && { parent: ids[parent] as string }),
      ...(owners?.[0] !== undefined && { tenant: owners.join(', ') }),
      from: node.depth * BLOCK_TOKENS,
      tokens: node.blocks * BLOCK_TOKENS,
      tiers: tiers.map(({ tier, blocks }) => ({ tier, tokens: blocks * BLOCK_TOKENS })),
      uses: node.uses,
      belowTokens: node.below * BLOCK_TOKENS,
      hidden: { branches: hidden.branches, tokens: hidden.blocks * BLOCK_TOKENS },
      sessions: count,
      names: sessions,
    }
  })
  const tokens = tree.blocks * BLOCK_TOKENS
  return { at, nodes, tokens, detachedTokens: tree.detachedBlocks * BLOCK_TOKENS, complete: tree.complete }
}
