// What the engine needs of the thing that computes: one sequence's prefill, or one token for several sequences. The
// ONNX runner implements it; tests use a double whose logits are a hash of the KV, so that a wrong row is a wrong token.

import type { KvLayout } from '../core/block.js'
import type { Slot } from './slot.js'

export interface DecodeRow {
  readonly slot: Slot
  /** The token to append; its position is `slot.length`. */
  readonly id: number
}

/**
 * A token of a tree of branches. It sees the slot's rows [0, sees), the rows `behind` (its ancestors, in order; those of
 * the same run stand before it) and itself; its position is their count. Its KV goes to `row`.
 */
export interface TreeToken {
  readonly id: number
  readonly sees: number
  readonly behind: readonly number[]
  readonly row: number
  readonly wantsLogits: boolean
}

/** Calls never overlap. Returned logits are the caller's until the next call. */
export interface Runner {
  readonly layout: KvLayout
  readonly vocabSize: number
  /** Rows that one `decode` takes at most. */
  readonly decodeRows: number
  /** Rows of a slot that nobody sees cost nothing: it may be larger than it must. */
  readonly takesWideSlots?: boolean
  /**
   * Computes `ids` (one or more) behind the slot's rows, appends their KV and returns the last one's logits [vocab].
   * Cut anywhere, the results are the same to the bit, as long as no run has a single token.
   */
  prefill(slot: Slot, ids: Int32Array): Promise<Float32Array>
  /** Appends one token to each row's slot; logits [vocab] in the order of the rows. */
  decode(rows: readonly DecodeRow[]): Promise<readonly Float32Array[]>
  /**
   * Computes a tree of tokens over the rows of one slot, whose length stays as it is; logits [vocab] of those that want
   * them, in their order. Absent: branches are refused.
   */
  tree?(slot: Slot, tokens: readonly TreeToken[]): Promise<readonly Float32Array[]>
  close(): Promise<void>
}
