// Alarms that were raised, for whoever looks later: kept from the start on, since what a person should look at must not
// depend on somebody looking. Invariant: bounded for each tenant on its own; they are rare, and cost nothing until there is one.

import { type CacheAlarm, cacheAlarm } from '../core/signals.js'
import type { Viewer } from '../explain/contract.js'
import type { Alarm } from './contract.js'

/** Of a tenant. */
const ALARMS = 50
/** Tenants are those of the config. */
const TENANTS = 1000

export class AlarmBook {
  /** Newest first. */
  readonly #byTenant = new Map<string, readonly Alarm[]>()
  readonly #stop: () => void

  /** `now`: Unix milliseconds. */
  constructor(now: () => number) {
    this.#stop = cacheAlarm.subscribe((alarm) => this.#add(alarm, now()))
  }

  /** Newest first. */
  of(viewer: Viewer): readonly Alarm[] {
    if (!viewer.admin) return this.#byTenant.get(viewer.name) ?? []
    return [...this.#byTenant.values()].flat().sort((a, b) => b.at - a.at)
  }

  close(): void {
    this.#stop()
  }

  #add(alarm: CacheAlarm, at: number): void {
    const { tenant, session, what } = alarm
    const known = this.#byTenant.get(tenant) ?? []
    if (known.length === 0 && this.#byTenant.size >= TENANTS) return
    const told: Alarm = {
      at,
      tenant,
      kind: what,
      sentence: sentenceOf(alarm),
      ...(session !== undefined && { session }),
    }
    this.#byTenant.set(tenant, [told, ...known].slice(0, ALARMS))
  }
}

function sentenceOf(alarm: CacheAlarm): string {
  if (alarm.what === 'hit_rate') {
    const rate = Math.round(100 * alarm.hitRate)
    const whose = alarm.session === undefined ? 'of all sessions' : 'of this session'
    return `${rate} % of the prompt tokens ${whose} were reused in the last ${alarm.turns} turns`
  }
  const { turn, expectedTokens, cachedTokens, reason } = alarm
  const which = turn === undefined ? 'a turn' : `turn ${turn}`
  const missed = `${which} had ${cachedTokens} of ${expectedTokens} tokens that should have been there`
  return `${missed}: ${reason === 'unknown' ? 'why is not known' : reason.replaceAll('_', ' ')}`
}
