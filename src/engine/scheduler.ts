// What the next step computes: a pure function of what waits and what runs. A step is at most one chunk of one prompt and
// one token for everything that decodes. Invariants: a class never waits for a less urgent one; within a class the
// tenant that was served least goes first; a stream waits for one bounded chunk at most.

import type { Priority } from '../core/request.js'

export interface Waiting {
  readonly order: number
  readonly priority: Priority
  readonly tenant: string
}

export interface PrefillView extends Waiting {
  /** Tokens whose KV is there. */
  readonly depth: number
  /** Tokens of the prompt that are still to be computed. */
  readonly remaining: number
}

export interface ChunkRule {
  /** Chunk sizes while something streams, by depth: the first row whose `below` exceeds the depth holds. */
  readonly streaming: readonly { readonly below: number; readonly tokens: number }[]
  /** Chunk size while nothing streams. */
  readonly alone: number
}

/**
 * Chosen so that a step of the 135M model stays within about 300 ms on two cores while others stream; alone, long
 * chunks spend the fewest passes over the weights. Results do not depend on it (engine/contract.ts). See bench/LOG.md.
 */
export const CHUNKS: ChunkRule = {
  streaming: [
    { below: 1024, tokens: 128 },
    { below: Number.POSITIVE_INFINITY, tokens: 64 },
  ],
  alone: 512,
}

const RANK: Readonly<Record<Priority, number>> = { interactive: 0, auxiliary: 1, background: 2 }

/** Who of `waiting` goes next; `served` counts the tokens that each tenant has had. Undefined: nobody waits. */
export function pickNext<T extends Waiting>(waiting: Iterable<T>, served: ReadonlyMap<string, number>): T | undefined {
  let best: T | undefined
  for (const candidate of waiting) if (best === undefined || goesBefore(candidate, best, served)) best = candidate
  return best
}

/** The next chunk of `view`: up to a block border unless it ends the prompt. */
export function chunkOf(view: PrefillView, streaming: boolean, rule: ChunkRule = CHUNKS): number {
  const size = streaming ? (rule.streaming.find(({ below }) => view.depth < below)?.tokens ?? rule.alone) : rule.alone
  if (view.remaining <= size) return view.remaining
  // A chunk from a block's middle ends at a border all the same, so that blocks become full as early as they can.
  const count = size - (view.depth % 64)
  // Never a run of one token: its kernels are others, and the prefix would not be the same to the bit.
  return count > 1 ? count : count + Math.min(64, view.remaining - count)
}

/** Decoding rows cut into runs of at most `rows`, the most urgent first; those that do not fit take turns by `order`. */
export function decodeRuns<T extends Waiting>(decoding: readonly T[], rows: number): T[][] {
  const sorted = [...decoding].sort((a, b) => RANK[a.priority] - RANK[b.priority] || a.order - b.order)
  const runs: T[][] = []
  for (let start = 0; start < sorted.length; start += rows) runs.push(sorted.slice(start, start + rows))
  return runs
}

function goesBefore(a: Waiting, b: Waiting, served: ReadonlyMap<string, number>): boolean {
  if (a.priority !== b.priority) return RANK[a.priority] < RANK[b.priority]
  const [servedA, servedB] = [served.get(a.tenant) ?? 0, served.get(b.tenant) ?? 0]
  if (a.tenant !== b.tenant && servedA !== servedB) return servedA < servedB
  return a.order < b.order
}

/** Whether `a` is more urgent than `b`, whatever their order. */
export function outranks(a: Priority, b: Priority): boolean {
  return RANK[a] < RANK[b]
}
