// What a member is expected to hold of a prompt, by the best knowledge of it that is at hand and believed: precise (its own
// events), learned (what was sent there), sticky (the session's last turn was), load (nothing is known). Pure reading.

import type { Knowledge, Medium, Member, RouteQuery } from './contract.js'
import type { MemberState } from './member-book.js'
import type { PreciseIndex, PreciseLookup } from './precise-index.js'
import type { Predicted } from './predictions.js'
import type { SegmentMatch } from './segment-index.js'
import type { Session } from './session-table.js'

export interface Expected {
  /** Of the front, wherever it lies. */
  readonly tokens: number
  /** Of these, less what it costs to bring them up. */
  readonly saved: number
  /** What each model says, whichever is gone by. */
  readonly predicted: Predicted
}

/** What is known of a request before any member is looked at. */
export interface Known {
  readonly match: SegmentMatch<Session>
  readonly session: Session | undefined
  readonly precise: PreciseLookup | undefined
}

export class Expectations {
  readonly #precise: Pick<PreciseIndex, 'state' | 'lookup'> | undefined

  constructor(precise: Pick<PreciseIndex, 'state' | 'lookup'> | undefined) {
    this.#precise = precise
  }

  lookup({ blocks }: RouteQuery): PreciseLookup | undefined {
    return blocks === undefined ? undefined : this.#precise?.lookup(blocks)
  }

  of(query: RouteQuery, member: Member, { match, session, precise }: Known, state: MemberState): Expected {
    const { index } = state.memory
    const most = Math.max(0, query.promptTokens - 1)
    const isHome = session?.member === member.id
    // A session that comes back is the proof of what was recalled; others go by it once it was given.
    const recalled = isHome ? (match.recalled.get(index) ?? 0) : 0
    const learned = Math.min(most, Math.max(recalled, match.tokens.get(index) ?? 0))
    const sticky = isHome ? Math.min(most, session.tokens) : 0
    const told = precise !== undefined && this.#isFollowed(member) ? precise.held(member.id) : undefined
    const exact = told === undefined ? undefined : Math.min(most, sumOf(told))
    const level = this.level(member, state)
    const predicted: Predicted = { precise: exact, learned, sticky, recalled }
    const { restoreCost } = member.rates
    if (level === 'precise' && told !== undefined && exact !== undefined) {
      // What is on its way there is told by nobody yet; what it held before it was followed, neither.
      const isComplete = this.#precise?.state(member.id)?.complete === true
      const more = Math.min(most, isComplete ? (match.pending.get(index) ?? 0) : learned)
      const beside = Math.max(0, more - exact)
      const saved = savedOf(told, restoreCost) + beside * (1 - restoreCost.device)
      return { tokens: exact + beside, saved, predicted }
    }
    const tokens = level === 'load' ? 0 : level === 'sticky' ? sticky : learned
    return { tokens, saved: tokens * (1 - restoreCost.device), predicted }
  }

  #isFollowed({ id, knowledge }: Pick<Member, 'id' | 'knowledge'>): boolean {
    return knowledge === 'precise' && this.#precise?.state(id)?.connected === true
  }

  /** The best model of a member that is at hand and believed. */
  level(member: Pick<Member, 'id' | 'knowledge'>, { predictions }: MemberState): Knowledge {
    const { knowledge } = member
    return predictions.level(knowledge === 'precise' && !this.#isFollowed(member) ? 'learned' : knowledge)
  }
}

type Held = Readonly<Partial<Record<Medium, number>>>

function savedOf(held: Held, cost: Readonly<Record<Medium, number>>): number {
  let saved = 0
  for (const medium in held) saved += (held[medium as Medium] ?? 0) * (1 - cost[medium as Medium])
  return saved
}

function sumOf(held: Held): number {
  return (held.device ?? 0) + (held.host ?? 0) + (held.disk ?? 0) + (held.remote ?? 0)
}
