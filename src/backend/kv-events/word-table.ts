// A hash table of 64-bit keys with a few words beside each, in one typed array: what a Map needs 100 bytes an entry for.
// Invariant: rows move when others are removed or added, so a row's place is good until the next change only.
//
//   row  = [key low, key high, word 0, word 1, ...]     linear probing, 8 of 10 rows used at most

const MIN_ROWS = 64
const MAX_LOAD = 0.8
const GROWTH = 1.5

export class WordTable {
  /** Words of a row, its key's two included. */
  readonly stride: number
  rows: Uint32Array
  #used: Uint8Array
  #capacity = MIN_ROWS
  #size = 0

  /** `words`: how many beside the key. */
  constructor(words: number) {
    this.stride = words + 2
    this.rows = new Uint32Array(MIN_ROWS * this.stride)
    this.#used = new Uint8Array(MIN_ROWS)
  }

  get size(): number {
    return this.#size
  }

  get bytes(): number {
    return this.rows.byteLength + this.#used.byteLength
  }

  /** Where the row of the key begins in `rows`; -1: it has none. */
  find(low: number, high: number): number {
    const { rows, stride } = this
    for (let i = this.#home(low, high); this.#used[i] === 1; i = i + 1 === this.#capacity ? 0 : i + 1) {
      const at = i * stride
      if (rows[at] === low && rows[at + 1] === high) return at
    }
    return -1
  }

  /** The row of the key, made with zeros when it has none. */
  ensure(low: number, high: number): number {
    const known = this.find(low, high)
    if (known >= 0) return known
    if (this.#size + 1 > this.#capacity * MAX_LOAD) this.#resize(Math.ceil(this.#capacity * GROWTH))
    this.#size++
    return this.#place(low, high)
  }

  /** Removes the row that begins at `at`; rows behind it may move into its place. */
  remove(at: number): void {
    const { rows, stride } = this
    const used = this.#used
    const next = (i: number) => (i + 1 === this.#capacity ? 0 : i + 1)
    let hole = at / stride
    for (let i = next(hole); used[i] === 1; i = next(i)) {
      const home = this.#home(rows[i * stride] as number, rows[i * stride + 1] as number)
      // Whether its home lies, on the ring, behind the hole: then it is where it has to be.
      const isHome = hole < i ? home > hole && home <= i : home > hole || home <= i
      if (isHome) continue
      rows.copyWithin(hole * stride, i * stride, (i + 1) * stride)
      hole = i
    }
    used[hole] = 0
    this.#size--
  }

  /** Calls `visit` with where each row begins; it may write the row's words, and must not add or remove rows. */
  each(visit: (at: number) => void): void {
    for (let i = 0; i < this.#capacity; i++) if (this.#used[i] === 1) visit(i * this.stride)
  }

  /** Keeps the rows that `keep` says. */
  retain(keep: (at: number) => boolean): void {
    const { rows, stride } = this
    let kept = 0
    this.each((at) => {
      if (!keep(at)) this.#used[at / stride] = 0
      else kept++
    })
    this.#size = kept
    this.#resize(Math.max(MIN_ROWS, Math.ceil((kept / MAX_LOAD) * GROWTH)), rows)
  }

  clear(): void {
    this.#capacity = MIN_ROWS
    this.#size = 0
    this.rows = new Uint32Array(MIN_ROWS * this.stride)
    this.#used = new Uint8Array(MIN_ROWS)
  }

  #home(low: number, high: number): number {
    const mixed = (Math.imul(low ^ (high >>> 15), 0x9e3779b1) ^ high) >>> 0
    return Math.floor((mixed * this.#capacity) / 2 ** 32)
  }

  #place(low: number, high: number): number {
    let i = this.#home(low, high)
    while (this.#used[i] === 1) i = i + 1 === this.#capacity ? 0 : i + 1
    const at = i * this.stride
    this.#used[i] = 1
    this.rows.fill(0, at, at + this.stride)
    this.rows[at] = low
    this.rows[at + 1] = high
    return at
  }

  #resize(capacity: number, rows = this.rows): void {
    const used = this.#used
    const { stride } = this
    this.rows = new Uint32Array(capacity * stride)
    this.#used = new Uint8Array(capacity)
    this.#capacity = capacity
    for (let i = 0; i < used.length; i++) {
      if (used[i] !== 1) continue
      const from = i * stride
      const at = this.#place(rows[from] as number, rows[from + 1] as number)
      this.rows.set(rows.subarray(from, from + stride), at)
    }
  }
}
