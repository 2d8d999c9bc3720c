// Heads (tools and system) and the members that got them lately: what keeps one member from getting all of them while
// another has none, also where nothing is in flight. Bounded by count and age.

interface Head {
  readonly members: Set<string>
  usedAt: number
}

export class HeadTable {
  readonly #max: number
  readonly #ttlMs: number
  /** Least recently used first. */
  readonly #heads = new Map<string, Head>()
  readonly #counts = new Map<string, number>()

  constructor({ max, ttlMs }: { readonly max: number; readonly ttlMs: number }) {
    this.#max = max
    this.#ttlMs = ttlMs
  }

  get size(): number {
    return this.#heads.size
  }

  /** Heads that `member` got lately. */
  countAt(member: string): number {
    return this.#counts.get(member) ?? 0
  }

  use(head: string, member: string, now: number): void {
    const found = this.#heads.get(head) ?? { members: new Set(), usedAt: now }
    found.usedAt = now
    this.#heads.delete(head)
    this.#heads.set(head, found)
    if (!found.members.has(member)) {
      found.members.add(member)
      this.#counts.set(member, this.countAt(member) + 1)
    }
    this.expire(now)
  }

  expire(now: number): void {
    for (const [key, head] of this.#heads) {
      if (this.#heads.size <= this.#max && now - head.usedAt <= this.#ttlMs) return
      this.#heads.delete(key)
      for (const member of head.members) this.#counts.set(member, this.countAt(member) - 1)
    }
  }
}
