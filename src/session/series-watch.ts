// Watches over series as sessions go on, and tells alarms to whoever listens (core/signals.ts): metrics, the log, a webhook.
// Invariant: what it holds is bounded, and of every alarm it tells the session and the tenant.

import { LRUCache } from 'lru-cache'
import { cacheAlarm, cacheMoved } from '../core/signals.js'
import type { SessionEvent } from './log/event.js'
import {
  NO_RATE,
  NO_SERIES,
  nextRate,
  nextSeries,
  type RateState,
  type SeriesInput,
  type SeriesRules,
  type SeriesState,
  seriesInputOf,
} from './series.js'

type Whose = { readonly tenant: string; readonly session: string }

interface Watched {
  readonly state: SeriesState
  /** Evictions that were known at its last step. */
  readonly evictions: number
}

const TENANTS = 1000

export class SeriesWatch {
  readonly #rules: SeriesRules
  readonly #sessions: LRUCache<string, Watched>
  readonly #tenants = new LRUCache<string, RateState>({ max: TENANTS })
  readonly #stop: () => void
  /** Nobody says whose blocks were evicted: it may have been any session's. */
  #evictions = 0

  /** `sessions`: that are watched at once; those that came last stay. */
  constructor(rules: SeriesRules, sessions: number) {
    this.#rules = rules
    this.#sessions = new LRUCache({ max: Math.max(1, sessions) })
    this.#stop = cacheMoved.subscribe(({ what }) => {
      if (what === 'evict' || what === 'expired' || what === 'corrupt') this.#evictions++
    })
  }

  /** Events of a session, as they are logged or read again: `isPast` tells no alarms of them. */
  take(whose: Whose, events: readonly SessionEvent[], isPast?: 'past'): void {
    for (const event of events) {
      const input = seriesInputOf(event)
      if (input !== undefined) this.see(whose, input, isPast)
    }
  }

  /** Of sessions that are not logged: what a shadow of them knows. */
  see(whose: Whose, input: SeriesInput, isPast?: 'past'): void {
    const key = `${whose.tenant}\n${whose.session}`
    const { state, evictions } = this.#sessions.get(key) ?? { state: NO_SERIES, evictions: this.#evictions }
    const isEvicted = input.kind === 'step' && evictions < this.#evictions
    const before = isEvicted ? nextSeries(state, { kind: 'boundary', opens: false }, this.#rules).state : state
    const { state: after, alarms } = nextSeries(before, input, this.#rules)
    this.#sessions.set(key, { state: after, evictions: input.kind === 'step' ? this.#evictions : evictions })
    if (isPast !== undefined) return
    for (const alarm of alarms) cacheAlarm.publish({ ...whose, ...alarm })
    if (input.kind === 'step' && state.last !== undefined) this.#rate(whose, input)
  }

  /** A session, or all of a tenant's. */
  forget({ tenant, session }: { readonly tenant: string; readonly session?: string }): void {
    if (session !== undefined) {
      this.#sessions.delete(`${tenant}\n${session}`)
      return
    }
    this.#tenants.delete(tenant)
    for (const key of this.#sessions.keys()) if (key.startsWith(`${tenant}\n`)) this.#sessions.delete(key)
  }

  close(): void {
    this.#stop()
  }

  #rate({ tenant }: Whose, step: Extract<SeriesInput, { kind: 'step' }>): void {
    const { rate, low } = nextRate(this.#tenants.get(tenant) ?? NO_RATE, step, this.#rules)
    this.#tenants.set(tenant, rate)
    if (low !== undefined) cacheAlarm.publish({ tenant, session: undefined, what: 'hit_rate', turn: undefined, ...low })
  }
}
