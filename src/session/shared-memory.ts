// Memory blocks that several sessions see: an edit that is logged in one of them is kept for all. Invariant: what a value rests
// on goes with it.

import type { SessionLog } from './log/contract.js'
import type { SessionEvent } from './log/event.js'

/** Keeps the edits among events that were just appended. */
export async function shareEdits(log: SessionLog, events: readonly SessionEvent[]): Promise<void> {
  for (const { body, tenant, sources } of events) {
    if (body.kind !== 'memory' || body.shared === undefined || body.value === undefined) continue
    const { shared: id, label, value, limitTokens } = body
    await log.setSharedMemory(tenant, {
      ...{ id, label, value, sources },
      ...(limitTokens !== undefined && { limitTokens }),
    })
  }
}
