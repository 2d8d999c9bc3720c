// A simulated prompt as the router sees prompts: as a chain of segments, which are messages there. Invariant: equal hashes
// mean equal blocks up to there; borders that a conversation had stay where they are while what is before them does.
//
//   turn 1   head | task                     a border at the end of tools and system text, and at the end of each turn
//   turn 2   head | task | what was added

import { BLOCK_TOKENS } from '../core/block.js'
import type { SegmentChain } from '../router/contract.js'
import type { References, SimulatedRequest } from './references.js'

/** Without conversations: a border so often, in blocks, where the trace's own names are shorter. */
const SPAN_BLOCKS = 16
/** A beginning is a head where so many conversations have it, and this share of them. */
const HEAD_SESSIONS = 3
const HEAD_SHARE = 0.02

interface Past {
  readonly nodes: Uint32Array
  /** Blocks before each border. */
  readonly borders: readonly number[]
}

export class Segments {
  readonly #span: number
  readonly #past = new Map<string, Past>()
  /** Conversations that have each node. */
  readonly #visitors: Uint32Array
  readonly #headVisitors: number
  #tails = 0

  constructor({ requests, hashes, per }: References) {
    this.#span = Math.max(per, SPAN_BLOCKS)
    this.#visitors = new Uint32Array(hashes.length)
    const last = new Map<number, string>()
    const sessions = new Set<string>()
    for (const [i, { session = `#${i}`, nodes }] of requests.entries()) {
      sessions.add(session)
      for (const node of nodes) {
        if (last.get(node) === session) continue
        last.set(node, session)
        this.#visitors[node]!++
      }
    }
    this.#headVisitors = Math.max(HEAD_SESSIONS, HEAD_SHARE * sessions.size)
  }

  /** Of each request once, in order. */
  of({ session, nodes, promptTokens, headTokens }: SimulatedRequest): SegmentChain {
    const head = Math.min(this.#headBlocks(nodes, headTokens), nodes.length)
    const borders = session === undefined ? this.#even(nodes.length) : this.#grown(session, nodes)
    const all = [...new Set([...(head > 0 ? [head] : []), ...borders])].sort((a, b) => a - b)
    const hashes = all.map((border) => String(nodes[border - 1]))
    const tokens = all.map((border) => border * BLOCK_TOKENS)
    // What lies behind the last full block is nobody else's.
    if (promptTokens > nodes.length * BLOCK_TOKENS || all.length === 0) {
      hashes.push(`tail ${this.#tails++}`)
      tokens.push(promptTokens)
    }
    return { hashes, tokens, head: head > 0 ? all.indexOf(head) + 1 : 0 }
  }

  #headBlocks(nodes: Uint32Array, headTokens: number | undefined): number {
    if (headTokens !== undefined) return Math.floor(headTokens / BLOCK_TOKENS)
    const end = nodes.findIndex((node) => this.#visitors[node]! < this.#headVisitors)
    return end < 0 ? nodes.length : end
  }

  #even(blocks: number): number[] {
    const count = Math.floor(blocks / this.#span)
    return Array.from({ length: count }, (_, i) => (i + 1) * this.#span)
  }

  #grown(session: string, nodes: Uint32Array): readonly number[] {
    const past = this.#past.get(session)
    let shared = 0
    if (past !== undefined) while (shared < nodes.length && nodes[shared] === past.nodes[shared]) shared++
    const borders = (past?.borders ?? []).filter((border) => border <= shared)
    if (nodes.length > (borders.at(-1) ?? 0)) borders.push(nodes.length)
    this.#past.set(session, { nodes, borders })
    return borders
  }
}
