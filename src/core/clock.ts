// Time as a dependency, so that tests of TTLs, timeouts and rates do not depend on the machine's.

export interface Clock {
  /** Milliseconds since some fixed point; never goes back. */
  now(): number
  /** Calls `fn` once after `ms`; the returned function cancels it. The timer does not keep the process alive. */
  after(ms: number, fn: () => void): () => void
}

export const systemClock: Clock = {
  now: () => performance.now(),
  after(ms, fn) {
    const timer = setTimeout(fn, ms)
    timer.unref?.()
    return () => clearTimeout(timer)
  },
}

/**
 * A clock that stands still while its thread is held by a long synchronous call, and whose timers do too. A disk that
 * answered while nobody could listen was not slow.
 */
export class HeldClock implements Clock {
  readonly #base: Clock
  #heldMs = 0
  /** When the hold that is going on began. */
  #heldSince: number | undefined

  constructor(base: Clock) {
    this.#base = base
  }

  now(): number {
    return (this.#heldSince ?? this.#base.now()) - this.#heldMs
  }

  after(ms: number, fn: () => void): () => void {
    const due = this.now() + ms
    let cancel: () => void = () => undefined
    const arm = (wait: number) => {
      cancel = this.#base.after(wait, () => {
        const left = due - this.now()
        if (left > 0) arm(left)
        else fn()
      })
    }
    arm(ms)
    return () => cancel()
  }

  /** Runs what holds the thread; holds do not overlap. */
  async hold<T>(run: () => Promise<T>): Promise<T> {
    const started = this.#base.now()
    this.#heldSince = started
    try {
      return await run()
    } finally {
      this.#heldMs += this.#base.now() - started
      this.#heldSince = undefined
    }
  }
}
