// Traces of coding agents, a JSON object a session: blocks of `block_size` tokens by local names, sub-agents nested in
// their parent's list with times of their own. Also what `refrain serve --record` writes. Invariant: a request that does
// not make sense is the file's fault, named by its place.

import { UsageError } from '../core/usage-error.js'
import type { Trace, TraceRequest } from './trace.js'

interface RawRequest {
  readonly t?: unknown
  readonly type?: unknown
  readonly in?: unknown
  readonly out?: unknown
  readonly hash_ids?: unknown
  readonly agent_id?: unknown
  readonly requests?: unknown
  readonly api_time?: unknown
  readonly tool_tokens?: unknown
  readonly system_tokens?: unknown
}

/** One conversation of a file: its name, where its list stands, and what all of its requests have in common. */
interface Place {
  readonly session: string
  readonly at: string
  readonly common: Pick<TraceRequest, 'parent' | 'headTokens'>
}

export interface RawTrace {
  readonly id?: unknown
  readonly block_size?: unknown
  /** `local` to the file, or `global`: names mean the same in every file of one `recording`. */
  readonly hash_id_scope?: unknown
  readonly recording?: unknown
  /** Seconds from the start of the recording. */
  readonly start?: unknown
  readonly tool_tokens?: unknown
  readonly system_tokens?: unknown
  readonly requests?: unknown
}

export function isClaudeCodeTrace(value: unknown): value is RawTrace {
  const { requests, block_size } = (value ?? {}) as RawTrace
  return Array.isArray(requests) && typeof block_size === 'number'
}

/** @throws UsageError naming `path` and the place in it. */
export function readClaudeCode(raw: RawTrace, path: string): Trace {
  const name = typeof raw.id === 'string' ? raw.id : path
  const blockTokens = raw.block_size as number
  if (!Number.isInteger(blockTokens) || blockTokens <= 0) throw new UsageError(`${path}: block_size is no block length`)
  const requests: TraceRequest[] = []
  const walk = (list: readonly RawRequest[], start: number, { session, at, common }: Place) => {
    let turn = 0
    for (const [i, each] of list.entries()) {
      const place = `${at}[${i}]`
      const t = start + numberOf(each.t, `${path}: ${place}.t`)
      if (each.type === 'subagent') {
        if (!Array.isArray(each.requests)) throw new UsageError(`${path}: ${place}.requests is no list`)
        walk(each.requests, t, {
          session: `${session}/${String(each.agent_id ?? i)}`,
          at: `${place}.requests`,
          common: { parent: session, ...headOf(each) },
        })
        continue
      }
      requests.push({
        at: t,
        session,
        turn: ++turn,
        promptTokens: numberOf(each.in, `${path}: ${place}.in`),
        outputTokens: numberOf(each.out ?? 0, `${path}: ${place}.out`),
        blocks: blocksOf(each.hash_ids, `${path}: ${place}.hash_ids`),
        scope: 0,
        ...common,
        ...(each.api_time !== undefined && { duration: numberOf(each.api_time, `${path}: ${place}.api_time`) }),
      })
    }
  }
  const start = numberOf(raw.start ?? 0, `${path}: start`)
  walk(raw.requests as RawRequest[], start, { session: name, at: 'requests', common: headOf(raw) })
  requests.sort((a, b) => a.at - b.at)
  return { name, blockTokens, requests }
}

/** Nothing where the trace does not say: zeros of a recording are no head. */
function headOf({ tool_tokens: tools, system_tokens: system }: RawTrace): { readonly headTokens?: number } {
  const headTokens = [tools, system].reduce<number>((sum, each) => sum + (typeof each === 'number' ? each : 0), 0)
  return Number.isFinite(headTokens) && headTokens > 0 ? { headTokens } : {}
}

export function numberOf(value: unknown, place: string): number {
  if (typeof value === 'number' && Number.isFinite(value) && value >= 0) return value
  throw new UsageError(`${place} must be a number from 0 on`)
}

export function blocksOf(value: unknown, place: string): readonly number[] {
  if (Array.isArray(value) && value.every((id) => Number.isSafeInteger(id) && id >= 0)) return value as number[]
  throw new UsageError(`${place} must be a list of whole numbers from 0 on`)
}
