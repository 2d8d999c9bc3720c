// How fast things are, measured: the numbers behind "is a restore cheaper than computing". Invariant: until something is
// measured the prior counts, and a measurement moves the figure by at most a quarter, so that one odd run does not turn it.

import type { Clock } from '../core/clock.js'

const WEIGHT = 0.25

/** An amount per millisecond, smoothed. */
export class Rate {
  #perMs: number
  #measured = false

  constructor(priorPerMs: number) {
    this.#perMs = priorPerMs
  }

  /** The prior while nothing is measured. */
  get perMs(): number {
    return this.#perMs
  }

  /** Undefined while nothing is measured. */
  get measuredPerSecond(): number | undefined {
    return this.#measured ? this.#perMs * 1000 : undefined
  }

  /** Amounts or times of zero say nothing. */
  observe(amount: number, ms: number): void {
    if (!(amount > 0) || !(ms > 0)) return
    const seen = amount / ms
    this.#perMs = this.#measured ? this.#perMs + WEIGHT * (seen - this.#perMs) : seen
    this.#measured = true
  }
}

/**
 * The rate of work that overlaps: bytes moved while at least one transfer is in flight, over that time. Each transfer
 * alone would look slower than the disk is.
 */
export class Throughput {
  readonly rate: Rate
  readonly #clock: Clock
  #inFlight = 0
  #bytes = 0
  #since = 0

  constructor(clock: Clock, priorPerMs: number) {
    this.#clock = clock
    this.rate = new Rate(priorPerMs)
  }

  start(): void {
    if (this.#inFlight++ === 0) {
      this.#since = this.#clock.now()
      this.#bytes = 0
    }
  }

  /** Answers a `start`; `bytes` is 0 for a transfer that failed. */
  end(bytes: number): void {
    this.#bytes += bytes
    if (--this.#inFlight === 0) this.rate.observe(this.#bytes, this.#clock.now() - this.#since)
  }
}
