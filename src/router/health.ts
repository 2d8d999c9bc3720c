// How one member is: what probes and requests have shown of it. Pure, told the time. Invariant: one answer of a server that
// was silent lets it back in at once; one that answers probes and fails requests stays out for a time that doubles; who
// came back gets its share by and by.

export interface HealthOptions {
  /** Between two probes of a member that is up. */
  readonly probeMs: number
  /** Between two probes of one that is down; twice and a half of it after a minute. */
  readonly downProbeMs: number
  /** Probes that a member may leave unanswered; where nobody listens, none. */
  readonly unanswered: number
  /** Failed requests in a row that open the circuit, and for how long at first. */
  readonly breakerFailures: number
  readonly breakerMs: number
  /** Until a member that came back has its full weight again. */
  readonly slowStartMs: number
  /** Between two questions how many requests wait there, beside probes; 0 or undefined: it is not asked. */
  readonly queueMs?: number
}

/** `refused`: nobody listens there, so its process is gone. */
export interface Silence {
  readonly refused: boolean
  readonly why: string
}

const LONGEST_OPEN_MS = 30_000
const LEAST_WEIGHT = 0.1
const PATIENT_AFTER_MS = 60_000
const PATIENCE = 2.5

export class Health {
  readonly #options: HealthOptions
  #state: 'starting' | 'up' | 'down' = 'starting'
  #why: string | undefined
  #changedAt: number
  /** Probes in a row that were not answered. */
  #unanswered = 0
  /** Requests in a row that failed. */
  #failures = 0
  /** How often the circuit has opened since the last success. */
  #trips = 0
  #openUntil = 0
  /** When it came back; undefined: it was never away, or long enough ago. */
  #backAt: number | undefined
  #wasRefused = false

  constructor(options: HealthOptions, now: number) {
    this.#options = options
    this.#changedAt = now
  }

  get state(): 'starting' | 'up' | 'down' {
    return this.#state
  }

  /** Why it is not up. */
  get why(): string | undefined {
    return this.#why
  }

  /** Whether its process was gone: what it held in memory is lost. */
  get wasGone(): boolean {
    return this.#wasRefused
  }

  /** How often its circuit has opened since it closed last. */
  get trips(): number {
    return this.#trips
  }

  /** Whether its circuit is open. */
  isOpen(now: number): boolean {
    return now < this.#openUntil
  }

  weight(now: () => number): number {
    if (this.#backAt === undefined) return 1
    const share = (now() - this.#backAt) / this.#options.slowStartMs
    if (share < 1) return LEAST_WEIGHT + (1 - LEAST_WEIGHT) * share
    this.#backAt = undefined
    return 1
  }

  /** Until the next probe. */
  nextProbeMs(now: number): number {
    const { probeMs, downProbeMs } = this.#options
    if (this.#state === 'up') return this.#unanswered > 0 ? Math.min(probeMs, downProbeMs) : probeMs
    if (now < this.#openUntil) return Math.max(1, Math.min(probeMs, this.#openUntil - now))
    return now - this.#changedAt > PATIENT_AFTER_MS ? downProbeMs * PATIENCE : downProbeMs
  }

  /** A probe was answered. True: it is up now and was not. */
  answered(now: number): boolean {
    this.#unanswered = 0
    if (this.#state === 'up' || now < this.#openUntil) return false
    if (this.#state === 'down') this.#backAt = now
    this.#state = 'up'
    this.#why = undefined
    this.#changedAt = now
    this.#wasRefused = false
    return true
  }

  /** A probe was not answered. True: it is down now and was up. */
  silent({ refused, why }: Silence, now: number): boolean {
    this.#unanswered++
    if (this.#state === 'up' && !refused && this.#unanswered < this.#options.unanswered) return false
    return this.#down({ refused, why }, now)
  }

  /** A request was answered, if only with a refusal of what it asked. True: its circuit closes with that. */
  succeeded(): boolean {
    const closes = this.#trips > 0 && this.#state === 'up'
    this.#failures = 0
    this.#trips = 0
    return closes
  }

  /** A request failed by its fault, after it was sent. True: the circuit opens. */
  failed(why: string, now: number): boolean {
    // It was sent before the circuit opened, and says nothing that is not known.
    if (this.isOpen(now)) return false
    this.#failures++
    // After a trip the first failure is enough: it had its chance.
    if (this.#failures < (this.#trips > 0 ? 1 : this.#options.breakerFailures)) return false
    this.#openUntil = now + this.#openMs(this.#trips)
    this.#trips++
    this.#failures = 0
    return this.#down({ refused: false, why: `the circuit is open: ${why}` }, now)
  }

  #openMs(trips: number): number {
    return Math.min(LONGEST_OPEN_MS, this.#options.breakerMs * 2 ** trips)
  }

  /** Another router's circuit opened, the `nth` time since it closed. True: it is down now and was up. */
  opened(nth: number, now: number): boolean {
    const wasOpen = this.isOpen(now)
    this.#openUntil = Math.max(this.#openUntil, now + this.#openMs(nth - 1))
    this.#trips = Math.max(this.#trips, nth)
    this.#failures = 0
    return (
      !wasOpen && this.#down({ refused: false, why: 'the circuit is open: requests of another router failed' }, now)
    )
  }

  /** Another router's circuit closed: the next probe that is answered lets it in. */
  closed(): void {
    this.#openUntil = 0
    this.#trips = 0
  }

  /** A request found nobody there. True: it is down now and was up. */
  unreachable(silence: Silence, now: number): boolean {
    return this.#down(silence, now)
  }

  #down({ refused, why }: Silence, now: number): boolean {
    const wasUp = this.#state === 'up'
    if (refused) {
      // Whoever listens there next is another process: what this one did is not held against it.
      this.#wasRefused = true
      this.#openUntil = 0
      this.#failures = 0
      this.#trips = 0
    }
    this.#why = why
    if (this.#state !== 'starting') this.#state = 'down'
    if (wasUp) this.#changedAt = now
    return wasUp
  }
}
