// Small numbers in place of block hashes: what a recording says instead of them. Invariant: equal hashes have equal numbers
// for as long as the hash is remembered, at least as long as `most` others were seen after it; a number is never used twice.

export class BlockNames {
  readonly #most: number
  #young = new Map<string, number>()
  #old = new Map<string, number>()
  #next = 1

  /** Between one and two times `most` hashes are remembered. */
  constructor(most: number) {
    this.#most = most
  }

  name(hash: string): number {
    const known = this.#young.get(hash) ?? this.#old.get(hash)
    const name = known ?? this.#next++
    if (!this.#young.has(hash)) {
      if (this.#young.size >= this.#most) {
        this.#old = this.#young
        this.#young = new Map()
      }
      this.#young.set(hash, name)
    }
    return name
  }
}
