// What the engine does for requests that are not a session's next turn, and with the marks that clients set: which slots a
// side request may take, and which prefixes are pinned. Invariant: a side request costs no session its place, and a mark
// that moves on with the conversation leaves no pin behind.

import { chainOf } from '../cache/chain.js'
import type { KvCache } from '../cache/contract.js'
import { BLOCK_TOKENS, type Chain, type Root } from '../core/block.js'
import type { Job } from '../core/request.js'
import type { Slot } from './slot.js'

/** Chains of slots as they were when they were left: a slot that waits is asked about again and again. */
const chains = new WeakMap<Slot, { readonly lastUsed: number; readonly chain: Chain }>()

/** Whether all that a session left in `slot` is in the cache too, but for what is short of a block. */
export function isBacked(slot: Slot, cache: KvCache): boolean {
  const blocks = Math.floor(Math.min(slot.owned, slot.length) / BLOCK_TOKENS)
  if (slot.root === undefined || blocks === 0) return true
  const tokens = slot.tokens.subarray(0, blocks * BLOCK_TOKENS)
  let known = chains.get(slot)
  if (known?.lastUsed !== slot.lastUsed) {
    known = { lastUsed: slot.lastUsed, chain: chainOf(slot.root as Root, tokens) }
    chains.set(slot, known)
  }
  const { memory, disk } = cache.match(known.chain, tokens)
  return memory + disk >= blocks
}

/** Marks that a client may set; the most that Anthropic's API takes. */
const CHECKPOINTS = 4

interface Checkpoint {
  readonly id: string
  readonly blocks: number
  readonly ttlMs: number
}

/** Pins the checkpoints of a job whose prompt is computed, in place of those that its session had before. */
export function pinCheckpoints(job: Job, cache: KvCache): void {
  const { root, hashes } = job.chain
  for (const { id, blocks, ttlMs } of checkpointsOf(job)) {
    if (ttlMs > 0) cache.pin(id, { root, hashes: hashes.slice(0, blocks) }, job.tokens, ttlMs)
    else cache.unpin(id)
  }
}

/** The pins of a job by name, with 0 ms for those of its session that it sets no more. */
export function checkpointsOf({ pins = [], request, transient }: Job): Checkpoint[] {
  if (pins.length === 0 || transient === true) return []
  const { id, session, tenant } = request
  const name = session === undefined ? id : `${tenant.name}/${session}`
  const set = pins.map(({ tokens, ttlMs }, i) => ({
    ...{ id: `${name}#${i}`, ttlMs },
    blocks: Math.floor(tokens / BLOCK_TOKENS),
  }))
  const left = session === undefined ? 0 : Math.max(0, CHECKPOINTS - pins.length)
  const gone = Array.from({ length: left }, (_, i) => ({ id: `${name}#${pins.length + i}`, blocks: 0, ttlMs: 0 }))
  return [...set, ...gone]
}
