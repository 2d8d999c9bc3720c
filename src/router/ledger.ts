// What was sent to one member and is not over: how much prefill waits there, and how fast it goes. Invariant: a request is
// counted from `sent` to `settled`, once; a wait shrinks with the time that passes, since nobody tells of a prefill's middle.

interface Pending {
  /** Tokens that were predicted to be computed. */
  readonly tokens: number
  /** When its member got it. */
  sentAt: number
  /** What the member had computed before, in tokens. */
  readonly computedBefore: number
  /** Its first content came. */
  started: boolean
}

/** The fastest a rate may be learned from: below so many tokens the wire and the queue outweigh the prefill. */
const MIN_OBSERVED_TOKENS = 64
/** What an older observation counts against the one after it. */
const MEMORY = 0.9
/** Observed milliseconds before which the configured rate still counts. */
const TRUSTED_MS = 100

export class Ledger {
  readonly #requests = new Map<string, Pending>()
  #queuedTokens = 0
  #queued = 0
  /** When the prefill that goes on now began, as far as can be told. */
  #since = 0
  #observedTokens = 0
  #observedMs = 0

  get inFlight(): number {
    return this.#requests.size
  }

  /** Requests whose first content has not come. */
  get queued(): number {
    return this.#queued
  }

  get queuedTokens(): number {
    return this.#queuedTokens
  }

  get decoding(): number {
    return this.#requests.size - this.#queued
  }

  /** Of the oldest request that is not over: what the member had computed before it; undefined: there is none. */
  get oldestBefore(): number | undefined {
    for (const { computedBefore } of this.#requests.values()) return computedBefore
    return undefined
  }

  sent(id: string, { tokens, now, computedBefore }: { tokens: number; now: number; computedBefore: number }): void {
    this.settled(id)
    if (this.#queued === 0) this.#since = now
    this.#requests.set(id, { tokens, sentAt: now, computedBefore, started: false })
    this.#queued++
    this.#queuedTokens += tokens
  }

  /** It waited for a seat until now; that says nothing of how fast the member computes. */
  seated(id: string, now: number): void {
    const request = this.#requests.get(id)
    if (request !== undefined && !request.started) request.sentAt = now
  }

  /** Its prefill is over; whatever waited behind it begins. */
  started(id: string, now: number): void {
    const request = this.#requests.get(id)
    if (request === undefined || request.started) return
    const tookMs = now - Math.max(request.sentAt, this.#since)
    if (request.tokens >= MIN_OBSERVED_TOKENS && tookMs > 0) {
      this.#observedTokens = this.#observedTokens * MEMORY + request.tokens
      this.#observedMs = this.#observedMs * MEMORY + tookMs
    }
    this.#leaveQueue(request)
    request.started = true
    this.#since = now
  }

  settled(id: string): void {
    const request = this.#requests.get(id)
    if (request === undefined) return
    this.#requests.delete(id)
    if (!request.started) this.#leaveQueue(request)
  }

  #leaveQueue(request: Pending): void {
    this.#queued--
    this.#queuedTokens = this.#queued === 0 ? 0 : this.#queuedTokens - request.tokens
  }

  /** Tokens a second, as observed; undefined until there is enough to tell. */
  get rate(): number | undefined {
    return this.#observedMs < TRUSTED_MS ? undefined : (this.#observedTokens / this.#observedMs) * 1000
  }

  /** Tokens that are still to be computed there before a new request's own. */
  waitTokens(now: number, rate: number): number {
    if (this.#queued === 0) return 0
    return Math.max(0, this.#queuedTokens - (rate * (now - this.#since)) / 1000)
  }
}
