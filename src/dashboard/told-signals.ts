// What is said of requests in one process, told to another where somebody looks at all of them. Invariant: nothing is
// listened to while nobody looks; what does not fit until it is taken is left out.

import {
  type AttemptSettled,
  attemptSettled,
  type QuickAnswered,
  quickAnswered,
  type RequestSettled,
  requestSettled,
} from '../core/signals.js'
import type { WatchedSignals } from './contract.js'

/** As structures can be cloned. */
export type ToldSignal =
  | readonly [what: 'requestSettled', payload: RequestSettled]
  | readonly [what: 'attemptSettled', payload: Omit<AttemptSettled, 'key'>]
  | readonly [what: 'quickAnswered', payload: QuickAnswered]

/** Until they are taken, a second or two later. */
const MAX_PENDING = 20_000

/** In the process where it is said. */
export class SignalTeller {
  #pending: ToldSignal[] = []
  #stops: readonly (() => void)[] = []

  /** Somebody looks now, or does no more. */
  watch(isWatched: boolean): void {
    for (const stop of this.#stops) stop()
    this.#stops = isWatched ? this.#listen() : []
    if (!isWatched) this.#pending = []
  }

  take(): readonly ToldSignal[] {
    const pending = this.#pending
    if (pending.length > 0) this.#pending = []
    return pending
  }

  #listen(): (() => void)[] {
    const add = (told: ToldSignal) => {
      if (this.#pending.length < MAX_PENDING) this.#pending.push(told)
    }
    return [
      requestSettled.subscribe((payload) => add(['requestSettled', payload])),
      attemptSettled.subscribe(({ key: _, ...payload }) => add(['attemptSettled', payload])),
      quickAnswered.subscribe((payload) => add(['quickAnswered', payload])),
    ]
  }
}

export interface SignalEarsParts {
  /** Somebody begins to listen, or nobody does any more. */
  onWatched(isWatched: boolean): void
  /** See `WatchedSignals`. */
  joined(): Promise<unknown>
}

/** In the process where somebody looks. */
export class SignalEars implements WatchedSignals {
  readonly #parts: SignalEarsParts
  readonly #listeners = {
    requestSettled: new Set<(payload: RequestSettled) => void>(),
    attemptSettled: new Set<(payload: Omit<AttemptSettled, 'key'>) => void>(),
    quickAnswered: new Set<(payload: QuickAnswered) => void>(),
  }
  readonly requestSettled = this.#heard(this.#listeners.requestSettled)
  readonly attemptSettled = this.#heard(this.#listeners.attemptSettled)
  readonly quickAnswered = this.#heard(this.#listeners.quickAnswered)
  #isWatched = false

  constructor(parts: SignalEarsParts) {
    this.#parts = parts
  }

  get isWatched(): boolean {
    return this.#isWatched
  }

  joined(): Promise<unknown> {
    return this.#parts.joined()
  }

  hear(told: readonly ToldSignal[]): void {
    for (const [what, payload] of told) {
      for (const listener of this.#listeners[what]) listener(payload as never)
    }
  }

  #heard<T>(listeners: Set<T>) {
    return {
      subscribe: (listener: T) => {
        listeners.add(listener)
        this.#turn()
        return () => {
          listeners.delete(listener)
          this.#turn()
        }
      },
    }
  }

  #turn(): void {
    const isWatched = Object.values(this.#listeners).some(({ size }) => size > 0)
    if (isWatched === this.#isWatched) return
    this.#isWatched = isWatched
    this.#parts.onWatched(isWatched)
  }
}
