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
}

export interface RawTrace {
  readonly id?: unknown
  readonly block_size?: unknown
  /** `local` to the file, or `global`: names mean the same in every file of one `recording`. */
  readonly hash_id_scope?: unknown
  readonly recording?: unknown
  /** Seconds from the start of the recording. */
  readonly start?: unknown
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
  const walk = (list: readonly RawRequest[], start: number, { session, at }: { session: string; at: string }) => {
    let turn = 0
    for (const [i, each] of list.entries()) {
      const place = `${at}[${i}]`
      const t = start + numberOf(each.t, `${path}: ${place}.t`)
      if (each.type === 'subagent') {
        if (!Array.isArray(each.requests)) throw new UsageError(`${path}: ${place}.requests is no list`)
        walk(each.requests, t, { session: `${session}/${String(each.agent_id ?? i)}`, at: `${place}.requests` })
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
      })
    }
  }
  walk(raw.requests as RawRequest[], numberOf(raw.start ?? 0, `${path}: start`), { session: name, at: 'requests' })
  requests.sort((a, b) => a.at - b.at)
  return { name, blockTokens, requests }
}

export function numberOf(value: unknown, place: string): number {
  if (typeof value === 'number' && Number.isFinite(value) && value >= 0) return value
  throw new UsageError(`${place} must be a number from 0 on`)
}

export function blocksOf(value: unknown, place: string): readonly number[] {
  if (Array.isArray(value) && value.every((id) => Number.isSafeInteger(id) && id >= 0)) return value as number[]
  throw new UsageError(`${place} must be a list of whole numbers from 0 on`)
}
