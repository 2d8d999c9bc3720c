// A trace: what requests a set of agents sent, as lengths, times and names of blocks, without a word of text. Invariant:
// requests are in order of their time; equal prefixes of block names within a scope mean equal prefixes of prompts.

export interface TraceRequest {
  /** Seconds from the start of the trace. */
  readonly at: number
  /** The conversation; undefined where the trace does not say. */
  readonly session: string | undefined
  /** Counts from 1 within its conversation; 0 where there is none. */
  readonly turn: number
  readonly promptTokens: number
  readonly outputTokens: number
  /** Names of the prompt's blocks in order, `blockTokens` of the trace each; the last may be part of one. */
  readonly blocks: readonly number[]
  /** Names in different scopes never mean the same block. */
  readonly scope: number
  /** Seconds that its answer took; undefined: the trace does not say. */
  readonly duration?: number
  /** The conversation that this one was started from; undefined: it is no sub-agent's. */
  readonly parent?: string
  /** Of the prompt's front, tools and system text; undefined: the trace does not say. */
  readonly headTokens?: number
}

export interface Trace {
  readonly name: string
  readonly blockTokens: number
  readonly requests: readonly TraceRequest[]
}

/** One trace of several, side by side from their starts; scopes stay apart. @throws RangeError on other block lengths. */
export function mergeTraces(traces: readonly Trace[]): Trace {
  const [first] = traces
  if (first === undefined) throw new RangeError('no trace to merge')
  if (traces.some(({ blockTokens }) => blockTokens !== first.blockTokens)) {
    throw new RangeError('traces with blocks of different lengths do not go together')
  }
  let scopes = 0
  const requests = traces.flatMap((trace) => {
    const base = scopes
    for (const { scope } of trace.requests) scopes = Math.max(scopes, base + scope + 1)
    return trace.requests.map((request) => ({ ...request, scope: base + request.scope }))
  })
  requests.sort((a, b) => a.at - b.at)
  const name = traces.length === 1 ? first.name : `${traces.length} traces`
  return { name, blockTokens: first.blockTokens, requests }
}
