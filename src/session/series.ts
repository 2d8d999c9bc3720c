// Series of a session: the turns between two boundaries, over which the prompt only grows and what is cached should too. Pure:
// a state, an input, what follows. Invariant: an alarm is told where cached tokens fall below what the turn before left, and
// nobody who may do so (a compaction, a reset, a revocation, a head, an eviction, time) had said that they would.

import type { SessionEvent } from './log/event.js'

/** What is told of one turn. */
export interface SeriesStep {
  readonly turn: number
  /** From 1; rises where a boundary was. */
  readonly series: number
  readonly promptTokens: number
  readonly cachedTokens: number
  /** Tokens that the turn before left for this one to begin with; of the first, 0. */
  readonly stablePrefix: number
  /** Cached of all. */
  readonly hitRate: number
}

export type SeriesInput =
  | {
      readonly kind: 'step'
      /** Unix milliseconds. */
      readonly at: number
      readonly turn: number
      readonly promptTokens: number
      readonly cachedTokens: number
      /** Of the prompt, without its tail. */
      readonly stableTokens: number
      readonly backend: string
      /** Why it missed, where somebody found out; see explain/. */
      readonly reason?: string
    }
  /** `opens`: a new series begins with the next step; else what was cached may be gone, and the series goes on. */
  | { readonly kind: 'boundary'; readonly opens: boolean }

export interface SeriesRules {
  /** Tokens of a block: less than one is rounding. */
  readonly blockTokens: number
  /** How long what a turn left is promised to be there. */
  readonly ttlMs: number
  /** Below it, over `hitRateTurns` turns, is an alarm; 0: never. */
  readonly hitRate: number
  readonly hitRateTurns: number
}

export type SeriesAlarm =
  | {
      readonly what: 'unscheduled_invalidation'
      readonly turn: number
      /** Tokens that should have been cached, in whole blocks, and those that were. */
      readonly expectedTokens: number
      readonly cachedTokens: number
      readonly reason: string
    }
  | { readonly what: 'hit_rate'; readonly turn: number; readonly hitRate: number; readonly turns: number }

/** Plain data. */
export interface SeriesState {
  readonly series: number
  /** The step before. */
  readonly last: { readonly at: number; readonly stableTokens: number; readonly backend: string } | undefined
  /** Somebody said that what the last step left may be gone. */
  readonly isScheduled: boolean
  readonly opens: boolean
  readonly rate: RateState
}

/** The last turns' tokens, the oldest first. */
export interface RateState {
  readonly turns: readonly { readonly promptTokens: number; readonly cachedTokens: number }[]
  /** It was told that the rate is low, and it has not been better since. */
  readonly isLow: boolean
}

export const NO_RATE: RateState = { turns: [], isLow: false }
export const NO_SERIES: SeriesState = {
  ...{ series: 1, last: undefined, isScheduled: false, opens: false, rate: NO_RATE },
}

/** Explanations that are no change of the prompt: what was cached is gone, as was to be expected. */
const EXPECTED: ReadonlySet<string> = new Set([
  ...['first_seen', 'expired', 'evicted', 'restored_slower_than_recomputed', 'compaction', 'revocation'],
])

export interface SeriesOutcome {
  readonly state: SeriesState
  readonly step?: SeriesStep
  readonly alarms: readonly SeriesAlarm[]
}

export function nextSeries(state: SeriesState, input: SeriesInput, rules: SeriesRules): SeriesOutcome {
  if (input.kind === 'boundary')
    return { state: { ...state, isScheduled: true, opens: state.opens || input.opens }, alarms: [] }
  const { turn, promptTokens, cachedTokens } = input
  const { last } = state
  const series = state.opens && last !== undefined ? state.series + 1 : state.series
  const alarms: SeriesAlarm[] = []
  const lost = invalidation(state, input, rules)
  if (lost !== undefined) alarms.push(lost)
  // The first step of a series has nothing to find.
  const counts = last !== undefined && !state.opens
  const rated = counts ? nextRate(state.rate, input, rules) : { rate: state.rate }
  if (rated.low !== undefined) alarms.push({ what: 'hit_rate', turn, ...rated.low })
  return {
    state: {
      ...{ series, isScheduled: false, opens: false, rate: rated.rate },
      last: { at: input.at, stableTokens: input.stableTokens, backend: input.backend },
    },
    step: {
      ...{ turn, series, promptTokens, cachedTokens, stablePrefix: last?.stableTokens ?? 0 },
      hitRate: promptTokens === 0 ? 0 : cachedTokens / promptTokens,
    },
    alarms,
  }
}

function invalidation(
  { last, isScheduled }: SeriesState,
  step: Extract<SeriesInput, { kind: 'step' }>,
  { blockTokens, ttlMs }: SeriesRules,
): SeriesAlarm | undefined {
  if (last === undefined || isScheduled || step.at - last.at > ttlMs) return undefined
  if (step.reason !== undefined && EXPECTED.has(step.reason)) return undefined
  // A prompt's last token is always computed, and blocks are cached whole.
  const most = Math.min(last.stableTokens, step.promptTokens - 1)
  const expectedTokens = Math.floor(most / blockTokens) * blockTokens
  if (step.cachedTokens >= expectedTokens) return undefined
  const moved = last.backend === step.backend ? 'unknown' : 'other_backend'
  const { turn, cachedTokens, reason = moved } = step
  return { what: 'unscheduled_invalidation', turn, expectedTokens, cachedTokens, reason }
}

/** Told once, until the rate has been better. Of a session or of a tenant. */
export function nextRate(
  { turns, isLow }: RateState,
  { promptTokens, cachedTokens }: { readonly promptTokens: number; readonly cachedTokens: number },
  { hitRate: least, hitRateTurns }: Pick<SeriesRules, 'hitRate' | 'hitRateTurns'>,
): { readonly rate: RateState; readonly low?: { readonly hitRate: number; readonly turns: number } } {
  if (least === 0) return { rate: NO_RATE }
  const now = [...turns, { promptTokens, cachedTokens }].slice(-hitRateTurns)
  const sum = (of: 'promptTokens' | 'cachedTokens') => now.reduce((total, each) => total + each[of], 0)
  const all = sum('promptTokens')
  const hitRate = all === 0 ? 1 : sum('cachedTokens') / all
  const low = now.length === hitRateTurns && hitRate < least
  const rate = { turns: now, isLow: low }
  return low && !isLow ? { rate, low: { hitRate, turns: hitRateTurns } } : { rate }
}

/** What an event of the log is for its series; undefined: nothing. */
export function seriesInputOf({ body, at }: SessionEvent): SeriesInput | undefined {
  switch (body.kind) {
    case 'usage': {
      const { turn, promptTokens, cachedTokens, stableTokens, backend } = body
      return { kind: 'step', at, turn, promptTokens, cachedTokens, stableTokens, backend }
    }
    case 'compaction':
    case 'reset':
    case 'revocation':
      return { kind: 'boundary', opens: true }
    case 'head':
      return { kind: 'boundary', opens: body.apply === 'now' }
    default:
      return undefined
  }
}

/** Of a whole log: each turn's figures. */
export function seriesOf(events: readonly SessionEvent[], rules: SeriesRules): readonly SeriesStep[] {
  let state = NO_SERIES
  return events.flatMap((event) => {
    const input = seriesInputOf(event)
    if (input === undefined) return []
    const next = nextSeries(state, input, rules)
    state = next.state
    return next.step === undefined ? [] : [next.step]
  })
}
