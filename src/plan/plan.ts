// What sessions of a model take and where they fit; whether bringing a prefix back beats computing it, and from which
// length on. Invariant: pure arithmetic over a shape, budgets and rates that were given or measured; a figure whose inputs
// are not known is absent, not guessed.

import type { DataType, KvBytes, Layer } from './layer.js'
import { layerBytes } from './layer.js'
import { type KvShape, sessionBytes, tokenBytes, totalBytes, widthsOf } from './shape.js'

/** Blocks that prefixes are kept in. */
const BLOCK_TOKENS = 64

export type PlanTier = 'gpu' | 'host' | 'disk'

export interface TierBudget {
  readonly tier: PlanTier
  /** What is left for KV. */
  readonly bytes?: number
  /** Bytes per second on the way to where the model computes. */
  readonly bytesPerSecond?: number
  /** What a restore costs whatever its length. */
  readonly overheadMs: number
}

/** How long prefill takes: `linear` ms a token, and `square` ms a token squared, because attention looks back. */
export interface PrefillCost {
  readonly linear: number
  readonly square: number
}

/** Prefill of a prompt of `tokens` ran at so many tokens a second, on average. */
export interface PrefillPoint {
  readonly tokens: number
  readonly tokensPerSecond: number
}

export interface PlanInput {
  readonly shape: KvShape
  /** Length of a session. */
  readonly tokens: number
  readonly dtype?: DataType
  readonly tiers: readonly TierBudget[]
  readonly prefill?: PrefillCost
}

export interface TierPlan extends TierBudget {
  /** Of one session after the other: each takes the bytes of `tokens`. */
  readonly sessions?: number
  readonly fitTokens?: number
  readonly restoreMs?: number
  /** Shortest prefix that is brought back faster than computed, in whole blocks; 'never' up to the longest session. */
  readonly breakEvenTokens?: number | 'never'
}

export interface Plan {
  readonly model: string
  readonly note?: string
  readonly dtype: DataType
  readonly tokens: number
  readonly bytesPerToken: number
  readonly session: KvBytes & { readonly total: number }
  readonly layers: readonly { readonly kind: Layer['kind']; readonly count: number; readonly sessionBytes: number }[]
  readonly recomputeMs?: number
  readonly tiers: readonly TierPlan[]
}

/**
 * Fits the cost of prefill to one point or more; one point leaves out what attention adds with the length.
 * Two points are met exactly where that makes sense; more are met by least squares.
 */
export function fitPrefill(points: readonly PrefillPoint[]): PrefillCost {
  const known = points.map(({ tokens, tokensPerSecond }) => ({ tokens, msPerToken: 1000 / tokensPerSecond }))
  const mean = (of: readonly number[]) => of.reduce((sum, each) => sum + each, 0) / of.length
  const x = mean(known.map(({ tokens }) => tokens))
  const y = mean(known.map(({ msPerToken }) => msPerToken))
  const spread = mean(known.map(({ tokens }) => (tokens - x) ** 2))
  const slope = spread === 0 ? 0 : mean(known.map((each) => (each.tokens - x) * (each.msPerToken - y))) / spread
  // Prefill that gets cheaper with the length, or costs nothing at the start, is noise of the measurements.
  const square = Math.max(0, Math.min(slope, y / x))
  return { linear: y - square * x, square }
}

export function prefillMs(tokens: number, { linear, square }: PrefillCost): number {
  return tokens * (linear + square * tokens)
}

export function makePlan(input: PlanInput): Plan {
  const { shape, tokens, prefill } = input
  const widths = widthsOf(shape, input.dtype)
  const session = sessionBytes(shape, tokens, widths)
  const layers = shape.layers.map((layer) => ({
    kind: layer.kind,
    count: layer.count,
    sessionBytes: layer.count * totalBytes(layerBytes(layer, tokens, widths)),
  }))
  return {
    model: shape.name,
    ...(shape.note !== undefined && { note: shape.note }),
    dtype: widths.dtype,
    tokens,
    bytesPerToken: tokenBytes(shape, widths),
    session: { ...session, total: totalBytes(session) },
    layers,
    ...(prefill && { recomputeMs: prefillMs(tokens, prefill) }),
    tiers: input.tiers.map((tier) => tierPlan(tier, input)),
  }
}

function tierPlan(tier: TierBudget, { shape, tokens, dtype, prefill }: PlanInput): TierPlan {
  const widths = widthsOf(shape, dtype)
  const bytesAt = (count: number) => totalBytes(sessionBytes(shape, count, widths))
  const { bytes, bytesPerSecond, overheadMs } = tier
  const sessions = bytes === undefined ? undefined : Math.floor(bytes / bytesAt(tokens))
  const fitTokens =
    sessions === undefined ? undefined : sessions * tokens + partTokens(bytes! - sessions * bytesAt(tokens))
  if (bytesPerSecond === undefined)
    return { ...tier, ...(sessions !== undefined && { sessions, fitTokens: fitTokens! }) }
  const restoreMs = (count: number) => overheadMs + (1000 * bytesAt(count)) / bytesPerSecond
  const breakEvenTokens = prefill && breakEven({ restoreMs, prefill, mostTokens: shape.contextLength ?? tokens })
  return {
    ...tier,
    ...(sessions !== undefined && { sessions, fitTokens: fitTokens! }),
    restoreMs: restoreMs(tokens),
    ...(breakEvenTokens !== undefined && { breakEvenTokens }),
  }

  /** Longest session below `tokens` in `left` bytes. */
  function partTokens(left: number): number {
    let low = 0
    let high = tokens
    while (low < high) {
      const middle = Math.ceil((low + high) / 2)
      if (bytesAt(middle) <= left) low = middle
      else high = middle - 1
    }
    return low
  }
}

interface Contest {
  restoreMs(tokens: number): number
  readonly prefill: PrefillCost
  readonly mostTokens: number
}

/** The first whole block from which on restoring is no slower; block by block, because windows bend the line. */
function breakEven({ restoreMs, prefill, mostTokens }: Contest): number | 'never' {
  for (let tokens = BLOCK_TOKENS; tokens <= mostTokens; tokens += BLOCK_TOKENS) {
    if (restoreMs(tokens) <= prefillMs(tokens, prefill)) return tokens
  }
  return 'never'
}
