// What the path of a fleet's request says of turns, to whoever keeps them: in the same process, or in another one by way of
// turn-wire.ts. Stands between the path and its router and hears what the router hears. Invariant: the router is asked and
// told as if nobody listened; counts and hashes only, no text of a prompt.

import type { FleetRouter, RouteOutcome, RouteQuery, SegmentChain } from '../router/contract.js'

/** A request left for a member; sent again, another member is tried. */
export interface SentTurn
  extends Pick<RouteQuery, 'model' | 'tenant' | 'salt' | 'session' | 'requestClass' | 'promptTokens'> {
  /** Of the request; of one that is sent as several at once, with the part. */
  readonly key: string
  /** Of the request. */
  readonly id: string
  readonly member: string
  /** Unix milliseconds. */
  readonly at: number
  readonly segments: SegmentChain
}

/** Counts of the member's, undefined where it does not say. */
export interface SettledTurn {
  readonly key: string
  readonly failed: boolean
  readonly promptTokens?: number | undefined
  readonly completionTokens?: number | undefined
  readonly cachedTokens?: number | undefined
}

export interface TurnEars {
  sent(turn: SentTurn): void
  settled(turn: SettledTurn): void
}

/** `router`, listened to. `ears` hear first: what they keep for others may leave with the router's own news. */
export function listenedTo(router: FleetRouter, ears: TurnEars): FleetRouter {
  /** Of requests that are at two members, the second one: `ears` hear of one at a time. */
  const twice = new Map<string, string>()
  /** The end of a turn, told where there is no other one. */
  const isOver = ({ query, member, failed }: RouteOutcome): boolean => {
    const key = keyOf(query)
    const second = twice.get(key)
    if (second === undefined) return true
    twice.delete(key)
    if ((member === second) !== failed) ears.sent(sentTurn(query, second))
    return !failed
  }
  const tell = ({ query, failed, promptTokens, completionTokens, cachedTokens }: RouteOutcome) =>
    ears.settled({ key: keyOf(query), failed, promptTokens, completionTokens, cachedTokens })
  return {
    place: (query) => router.place(query),
    started: (query, member) => router.started(query, member),
    release: (tenant, session) => router.release(tenant, session),
    sent(query, placement) {
      ears.sent(sentTurn(query, placement.member.id))
      router.sent(query, placement)
    },
    hedged(query, placement, first) {
      twice.set(keyOf(query), placement.member.id)
      router.hedged(query, placement, first)
    },
    settled(outcome) {
      if (twice.size === 0 || isOver(outcome)) tell(outcome)
      router.settled(outcome)
    },
  }
}

function sentTurn(query: RouteQuery, member: string): SentTurn {
  const { id, model, tenant, salt, session, requestClass, promptTokens, segments } = query
  const about = { model, tenant, salt, requestClass, promptTokens, segments }
  return { key: keyOf(query), id, member, at: Date.now(), ...about, ...(session !== undefined && { session }) }
}

function keyOf({ id, part }: RouteQuery): string {
  return part === undefined ? id : `${id} ${part}`
}
