// Requests that wait at a member and are not this router's: what it says, less what was sent there from here. Told the time.
// Invariant: of ours none is counted; where that cannot be told apart, too few are counted, not too many; what was said
// long ago does not count.

import type { WaitingThere } from '../backend/remote/contract.js'

export interface OursThere {
  readonly inFlight: number
  /** Of these, those whose first content came: they wait no more. */
  readonly decoding: number
}

/** What the newest answer counts for, beside those before it. */
const NEW = 0.5
/** Less than this is what smoothing leaves. */
const LEAST = 0.25
/** Answers that may be missed in a row. */
const MISSED = 2

export class OthersQueue {
  #requests = 0
  #askedAt = Number.NEGATIVE_INFINITY
  #isAsking = false
  #missed = 0
  #asked = 0

  get requests(): number {
    return this.#requests
  }

  isDue(now: number, everyMs: number): boolean {
    return !this.#isAsking && now - this.#askedAt >= everyMs
  }

  /** It is being asked; the function takes the answer. */
  ask(now: number): (said: WaitingThere | undefined, ours: OursThere) => void {
    this.#askedAt = now
    this.#isAsking = true
    const asked = ++this.#asked
    return (said, ours) => {
      // Of a member that went down meanwhile.
      if (asked !== this.#asked) return
      this.#isAsking = false
      this.#take(said, ours)
    }
  }

  #take(said: WaitingThere | undefined, { inFlight, decoding }: OursThere): void {
    if (said === undefined) {
      if (++this.#missed > MISSED) this.#requests = 0
      return
    }
    this.#missed = 0
    const ours = said.withRunning ? inFlight : inFlight - decoding
    const others = Math.max(0, said.requests - ours)
    const smoothed = this.#requests + NEW * (others - this.#requests)
    this.#requests = smoothed < LEAST ? 0 : smoothed
  }

  /** Whatever waited there is gone. */
  clear(): void {
    this.#requests = 0
    this.#isAsking = false
    this.#asked++
  }
}
