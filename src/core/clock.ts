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
