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

/**
 * What merges with what: a hash table from two token ids to the rank of their merge and the token that it makes. One cell
 * is four numbers in a row, so that a look costs one line of the processor's cache:
 *
 *   left + 1 (0: empty) | right | rank | result
 */
export class MergeTable {
  readonly #cells: Int32Array
  readonly #mask: number

  constructor(capacity: number) {
    const slots = 2 ** Math.max(4, Math.ceil(Math.log2(capacity * 2 + 1)))
    this.#cells = new Int32Array(slots * 4)
    this.#mask = slots - 1
  }

  /** The first entry of a pair stays: later ones have a worse rank. */
  add(left: number, right: number, rank: number, result: number): void {
    const cells = this.#cells
    let slot = this.#hash(left, right)
    for (; cells[slot * 4] !== 0; slot = (slot + 1) & this.#mask) {
      if (cells[slot * 4] === left + 1 && cells[slot * 4 + 1] === right) return
    }
    cells[slot * 4] = left + 1
    cells[slot * 4 + 1] = right
    cells[slot * 4 + 2] = rank
    cells[slot * 4 + 3] = result
  }

  /** The pair's cell, for `rank` and `result`, or -1. */
  find(left: number, right: number): number {
    const cells = this.#cells
    let slot = this.#hash(left, right)
    for (; cells[slot * 4] !== 0; slot = (slot + 1) & this.#mask) {
      if (cells[slot * 4] === left + 1 && cells[slot * 4 + 1] === right) return slot * 4
    }
    return -1
  }

  rank(cell: number): number {
    return this.#cells[cell + 2]!
  }

  result(cell: number): number {
    return this.#cells[cell + 3]!
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

// Words up to this many symbols share one scratch space; a longer one gets its own, for as long as it takes.
const SCRATCH = 512

interface Scratch {
  /** Position of the symbol after this one, and before it. */
  readonly next: Int32Array
  readonly previous: Int32Array
  /** Cell of the pair that starts at a position; -1: none, or the position was merged away. */
  readonly pair: Int32Array
  /** Each position enters once at the start and at most twice per merge. */
  readonly heap: Float64Array
}

function scratchFor(length: number): Scratch {
  return {
    next: new Int32Array(length),
    previous: new Int32Array(length),
    pair: new Int32Array(length),
    heap: new Float64Array(3 * length),
  }
}

/** Merges words over one table, one at a time. */
export class WordMerger {
  readonly #table: MergeTable
  readonly #small = scratchFor(SCRATCH)
  #scratch = this.#small
  #symbols: Int32Array = new Int32Array(0)
  #length = 0
  #heapSize = 0

  constructor(table: MergeTable) {
    this.#table = table
  }

  /**
   * Merges `symbols[0..length)` in place as far as the table goes; returns how many symbols are left, at the front.
   * Negative symbols merge with nothing.
   */
  merge(symbols: Int32Array, length: number): number {
    if (length > WORD_SYMBOLS) throw new RangeError(`a word of ${length} symbols is over ${WORD_SYMBOLS}`)
    if (length < 2) return length
    this.#symbols = symbols
    this.#length = length
    this.#scratch = length <= SCRATCH ? this.#small : scratchFor(length)
    const { next, previous } = this.#scratch
    for (let at = 0; at < length; at++) {
      next[at] = at + 1
      previous[at] = at - 1
    }
    for (let at = 0; at < length; at++) this.#pairUp(at)
    this.#mergeAll()
    this.#scratch = this.#small
    let left = 0
    for (let at = 0; at < length; at = next[at]!) symbols[left++] = symbols[at]!
    return left
  }

  #mergeAll(): void {
    const { next, previous, pair } = this.#scratch
    while (this.#heapSize > 0) {
      const entry = this.#pop()
      const rank = Math.floor(entry / POSITIONS)
      const at = entry - rank * POSITIONS
      const cell = pair[at]!
      if (cell < 0 || this.#table.rank(cell) !== rank) continue
      const right = next[at]!
      const after = next[right]!
      this.#symbols[at] = this.#table.result(cell)
      pair[right] = -1
      next[at] = after
      if (after < this.#length) previous[after] = at
      this.#pairUp(at)
      if (previous[at]! >= 0) this.#pairUp(previous[at]!)
    }
  }

  #pairUp(at: number): void {
    const right = this.#scratch.next[at]!
    const left = this.#symbols[at]!
    let cell = -1
    if (right < this.#length && left >= 0 && this.#symbols[right]! >= 0) {
      cell = this.#table.find(left, this.#symbols[right]!)
    }
    this.#scratch.pair[at] = cell
    if (cell >= 0) this.#push(this.#table.rank(cell) * POSITIONS + at)
  }

  #push(entry: number): void {
    const { heap } = this.#scratch
    let at = this.#heapSize++
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
    const last = heap[--this.#heapSize]!
    let at = 0
    for (let child = 1; child < this.#heapSize; child = 2 * at + 1) {
      if (child + 1 < this.#heapSize && heap[child + 1]! < heap[child]!) child++
      if (heap[child]! >= last) break
      heap[at] = heap[child]!
      at = child
    }
    heap[at] = last
    return top
  }
}
