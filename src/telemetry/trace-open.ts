// Whether there are traces at all. Invariant: where there are none, the SDK is not loaded and nobody listens.

import type { TraceOptions, Tracing } from './trace.js'

/** The slice `telemetry.trace` of the config. */
export interface TraceConfig extends Omit<TraceOptions, 'endpoint' | 'version' | 'server'> {
  readonly endpoint?: string
}

/** Undefined: the config names no collector. */
export async function openTrace(
  { endpoint, ...config }: TraceConfig,
  about: Pick<TraceOptions, 'version' | 'server'>,
): Promise<Tracing | undefined> {
  if (endpoint === undefined) return undefined
  const { startTrace } = await import('./trace.js')
  return startTrace({ endpoint, ...config, ...about })
}
