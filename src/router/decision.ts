// A decision while it is made: where a session lives, how fast members are, what each of them would cost; and what comes of
// it. Pure. Invariant: of what only operators look at nothing is made before they do.

import { RefrainError } from '../core/errors.js'
import type { Member, MemberPlacement, RouteQuery, Score } from './contract.js'
import type { Expected } from './expectation.js'
import type { Identity } from './identity.js'
import type { MemberState } from './member-book.js'
import type { Candidate } from './pick.js'
import type { Scorer } from './scorer/scorer.js'

/** Names of the scorers, each in its slot. */
export const SLOTS = ['prefill', 'queue', 'streams', 'pressure', 'affinity', 'random'] as const
export const [PREFILL, QUEUE, STREAMS, PRESSURE, AFFINITY] = [0, 1, 2, 3, 4] as const

export interface SlottedScorer {
  readonly slot: number
  readonly weight: number
  readonly scorer: Scorer
}

export interface ScoredCandidate extends Candidate {
  /** Milliseconds by slot. */
  readonly ms: readonly number[]
}

interface Decision {
  readonly candidate: Candidate
  readonly candidates: readonly ScoredCandidate[]
  readonly reason: string
  readonly identity: Identity
  readonly expected: Expected
}

/** A decision; its scores are made for whoever looks at them. */
export class Placed implements MemberPlacement {
  readonly member: Member
  readonly reason: string
  readonly predictedHitTokens: number
  readonly of: number
  readonly identity: Identity
  readonly expected: Expected
  readonly #candidates: readonly ScoredCandidate[]

  constructor({ candidate, candidates, reason, identity, expected }: Decision) {
    this.member = candidate.member
    this.reason = reason
    this.predictedHitTokens = expected.tokens
    this.of = candidates.length
    this.identity = identity
    this.expected = expected
    this.#candidates = candidates
  }

  get scores(): readonly Score[] {
    return this.#candidates.map(scoreOf)
  }
}

/**
 * Where the session lives, by its key or its prompt; another member where only that one has what the prompt goes on from:
 * several conversations may have one key.
 */
export function homeOf(
  { segments, promptTokens }: RouteQuery,
  home: string | undefined,
  { members, expected }: { members: readonly Member[]; expected: readonly Expected[] },
): string | undefined {
  if (home === undefined) return undefined
  const head = segments.tokens[segments.head - 1] ?? 0
  let most = 0
  for (let i = 0; i < members.length; i++) {
    const tokens = (expected[i] as Expected).tokens
    if ((members[i] as Member).id === home && tokens > head) return home
    if (tokens > (expected[most] as Expected).tokens) most = i
  }
  const own = Math.max(0, (expected[most] as Expected).tokens - head)
  return own >= (promptTokens - head) / 2 ? (members[most] as Member).id : home
}

/**
 * What members do of what they are configured to do, in tokens a second. One that was not observed is taken to do as much:
 * to compare an observed rate with an assumed one would send everything one way.
 */
export function factorOf(members: readonly Member[], states: readonly MemberState[]): number {
  let factors = 0
  let observed = 0
  for (let i = 0; i < members.length; i++) {
    const { rate } = (states[i] as MemberState).ledger
    if (rate === undefined) continue
    factors += rate / (members[i] as Member).rates.prefillTokensPerSecond
    observed++
  }
  return observed === 0 ? 1 : factors / observed
}

/** Segments of the front that is at most `most` tokens long. */
export function depthOf(tokens: readonly number[], most: number): number {
  let depth = tokens.length
  while (depth > 0 && (tokens[depth - 1] as number) > most) depth--
  return depth
}

function scoreOf({ member, ttftMs, overlapTokens, ms }: ScoredCandidate): Score {
  const parts = Object.fromEntries(SLOTS.map((name, slot) => [name, ms[slot] as number]))
  return { member: member.id, ttftMs, overlapTokens, parts }
}

/** Why nobody may take it. */
export function noneAble(all: readonly Member[], model: string, excluded: readonly string[] | undefined): RefrainError {
  const able = all.filter(({ models }) => models.includes(model))
  if (able.length === 0 && all.some(({ models }) => models.length > 0)) {
    return new RefrainError('model_not_found', `no backend has the model '${model}'`)
  }
  const states = able.map(({ id, state }) => `${id} ${excluded?.includes(id) ? 'was tried' : `is ${state}`}`)
  const why = states.length === 0 ? 'none is known yet' : states.join(', ')
  return new RefrainError('engine_failed', `no backend is up: ${why}`, { retryAfterMs: 1000 })
}
