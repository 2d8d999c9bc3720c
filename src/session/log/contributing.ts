// Which sources an event rests on (`contributing_source_ids`). Pure; one rule for every store. Invariant: monotone, so that
// what was derived from a source carries it for good, however often it is told on; over-marking is allowed, losing a source never.
//
//   own       what the caller names, what the layer rests on that it was read from, and of a layer or a policy what it holds itself
//   context   every event that the model may see: all of them since the last reset, and the head's and memory's from before it,
//             but those that rest on what a revocation of the log took out for good, or the policy now in force keeps out
//
//   user, head, policy, revocation, reset, fork, usage      own
//   tool_result                                             own + those of the call that asked for it, which rests on all
//                                                           that the model saw when it made it (unknown call: own + context)
//   assistant, tool_call, note, memory, compaction,         own + context: written by somebody who had seen it
//   attempt, turn
//   layer                                                   own + its parent's + context: what ran in it was written by the
//                                                           model, which may have left there what it had seen
//
// A revocation takes whole events out, not sources out of events: {a, b} goes when `a` does, and `b` stays known only where
// another event of the context rests on it. So the context is kept as the distinct sets of its events, not as their union.

import type { EventKind, NewEvent } from './event.js'

/** Sorted, each once. */
export type Sources = readonly string[]

/** What the context rests on, after some event. Plain data. */
export interface Rests {
  /** Distinct sets of events that a reset takes away. */
  readonly body: readonly Sources[]
  /** Of the head's and of memory's, which it leaves. */
  readonly kept: readonly Sources[]
  /** Of sets that were too many to tell apart: each stays until it is revoked itself. */
  readonly merged: Sources
  /** What the policy in force keeps out. */
  readonly revoked: Sources
  /** What revocations of the log keep out for good, also where it comes again. */
  readonly gone: Sources
}

export const RESTS_ON_NOTHING: Rests = { body: [], kept: [], merged: [], revoked: [], gone: [] }

/** Sources of earlier events, by what names them. Undefined: there is none. */
export interface NamedSources {
  call(id: string): Sources | undefined
  layer(id: string): Sources | undefined
  /** Of a stored result. */
  artifact(locator: string): Sources | undefined
}

/** More distinct sets than this are no longer told apart; the oldest half is merged. */
const MAX_SETS = 256

const NOTHING: Sources = []
const DERIVED: ReadonlySet<EventKind> = new Set([
  ...(['assistant', 'tool_call', 'note', 'memory', 'compaction', 'attempt', 'turn', 'layer'] as const),
])
const SEEN: ReadonlySet<EventKind> = new Set([
  ...(['user', 'assistant', 'tool_call', 'tool_result', 'note', 'compaction'] as const),
])
const KEPT: ReadonlySet<EventKind> = new Set(['head', 'memory', 'policy'])

/** The event's sources, and what the context rests on once it is there. Layers that it names must be known. */
export function contribute(
  rests: Rests,
  event: NewEvent,
  named: NamedSources,
): { readonly sources: Sources; readonly rests: Rests } {
  const { body } = event
  const own = ownSources(event, named)
  if (body.kind === 'tool_result') {
    const call = named.call(body.callId) ?? contextSources(rests)
    const sources = union([own, call])
    return { sources, rests: withSet(rests, 'body', sources) }
  }
  const sources = DERIVED.has(body.kind) ? union([own, contextSources(rests)]) : own
  if (body.kind === 'revocation') return { sources, rests: without(rests, body.sources) }
  if (body.kind === 'reset') return { sources, rests: reset(rests, body.artifacts, named) }
  let next = SEEN.has(body.kind) ? withSet(rests, 'body', sources) : rests
  if (KEPT.has(body.kind)) next = withSet(next, 'kept', sources)
  if (body.kind === 'policy') next = { ...next, revoked: union([body.snapshot.revoked]) }
  return { sources, rests: next }
}

/** Most events leave it as it was. */
const known = new WeakMap<Rests, Sources>()

/** All that the context rests on now. Sorted. */
export function contextSources(rests: Rests): Sources {
  const sources = known.get(rests) ?? unionOfSeen(rests)
  known.set(rests, sources)
  return sources
}

function unionOfSeen({ body, kept, merged, revoked, gone }: Rests): Sources {
  const out = new Set([...revoked, ...gone])
  const seen = out.size === 0 ? [...kept, ...body] : [...kept, ...body].filter((set) => !meets(set, out))
  return union([...seen, out.size === 0 ? merged : merged.filter((source) => !out.has(source))])
}

function ownSources({ body, sources, layer }: NewEvent, named: NamedSources): Sources {
  const sets: Sources[] = [sources ?? NOTHING]
  if (layer !== undefined) sets.push(named.layer(layer) ?? NOTHING)
  if (body.kind === 'layer') {
    sets.push(body.sources)
    if (body.parent !== undefined) sets.push(named.layer(body.parent) ?? NOTHING)
  }
  if (body.kind === 'policy') for (const shared of Object.values(body.snapshot.shared)) sets.push(shared.sources ?? [])
  return union(sets)
}

function without({ body, kept, merged, revoked, gone }: Rests, sources: readonly string[]): Rests {
  const out = new Set(sources)
  const stays = (set: Sources) => !meets(set, out)
  return {
    body: body.filter(stays),
    kept: kept.filter(stays),
    merged: merged.filter((source) => !out.has(source)),
    revoked,
    gone: union([gone, sources]),
  }
}

/** What is named stays; where nobody knows what it rests on, all of the body's sources do. */
function reset(rests: Rests, artifacts: readonly string[], named: NamedSources): Rests {
  const sets = artifacts.map((locator) => named.artifact(locator))
  if (sets.includes(undefined)) return rests
  let next: Rests = { ...rests, body: [] }
  for (const set of sets) next = withSet(next, 'body', set ?? NOTHING)
  return next
}

function withSet(rests: Rests, where: 'body' | 'kept', set: Sources): Rests {
  const sets = rests[where]
  // Most events rest on what the one before them rests on.
  if (set.length === 0 || sets.findLast((one) => same(one, set)) !== undefined) return rests
  if (sets.length < MAX_SETS) return { ...rests, [where]: [...sets, set] }
  const merged = union([rests.merged, ...sets.slice(0, MAX_SETS / 2)])
  return { ...rests, merged, [where]: [...sets.slice(MAX_SETS / 2), set] }
}

function same(a: Sources, b: Sources): boolean {
  return a === b || (a.length === b.length && a.every((source, i) => source === b[i]))
}

function meets(set: Sources, others: ReadonlySet<string>): boolean {
  return set.some((source) => others.has(source))
}

/** Sorted, each once; one that holds all is handed back as it is. */
export function union(sets: readonly (readonly string[])[]): Sources {
  const all = new Set(sets.flat())
  const whole = sets.find((set) => set.length === all.size && isSorted(set))
  return whole ?? [...all].sort()
}

function isSorted(set: readonly string[]): boolean {
  return set.every((source, i) => i === 0 || (set[i - 1] as string) < source)
}
