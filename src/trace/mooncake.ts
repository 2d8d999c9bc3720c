// Mooncake's traces, a JSON object a line: time in ms, lengths, and names of 512-token blocks that mean the same in the
// whole file; the last block of a prompt may be part of one. Conversations are not named.

import { UsageError } from '../core/usage-error.js'
import { blocksOf, numberOf } from './claude-code.js'
import type { Trace, TraceRequest } from './trace.js'

const BLOCK_TOKENS = 512

interface RawLine {
  readonly timestamp?: unknown
  readonly input_length?: unknown
  readonly output_length?: unknown
  readonly hash_ids?: unknown
}

export function isMooncakeLine(value: unknown): value is RawLine {
  const { input_length, hash_ids } = (value ?? {}) as RawLine
  return input_length !== undefined && hash_ids !== undefined
}

/** @throws UsageError naming `path` and the line. */
export function readMooncake(text: string, path: string): Trace {
  const requests: TraceRequest[] = []
  for (const [i, line] of text.split('\n').entries()) {
    if (line.trim() === '') continue
    const place = `${path}:${i + 1}`
    let raw: RawLine
    try {
      raw = JSON.parse(line)
    } catch (error) {
      throw new UsageError(`${place}: it is not JSON: ${(error as Error).message}`)
    }
    requests.push({
      at: numberOf(raw.timestamp ?? 0, `${place}: timestamp`) / 1000,
      session: undefined,
      turn: 0,
      promptTokens: numberOf(raw.input_length, `${place}: input_length`),
      outputTokens: numberOf(raw.output_length ?? 0, `${place}: output_length`),
      blocks: blocksOf(raw.hash_ids, `${place}: hash_ids`),
      scope: 0,
    })
  }
  requests.sort((a, b) => a.at - b.at)
  return { name: path, blockTokens: BLOCK_TOKENS, requests }
}
