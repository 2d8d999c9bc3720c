// A clock that a test moves by hand. Invariant: timers fire in order of their time, and `now` stands at a timer's own
// time while it fires, so that what it starts counts from there.

import type { Clock } from '../core/clock.js'

interface Timer {
  readonly at: number
  readonly order: number
  readonly fn: () => void
}

export class ManualClock implements Clock {
  #now = 0
  #order = 0
  readonly #timers = new Set<Timer>()

  now(): number {
    return this.#now
  }

  after(ms: number, fn: () => void): () => void {
    const timer = { at: this.#now + Math.max(0, ms), order: this.#order++, fn }
    this.#timers.add(timer)
    return () => this.#timers.delete(timer)
  }

  /** Timers that wait. */
  get waiting(): number {
    return this.#timers.size
  }

  /** Moves time forward and fires, in order, every timer that falls due, also those that others start meanwhile. */
  advance(ms: number): void {
    this.#advanceTo(this.#now + ms)
  }

  #advanceTo(end: number): void {
    for (;;) {
      const next = [...this.#timers]
        .filter((timer) => timer.at <= end)
        .sort((a, b) => a.at - b.at || a.order - b.order)[0]
      if (next === undefined) break
      this.#timers.delete(next)
      this.#now = next.at
      next.fn()
    }
    this.#now = end
  }

  /** `advance` in ten parts with turns of the event loop after each, for timers that start asynchronous work. */
  async advanceSlowly(ms: number): Promise<void> {
    const start = this.#now
    for (let part = 1; part <= 10; part++) {
      this.#advanceTo(start + (ms * part) / 10)
      for (let turn = 0; turn < 10; turn++) await new Promise((resolve) => setImmediate(resolve))
    }
  }
}
