// What can be set of the router: config `router` is of this shape, and a test holds its defaults equal to ROUTER_DEFAULTS,
// which tests and tools take.

import type { PickOptions } from './pick.js'
import type { ScorerOptions } from './scorer/scorer.js'

export interface RouterOptions extends PickOptions, ScorerOptions {
  /** What each scorer counts, by its name; one that is not named counts nothing. */
  readonly weights: Readonly<Record<string, number>>
  /** A session counts at its member so long after its last turn. */
  readonly activeMs: number
  /** Requests that a member gets at most at once; 0: as many as come. */
  readonly maxInFlight: number
  /** Sessions that are remembered. */
  readonly sessions: number
  readonly sessionTtlMs: number
  /** Segments of prompts that are remembered, over all members. */
  readonly segments: number
  readonly segmentTtlMs: number
}

export const ROUTER_DEFAULTS: RouterOptions = {
  weights: { prefill: 1, queue: 1, streams: 1, pressure: 6, affinity: 1, random: 0 },
  streamMs: 2,
  affinityMs: 500,
  overload: 2,
  replicate: 1,
  rebalanceMs: 4000,
  spread: 1.25,
  activeMs: 30_000,
  maxInFlight: 0,
  sessions: 100_000,
  sessionTtlMs: 86_400_000,
  segments: 250_000,
  segmentTtlMs: 7_200_000,
}
