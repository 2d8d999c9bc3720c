// A slot: where one sequence's KV stands while the engine works on it, fp32, for each layer K and V, in one buffer.
//
//   k[layer], v[layer]:  [kvHead][token 0 .. capacity)[headDim]      rows [length, capacity) are garbage
//   a block in a tier:   [layer][k, v][kvHead][64 tokens][headDim]   fp16 or fp32, as the layout says
//   beside branches:     [0 .. length) [room for the sequence) [capacity - reserved .. capacity) rows of its branches
//
// Invariant: rows [0, length) hold the KV of tokens[0, length); but for what branches placed in the reserved rows and see
// there, nothing else is ever read.

import { BLOCK_TOKENS, type KvLayout } from '../core/block.js'
import type { Kernels } from '../native/contract.js'
import { largeBuffer } from '../native/large-memory.js'

export class Slot {
  readonly layout: KvLayout
  /** Tokens that fit. */
  readonly capacity: number
  readonly k: readonly Float32Array[]
  readonly v: readonly Float32Array[]
  /** The ids whose KV the rows hold; valid in [0, length). */
  readonly tokens: Int32Array
  length = 0
  /** Rows at the end that the sequence leaves to its branches. */
  reserved = 0
  /** The chain's root under which `tokens` were computed; a slot of another root shares nothing. */
  root: string | undefined
  busy = false
  /** Leading tokens that a session left here; what a side request appended is nobody's. */
  owned = 0
  /** Counts up with every release; the smallest is the least recently used. */
  lastUsed = 0

  constructor(layout: KvLayout, capacity: number) {
    this.layout = layout
    this.capacity = capacity
    const elements = layout.kvHeads * capacity * layout.headDim
    const buffer = largeBuffer(slotBytes(layout, capacity))
    const part = (i: number) => new Float32Array(buffer, i * elements * 4, elements)
    this.k = Array.from({ length: layout.layers }, (_, layer) => part(2 * layer))
    this.v = Array.from({ length: layout.layers }, (_, layer) => part(2 * layer + 1))
    this.tokens = new Int32Array(capacity)
  }

  /** Bytes of KV that the slot occupies, used or not. */
  get bytes(): number {
    return slotBytes(this.layout, this.capacity)
  }

  /** Rows that the sequence may fill. */
  get room(): number {
    return this.capacity - this.reserved
  }

  /** Puts row i of a run's K/V, per layer as [kvHeads, rows, headDim], where `rows` says; the length stays. */
  place(rows: readonly number[], fresh: (layer: number, letter: 'k' | 'v') => Float32Array): void {
    const { layers, kvHeads, headDim } = this.layout
    const pieces = consecutive(rows)
    for (let layer = 0; layer < layers; layer++) {
      for (const letter of ['k', 'v'] as const) {
        const source = fresh(layer, letter)
        const target = this[letter][layer] as Float32Array
        for (let head = 0; head < kvHeads; head++) {
          for (const { at, row, count } of pieces) {
            const from = (head * rows.length + at) * headDim
            target.set(source.subarray(from, from + count * headDim), (head * this.capacity + row) * headDim)
          }
        }
      }
    }
  }

  /** Takes `ids` for its next tokens: their KV is there already. */
  advance(ids: Int32Array): void {
    this.tokens.set(ids, this.length)
    this.length += ids.length
  }

  /** Takes over another slot's reserved rows, to the same places from the end. */
  takeReserved(other: Slot): void {
    const { layers, kvHeads, headDim } = this.layout
    this.reserved = other.reserved
    for (let layer = 0; layer < layers; layer++) {
      for (const letter of ['k', 'v'] as const) {
        const [to, from] = [this[letter][layer], other[letter][layer]] as [Float32Array, Float32Array]
        for (let head = 0; head < kvHeads; head++) {
          const end = (head + 1) * other.capacity * headDim
          const rows = from.subarray(end - other.reserved * headDim, end)
          to.set(rows, ((head + 1) * this.capacity - this.reserved) * headDim)
        }
      }
    }
  }

  /** Appends the new rows of one run: K/V per layer as [kvHeads, count, headDim]; `ids` are their tokens. */
  append(ids: Int32Array, fresh: (layer: number, letter: 'k' | 'v') => Float32Array): void {
    const { layers, kvHeads, headDim } = this.layout
    const count = ids.length
    const rowElements = count * headDim
    for (let layer = 0; layer < layers; layer++) {
      for (const [letter, buffers] of [
        ['k', this.k],
        ['v', this.v],
      ] as const) {
        const source = fresh(layer, letter)
        const target = buffers[layer] as Float32Array
        for (let head = 0; head < kvHeads; head++) {
          const from = head * rowElements
          target.set(source.subarray(from, from + rowElements), (head * this.capacity + this.length) * headDim)
        }
      }
    }
    this.tokens.set(ids, this.length)
    this.length += count
  }

  /** Takes the first `length` rows of another slot of the same layout. */
  copyFrom(other: Slot, length: number): void {
    const { layers, kvHeads, headDim } = this.layout
    for (let layer = 0; layer < layers; layer++) {
      for (const [to, from] of [
        [this.k[layer], other.k[layer]],
        [this.v[layer], other.v[layer]],
      ] as [Float32Array, Float32Array][]) {
        for (let head = 0; head < kvHeads; head++) {
          const start = head * other.capacity * headDim
          to.set(from.subarray(start, start + length * headDim), head * this.capacity * headDim)
        }
      }
    }
    this.tokens.set(other.tokens.subarray(0, length))
    this.length = length
    this.root = other.root
  }

  /** Writes block `index` (rows [index * 64, index * 64 + 64), all valid) as a tier stores it. */
  writeBlock(index: number, into: Uint8Array, kernels: Kernels): void {
    this.#eachPart(index, into, (buffer, rowOffset, rowStride, part) => {
      const { kvHeads } = this.layout
      const rowElements = BLOCK_TOKENS * this.layout.headDim
      if (part instanceof Uint16Array) {
        kernels.packRows(buffer, rowOffset, rowStride, kvHeads, rowElements, part, 0)
        return
      }
      for (let head = 0; head < kvHeads; head++) {
        const start = rowOffset + head * rowStride
        part.set(buffer.subarray(start, start + rowElements), head * rowElements)
      }
    })
  }

  /** Appends block `index` = length / 64 from a tier's bytes; `ids` are its 64 tokens. */
  readBlock(index: number, from: Uint8Array, ids: Int32Array, kernels: Kernels): void {
    this.#eachPart(index, from, (buffer, rowOffset, rowStride, part) => {
      const { kvHeads } = this.layout
      const rowElements = BLOCK_TOKENS * this.layout.headDim
      if (part instanceof Uint16Array) {
        kernels.unpackRows(part, 0, kvHeads, rowElements, buffer, rowOffset, rowStride)
        return
      }
      for (let head = 0; head < kvHeads; head++) {
        buffer.set(part.subarray(head * rowElements, (head + 1) * rowElements), rowOffset + head * rowStride)
      }
    })
    this.tokens.set(ids, index * BLOCK_TOKENS)
    this.length = (index + 1) * BLOCK_TOKENS
  }

  #eachPart(
    index: number,
    bytes: Uint8Array,
    visit: (buffer: Float32Array, offset: number, stride: number, part: Uint16Array | Float32Array) => void,
  ): void {
    const { layers, kvHeads, headDim, dtype } = this.layout
    const partElements = kvHeads * BLOCK_TOKENS * headDim
    const partBytes = partElements * (dtype === 'fp16' ? 2 : 4)
    const rowOffset = index * BLOCK_TOKENS * headDim
    const rowStride = this.capacity * headDim
    let at = bytes.byteOffset
    for (let layer = 0; layer < layers; layer++) {
      for (const buffer of [this.k[layer], this.v[layer]] as Float32Array[]) {
        const part =
          dtype === 'fp16'
            ? new Uint16Array(bytes.buffer, at, partElements)
            : new Float32Array(bytes.buffer, at, partElements)
        visit(buffer, rowOffset, rowStride, part)
        at += partBytes
      }
    }
  }
}

/** Bytes of a slot for `capacity` tokens. */
export function slotBytes(layout: KvLayout, capacity: number): number {
  return layout.layers * 2 * layout.kvHeads * layout.headDim * 4 * capacity
}

/** The smallest capacity class that holds `tokens`: powers of two of 64 up to 512, then steps of at most 1.25x. */
export function capacityClass(tokens: number, contextLength: number): number {
  let capacity = BLOCK_TOKENS
  while (capacity < tokens) {
    const next = capacity < 512 ? capacity * 2 : Math.floor((capacity * 1.25) / BLOCK_TOKENS) * BLOCK_TOKENS
    capacity = next
  }
  return Math.min(capacity, Math.max(contextLength, BLOCK_TOKENS))
}

/** `rows` cut where the next one does not follow: `count` entries from `at` on go to `row` and those after it. */
function consecutive(rows: readonly number[]): { readonly at: number; readonly row: number; readonly count: number }[] {
  const pieces: { at: number; row: number; count: number }[] = []
  for (const [at, row] of rows.entries()) {
    const last = pieces.at(-1)
    if (last !== undefined && last.row + last.count === row) last.count++
    else pieces.push({ at, row, count: 1 })
  }
  return pieces
}
