// The last bodies that came, so that the next one of a conversation is read only where it is new: an agent sends its whole
// history again on every step. Invariant: what is taken over was compared byte for byte; memory is bounded, those that
// were of no use for longest go first. Part of step 2 in fleet mode.

import type { BodyScan } from './body-scan.js'

/** A known beginning: `count` elements of `scan`. */
export interface Found {
  readonly scan: BodyScan
  readonly count: number
  /** Where it is kept. */
  readonly slot: number
}

interface Entry {
  readonly scan: BodyScan
  usedAt: number
}

/** Bodies that are kept at most; looking through more of them would cost more than it saves. */
const ENTRIES = 1024
/** Shorter bodies are read faster than they are found. */
const SHORT_BYTES = 2048
/** How many elements from the end a beginning may end: clients that change their last messages are found all the same. */
const BACK = [0, 1, 2, 4, 8]

const COMMA = 44
const CLOSE_LIST = 93

export class BodyMemo {
  readonly #maxBytes: number
  readonly #entries: (Entry | undefined)[] = []
  /** BACK.length columns an entry: where the beginning ends (0: none), how many elements it has, what it looks like. */
  readonly #ends = new Int32Array(ENTRIES * BACK.length)
  readonly #counts = new Int32Array(ENTRIES * BACK.length)
  readonly #looks = new Uint32Array(ENTRIES * BACK.length)
  #bytes = 0
  #now = 0

  /** `maxBytes`: config `fleet.memoBytes`. */
  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes
  }

  /** Bytes that are kept. */
  get bytes(): number {
    return this.#bytes
  }

  /** The longest beginning of `bytes` that was read before. */
  find(bytes: Buffer): Found | undefined {
    const { length } = bytes
    if (length < SHORT_BYTES) return undefined
    let below = length
    let row: number | undefined = -1
    for (;;) {
      row = this.#longest(bytes, below, row)
      if (row === undefined) return undefined
      const slot = Math.floor(row / BACK.length)
      const entry = this.#entries[slot]
      const end = this.#ends[row] as number
      if (entry !== undefined && entry.scan.bytes.compare(bytes, 0, end, 0, end) === 0) {
        entry.usedAt = ++this.#now
        return { scan: entry.scan, count: this.#counts[row] as number, slot }
      }
      below = end
    }
  }

  /** Keeps a body that was read; the one that it goes on from is no longer needed. */
  keep(scan: BodyScan, found: Found | undefined): void {
    const { bytes, elements } = scan
    if (bytes.length < SHORT_BYTES || bytes.length > this.#maxBytes || elements.ends.length === 0) return
    let slot = -1
    if (found !== undefined && found.count === found.scan.elements.ends.length) {
      slot = found.slot
      this.#drop(slot)
    }
    while (this.#bytes + bytes.length > this.#maxBytes) this.#drop(this.#oldest())
    if (slot < 0) slot = this.#free()
    this.#entries[slot] = { scan, usedAt: ++this.#now }
    this.#bytes += bytes.length
    for (let column = 0; column < BACK.length; column++) {
      const count = elements.ends.length - (BACK[column] as number)
      const row = slot * BACK.length + column
      const end = count > 0 ? (elements.ends[count - 1] as number) : 0
      this.#ends[row] = end
      this.#counts[row] = count
      this.#looks[row] = end < 16 ? 0 : lookOf(bytes, end)
    }
  }

  /** The next row, by length and then in order, that looks like a beginning of `bytes`, behind row `last` of length `below`. */
  #longest(bytes: Buffer, below: number, last: number): number | undefined {
    const rows = this.#entries.length * BACK.length
    let best: number | undefined
    let bestEnd = 15
    for (let row = 0; row < rows; row++) {
      const end = this.#ends[row] as number
      if (end <= bestEnd || end > below || (end === below && row <= last)) continue
      const behind = bytes[end]
      if (behind !== COMMA && behind !== CLOSE_LIST) continue
      if (lookOf(bytes, end) !== this.#looks[row]) continue
      best = row
      bestEnd = end
    }
    return best
  }

  #free(): number {
    const gap = this.#entries.indexOf(undefined)
    if (gap >= 0) return gap
    if (this.#entries.length < ENTRIES) return this.#entries.push(undefined) - 1
    const slot = this.#oldest()
    this.#drop(slot)
    return slot
  }

  #oldest(): number {
    let oldest = -1
    let usedAt = Infinity
    for (let slot = 0; slot < this.#entries.length; slot++) {
      const entry = this.#entries[slot]
      if (entry === undefined || entry.usedAt >= usedAt) continue
      oldest = slot
      usedAt = entry.usedAt
    }
    return oldest
  }

  #drop(slot: number): void {
    const entry = this.#entries[slot]
    if (entry === undefined) return
    this.#bytes -= entry.scan.bytes.length
    this.#entries[slot] = undefined
    this.#ends.fill(0, slot * BACK.length, (slot + 1) * BACK.length)
  }
}

/** Two samples of four bytes. */
function lookOf(bytes: Buffer, end: number): number {
  const tail = end - 6
  const middle = end >> 1
  return (word(bytes, tail) ^ Math.imul(word(bytes, middle), 0x9e3779b1)) >>> 0
}

function word(bytes: Buffer, at: number): number {
  return (
    (bytes[at] as number) |
    ((bytes[at + 1] as number) << 8) |
    ((bytes[at + 2] as number) << 16) |
    ((bytes[at + 3] as number) << 24)
  )
}
