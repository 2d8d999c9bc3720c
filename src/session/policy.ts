// What a compile goes by beside the log: sources that may not be seen, values of shared memory. Invariant: where it is not
// what it was, that is an event of the log, so that compiling again needs nothing else.

import type { SessionLog } from './log/contract.js'
import type { PolicySnapshot, SessionEvent } from './log/event.js'
import type { OpenSession } from './open-session.js'

/** As it is now; in the log when it resolves. */
export async function settledPolicy(
  open: OpenSession,
  { log, retention }: { readonly log: SessionLog; readonly retention: string },
): Promise<PolicySnapshot> {
  const { tenant } = open.whose
  const { fold } = open
  const { shared: ids } = fold
  const [grants, blocks] = await Promise.all([log.grants(tenant), ids.size === 0 ? [] : log.sharedMemory(tenant)])
  const revoked = grants.flatMap(({ source, state }) => (state === 'revoked' ? [source] : []))
  const seen = blocks.filter(({ id }) => ids.has(id)).sort((a, b) => (a.id < b.id ? -1 : 1))
  const shared = Object.fromEntries(
    seen.map(({ id, label, value, sources }) => [id, { label, value, ...(sources && { sources }) }]),
  )
  const snapshot: PolicySnapshot = { retention, revoked: [...new Set(revoked)].sort(), shared }
  if (fold.policy !== undefined && JSON.stringify(fold.policy) === JSON.stringify(snapshot)) return fold.policy
  await open.append([{ body: { kind: 'policy', snapshot } }])
  return snapshot
}

/** That the compile at `position` went by. */
export function policyAt(events: readonly SessionEvent[], position: number): PolicySnapshot {
  const found = events.findLast(({ body, position: at }) => at <= position && body.kind === 'policy')
  return found?.body.kind === 'policy' ? found.body.snapshot : { retention: '', revoked: [], shared: {} }
}
