// A trace's prompts as the cache sees them: chains of 64-token blocks. Invariant: two requests share a block exactly where
// all block names up to it are the same and their scope is; every node is hashed once, as the server hashes tokens.
//
//   trace: 512 | 512 | part      a name of 512 tokens stands for eight blocks, and only full blocks count
//   here:  64 64 64 64 64 64 64 64 | 64 ...

import { nextHash } from '../cache/chain.js'
import { BLOCK_TOKENS, type BlockHash, type Root } from '../core/block.js'
import { UsageError } from '../core/usage-error.js'
import type { Trace, TraceRequest } from '../trace/trace.js'

/** What stands in the tokens of a block to tell it from others; the rest are zeros. */
export const NAME_TOKENS = 4

export interface SimulatedRequest {
  /** Seconds. */
  readonly at: number
  /** Different where the conversations are; undefined: the trace names none. */
  readonly session: string | undefined
  readonly parent: string | undefined
  readonly turn: number
  readonly promptTokens: number
  readonly outputTokens: number
  /** Of tools and system text; undefined: the trace does not say. */
  readonly headTokens: number | undefined
  /** Nodes of its full blocks, in order. */
  readonly nodes: Uint32Array
}

export interface References {
  readonly root: Root
  readonly requests: readonly SimulatedRequest[]
  /** Hash of each node. */
  readonly hashes: readonly BlockHash[]
  /** `NAME_TOKENS` for each node. */
  readonly names: Int32Array
  /** Blocks of all requests together. */
  readonly count: number
  /** Blocks that one name of the trace stands for. */
  readonly per: number
}

const ROOT = '0'.repeat(32) as Root
/** Parents and contents are numbered; both fit into one exact number. */
const MOST_CONTENTS = 2 ** 26

/** @throws UsageError where the trace's blocks are neither made of 64-token blocks nor make them. */
export function referencesOf(trace: Trace): References {
  const per = trace.blockTokens / BLOCK_TOKENS
  if (!Number.isInteger(per)) {
    throw new UsageError(`${trace.name}: blocks of ${trace.blockTokens} tokens are no multiple of ${BLOCK_TOKENS}`)
  }
  const tree = new Tree(per)
  const last = new Map<string, { request: TraceRequest; nodes: Uint32Array }>()
  let count = 0
  const requests = trace.requests.map((request) => {
    const blocks = Math.min(Math.floor(request.promptTokens / BLOCK_TOKENS), request.blocks.length * per)
    const nodes = new Uint32Array(blocks)
    const key = `${request.scope} ${request.session}`
    const before = last.get(key)
    let at = before === undefined ? 0 : per * sharedNames(before.request.blocks, request.blocks)
    at = Math.min(at, blocks, before?.nodes.length ?? 0)
    if (before !== undefined) nodes.set(before.nodes.subarray(0, at))
    for (let content = 0; at < blocks; at++) {
      const part = at % per
      if (part === 0 || content === 0) content = tree.contentOf(request.scope, request.blocks[Math.floor(at / per)]!)
      nodes[at] = tree.child(at === 0 ? undefined : nodes[at - 1]!, content + part)
    }
    last.set(key, { request, nodes })
    count += blocks
    return simulated(request, nodes)
  })
  return { root: ROOT, requests, hashes: tree.hashes, names: tree.names(), count, per }
}

function simulated(request: TraceRequest, nodes: Uint32Array): SimulatedRequest {
  const { at, turn, promptTokens, outputTokens, headTokens, scope } = request
  const named = (session: string | undefined) => (session === undefined ? undefined : `${scope} ${session}`)
  return {
    ...{ at, turn, promptTokens, outputTokens, headTokens, nodes },
    ...{ session: named(request.session), parent: named(request.parent) },
  }
}

function sharedNames(a: readonly number[], b: readonly number[]): number {
  const most = Math.min(a.length, b.length)
  let i = 0
  while (i < most && a[i] === b[i]) i++
  return i
}

/** Nodes by their parent and content. Most have one child, which is found without a lookup. */
class Tree {
  readonly hashes: BlockHash[] = []
  readonly #per: number
  /** Four for each node. */
  readonly #names: number[] = []
  /** By scope, then by name in the trace: the first of its parts' contents. */
  readonly #contents = new Map<number, Map<number, number>>()
  /** Of each content, its scope and its name. */
  readonly #scopes: number[] = [0]
  readonly #named: number[] = [0]
  /** Of each node and, at 0, of the root: content and node of its first child; 0 and 0 where there is none. */
  readonly #firstContents: number[] = [0]
  readonly #firstChildren: number[] = [0]
  /** All other children. */
  readonly #others = new Map<number, number>()
  readonly #tokens = new Int32Array(BLOCK_TOKENS)

  constructor(per: number) {
    this.#per = per
  }

  /** Contents count from 1; those of one name's parts follow each other. @throws UsageError where there are too many. */
  contentOf(scope: number, name: number): number {
    const ids = this.#contents.get(scope) ?? new Map<number, number>()
    this.#contents.set(scope, ids)
    const known = ids.get(name)
    if (known !== undefined) return known
    const content = this.#scopes.length
    if (content + this.#per >= MOST_CONTENTS) {
      throw new UsageError(`a trace of more than ${MOST_CONTENTS} different blocks is too long`)
    }
    for (let part = 0; part < this.#per; part++) {
      this.#scopes.push(scope)
      this.#named.push(name)
    }
    ids.set(name, content)
    return content
  }

  child(parent: number | undefined, content: number): number {
    const at = parent === undefined ? 0 : parent + 1
    const first = this.#firstContents[at]!
    if (first === content) return this.#firstChildren[at]!
    const key = at * MOST_CONTENTS + content
    const known = first === 0 ? undefined : this.#others.get(key)
    if (known !== undefined) return known
    const node = this.#add(parent, content)
    if (first === 0) {
      this.#firstContents[at] = content
      this.#firstChildren[at] = node
    } else this.#others.set(key, node)
    return node
  }

  names(): Int32Array {
    return Int32Array.from(this.#names)
  }

  #add(parent: number | undefined, content: number): number {
    const named = this.#named[content]!
    const part = (content - 1) % this.#per
    const [high, low] = [Math.floor(named / 2 ** 31), named % 2 ** 31]
    const name = [this.#scopes[content]!, high, low, part] as const
    this.#tokens.set(name)
    this.hashes.push(nextHash(parent === undefined ? ROOT : this.hashes[parent]!, this.#tokens))
    this.#names.push(...name)
    this.#firstContents.push(0)
    this.#firstChildren.push(0)
    return this.hashes.length - 1
  }
}
