// One of the parts of a block table, grown for itself: 64-bit keys with a row of bits for each medium, in typed arrays.
// Invariant: a row's bits are all that is kept of a block; rows without any are let go when the part grows or is full.
//
//   keys    [low, high] a row, open addressing, linear probing, 3 of 4 rows used at most
//   planes  one for each medium that was ever told here: `words` of 32 members a row, made when they are first needed

const MEDIA = 4
const MIN_ROWS = 16
const MAX_LOAD = 0.75

export class BlockShard {
  /** 32 members each. */
  #words = 1
  #capacity = MIN_ROWS
  #keys = new Uint32Array(2 * MIN_ROWS)
  #taken = new Uint8Array(MIN_ROWS)
  /** Rows that have a key, with bits or without. */
  #used = 0
  readonly #planes: (Uint32Array | undefined)[] = new Array(MEDIA).fill(undefined)

  get bytes(): number {
    const planes = this.#planes.reduce((sum, plane) => sum + (plane?.byteLength ?? 0), 0)
    return this.#keys.byteLength + this.#taken.byteLength + planes
  }

  /** The row of a key; -1: it has none. Good until the next `set`. */
  row(low: number, high: number): number {
    const taken = this.#taken
    const keys = this.#keys
    const mask = this.#capacity - 1
    for (let i = homeOf(low, high) & mask; taken[i] === 1; i = (i + 1) & mask) {
      if (keys[2 * i] === low && keys[2 * i + 1] === high) return i
    }
    return -1
  }

  /** Members `[32 * word, 32 * word + 32)` that hold the block of `row` in any of `media`. */
  bits(row: number, word: number, media: readonly number[]): number {
    if (word >= this.#words) return 0
    let bits = 0
    for (const medium of media) bits |= this.#planes[medium]?.[row * this.#words + word] ?? 0
    return bits
  }

  set(low: number, high: number, { medium, member }: { medium: number; member: number }): void {
    if (member >= 32 * this.#words) this.#widen(member)
    let row = this.row(low, high)
    if (row < 0) {
      if (this.#used + 1 > this.#capacity * MAX_LOAD) this.#rebuild()
      row = this.#place(low, high)
    }
    this.#plane(medium)[row * this.#words + (member >>> 5)]! |= 1 << (member & 31)
  }

  unset(low: number, high: number, { medium, member }: { medium: number; member: number }): void {
    const row = this.row(low, high)
    const plane = this.#planes[medium]
    if (row >= 0 && plane !== undefined) plane[row * this.#words + (member >>> 5)]! &= ~(1 << (member & 31))
  }

  /** The member holds nothing any more, in one medium or (undefined) any. */
  clear(member: number, medium?: number): void {
    if (member >= 32 * this.#words) return
    const mask = ~(1 << (member & 31))
    for (const [i, plane] of this.#planes.entries()) {
      if (plane === undefined || (medium !== undefined && medium !== i)) continue
      for (let at = member >>> 5; at < plane.length; at += this.#words) plane[at]! &= mask
    }
  }

  /** Adds the keys of all blocks that a member holds in one medium, two words each. */
  keysOf(member: number, medium: number, keys: number[]): void {
    const plane = this.#planes[medium]
    if (plane === undefined || member >= 32 * this.#words) return
    const bit = 1 << (member & 31)
    for (let row = 0, at = member >>> 5; row < this.#capacity; row++, at += this.#words) {
      if ((plane[at]! & bit) !== 0) keys.push(this.#keys[2 * row] as number, this.#keys[2 * row + 1] as number)
    }
  }

  #plane(medium: number): Uint32Array {
    const known = this.#planes[medium]
    if (known !== undefined) return known
    const plane = new Uint32Array(this.#capacity * this.#words)
    this.#planes[medium] = plane
    return plane
  }

  #place(low: number, high: number): number {
    const mask = this.#capacity - 1
    let row = homeOf(low, high) & mask
    while (this.#taken[row] === 1) row = (row + 1) & mask
    this.#taken[row] = 1
    this.#keys[2 * row] = low
    this.#keys[2 * row + 1] = high
    this.#used++
    return row
  }

  #isEmpty(row: number): boolean {
    const from = row * this.#words
    for (const plane of this.#planes) {
      for (let at = from; plane !== undefined && at < from + this.#words; at++) if (plane[at] !== 0) return false
    }
    return true
  }

  /** Leaves out what nobody holds, and makes room where that is not enough. */
  #rebuild(): void {
    let held = 0
    for (let row = 0; row < this.#capacity; row++) if (this.#taken[row] === 1 && !this.#isEmpty(row)) held++
    let capacity = MIN_ROWS
    while (held + 1 > (capacity * MAX_LOAD * 2) / 3) capacity *= 2
    const old = { capacity: this.#capacity, keys: this.#keys, taken: this.#taken, planes: [...this.#planes] }
    const kept = new Int32Array(old.capacity).fill(-1)
    for (let row = 0; row < old.capacity; row++) if (old.taken[row] === 1 && !this.#isEmpty(row)) kept[row] = 0
    this.#capacity = capacity
    this.#keys = new Uint32Array(2 * capacity)
    this.#taken = new Uint8Array(capacity)
    this.#used = 0
    for (let row = 0; row < old.capacity; row++) {
      if (kept[row] === 0) kept[row] = this.#place(old.keys[2 * row] as number, old.keys[2 * row + 1] as number)
    }
    // One plane after the other, so that no more than one is there twice.
    for (const [i, plane] of old.planes.entries()) {
      if (plane !== undefined) this.#planes[i] = moved(plane, { kept, from: this.#words, to: this.#words, capacity })
    }
  }

  /** More members than there are bits. */
  #widen(member: number): void {
    const from = this.#words
    while (member >= 32 * this.#words) this.#words *= 2
    const to = this.#words
    const kept = Int32Array.from({ length: this.#capacity }, (_, row) => (this.#taken[row] === 1 ? row : -1))
    for (const [i, plane] of this.#planes.entries()) {
      if (plane !== undefined) this.#planes[i] = moved(plane, { kept, from, to, capacity: this.#capacity })
    }
  }
}

function moved(
  plane: Uint32Array,
  { kept, from, to, capacity }: { kept: Int32Array; from: number; to: number; capacity: number },
): Uint32Array {
  const next = new Uint32Array(capacity * to)
  for (let row = 0; row < kept.length; row++) {
    const place = kept[row] as number
    if (place < 0) continue
    for (let word = 0; word < from; word++) next[place * to + word] = plane[row * from + word] as number
  }
  return next
}

/** Keys are hashes already; both words are used, so that rows of keys that share one spread. */
export function homeOf(low: number, high: number): number {
  return (low ^ Math.imul(high, 0x9e3779b1)) >>> 0
}
