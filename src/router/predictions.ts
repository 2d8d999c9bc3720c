// How well it is known what one member's cache holds: predicted against reported hits, and the size of its cache as they
// show it. Invariant: a model that is often wrong is not believed until it was right for a while; counts that a member does
// not report teach nothing.

import type { Knowledge } from './contract.js'
import type { CacheMemory } from './segment-index.js'

/** Best first. */
const LEVELS: readonly Knowledge[] = ['precise', 'learned', 'sticky', 'load']

const MODELS = ['precise', 'learned', 'sticky'] as const

/** How much one more answer counts. */
const WEIGHT = 0.1
const MIN_SEEN = 10
/** Mean error, as a share of the prompt, above which a model is not believed, and below which it is again. */
const WRONG = 0.3
const RIGHT = 0.15

interface Track {
  seen: number
  /** Smoothed |predicted - reported| / prompt. */
  error: number
  believed: boolean
}

/** What each model said of one request, in tokens of the request's estimate. */
export interface Predicted {
  readonly precise: number | undefined
  readonly learned: number
  readonly sticky: number
  /** Of `learned`, what is believed of before this process began. */
  readonly recalled: number
}

export interface Reported {
  readonly cached: number
  readonly prompt: number
}

export class Predictions {
  readonly #tracks: Record<'precise' | 'learned' | 'sticky', Track> = {
    precise: { seen: 0, error: 0, believed: true },
    learned: { seen: 0, error: 0, believed: true },
    sticky: { seen: 0, error: 0, believed: true },
  }

  learn(predicted: Predicted, { cached, prompt }: Reported): void {
    if (prompt <= 0) return
    for (const name of MODELS) {
      const track = this.#tracks[name]
      const tokens = predicted[name]
      if (tokens === undefined) continue
      const error = Math.min(1, Math.abs(tokens - cached) / prompt)
      track.seen++
      track.error += (error - track.error) * Math.max(WEIGHT, 1 / track.seen)
      if (track.seen < MIN_SEEN) continue
      if (track.error > WRONG) track.believed = false
      if (track.error < RIGHT) track.believed = true
    }
  }

  /** The best model that is believed, no better than `ceiling`. */
  level(ceiling: Knowledge): Knowledge {
    for (let i = LEVELS.indexOf(ceiling); i < LEVELS.length; i++) {
      const name = LEVELS[i] as Knowledge
      if (name === 'load' || this.#tracks[name].believed) return name
    }
    return 'load'
  }

  /** Mean error of a model as a share of the prompt; undefined: it was never seen. */
  error(name: Knowledge): number | undefined {
    const track = name === 'load' ? undefined : this.#tracks[name]
    return track === undefined || track.seen === 0 ? undefined : track.error
  }
}

/** What is compared once a request is over: how old the fronts were that it was expected to find. */
export interface Ages {
  /** Tokens that were computed there since it got the longest known front; undefined: it was not known to hold any. */
  readonly tail: number | undefined
  readonly head: number | undefined
  /** `computed` of the member when the request was sent. */
  readonly sentAt: number
}

/** Hits that differ by less are equal: blocks are rounded, estimates are rough. */
const SLACK_TOKENS = 128
const SLACK_SHARE = 0.05

/** Whether what is recalled of a member is there: the first sessions that come back show it for all. */
export function learnRecalled(
  memory: { trustsRecalled: boolean; clearedBelow: number },
  { recalled, cached }: { recalled: number; cached: number },
): void {
  if (recalled === 0 || memory.clearedBelow > 0) return
  if (cached >= recalled / 2) memory.trustsRecalled = true
  else memory.clearedBelow = 1
}

/** Learns the size of a cache, and that it was emptied, from one request's predicted and reported hit. */
export function learnCache(
  memory: CacheMemory & { proven: number },
  ages: Ages,
  { predicted, cached, prompt }: { predicted: number; cached: number; prompt: number },
): void {
  const slack = Math.max(SLACK_TOKENS, SLACK_SHARE * prompt)
  const { tail, head } = ages
  if (tail !== undefined && cached >= predicted - slack) {
    memory.proven = Math.max(memory.proven, tail)
    memory.capacity = Math.max(memory.capacity, memory.proven)
    return
  }
  if (tail === undefined || cached >= predicted - slack) return
  const youngest = Math.min(tail, head ?? tail)
  const mustHold = memory.proven > 0 ? memory.proven : 4 * prompt
  // Even what was there a moment ago is gone: nothing else is left of that time either.
  if (cached < 0.1 * predicted && youngest < mustHold)
    memory.clearedBelow = Math.max(memory.clearedBelow, ages.sentAt + 1)
  else memory.capacity = Math.max(memory.proven, Math.min(memory.capacity, 0.9 * tail))
}
