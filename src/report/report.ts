// What a replay or a simulation came to, as data: the same shape for both, so that one page shows both. Invariant: ideal
// (everything kept) stands beside every sum and over the same requests; what a server does not say is undefined, never 0.

import { type CostParts, costOf, type Prices, plainCost } from './prices.js'

/** One answered request. */
export interface Sample {
  /** Seconds from the start of its run. */
  readonly at: number
  /** Counts from 1 within its conversation; 0: there is none. */
  readonly turn: number
  readonly promptTokens: number
  /** Undefined: nobody knows. */
  readonly reusedTokens: number | undefined
  /** What a cache that keeps everything would have reused. */
  readonly idealTokens: number
  readonly outputTokens: number
  /** Undefined: nothing was timed. */
  readonly ttftMs: number | undefined
}

export interface RunReport {
  readonly name: string
  /** What it is, in a few words. */
  readonly detail: string
  readonly requests: number
  readonly failed: number
  readonly errors: readonly { readonly what: string; readonly count: number }[]
  readonly promptTokens: number
  readonly reusedTokens: number | undefined
  readonly idealTokens: number
  readonly outputTokens: number
  /** Of prompt tokens, 0 to 1. */
  readonly hitRate: number | undefined
  readonly idealHitRate: number
  readonly timeline: Timeline
  readonly ttft: TtftReport | undefined
  readonly turns: readonly TurnReport[]
  readonly cost: CostReport
}

/** Tokens of the prompts that began within each of equal spans of time. */
export interface Timeline {
  /** Start of each span. */
  readonly seconds: readonly number[]
  readonly computed: readonly number[]
  readonly reused: readonly number[]
}

export interface TtftReport {
  readonly meanMs: number
  readonly p50Ms: number
  readonly p90Ms: number
  readonly p99Ms: number
  /** Milliseconds at 0, 1, ... 100 percent of the requests. */
  readonly percentiles: readonly number[]
}

export interface TurnReport {
  readonly turn: number
  readonly requests: number
  readonly hitRate: number | undefined
  readonly idealHitRate: number
}

/** In the prices' currency. */
export interface CostReport {
  readonly none: number
  readonly ideal: CostParts
  /** Undefined: it is not known what was reused. */
  readonly actual: CostParts | undefined
  /** Of `none`, what was saved; below 0: writing cost more than reading saved. */
  readonly savedShare: number | undefined
  readonly idealSavedShare: number
}

/** A line of hit rate against capacity. */
export interface CapacityLine {
  readonly name: string
  readonly points: readonly { readonly capacity: number; readonly hitRate: number }[]
}

export interface Report {
  readonly kind: 'replay' | 'simulation'
  readonly title: string
  /** What was replayed and how, a line. */
  readonly subtitle: string
  /** Sentences on what is and is not counted. */
  readonly notes: readonly string[]
  readonly prices: Prices
  readonly runs: readonly RunReport[]
  /** Of a simulation: hit rate against a capacity in blocks, or in bytes. */
  readonly capacity?: {
    readonly unit: 'blocks' | 'bytes'
    readonly ideal: number
    readonly lines: readonly CapacityLine[]
  }
}

const SPANS = 120
const MOST_TURNS = 32

export interface RunParts {
  readonly name: string
  readonly detail: string
  readonly samples: readonly Sample[]
  /** Sentences of those that failed. */
  readonly failures: readonly string[]
  readonly prices: Prices
}

export function runReport({ name, detail, samples, failures, prices }: RunParts): RunReport {
  const promptTokens = sum(samples, (sample) => sample.promptTokens)
  const outputTokens = sum(samples, (sample) => sample.outputTokens)
  const idealTokens = sum(samples, (sample) => sample.idealTokens)
  const isKnown = samples.some(({ reusedTokens }) => reusedTokens !== undefined)
  const reusedTokens = isKnown ? sum(samples, (sample) => sample.reusedTokens ?? 0) : undefined
  return {
    ...{ name, detail, requests: samples.length, failed: failures.length, errors: counted(failures) },
    ...{ promptTokens, reusedTokens, idealTokens, outputTokens },
    hitRate: reusedTokens === undefined ? undefined : share(reusedTokens, promptTokens),
    idealHitRate: share(idealTokens, promptTokens),
    timeline: timelineOf(samples),
    ttft: ttftOf(samples),
    turns: turnsOf(samples),
    cost: costReport({ promptTokens, outputTokens, idealTokens, reusedTokens }, prices),
  }
}

function costReport(
  counts: { promptTokens: number; outputTokens: number; idealTokens: number; reusedTokens: number | undefined },
  prices: Prices,
): CostReport {
  const { reusedTokens } = counts
  const none = plainCost(counts, prices)
  const ideal = costOf({ ...counts, reusedTokens: counts.idealTokens }, prices)
  const actual = reusedTokens === undefined ? undefined : costOf({ ...counts, reusedTokens }, prices)
  const saved = ({ all }: CostParts) => (none === 0 ? 0 : 1 - all / none)
  return { none, ideal, actual, savedShare: actual && saved(actual), idealSavedShare: saved(ideal) }
}

function timelineOf(samples: readonly Sample[]): Timeline {
  const end = samples.reduce((latest, { at }) => Math.max(latest, at), 0)
  // All at once: one span is all there is.
  const spans = end === 0 ? 1 : SPANS
  const width = end === 0 ? 1 : end / spans
  const computed = new Array<number>(spans).fill(0)
  const reused = new Array<number>(spans).fill(0)
  for (const { at, promptTokens, reusedTokens = 0 } of samples) {
    const span = Math.min(spans - 1, Math.floor(at / width))
    reused[span]! += reusedTokens
    computed[span]! += promptTokens - reusedTokens
  }
  return { seconds: computed.map((_, i) => i * width), computed, reused }
}

function ttftOf(samples: readonly Sample[]): TtftReport | undefined {
  const times = samples.flatMap(({ ttftMs }) => ttftMs ?? []).sort((a, b) => a - b)
  if (times.length === 0) return undefined
  /** By nearest rank. */
  const at = (percent: number) => times[Math.max(0, Math.ceil((percent / 100) * times.length) - 1)]!
  return {
    meanMs: sum(times, (time) => time) / times.length,
    ...{ p50Ms: at(50), p90Ms: at(90), p99Ms: at(99) },
    percentiles: Array.from({ length: 101 }, (_, percent) => at(percent)),
  }
}

function turnsOf(samples: readonly Sample[]): TurnReport[] {
  const byTurn = new Map<number, Sample[]>()
  for (const sample of samples) {
    if (sample.turn < 1 || sample.turn > MOST_TURNS) continue
    const list = byTurn.get(sample.turn) ?? []
    byTurn.set(sample.turn, list)
    list.push(sample)
  }
  return [...byTurn]
    .sort(([a], [b]) => a - b)
    .map(([turn, list]) => {
      const prompt = sum(list, (sample) => sample.promptTokens)
      const isKnown = list.some(({ reusedTokens }) => reusedTokens !== undefined)
      const reused = sum(list, (sample) => sample.reusedTokens ?? 0)
      return {
        turn,
        requests: list.length,
        hitRate: isKnown ? share(reused, prompt) : undefined,
        idealHitRate: share(
          sum(list, (sample) => sample.idealTokens),
          prompt,
        ),
      }
    })
}

/** Equal sentences with their count, the most frequent first. */
function counted(failures: readonly string[]): { what: string; count: number }[] {
  const counts = new Map<string, number>()
  for (const what of failures) counts.set(what, (counts.get(what) ?? 0) + 1)
  return [...counts].map(([what, count]) => ({ what, count })).sort((a, b) => b.count - a.count)
}

function sum<T>(items: readonly T[], of: (item: T) => number): number {
  return items.reduce((total, item) => total + of(item), 0)
}

function share(part: number, whole: number): number {
  return whole === 0 ? 0 : part / whole
}
