// The sets of sources of one session, by number: an event and the state of the context name a set, and a set names the one
// that it extends, so that a thousand events that rest on the same thousand sources don't each say so. 0 is the empty set.
// Invariant: a number means one set for good.

import type { Rests, Sources } from './contributing.js'

/** As it is stored: what is added to the set `base`. */
interface StoredSet {
  readonly base: number
  readonly add: Sources
}

export interface FreshSet {
  readonly number: number
  readonly stored: string
}

export class SourceSets {
  readonly #sets: Sources[] = [[]]
  readonly #numbers = new Map<string, number>([['', 0]])
  #fresh: FreshSet[] = []
  /** Of the kept ones; what an append that failed has added goes. */
  #kept = 1

  /** Rough bytes in memory. */
  get bytes(): number {
    return this.#sets.reduce((sum, set) => sum + 64 + 8 * set.length, 0)
  }

  /** In order of their numbers, from 1. */
  load(stored: readonly string[]): void {
    for (const text of stored) {
      const { base, add } = JSON.parse(text) as StoredSet
      this.#add([...this.of(base), ...add].sort())
    }
    this.#kept = this.#sets.length
  }

  of(number: number): Sources {
    return this.#sets[number] ?? []
  }

  /** Its number, a new one where it is new. */
  number(set: Sources): number {
    const known = this.#numbers.get(set.join('\n'))
    if (known !== undefined) return known
    const last = this.#sets.length - 1
    const wanted = new Set(set)
    const base = this.of(last).every((source) => wanted.has(source)) ? last : 0
    const under = new Set(this.of(base))
    const stored = JSON.stringify({ base, add: set.filter((source) => !under.has(source)) } satisfies StoredSet)
    const number = this.#add(set)
    this.#fresh.push({ number, stored })
    return number
  }

  /** What has to be stored, once. */
  keep(): readonly FreshSet[] {
    const fresh = this.#fresh
    this.#fresh = []
    this.#kept = this.#sets.length
    return fresh
  }

  /** What was added since it was last kept did not come to be. */
  forget(): void {
    for (const set of this.#sets.splice(this.#kept)) this.#numbers.delete(set.join('\n'))
    this.#fresh = []
  }

  #add(set: Sources): number {
    this.#numbers.set(set.join('\n'), this.#sets.length)
    return this.#sets.push(set) - 1
  }

  // --- what the context rests on -------------------------------------------------------------------------------------

  encode({ body, kept, merged, revoked, gone }: Rests): string {
    const numbers = (sets: readonly Sources[]) => sets.map((set) => this.number(set))
    return JSON.stringify({
      ...{ body: numbers(body), kept: numbers(kept) },
      ...{ merged: this.number(merged), revoked: this.number(revoked), gone: this.number(gone) },
    })
  }

  decode(text: string): Rests {
    const { body, kept, merged, revoked, gone } = JSON.parse(text) as Record<'body' | 'kept', number[]> &
      Record<'merged' | 'revoked' | 'gone', number>
    return {
      ...{ body: body.map((n) => this.of(n)), kept: kept.map((n) => this.of(n)) },
      ...{ merged: this.of(merged), revoked: this.of(revoked), gone: this.of(gone) },
    }
  }
}
