// Whether a tenant may see what rests on a source, and what has to go when it no longer may. Invariant: revoked by anybody
// asked is revoked; whoever has to be asked and does not answer in time counts as the config says, by default as a no.
//
//   PUT /v1/sources/ID says revoked                          revoked
//   else a policy URL, where there is one                    what it says: granted or revoked
//        it gives no answer                                  config sessions.sources.policyFault
//        it does not know the source, or there is no URL     what was PUT; else config sessions.sources.unknown, where `auto`
//                                                            is revoked with a policy URL, granted without

import { LRUCache } from 'lru-cache'
import { note } from '../core/signals.js'
import type { SessionLog, SourceGrant } from './log/contract.js'

export type Verdict = 'granted' | 'revoked'

export interface SourceRules {
  /** A source that nobody decided about. */
  readonly unknown: Verdict | 'auto'
  /** What counts where the policy URL gives no answer. */
  readonly policyFault: Verdict
  /** How long its answers count. */
  readonly policyTtlMs: number
}

/** What the policy URL says of some of the sources; of the others it knows nothing. @throws where it gives no answer. */
export type AskPolicy = (tenant: string, sources: readonly string[]) => Promise<ReadonlyMap<string, Verdict>>

export interface SourcesDeps {
  readonly log: Pick<SessionLog, 'grants' | 'setGrant'>
  /** Undefined: nobody is asked. */
  readonly ask?: AskPolicy | undefined
  /** Milliseconds that do not go back. */
  readonly now?: () => number
}

/** Answers that are remembered at once. */
const REMEMBERED = 100_000

interface Answer {
  /** Undefined: it does not know the source. */
  readonly verdict: Verdict | undefined
  readonly until: number
}

/** The one door to verdicts: it holds tenants' grants, so all of them must be set through it. */
export class SourcePolicy {
  readonly #rules: SourceRules
  readonly #log: SourcesDeps['log']
  readonly #ask: AskPolicy | undefined
  readonly #now: () => number
  readonly #grants = new LRUCache<string, Promise<Map<string, SourceGrant>>>({ max: 1000 })
  readonly #answers = new LRUCache<string, Answer>({ max: REMEMBERED })
  readonly #asking = new Map<string, Promise<ReadonlyMap<string, Verdict> | undefined>>()
  #isFaulty = false

  constructor(rules: SourceRules, { log, ask, now = () => performance.now() }: SourcesDeps) {
    this.#rules = rules
    this.#log = log
    this.#ask = ask
    this.#now = now
  }

  async grants(tenant: string): Promise<readonly SourceGrant[]> {
    return [...(await this.#granted(tenant)).values()]
  }

  /** Ids of the tenant's sessions that rest on the source. It counts from the next verdict on. */
  async set(tenant: string, grant: SourceGrant): Promise<readonly string[]> {
    const grants = await this.#granted(tenant)
    const sessions = await this.#log.setGrant(tenant, grant)
    grants.set(grant.source, grant)
    return sessions
  }

  /** The tenant was erased. */
  forget(tenant: string): void {
    this.#grants.delete(tenant)
    for (const key of this.#answers.keys()) if (key.startsWith(`${tenant}\n`)) this.#answers.delete(key)
  }

  /** Of each of the sources, as of now. */
  async verdicts(tenant: string, sources: readonly string[]): Promise<Readonly<Record<string, Verdict>>> {
    if (sources.length === 0) return {}
    const grants = await this.#granted(tenant)
    const open = sources.filter((source) => grants.get(source)?.state !== 'revoked')
    const answers = this.#ask === undefined ? new Map<string, Verdict>() : await this.#asked(tenant, open)
    const { unknown, policyFault } = this.#rules
    const undecided = unknown !== 'auto' ? unknown : this.#ask === undefined ? 'granted' : 'revoked'
    const verdictOf = (source: string): Verdict => {
      const put = grants.get(source)?.state
      if (put === 'revoked') return 'revoked'
      if (answers === undefined) return policyFault === 'revoked' ? 'revoked' : (put ?? undecided)
      return answers.get(source) ?? put ?? undecided
    }
    return Object.fromEntries([...sources].sort().map((source) => [source, verdictOf(source)]))
  }

  #granted(tenant: string): Promise<Map<string, SourceGrant>> {
    const known = this.#grants.get(tenant)
    if (known !== undefined) return known
    const asked = this.#log.grants(tenant).then((grants) => new Map(grants.map((grant) => [grant.source, grant])))
    this.#grants.set(tenant, asked)
    asked.catch(() => this.#grants.delete(tenant))
    return asked
  }

  /** Undefined: no answer. */
  async #asked(tenant: string, sources: readonly string[]): Promise<ReadonlyMap<string, Verdict> | undefined> {
    const now = this.#now()
    const known = new Map<string, Verdict>()
    const missing: string[] = []
    for (const source of sources) {
      const answer = this.#answers.get(`${tenant}\n${source}`)
      if (answer === undefined || answer.until <= now) missing.push(source)
      else if (answer.verdict !== undefined) known.set(source, answer.verdict)
    }
    if (missing.length === 0) return known
    const fresh = await this.#once(tenant, missing)
    return fresh && new Map([...known, ...fresh])
  }

  /** Compiles that ask for the same at the same time ask once. */
  #once(tenant: string, sources: readonly string[]): Promise<ReadonlyMap<string, Verdict> | undefined> {
    const key = [tenant, ...sources].join('\n')
    const running = this.#asking.get(key)
    if (running !== undefined) return running
    const asked = this.#put(tenant, sources).finally(() => this.#asking.delete(key))
    this.#asking.set(key, asked)
    return asked
  }

  async #put(tenant: string, sources: readonly string[]): Promise<ReadonlyMap<string, Verdict> | undefined> {
    try {
      const answers = await (this.#ask as AskPolicy)(tenant, sources)
      const until = this.#now() + this.#rules.policyTtlMs
      for (const source of sources) this.#answers.set(`${tenant}\n${source}`, { verdict: answers.get(source), until })
      this.#isFaulty = false
      return answers
    } catch (error) {
      // Told once until it answers again.
      if (!this.#isFaulty) note.publish({ level: 'warn', text: this.#fault(error as Error) })
      this.#isFaulty = true
      return undefined
    }
  }

  #fault({ message }: Error): string {
    const { policyFault } = this.#rules
    const what = policyFault === 'revoked' ? 'nothing that rests on a source is shown' : 'what was put before counts'
    return `the policy of sources gives no answer (${message}); until it does, ${what} (sessions.sources.policyFault)`
  }
}
