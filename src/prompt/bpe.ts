// Byte-pair merging over token ids: one word in, its tokens out, in n log n steps however long the word is.
// Invariant: the pair of lowest rank is merged first, the leftmost of equals; so did the trainer, and any other order
// gives other tokens. Stands below tokenizer.ts, which cuts text into words.

/** A growing list of token ids that is reused from call to call. */
export class IdList {
  ids = new Int32Array(1024)
  length = 0

  push(id: number): void {
    if (this.length === this.ids.length) this.#grow(this.length + 1)
    this.ids[this.length++] = id
  }

  append(ids: Int32Array): void {
    if (this.length + ids.length > this.ids.length) this.#grow(this.length + ids.length)
    // A loop is cheaper than the call of `set` for the few ids of a word.
    if (ids.length > 16) this.ids.set(ids, this.length)
    else for (let i = 0; i < ids.length; i++) this.ids[this.length + i] = ids[i]!
    this.length += ids.length
  }

  /** The ids since `start`, as an array of their own. */
  copy(start: number): Int32Array {
    return this.ids.slice(start, this.length)
  }

  #grow(length: number): void {
    const grown = new Int32Array(Math.max(length, this.ids.length * 2))
    grown.set(this.ids)
    this.ids = grown
  }
}

/** What merges with what: a hash table from two token ids to the rank of their merge and the token that it makes. */
export class MergeTable {
  readonly #slots: Int32Array
  readonly #left: Int32Array
  readonly #right: Int32Array
  readonly #rank: Int32Array
  readonly #result: Int32Array
  readonly #mask: number
  #count = 0

  constructor(capacity: number) {
    const slots = 2 ** Math.max(4, Math.ceil(Math.log2(capacity * 2 + 1)))
    this.#slots = new Int32Array(slots)
    this.#mask = slots - 1
    this.#left = new Int32Array(capacity)
    this.#right = new Int32Array(capacity)
    this.#rank = new Int32Array(capacity)
    this.#result = new Int32Array(capacity)
  }

  /** The first entry of a pair stays: later ones have a worse rank. */
  add(left: number, right: number, rank: number, result: number): void {
    let slot = this.#hash(left, right)
    for (let at = this.#slots[slot]!; at !== 0; at = this.#slots[slot]!) {
      if (this.#left[at - 1] === left && this.#right[at - 1] === right) return
      slot = (slot + 1) & this.#mask
    }
    this.#left[this.#count] = left
    this.#right[this.#count] = right
    this.#rank[this.#count] = rank
    this.#result[this.#count] = result
    this.#slots[slot] = ++this.#count
  }

  /** Index of the pair for `rank` and `result`, or -1. */
  find(left: number, right: number): number {
    let slot = this.#hash(left, right)
    for (let at = this.#slots[slot]!; at !== 0; at = this.#slots[slot]!) {
      if (this.#left[at - 1] === left && this.#right[at - 1] === right) return at - 1
      slot = (slot + 1) & this.#mask
    }
    return -1
  }

  rank(index: number): number {
    return this.#rank[index]!
  }

  result(index: number): number {
    return this.#result[index]!
  }

  #hash(left: number, right: number): number {
    const mixed = Math.imul(left, 0x9e3779b1) ^ Math.imul(right, 0x85ebca6b)
    return (mixed ^ (mixed >>> 15)) & this.#mask
  }
}

// A heap entry is rank * POSITIONS + position: one number, ordered as merges are, exact below 2^53.
const POSITIONS = 2 ** 27

/** Longest word in symbols (bytes or characters) that can be merged. */
export const WORD_SYMBOLS = POSITIONS - 1

/**
 * Merges words over one table. Scratch space is kept for words of up to `SCRATCH` symbols; a longer one gets its own,
 * for as long as it takes.
 */
export class WordMerger {
  readonly #table: MergeTable
  readonly #scratch = new Scratch(SCRATCH)

  constructor(table: MergeTable) {
    this.#table = table
  }

  /**
   * Merges `symbols[0..length)` in place as far as the table goes; returns how many symbols are left, at the front.
   * Negative symbols merge with nothing. Each position enters the heap once at the start and at most twice per merge.
   */
  merge(symbols: Int32Array, length: number): number {
    if (length > WORD_SYMBOLS) throw new RangeError(`a word of ${length} symbols is over ${WORD_SYMBOLS}`)
    if (length < 2) return length
    const scratch = length <= SCRATCH ? this.#scratch : new Scratch(length)
    new WordMerge(symbols, length, this.#table, scratch).run()
    let left = 0
    for (let at = 0; at < length; at = scratch.next[at]!) symbols[left++] = symbols[at]!
    return left
  }
}

const SCRATCH = 512

class Scratch {
  /** Position of the symbol after this one, and before it. */
  readonly next: Int32Array
  readonly previous: Int32Array
  /** Index in the table of the pair that starts at a position; -1: none, or the position was merged away. */
  readonly pair: Int32Array
  readonly heap: Float64Array

  constructor(length: number) {
    this.next = new Int32Array(length)
    this.previous = new Int32Array(length)
    this.pair = new Int32Array(length)
    this.heap = new Float64Array(3 * length)
  }
}

class WordMerge {
  readonly #symbols: Int32Array
  readonly #length: number
  readonly #table: MergeTable
  readonly #scratch: Scratch
  #size = 0

  constructor(symbols: Int32Array, length: number, table: MergeTable, scratch: Scratch) {
    this.#symbols = symbols
    this.#length = length
    this.#table = table
    this.#scratch = scratch
    for (let at = 0; at < length; at++) {
      scratch.next[at] = at + 1
      scratch.previous[at] = at - 1
    }
    for (let at = 0; at < length; at++) this.#pairUp(at)
  }

  run(): void {
    const { next, previous, pair: pairs } = this.#scratch
    while (this.#size > 0) {
      const entry = this.#pop()
      const rank = Math.floor(entry / POSITIONS)
      const at = entry - rank * POSITIONS
      const pair = pairs[at]!
      if (pair < 0 || this.#table.rank(pair) !== rank) continue
      const right = next[at]!
      const after = next[right]!
      this.#symbols[at] = this.#table.result(pair)
      pairs[right] = -1
      next[at] = after
      if (after < this.#length) previous[after] = at
      this.#pairUp(at)
      if (previous[at]! >= 0) this.#pairUp(previous[at]!)
    }
  }

  #pairUp(at: number): void {
    const right = this.#scratch.next[at]!
    const left = this.#symbols[at]!
    let pair = -1
    if (right < this.#length && left >= 0 && this.#symbols[right]! >= 0) {
      pair = this.#table.find(left, this.#symbols[right]!)
    }
    this.#scratch.pair[at] = pair
    if (pair >= 0) this.#push(this.#table.rank(pair) * POSITIONS + at)
  }

  #push(entry: number): void {
    const { heap } = this.#scratch
    let at = this.#size++
    while (at > 0) {
      const parent = (at - 1) >> 1
      if (heap[parent]! <= entry) break
      heap[at] = heap[parent]!
      at = parent
    }
    heap[at] = entry
  }

  #pop(): number {
    const { heap } = this.#scratch
    const top = heap[0]!
    const last = heap[--this.#size]!
    let at = 0
    for (let child = 1; child < this.#size; child = 2 * at + 1) {
      if (child + 1 < this.#size && heap[child + 1]! < heap[child]!) child++
      if (heap[child]! >= last) break
      heap[at] = heap[child]!
      at = child
    }
    heap[at] = last
    return top
  }
}
