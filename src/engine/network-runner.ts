// The runner on the forward pass of kernels/: K and V are computed where they stay, in the slot's rows. Invariant: a
// token's logits and KV depend on what it sees alone, so that prefill, decode and branches of the same tokens are equal
// to the bit. A run holds its thread: this belongs in a worker.

import type { KvLayout } from '../core/block.js'
import { type Network, TOKEN_FIELDS } from '../native/network.js'
import type { DecodeRow, Runner, TreeToken } from './contract.js'
import type { Slot } from './slot.js'

export interface NetworkRunnerOptions {
  readonly layout: KvLayout
  readonly vocabSize: number
  /** Rows that one run decodes at most. */
  readonly decodeRows: number
  /** False: the runner takes no trees of branches. */
  readonly trees?: boolean
}

/** Takes over the network, which is closed with the runner. */
export function networkRunner(network: Network, options: NetworkRunnerOptions): Runner {
  return new NetworkRunner(network, options)
}

/** What `forward` takes of one token. */
interface RunToken {
  readonly id: number
  readonly slot: number
  readonly sees: number
  /** Rows that it sees behind those, its own the last. */
  readonly extra: readonly number[]
  readonly row: number
  readonly wantsLogits: boolean
}

const NO_ROWS: readonly number[] = []

class NetworkRunner implements Runner {
  readonly layout: KvLayout
  readonly vocabSize: number
  readonly decodeRows: number
  readonly takesWideSlots = true
  readonly tree: Runner['tree']
  readonly #network: Network

  constructor(network: Network, { layout, vocabSize, decodeRows, trees }: NetworkRunnerOptions) {
    this.layout = layout
    this.vocabSize = vocabSize
    this.decodeRows = decodeRows
    this.#network = network
    this.tree = trees === false ? undefined : (slot, tokens) => this.#tree(slot, tokens)
  }

  async prefill(slot: Slot, ids: Int32Array): Promise<Float32Array> {
    const start = slot.length
    const count = ids.length
    if (count === 0 || start + count > slot.capacity) throw new RangeError(`${count} tokens do not fit the slot`)
    const tokens = Array.from(ids, (id, i) => this.#behind(id, start + i, i === count - 1))
    const [logits] = this.#run([slot], tokens)
    slot.advance(ids)
    return logits as Float32Array
  }

  async decode(rows: readonly DecodeRow[]): Promise<readonly Float32Array[]> {
    const count = rows.length
    if (count === 0 || count > this.decodeRows)
      throw new RangeError(`${count} rows in a run of 1 to ${this.decodeRows}`)
    const slots = rows.map(({ slot }) => slot)
    if (slots.some(({ length, capacity }) => length >= capacity)) throw new RangeError('the slot is full')
    const tokens = rows.map(({ slot, id }, i) => ({ ...this.#behind(id, slot.length, true), slot: i }))
    const logits = this.#run(slots, tokens)
    for (const { slot, id } of rows) slot.advance(Int32Array.of(id))
    return logits
  }

  async #tree(slot: Slot, tokens: readonly TreeToken[]): Promise<readonly Float32Array[]> {
    return this.#run(
      [slot],
      tokens.map(({ id, sees, behind, row, wantsLogits }) => {
        // A token that continues the slot's own rows sees one run of them.
        const follows = behind.every((seen, i) => seen === sees + i) && row === sees + behind.length
        const seen = follows ? { sees: row + 1, extra: NO_ROWS } : { sees, extra: [...behind, row] }
        return { id, slot: 0, ...seen, row, wantsLogits }
      }),
    )
  }

  async close(): Promise<void> {
    this.#network.close()
  }

  /** The token for `row`, which sees all rows before it. */
  #behind(id: number, row: number, wantsLogits: boolean): RunToken {
    return { id, slot: 0, sees: row + 1, extra: NO_ROWS, row, wantsLogits }
  }

  #run(slots: readonly Slot[], tokens: readonly RunToken[]): Float32Array[] {
    const fields = new Int32Array(tokens.length * TOKEN_FIELDS)
    const extra: number[] = []
    let wanted = 0
    for (const [i, token] of tokens.entries()) {
      const { id, slot, sees, row, wantsLogits } = token
      fields.set([id, slot, sees, extra.length, token.extra.length, row, wantsLogits ? 1 : 0], i * TOKEN_FIELDS)
      extra.push(...token.extra)
      if (wantsLogits) wanted++
    }
    const logits = new Float32Array(wanted * this.vocabSize)
    this.#network.forward(fields, Int32Array.from(extra), slots, logits)
    return Array.from({ length: wanted }, (_, i) => logits.subarray(i * this.vocabSize, (i + 1) * this.vocabSize))
  }
}
