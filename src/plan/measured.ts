// Rates as a running server measured them: what its disk reads, and what its engine computes, from /v1/cache and /metrics.
// Invariant: what the server has not measured yet is absent.

import { UsageError } from '../core/usage-error.js'

export interface MeasuredRates {
  /** Bytes per second. */
  readonly diskRate?: number
  /** Prompt tokens per second of steps' time; steps that also decode make it too low. */
  readonly prefillRate?: number
}

/** Asks the server at `url`. @throws UsageError when it does not answer as a Refrain server. */
export async function measuredRates(url: string, key: string | undefined): Promise<MeasuredRates> {
  const base = url.replace(/\/(v1\/?)?$/, '')
  const ask = async (path: string): Promise<string> => {
    const headers: Record<string, string> = key === undefined ? {} : { authorization: `Bearer ${key}` }
    const reply = await fetch(`${base}${path}`, { headers, signal: AbortSignal.timeout(10_000) }).catch((error) => {
      throw new UsageError(`--server: ${base} does not answer: ${(error as Error).message}`)
    })
    if (!reply.ok) throw new UsageError(`--server: ${base}${path} answers ${reply.status}; it may want --key`)
    return await reply.text()
  }
  const [cache, metrics] = await Promise.all([ask('/v1/cache'), ask('/metrics')])
  const diskRate = diskRateOf(cache, base)
  const prefillRate = prefillRateOf(metrics)
  return { ...(diskRate !== undefined && { diskRate }), ...(prefillRate !== undefined && { prefillRate }) }
}

function diskRateOf(text: string, base: string): number | undefined {
  try {
    const { data } = JSON.parse(text) as { data: { tiers: { tier: string; read_rate?: number }[] }[] }
    return data.flatMap(({ tiers }) => tiers).find(({ tier }) => tier === 'disk')?.read_rate
  } catch (error) {
    throw new UsageError(`--server: ${base}/v1/cache is not Refrain's: ${(error as Error).message}`)
  }
}

function prefillRateOf(text: string): number | undefined {
  const tokens = Number(/^refrain_step_tokens_total\{[^}]*phase="prefill"[^}]*\} (\S+)$/m.exec(text)?.[1])
  const seconds = Number(/^refrain_step_duration_seconds_sum(?:\{[^}]*\})? (\S+)$/m.exec(text)?.[1])
  return tokens > 0 && seconds > 0 ? tokens / seconds : undefined
}
