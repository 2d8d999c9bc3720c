// What has to go when sources are revoked in the midst of a session. Pure. Invariant: whatever rests on one of the sources is
// in the plan, and so is what would make no sense without it (a call whose result goes, a result whose call does).

import type { SharedMemory } from './log/contract.js'
import type { SessionEvent } from './log/event.js'

export interface RevocationPlan {
  /** Events that no later compile shows: those that rest on the sources, and the other half of each call. Ascending. */
  readonly positions: readonly number[]
  /** Stored results to erase. */
  readonly locators: readonly string[]
  /** Positions of compactions whose summary covers some of it: they do not count any more. */
  readonly compactions: readonly number[]
  /** Turns whose prompt held some of it: what is cached or kept of them and of later ones is erased. */
  readonly turns: readonly number[]
  /** Ids of shared memory blocks to empty. */
  readonly shared: readonly string[]
  /** The newest layer that rests on none of the sources: what a harness can roll back to. */
  readonly cleanLayer?: string
}

/** `events`: all of the session's, its parents' first. `sources`: all that are revoked for it, with those from before. */
export function planRevocation(
  events: readonly SessionEvent[],
  sources: ReadonlySet<string>,
  shared: readonly SharedMemory[] = [],
): RevocationPlan {
  const rests = (on: readonly string[] = []) => on.some((source) => sources.has(source))
  const gone = pairsOf(events, new Set(events.filter((event) => rests(event.sources)).map(({ position }) => position)))
  const first = Math.min(...gone)
  const layer = events.findLast(({ body, sources: on }) => body.kind === 'layer' && !rests(on))?.body
  return {
    positions: [...gone].sort((a, b) => a - b),
    locators: events.flatMap(({ body, position }) =>
      body.kind === 'tool_result' && body.spilled !== undefined && gone.has(position) ? [body.spilled.locator] : [],
    ),
    compactions: events.flatMap(({ body, position }) =>
      body.kind === 'compaction' && body.steps.some((step) => step.step === 'summary' && step.to >= first)
        ? [position]
        : [],
    ),
    turns: events.flatMap(({ body }) => (body.kind === 'turn' && body.upTo >= first ? [body.turn] : [])),
    shared: shared.filter((block) => rests(block.sources)).map(({ id }) => id),
    ...(layer?.kind === 'layer' && { cleanLayer: layer.id }),
  }
}

/** With each call its result, with each result its call; a call's id may come again later. */
function pairsOf(events: readonly SessionEvent[], gone: Set<number>): ReadonlySet<number> {
  const calls = new Map<string, number>()
  for (const { body, position } of events) {
    if (body.kind === 'tool_call') calls.set(body.id, position)
    if (body.kind !== 'tool_result') continue
    const call = calls.get(body.callId)
    if (call === undefined || !(gone.has(position) || gone.has(call))) continue
    gone.add(position)
    gone.add(call)
  }
  return gone
}
