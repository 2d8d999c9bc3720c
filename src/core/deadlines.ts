// Timers of many requests as one. Each request has a few, and next to none ever fires: to arm and cancel them all costs more
// than to look at those that are left when the earliest is due. Invariant: what is due is told at its time or just after,
// once, and not behind its removal.

import type { Clock } from './clock.js'
import { Roster, type Seated } from './roster.js'

/** What waits for a time. */
export interface Due extends Seated {
  /** On the clock; set by `add`. */
  dueAt: number
  /** The time has come; it may add itself again. */
  onDue(): void
}

export class Deadlines {
  readonly #clock: Clock
  readonly #waiting = new Roster<Due>()
  #cancel: (() => void) | undefined
  #armedFor = Number.POSITIVE_INFINITY

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** One for all who have the same clock. */
  static of(clock: Clock): Deadlines {
    let deadlines = byClock.get(clock)
    if (deadlines === undefined) {
      deadlines = new Deadlines(clock)
      byClock.set(clock, deadlines)
    }
    return deadlines
  }

  /** Tells `due` in `ms`, in place of when it waited for before. */
  add(due: Due, ms: number): void {
    due.dueAt = this.#clock.now() + ms
    this.#waiting.add(due)
    if (due.dueAt < this.#armedFor) this.#arm(due.dueAt, ms)
  }

  remove(due: Due): void {
    this.#waiting.delete(due)
  }

  #arm(at: number, ms: number): void {
    this.#cancel?.()
    this.#armedFor = at
    this.#cancel = this.#clock.after(ms, () => this.#look())
  }

  #look(): void {
    this.#cancel = undefined
    this.#armedFor = Number.POSITIVE_INFINITY
    const now = this.#clock.now()
    const over: Due[] = []
    for (const due of this.#waiting.list()) if (due.dueAt <= now + EARLY_MS) over.push(due)
    for (const due of over) {
      if (this.#waiting.delete(due)) due.onDue()
    }
    let next = Number.POSITIVE_INFINITY
    for (const due of this.#waiting.list()) next = Math.min(next, due.dueAt)
    if (next < this.#armedFor) this.#arm(next, Math.max(0, next - now))
  }
}

/** Timers of the runtime are whole milliseconds, and may come one too early. */
const EARLY_MS = 1

const byClock = new WeakMap<Clock, Deadlines>()
