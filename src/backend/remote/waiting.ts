// How many requests wait at a server, as it says itself: a small question of its kind's, asked now and then. Invariant: what
// a server does not offer is asked for once, and not again until it was away; an answer that makes no sense says nothing.

import type { Remote, RemoteFacts, WaitingThere } from './contract.js'
import { kindOf } from './open-remote.js'

/** By what a server said of itself: which of its kind's questions it answers, or that it answers none. */
const answered = new WeakMap<RemoteFacts, number>()

/** Undefined: it does not say. @throws RemoteFault where it does not answer. */
export async function askWaiting(remote: Remote, signal?: AbortSignal): Promise<WaitingThere | undefined> {
  const { facts } = remote
  const questions = facts === undefined ? [] : (kindOf(facts.kind).waiting ?? [])
  for (let i = facts === undefined ? 0 : (answered.get(facts) ?? 0); i < questions.length; i++) {
    const { path, read } = questions[i] as (typeof questions)[number]
    const { status, value } = await remote.call('GET', path, { asText: true, ...(signal && { signal }) })
    // One that is too busy for an answer may give it the next time.
    if (status === 429 || status === 503) return undefined
    const waiting = status === 200 ? read(String(value), remote.options) : undefined
    if (facts !== undefined) answered.set(facts, waiting === undefined ? i + 1 : i)
    if (waiting !== undefined) return waiting
  }
  return undefined
}
