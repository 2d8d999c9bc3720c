// Erasing for good: blocks leave every tier and the working set, and their bytes on disk are overwritten. Invariant: what was
// asked for once is gone as soon as nobody computes with it any more, whether the asker waits so long or not. Runs on the
// engine's thread, between its steps.

import { chainOf, isOfTenant } from '../cache/chain.js'
import type { CacheErased, ErasableBlock, EraseAsk } from '../cache/contract.js'
import type { ErasableKvCache } from '../cache/kv-cache.js'
import type { Root } from '../core/block.js'
import type { Clock } from '../core/clock.js'
import { note } from '../core/signals.js'
import type { Slot } from './slot.js'
import type { WorkingSet } from './working-set.js'

export interface EraserParts {
  readonly cache: Pick<ErasableKvCache, 'erase'>
  readonly workingSet: Pick<WorkingSet, 'erase'>
  readonly clock: Clock
}

/** Between two tries at what is in use. */
const RETRY_MS = 50
/** What an asker waits at most; the tries go on behind it, for as long as requests may run. */
const PATIENCE_MS = 5000
const LONGEST_MS = 3_600_000

export function createEraser({ cache, workingSet, clock }: EraserParts): (ask: EraseAsk) => Promise<CacheErased> {
  return (ask) => {
    const asked = matcherOf(ask)
    const ofSlot = (slot: Slot) => holds(slot, asked)
    const startedAt = clock.now()
    let blocks = 0
    return new Promise((resolve, reject) => {
      const attempt = async () => {
        const busy = workingSet.erase(ofSlot)
        const erased = await cache.erase(asked)
        blocks += erased.blocks
        const complete = busy === 0 && erased.inUse === 0 && erased.complete
        const waited = clock.now() - startedAt
        if (complete || waited >= PATIENCE_MS) resolve({ blocks, complete })
        if (complete) return
        if (waited < LONGEST_MS) clock.after(RETRY_MS, () => void attempt().catch(reject))
        else note.publish({ level: 'error', text: 'cache: blocks that are to be erased are still there after an hour' })
      }
      attempt().catch(reject)
    })
  }
}

function matcherOf({ hashes = [], tenants = [] }: EraseAsk): (block: ErasableBlock) => boolean {
  const named = new Set<string>(hashes)
  return ({ hash, root }) => named.has(hash) || tenants.some((tenant) => isOfTenant(root, tenant))
}

/** A slot whose tokens are those of a block, whole or with more behind it. */
function holds({ root, tokens, length }: Slot, asked: (block: ErasableBlock) => boolean): boolean {
  if (root === undefined) return false
  const chain = chainOf(root as Root, tokens.subarray(0, length))
  // Of a tenant even where no block is full.
  const first = { hash: chain.hashes[0] ?? ('' as never), root: chain.root }
  return asked(first) || chain.hashes.some((hash) => asked({ hash, root: chain.root }))
}
