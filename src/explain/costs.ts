// What a miss cost, in tokens, and which causes share it. Invariant: the causes' costs sum to what could have been reused,
// had the prompt gone on from the one before and had the cache kept all, less what was reused.
//
//   expected    whole blocks of the last prompt and its answer that were kept
//   reachable   of these, those that this prompt begins with
//   reused      what the cache gave
//
//   expected - reachable: the prompt changed.     reachable - reused: the cache has lost it, or it is elsewhere.

import { BLOCK_TOKENS, type CacheUsage } from '../core/block.js'
import type { CauseView, Reason } from './contract.js'

export interface Spending {
  /** Tokens whose blocks the turn before left, its answer's too. */
  readonly kept: number
  readonly promptTokens: number
  /** Tokens that both prompts begin with. */
  readonly shared: number
  readonly usage: CacheUsage
}

/** The dearest first; empty: nothing was missed. */
export function causesOf(
  { kept, promptTokens, shared, usage }: Spending,
  reasons: { readonly prompt: Reason; readonly cache: Reason },
): readonly CauseView[] {
  // The last token is always computed.
  const expected = wholeBlocks(Math.min(kept, promptTokens - 1))
  const reachable = wholeBlocks(Math.min(kept, promptTokens - 1, shared))
  const reused = promptTokens - usage.computed
  const causes: CauseView[] = [
    { reason: reasons.prompt, missedTokens: Math.max(0, expected - Math.max(reachable, reused)) },
    { reason: reasons.cache, missedTokens: Math.max(0, reachable - reused) },
  ]
  return causes.filter(({ missedTokens }) => missedTokens > 0).sort((a, b) => b.missedTokens - a.missedTokens)
}

export interface Kept {
  readonly promptTokens: number
  readonly usage: CacheUsage | undefined
  readonly committedTokens: number
  /** Tokens of prompt and answer; undefined: the answer is not done. */
  readonly lineTokens: number | undefined
}

/** How many tokens of a turn have left blocks. */
export function keptTokens({ promptTokens, usage, committedTokens, lineTokens }: Kept): number {
  if (usage === undefined) return 0
  const kept = promptTokens - usage.computed + committedTokens
  // A last block that was there already is neither reused nor committed.
  if (kept < wholeBlocks(promptTokens) - BLOCK_TOKENS) return kept
  // The last token of an answer has no KV: it was never fed.
  return Math.max(promptTokens, (lineTokens ?? 0) - 1)
}

function wholeBlocks(tokens: number): number {
  return Math.max(0, Math.floor(tokens / BLOCK_TOKENS)) * BLOCK_TOKENS
}

/** What moved in the cache since the turn before. */
export interface Moves {
  readonly memoryEvicted: number
  readonly diskEvicted: number
  readonly diskWritten: number
}

export interface Loss {
  readonly isElsewhere: boolean
  readonly idleMs: number
  /** Config `cache.idleMs`; 0: blocks don't age. */
  readonly expiresMs: number
  readonly usage: CacheUsage
  readonly since: Moves
}

/** Why blocks that were kept were not found. */
export function lossReason({ isElsewhere, idleMs, expiresMs, usage, since }: Loss): Reason {
  if (isElsewhere) return 'other_backend'
  if (expiresMs > 0 && idleMs >= expiresMs) return 'expired'
  // They left memory, the disk has them, and none was brought up.
  const isBelow = since.diskWritten > 0 && since.diskEvicted === 0 && since.memoryEvicted > 0
  return isBelow && usage.disk === 0 ? 'restored_slower_than_recomputed' : 'evicted'
}
