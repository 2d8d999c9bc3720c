// The last bodies that came, so that the next one of a conversation is read only where it is new: an agent sends its whole
// history again on every step. Invariant: what is taken over was compared byte for byte; memory is bounded, those that
// were of no use for longest go first. Bodies are copied into buffers that grow with their conversation, only where they
// are new, so that those from the network die young. Part of step 2 in fleet mode.

import type { RequestClass } from '../core/request.js'
import type { BodyMember, BodyScan, Elements, LinksBox } from './body-scan.js'
import type { Digest } from './segment-hash.js'

/** What was found in a body, and the body. */
export interface KeptBody {
  readonly bytes: Buffer
  readonly members: readonly BodyMember[]
  readonly elements: Elements
  readonly digests: ReadonlyMap<string, Digest>
  readonly links: LinksBox
  /** Where the closing brace stands. */
  readonly close: number
  readonly told: { readonly told: Told | undefined }
}

/** What a body and its headers say of a request, for the next one of the conversation. */
export interface Told {
  /** What it goes by: the headers that count, where the body's session is looked for, the last message of a user. */
  readonly headers: string
  readonly signals: readonly string[]
  readonly lastUser: number
  readonly model: string
  readonly cacheSalt: unknown
  readonly session: string | undefined
  readonly parentSession: string | undefined
  readonly requestClass: RequestClass
}

/** A known beginning: `count` elements of `body`. */
export interface Found {
  readonly body: KeptBody
  readonly count: number
  /** Where it is kept. */
  readonly slot: number
}

/** How much room a buffer has beyond the body that it is made for. */
const ROOM = 1.5

/** Bodies that are kept at most. */
const ENTRIES = 4096
/** Shorter bodies are read faster than they are found. */
const SHORT_BYTES = 2048
/**
 * Where beginnings of a body end, that many elements from its end: clients that change their last messages are found all
 * the same. One more ends behind the first element, which conversations share.
 */
const BACK = [0, 1, 2, 4, 8]
const ROWS = BACK.length + 1

/** Between two elements, as JSON is written without and with spaces. */
const BORDERS = [Buffer.from('},{"'), Buffer.from('}, {"')]
/** Borders that are looked at from a body's end; tools that stand behind the messages have some too. */
const TRIES = 128

export class BodyMemo {
  readonly #maxBytes: number
  readonly #entries: (KeptBody | undefined)[] = []
  /** The buffers that the entries lie in. */
  readonly #buffers: (Buffer | undefined)[] = []
  /** Slots in the order of their last use. */
  readonly #used = new Set<number>()
  /** Slots that are empty. */
  readonly #gaps: number[] = []
  /** Of each row: where the beginning ends (0: none), how many elements it has. */
  readonly #ends = new Int32Array(ENTRIES * ROWS)
  readonly #counts = new Int32Array(ENTRIES * ROWS)
  readonly #keys = new Float64Array(ENTRIES * ROWS)
  /** Rows that look alike, in a ring without a start: the newest one is in the index. */
  readonly #next = new Int32Array(ENTRIES * ROWS).fill(-1)
  readonly #previous = new Int32Array(ENTRIES * ROWS).fill(-1)
  readonly #index = new Map<number, number>()
  #bytes = 0

  /** `maxBytes`: config `fleet.memoBytes`. */
  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes
  }

  /** Bytes that are kept. */
  get bytes(): number {
    return this.#bytes
  }

  /** A long beginning of `bytes` that was read before. */
  find(bytes: Buffer): Found | undefined {
    if (bytes.length < SHORT_BYTES || this.#index.size === 0) return undefined
    for (const border of BORDERS) {
      let at = bytes.length
      for (let tries = 0; tries < TRIES; tries++) {
        at = bytes.lastIndexOf(border, at - 1)
        if (at < 16) break
        const found = this.#known(bytes, at + 1)
        if (found !== undefined) return found
      }
    }
    return undefined
  }

  /** Keeps a body that was read, in place of the one that it goes on from. */
  keep(scan: BodyScan): void {
    const { bytes, elements, resumed, members, digests, links, close, told } = scan
    const { length } = elements.ends
    if (bytes.length < SHORT_BYTES || bytes.length * ROOM > this.#maxBytes || length === 0) return
    // Another one may have been put there since it was found.
    const isNext = resumed?.isWhole === true && this.#entries[resumed.slot] === resumed.body
    const buffer = this.#copied(bytes, isNext ? this.#buffers[resumed.slot] : undefined, scan.knownBytes)
    if (isNext) this.#drop(resumed.slot)
    while (this.#bytes + buffer.length > this.#maxBytes) this.#dropOldest()
    const slot = this.#free()
    const own = buffer.subarray(0, bytes.length)
    const kept: KeptBody = { bytes: own, members, elements, digests, links, close, told }
    this.#entries[slot] = kept
    this.#buffers[slot] = buffer
    this.#used.add(slot)
    this.#bytes += buffer.length
    for (let column = 0; column < BACK.length; column++) {
      const count = length - (BACK[column] as number)
      if (count > 1) this.#link(slot * ROWS + column, kept, count)
    }
    this.#link(slot * ROWS + BACK.length, kept, 1)
  }

  /** A buffer with `bytes`: `earlier`, which begins with `known` of them, where there is room in it. */
  #copied(bytes: Buffer, earlier: Buffer | undefined, known: number): Buffer {
    if (earlier !== undefined && earlier.length >= bytes.length) {
      bytes.copy(earlier, known, known)
      return earlier
    }
    const buffer = Buffer.allocUnsafeSlow(Math.ceil(bytes.length * ROOM))
    bytes.copy(buffer)
    return buffer
  }

  #known(bytes: Buffer, end: number): Found | undefined {
    const first = this.#index.get(keyOf(bytes, end))
    for (let row = first ?? -1; row >= 0; row = this.#next[row] as number) {
      const slot = Math.floor(row / ROWS)
      const body = this.#entries[slot] as KeptBody
      if (this.#ends[row] !== end || body.bytes.compare(bytes, 0, end, 0, end) !== 0) continue
      this.#used.delete(slot)
      this.#used.add(slot)
      return { body, count: this.#counts[row] as number, slot }
    }
    return undefined
  }

  #link(row: number, { bytes, elements }: KeptBody, count: number): void {
    const end = elements.ends[count - 1] as number
    if (end < 16) return
    const key = keyOf(bytes, end)
    const first = this.#index.get(key) ?? -1
    this.#ends[row] = end
    this.#counts[row] = count
    this.#keys[row] = key
    this.#next[row] = first
    this.#previous[row] = -1
    if (first >= 0) this.#previous[first] = row
    this.#index.set(key, row)
  }

  #unlink(row: number): void {
    if (this.#ends[row] === 0) return
    const [next, previous] = [this.#next[row] as number, this.#previous[row] as number]
    if (next >= 0) this.#previous[next] = previous
    if (previous >= 0) this.#next[previous] = next
    else if (next >= 0) this.#index.set(this.#keys[row] as number, next)
    else this.#index.delete(this.#keys[row] as number)
    this.#ends[row] = 0
  }

  #free(): number {
    if (this.#gaps.length === 0 && this.#entries.length === ENTRIES) this.#dropOldest()
    return this.#gaps.pop() ?? this.#entries.push(undefined) - 1
  }

  #dropOldest(): void {
    const [oldest] = this.#used
    if (oldest !== undefined) this.#drop(oldest)
  }

  #drop(slot: number): void {
    if (this.#entries[slot] === undefined) return
    this.#bytes -= this.#buffers[slot]?.length ?? 0
    this.#entries[slot] = undefined
    this.#buffers[slot] = undefined
    this.#used.delete(slot)
    this.#gaps.push(slot)
    for (let row = slot * ROWS; row < (slot + 1) * ROWS; row++) this.#unlink(row)
  }
}

/** Where a beginning ends, and two samples of four bytes of it. */
function keyOf(bytes: Buffer, end: number): number {
  const look = (word(bytes, end - 6) ^ Math.imul(word(bytes, end >> 1), 0x9e3779b1)) >>> 0
  return look * 0x200000 + (end & 0x1fffff)
}

function word(bytes: Buffer, at: number): number {
  return (
    (bytes[at] as number) |
    ((bytes[at + 1] as number) << 8) |
    ((bytes[at + 2] as number) << 16) |
    ((bytes[at + 3] as number) << 24)
  )
}
