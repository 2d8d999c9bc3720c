// Counts over time in buckets of equal length, the last so many of them. Invariant: a bucket without anything in it takes
// no room, and is not told.

import { SERIES_FIELDS, type SeriesRow } from './contract.js'

type Field = Exclude<(typeof SERIES_FIELDS)[number], 'at'>

/** Values that are as they are, not summed: null until somebody looked. */
const GAUGES: ReadonlySet<string> = new Set<Field>(['workingBytes', 'memoryBytes', 'diskBytes'])
const FIELDS = SERIES_FIELDS.slice(1) as readonly Field[]

export interface SeriesOptions {
  readonly bucketMs: number
  /** Buckets at most. */
  readonly buckets: number
}

export class Series {
  readonly #options: SeriesOptions
  /** By the number of the bucket. */
  readonly #rows = new Map<number, Partial<Record<Field, number>>>()

  constructor(options: SeriesOptions) {
    this.#options = options
  }

  /** Counts `more` at Unix milliseconds `at`; of too many buckets the oldest is left out. */
  add(at: number, more: Partial<Record<Field, number>>): void {
    const row = this.#row(at)
    for (const [field, value] of Object.entries(more) as [Field, number][]) row[field] = (row[field] ?? 0) + value
  }

  /** Values as they are at that time. */
  set(at: number, now: Partial<Record<Field, number>>): void {
    Object.assign(this.#row(at), now)
  }

  /** The buckets from that of `at` on, oldest first. */
  since(at: number): SeriesRow[] {
    const { bucketMs } = this.#options
    const from = Math.floor(at / bucketMs)
    return [...this.#rows]
      .filter(([index]) => index >= from)
      .sort(([a], [b]) => a - b)
      .map(([index, row]) => [index * bucketMs, ...FIELDS.map((field) => row[field] ?? (GAUGES.has(field) ? null : 0))])
  }

  #row(at: number): Partial<Record<Field, number>> {
    const index = Math.floor(at / this.#options.bucketMs)
    const row = this.#rows.get(index) ?? {}
    if (this.#rows.has(index)) return row
    this.#rows.set(index, row)
    if (this.#rows.size > this.#options.buckets) this.#rows.delete(Math.min(...this.#rows.keys()))
    return row
  }
}
