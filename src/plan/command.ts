// `refrain plan`: flags -> plan -> text or JSON. Invariant: every flag that cannot be read is the user's fault by name.

import { parseBytes, parseCount, parseMs, parseRate } from '../core/units.js'
import { UsageError } from '../core/usage-error.js'
import type { DataType } from './layer.js'
import { measuredRates } from './measured.js'
import { fitPrefill, makePlan, type PlanTier, type PrefillPoint, type TierBudget } from './plan.js'
import { planText } from './plan-text.js'
import { DATA_TYPES } from './shape.js'
import { loadShape } from './shape-sources.js'

export interface PlanFlags {
  /** Length of a session. */
  readonly tokens?: string
  readonly dtype?: string
  readonly gpu?: string
  readonly host?: string
  readonly disk?: string
  readonly hostRate?: string
  readonly diskRate?: string
  /** `TOKENS_PER_SECOND`, or `LENGTH:TOKENS_PER_SECOND` with commas between. */
  readonly prefill?: string
  readonly overhead?: string
  /** A running server to take measured rates from. */
  readonly server?: string
  readonly key?: string
  readonly json?: boolean
}

/** Session length where neither the flag nor the shape says one. */
const USUAL_TOKENS = 32_768
/** A request's round through queue and step; a disk adds its own wait to it. */
const OVERHEAD_MS: Readonly<Record<PlanTier, number>> = { gpu: 0, host: 1, disk: 5 }

/** What `refrain plan SOURCE` prints. @throws UsageError, ModelError. */
export async function planCommand(source: string, flags: PlanFlags): Promise<string> {
  const shape = await loadShape(source)
  const measured = flags.server === undefined ? {} : await measuredRates(flags.server, flags.key)
  const tokens =
    flags.tokens === undefined ? (shape.contextLength ?? USUAL_TOKENS) : parseCount(flags.tokens, '--tokens')
  const points = flags.prefill === undefined ? [] : prefillPoints(flags.prefill, tokens)
  const seen = measured.prefillRate === undefined ? [] : [{ tokens, tokensPerSecond: measured.prefillRate }]
  const known = points.length > 0 ? points : seen
  const plan = makePlan({
    shape,
    tokens,
    ...(flags.dtype !== undefined && { dtype: dataType(flags.dtype) }),
    tiers: tiersOf(flags, measured.diskRate),
    ...(known.length > 0 && { prefill: fitPrefill(known) }),
  })
  return flags.json === true ? `${JSON.stringify(plan, undefined, 2)}\n` : planText(plan)
}

function tiersOf(flags: PlanFlags, diskRate: number | undefined): TierBudget[] {
  const overhead = flags.overhead === undefined ? undefined : parseMs(flags.overhead, '--overhead')
  const rates = {
    gpu: undefined,
    host: flags.hostRate === undefined ? undefined : parseRate(flags.hostRate, '--host-rate'),
    disk: flags.diskRate === undefined ? diskRate : parseRate(flags.diskRate, '--disk-rate'),
  }
  return (['gpu', 'host', 'disk'] as const).flatMap((tier) => {
    const budget = flags[tier]
    const bytesPerSecond = rates[tier]
    if (budget === undefined && bytesPerSecond === undefined) return []
    return {
      tier,
      overheadMs: overhead ?? OVERHEAD_MS[tier],
      ...(budget !== undefined && { bytes: parseBytes(budget, `--${tier}`) }),
      ...(bytesPerSecond !== undefined && { bytesPerSecond }),
    }
  })
}

function prefillPoints(text: string, tokens: number): PrefillPoint[] {
  return text.split(',').map((part) => {
    const [first, second] = part.split(':')
    if (second === undefined) return { tokens, tokensPerSecond: parseCount(first!, '--prefill') }
    return { tokens: parseCount(first!, '--prefill'), tokensPerSecond: parseCount(second, '--prefill') }
  })
}

function dataType(text: string): DataType {
  const known = DATA_TYPES.find((type) => type === text)
  if (known !== undefined) return known
  throw new UsageError(`--dtype: '${text}' is none of ${DATA_TYPES.join(', ')}`)
}
