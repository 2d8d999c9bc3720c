// How long a sequence spent in each phase, told when it is over, for metrics and traces. Invariant: phases follow one another
// without a gap, so that their times sum to its own. Beside the step loop: costs nothing where nobody listens.

import type { Clock } from '../core/clock.js'
import { machineMs, phasesTimed } from '../core/signals.js'
import type { Sequence } from './sequence.js'

export function tellPhases(sequence: Sequence, clock: Clock): void {
  if (!phasesTimed.channel.hasSubscribers) return
  const { job, queuedAt, admittedAt, restoredAt, computedAt, completionTokens } = sequence
  const now = clock.now()
  phasesTimed.publish({
    id: job.request.id,
    endedAt: machineMs(),
    queueMs: (admittedAt ?? now) - queuedAt,
    ...(admittedAt !== undefined && { restoreMs: (restoredAt ?? now) - admittedAt }),
    ...(restoredAt !== undefined && { prefillMs: (computedAt ?? now) - restoredAt }),
    ...(computedAt !== undefined && { decodeMs: now - computedAt }),
    promptTokens: job.tokens.length,
    completionTokens,
    cache: sequence.usage(),
  })
}
