// Trace files by what is in them, whatever they are called. Invariant: several files of one recording share their scope,
// all others stay apart.

import { existsSync, statSync } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { UsageError } from '../core/usage-error.js'
import { isClaudeCodeTrace, type RawTrace, readClaudeCode } from './claude-code.js'
import { isMooncakeLine, readMooncake } from './mooncake.js'
import { mergeTraces, type Trace } from './trace.js'

/** All of `paths` (files, and folders of .json and .jsonl files) as one trace. @throws UsageError. */
export async function readTraces(paths: readonly string[]): Promise<Trace> {
  const files = (await Promise.all(paths.map(traceFiles))).flat()
  if (files.length === 0) throw new UsageError('there is no trace: give .json or .jsonl files, or folders of them')
  /** Traces whose names mean the same, by recording. */
  const together = new Map<string, Trace[]>()
  for (const file of files) {
    const { trace, recording } = await readOne(file)
    const key = recording ?? file
    together.set(key, [...(together.get(key) ?? []), trace])
  }
  const apart = [...together].map(([name, traces]) => joined(name, traces))
  const [first] = apart
  const other = apart.find(({ blockTokens }) => blockTokens !== first!.blockTokens)
  if (other !== undefined) {
    throw new UsageError(
      `${first!.name} has blocks of ${first!.blockTokens} tokens, ${other.name} of ${other.blockTokens}: simulate them apart`,
    )
  }
  return mergeTraces(apart)
}

function joined(name: string, traces: readonly Trace[]): Trace {
  const [first] = traces
  if (traces.length === 1) return first!
  const requests = traces.flatMap((trace) => trace.requests).sort((a, b) => a.at - b.at)
  return { ...first!, name: `${name}, ${traces.length} sessions`, requests }
}

/** A file itself, or the traces of a folder, by name. @throws UsageError where there is nothing. */
export async function traceFiles(path: string): Promise<string[]> {
  if (!existsSync(path)) throw new UsageError(`there is no trace ${path}`)
  if (!statSync(path).isDirectory()) return [path]
  const names = await readdir(path)
  return names
    .filter((name) => /\.jsonl?$/.test(name))
    .sort()
    .map((name) => join(path, name))
}

async function readOne(path: string): Promise<{ readonly trace: Trace; readonly recording?: string }> {
  const text = await readFile(path, 'utf8')
  const whole = parsed(text)
  if (isClaudeCodeTrace(whole)) {
    const recording = recordingOf(whole)
    return { trace: readClaudeCode(whole, basename(path)), ...(recording !== undefined && { recording }) }
  }
  const end = text.indexOf('\n')
  if (isMooncakeLine(whole) || isMooncakeLine(parsed(text.slice(0, end < 0 ? undefined : end)))) {
    return { trace: readMooncake(text, basename(path)) }
  }
  throw new UsageError(
    `${path}: it is no trace: neither a session with block_size and requests, nor lines with hash_ids`,
  )
}

function recordingOf({ hash_id_scope, recording }: RawTrace): string | undefined {
  return hash_id_scope === 'global' && typeof recording === 'string' ? `recording ${recording}` : undefined
}

/** Undefined: not JSON. */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
