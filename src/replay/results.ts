// What came of each request, a line each, on disk as soon as it is known. Invariant: what was written before a crash or a
// Ctrl-C counts when the run is resumed; a file is only gone on with by a run that would have sent the same.
//
//   {"refrain_replay":1, trace, digest, settings, targets, began}
//   {"target":"llama","i":0,"at":0.01,"ttft":112.4,"wall":300.1,"prompt":1024,"cached":0,"out":16}
//   {"target":"llama","i":1,"at":0.35,"error":"status 500: ..."}
//   {"resumed":"2026-01-02T03:04:05.678Z"}

import { closeSync, existsSync, openSync, readFileSync, truncateSync, writeSync } from 'node:fs'
import { UsageError } from '../core/usage-error.js'

export interface ResultsHead {
  readonly refrain_replay: 1
  readonly trace: string
  readonly digest: string
  /** Whatever decides what is sent, and how. */
  readonly settings: Readonly<Record<string, unknown>>
  readonly targets: readonly TargetHead[]
  readonly began: string
}

export interface TargetHead {
  readonly name: string
  readonly url: string
  readonly model: string
  readonly wordsPerToken: number
}

export interface ResultLine {
  /** Its name. */
  readonly target: string
  /** The request's place in the plan. */
  readonly i: number
  /** Seconds from when the target was begun with; a resumed run counts on. */
  readonly at: number
  /** Milliseconds; absent where it failed. */
  readonly ttft?: number
  readonly wall?: number
  /** Tokens as the server counts them; absent: it does not. */
  readonly prompt?: number
  readonly cached?: number
  readonly out?: number
  readonly error?: string
}

export interface Results {
  readonly head: ResultsHead
  /** The last line of each request, by target's name and place. */
  readonly lines: readonly ResultLine[]
  /** Times that it was resumed. */
  readonly resumed: number
  add(line: ResultLine): void
  close(): void
}

/** @throws UsageError where there is such a file already. */
export function createResults(path: string, head: ResultsHead): Results {
  if (existsSync(path))
    throw new UsageError(`${path} is there already: go on with it (--resume) or name another (--results)`)
  const file = opened(path, 'wx')
  writeSync(file, `${JSON.stringify(head)}\n`)
  return appending(file, { head, lines: [], resumed: 0 })
}

/** @throws UsageError where it is no results file, or of another run. */
export function resumeResults(path: string, wanted: Pick<ResultsHead, 'digest' | 'settings'>): Results {
  const read = readResults(path)
  const { head } = read
  if (head.digest !== wanted.digest)
    throw new UsageError(`${path}: it is of another trace, or of other --limit or --max-prompt`)
  const keys = new Set([...Object.keys(head.settings), ...Object.keys(wanted.settings)])
  const other = [...keys].find((key) => JSON.stringify(head.settings[key]) !== JSON.stringify(wanted.settings[key]))
  if (other !== undefined) {
    throw new UsageError(
      `${path}: it was begun with ${other} ${shown(head.settings[other])}, not ${shown(wanted.settings[other])}`,
    )
  }
  truncateSync(path, read.wholeBytes)
  const file = opened(path, 'a')
  writeSync(file, `${JSON.stringify({ resumed: new Date().toISOString() })}\n`)
  return appending(file, { ...read, resumed: read.resumed + 1 })
}

function shown(value: unknown): string {
  return typeof value === 'string' ? value : (JSON.stringify(value) ?? 'none')
}

interface Read {
  readonly head: ResultsHead
  readonly lines: ResultLine[]
  readonly resumed: number
  /** Up to the end of the last line that was written whole. */
  readonly wholeBytes: number
}

/** @throws UsageError naming the path, and the line where one is broken. */
export function readResults(path: string): Read {
  if (!existsSync(path)) throw new UsageError(`there is no ${path} to go on with`)
  const bytes = readFileSync(path)
  // A crash may have cut the last line.
  const wholeBytes = bytes.lastIndexOf(10) + 1
  const [first = '', ...rest] = bytes.toString('utf8', 0, wholeBytes).split('\n')
  const head = parsed(first) as ResultsHead | undefined
  if (head?.refrain_replay !== 1) throw new UsageError(`${path}: it is no file of replay results`)
  const latest = new Map<string, ResultLine>()
  let resumed = 0
  for (const [i, text] of rest.entries()) {
    if (text === '') continue
    const line = parsed(text) as (ResultLine & { readonly resumed?: string }) | undefined
    if (line?.resumed !== undefined) resumed++
    else if (typeof line?.target === 'string' && typeof line.i === 'number') latest.set(keyOf(line), line)
    else throw new UsageError(`${path}:${i + 2}: it is no result`)
  }
  return { head, lines: [...latest.values()], resumed, wholeBytes }
}

function keyOf({ target, i }: ResultLine): string {
  return `${i} ${target}`
}

function appending(file: number, { head, lines, resumed }: Omit<Read, 'wholeBytes'>): Results {
  const latest = new Map(lines.map((line) => [keyOf(line), line]))
  return {
    head,
    resumed,
    get lines() {
      return [...latest.values()]
    },
    add(line) {
      latest.set(keyOf(line), line)
      writeSync(file, `${JSON.stringify(line)}\n`)
    },
    close: () => closeSync(file),
  }
}

/** 0600: it has names of servers. @throws UsageError. */
function opened(path: string, mode: 'wx' | 'a'): number {
  try {
    return openSync(path, mode, 0o600)
  } catch (error) {
    throw new UsageError(`--results: ${path} cannot be written: ${(error as Error).message}`)
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
