// `refrain lint FILE`: a log of requests -> what hit rate it allows, and what breaks its prefixes, the dearest first.
// Invariant: the file is read once, in pieces; a record that cannot be read is counted, a file without any is refused.

import { createReadStream, existsSync } from 'node:fs'
import { open } from 'node:fs/promises'
import { formatCount, formatTable } from '../core/units.js'
import { UsageError } from '../core/usage-error.js'
import { jsonElements, lines } from './json-elements.js'
import { LINT_DEFAULTS, Lint, type LintReport, type TokenCounter } from './lint.js'
import { parsed } from './prompt-text.js'

export interface LintSide {
  /** Told the bytes that are read. */
  progress?(bytes: number): void
  /** Counts tokens; absent: they are estimated. */
  readonly counter?: TokenCounter | undefined
}

export interface LintFlags {
  readonly bytesPerToken?: string
  readonly top?: string
  readonly json?: boolean
}

/** A record of a log. */
const MOST_RECORD_BYTES = 256 * 1024 * 1024
const PEEK_BYTES = 64 * 1024
const USUAL_TOP = 10

/** What the command prints. @throws UsageError. */
export async function lintCommand(
  path: string,
  flags: LintFlags,
  { progress = () => undefined, counter }: LintSide = {},
): Promise<string> {
  const bytesPerToken = positive(flags.bytesPerToken, '--bytes-per-token', 4)
  const lint = new Lint({ ...LINT_DEFAULTS, bytesPerToken, ...(counter && { counter }) })
  const top = positive(flags.top, '--top', USUAL_TOP)
  for await (const record of recordsOf(path, progress)) lint.add(parsed(record.toString('utf8')))
  const report = lint.report()
  if (report.requests === 0) {
    throw new UsageError(`${path}: none of ${report.skipped} records is a request with messages or input`)
  }
  return flags.json === true ? `${JSON.stringify(report, undefined, 2)}\n` : lintText(report, top)
}

function positive(text: string | undefined, flag: string, fallback: number): number {
  if (text === undefined) return fallback
  const number = Number(text)
  if (number > 0 && Number.isFinite(number)) return number
  throw new UsageError(`${flag}: '${text}' is no number above 0`)
}

async function* recordsOf(path: string, progress: (bytes: number) => void): AsyncGenerator<Buffer, void> {
  if (!existsSync(path)) throw new UsageError(`there is no file ${path}`)
  const start = await peek(path)
  if (start.includes('"hash_ids"')) {
    throw new UsageError(`${path}: it is a trace without texts; see what it allows with refrain bench simulate`)
  }
  const chunks = counted(createReadStream(path, { highWaterMark: 1 << 20 }), progress)
  const mostBytes = MOST_RECORD_BYTES
  if (/^\s*\[/.test(start)) yield* jsonElements(chunks, { key: undefined, mostBytes })
  else if (/^\s*\{\s*"log"\s*:/.test(start)) yield* jsonElements(chunks, { key: '"entries"', mostBytes })
  else yield* lines(chunks, mostBytes)
}

async function peek(path: string): Promise<string> {
  const file = await open(path, 'r')
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(PEEK_BYTES), 0, PEEK_BYTES, 0)
    return buffer.toString('utf8', 0, bytesRead)
  } finally {
    await file.close()
  }
}

async function* counted(chunks: AsyncIterable<Buffer>, progress: (bytes: number) => void): AsyncGenerator<Buffer> {
  let bytes = 0
  for await (const chunk of chunks) {
    bytes += chunk.length
    progress(bytes)
    yield chunk
  }
}

function lintText(report: LintReport, top: number): string {
  const { requests, skipped, promptTokens, causes } = report
  const left = skipped === 0 ? '' : `, ${formatCount(skipped)} records without a prompt left out`
  const rates = formatTable([
    ['a cache that keeps everything', 'hit rate'],
    ['blocks of 64 tokens', percent(report.hitRate64)],
    ['blocks of 16 tokens', percent(report.hitRate16)],
    ['blocks of 64, all below mended', percent(report.hitRateMended)],
  ])
  const about = report.tokenizer === undefined ? 'about ' : ''
  const how = report.tokenizer === undefined ? 'estimated from bytes' : `counted with ${report.tokenizer}`
  const head = `${formatCount(requests)} requests, ${about}${formatCount(promptTokens)} prompt tokens (${how})${left}\n\n${rates}\n`
  if (causes.length === 0) return `${head}Nothing breaks a prefix.\n`
  const shown = causes.slice(0, top).map((cause, i) => {
    const number = cause.isNumber ? ', a clock or a counter' : ''
    return (
      `${i + 1}. ${cause.what}: ${cause.reason}${number}\n` +
      `   ${about}${formatCount(cause.lostTokens)} tokens lost in ${formatCount(cause.requests)} requests, ` +
      `first in record ${cause.first}, from byte ${formatCount(cause.byte)} of its text on\n   mend: ${cause.mend}\n`
    )
  })
  const rest = causes.length - shown.length
  return `${head}${shown.join('')}${rest > 0 ? `and ${formatCount(rest)} smaller ones (--top)\n` : ''}`
}

function percent(share: number): string {
  return `${(100 * share).toFixed(1)} %`
}
