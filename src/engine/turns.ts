// Whose turn it may be, as the scheduler sees it: a sequence with the urgency that it has just now, which is not always its
// request's own. Read by the engine before every chunk.

import { outranks } from './scheduler.js'
import type { Sequence } from './sequence.js'

/** A turn for a request's branches: never more urgent than what is asked on the side. */
export function aside(sequence: Sequence) {
  const { order, tenant, priority } = sequence
  return { sequence, order, tenant, priority: outranks(priority, 'auxiliary') ? ('auxiliary' as const) : priority }
}

/** The computing sequences as turns; one takes over the urgency of whoever waits for its blocks. */
export function inherited(computing: readonly Sequence[], following: readonly Sequence[]) {
  return computing.map((sequence) => {
    const { order, tenant, job } = sequence
    let { priority } = sequence
    for (const other of following) {
      const next = other.held().lease.ready
      const waits = other.job.chain.hashes[next] === job.chain.hashes[next]
      if (waits && outranks(other.priority, priority)) priority = other.priority
    }
    return { sequence, order, tenant, priority }
  })
}
