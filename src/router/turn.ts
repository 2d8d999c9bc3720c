// One request on its way to a member, as much as the router's books need of it: what it tells itself, and what routers that
// share their books tell each other. Invariant: hashes and counts only; a chain that came from elsewhere may have gaps in
// front, which cost a hit where they matter.

import type { Predicted } from './predictions.js'
import type { SessionRecord } from './session-store.js'

export interface Turn {
  /** Its own among the requests that are under way, of all routers. */
  readonly id: string
  readonly member: string
  readonly scope: string
  /** Of its prompt. */
  readonly chain: {
    readonly hashes: readonly string[]
    readonly tokens: readonly number[]
    readonly head: number
  }
  /** Segments of `chain` that the member held before. */
  readonly depth: number
  /** Names the head, for all that share it. */
  readonly head: string
  readonly tail: string
  readonly promptTokens: number
  /** What is computed for it, by expectation. */
  readonly newTokens: number
  readonly expectedTokens: number
  readonly predicted: Predicted
  readonly isSide: boolean
  /** Its session's key; undefined: it is none's. */
  readonly session: string | undefined
  /** It is sent to this member beside another one: its session stays where it is unless this one answers first. */
  readonly isHedge?: true
}

/** What became of a turn: counts of the member's, undefined where it does not say. */
export interface TurnEnd {
  readonly failed: boolean
  readonly promptTokens?: number | undefined
  readonly completionTokens?: number | undefined
  readonly cachedTokens?: number | undefined
}

/** Whoever is told what a router was told; see peers.ts. */
export interface RouterPeers {
  sent(turn: Turn): void
  seated(turn: Turn): void
  started(turn: Turn): void
  ended(turn: Turn, end: TurnEnd): void
  released(prefix: string, keys: readonly string[]): void
}

/** A router's books, as other routers write into them. */
export interface SharedBooks {
  sent(turn: Turn): void
  seated(id: string): void
  /** By the turn's id, as the others; ids that are not known are passed over. */
  started(id: string): void
  ended(id: string, end: TurnEnd): void
  /** Whether `id` is under way. */
  has(id: string): boolean
  released(prefix: string): void
  emptied(member: string): void
  /** A session that is not known here yet. */
  recall(record: SessionRecord): void
}
