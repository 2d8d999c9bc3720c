// What a compile goes by beside the log: sources that may not be seen, values of shared memory. Invariant: where it is not
// what it was, that is an event of the log, so that compiling again needs nothing else.

import type { SessionLog } from './log/contract.js'
import type { PolicySnapshot, SessionEvent } from './log/event.js'
import type { OpenSession } from './open-session.js'
import type { SessionFold } from './session-fold.js'
import type { SourcePolicy } from './sources.js'

export interface PolicyDeps {
  readonly log: SessionLog
  readonly sources: SourcePolicy
  /** Name of the model's rule. */
  readonly retention: string
}

export const NO_POLICY: PolicySnapshot = { retention: '', revoked: [], shared: {} }

/** As it is now; in the log when it resolves. */
export async function settledPolicy(open: OpenSession, deps: PolicyDeps): Promise<PolicySnapshot> {
  return settled(open, await currentPolicy(open, deps))
}

/** The log says that `snapshot` counts from here on. */
export async function settled(open: OpenSession, snapshot: PolicySnapshot): Promise<PolicySnapshot> {
  const { fold } = open
  if (fold.policy !== undefined && JSON.stringify(fold.policy) === JSON.stringify(snapshot)) return fold.policy
  await open.append([{ body: { kind: 'policy', snapshot } }])
  return snapshot
}

/** As it is now, without a word in the log: for what is only looked at. */
export async function currentPolicy(
  { whose: { tenant }, fold }: OpenSession,
  { log, sources, retention }: PolicyDeps,
): Promise<PolicySnapshot> {
  const { shared: ids } = fold
  const blocks = ids.size === 0 ? [] : await log.sharedMemory(tenant)
  const seen = blocks.filter(({ id }) => ids.has(id)).sort((a, b) => (a.id < b.id ? -1 : 1))
  const restsOn = new Set([...fold.sources, ...seen.flatMap((block) => block.sources ?? [])])
  const verdicts = await sources.verdicts(tenant, [...restsOn])
  const revoked = Object.keys(verdicts).filter((source) => verdicts[source] === 'revoked')
  const shared = Object.fromEntries(
    seen.map(({ id, label, value, sources: own }) => [id, { label, value, ...(own && { sources: own }) }]),
  )
  return { retention, revoked: revoked.sort(), shared }
}

/** Sources that were seen at the last compile and may not be any more. */
export function freshlyRevoked({ policy, gone }: SessionFold, now: PolicySnapshot): readonly string[] {
  return now.revoked.filter((source) => policy?.revoked.includes(source) !== true && !gone.has(source))
}

/** That the compile at `position` went by. */
export function policyAt(events: readonly SessionEvent[], position: number): PolicySnapshot {
  const found = events.findLast(({ body, position: at }) => at <= position && body.kind === 'policy')
  return found?.body.kind === 'policy' ? found.body.snapshot : NO_POLICY
}
