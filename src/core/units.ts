// Sizes, rates and times as people write and read them: '80GB', '1.5 TiB', '25GB/s', '10ms'. Invariant: decimal prefixes
// are powers of 1000, binary ones (KiB) of 1024; what cannot be read is the user's fault and named.

import { UsageError } from './usage-error.js'

const SCALES: Readonly<Record<string, number>> = {
  '': 1,
  k: 1e3,
  m: 1e6,
  g: 1e9,
  t: 1e12,
  p: 1e15,
  ki: 2 ** 10,
  mi: 2 ** 20,
  gi: 2 ** 30,
  ti: 2 ** 40,
  pi: 2 ** 50,
}

/** Bytes of '80GB', '64GiB', '512'. @throws UsageError naming `flag`. */
export function parseBytes(text: string, flag: string): number {
  const [, amount, prefix] = /^(\d+(?:\.\d+)?)\s*([kmgtp]i?)?b?$/i.exec(text.trim()) ?? []
  if (amount === undefined) throw new UsageError(`${flag}: '${text}' is no size; write it as 80GB or 64GiB`)
  return Math.round(Number(amount) * SCALES[(prefix ?? '').toLowerCase()]!)
}

/** Bytes per second of '25GB/s' or '25GB'. @throws UsageError naming `flag`. */
export function parseRate(text: string, flag: string): number {
  const rate = parseBytes(text.trim().replace(/\/s$/i, ''), flag)
  if (rate > 0) return rate
  throw new UsageError(`${flag}: a rate must be more than 0`)
}

/** A count as '131072', '128Ki', '1M' or '100k'. @throws UsageError naming `flag`. */
export function parseCount(text: string, flag: string): number {
  const [, amount, prefix] = /^(\d+(?:\.\d+)?)([kmg]i?)?$/i.exec(text.trim()) ?? []
  const count = Number(amount) * SCALES[(prefix ?? '').toLowerCase()]!
  if (amount !== undefined && Number.isSafeInteger(count) && count > 0) return count
  throw new UsageError(`${flag}: '${text}' is no count above 0; write it as 131072, 128Ki or 100k`)
}

/** Milliseconds of '10ms', '1.5s', '5m' or '10' (ms). @throws UsageError naming `flag`. */
export function parseMs(text: string, flag: string): number {
  const [, amount, unit] = /^(\d+(?:\.\d+)?)\s*(ms|s|m|h)?$/.exec(text.trim()) ?? []
  if (amount === undefined) throw new UsageError(`${flag}: '${text}' is no time; write it as 10ms or 1.5s`)
  return Number(amount) * { ms: 1, s: 1000, m: 60_000, h: 3_600_000 }[(unit ?? 'ms') as 'ms' | 's' | 'm' | 'h']
}

/** '5.25 GB': three digits, decimal prefixes. */
export function formatBytes(bytes: number): string {
  return scaled(bytes, ['B', 'KB', 'MB', 'GB', 'TB', 'PB'])
}

/** '12.3 ms', '4.56 s', '2.1 min'. */
export function formatMs(ms: number): string {
  if (ms >= 120_000) return `${digits(ms / 60_000)} min`
  return ms >= 1000 ? `${digits(ms / 1000)} s` : `${digits(ms)} ms`
}

/** '131,072'. */
export function formatCount(count: number): string {
  return Math.round(count).toLocaleString('en-US')
}

/** Rows of text in columns, the first one to the left and the others to the right; the first row is the head. */
export function formatTable(rows: readonly (readonly string[])[]): string {
  const widths = (rows[0] ?? []).map((_, i) => Math.max(...rows.map((row) => (row[i] ?? '').length)))
  const line = (row: readonly string[]) =>
    row
      .map((cell, i) => (i === 0 ? cell.padEnd(widths[i]!) : cell.padStart(widths[i]!)))
      .join('  ')
      .trimEnd()
  return rows.map((row) => `${line(row)}\n`).join('')
}

function scaled(value: number, units: readonly string[]): string {
  let at = 0
  let left = value
  while (left >= 999.5 && at < units.length - 1) {
    left /= 1000
    at++
  }
  return `${at === 0 ? String(Math.round(left)) : digits(left)} ${units[at]}`
}

function digits(value: number): string {
  if (value === 0) return '0'
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)
}
