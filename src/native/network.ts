// The forward pass of kernels/ as an object: weights in, then tokens over slots. Invariant: a token's results depend on
// what it sees alone, so that a row that decodes equals one that is prefilled, to the bit, in every form. There is no twin
// in TypeScript: where the addon has no fast form, another engine computes.

import { loadAddon } from './addon.js'

/** A matrix [rows, cols]: the sum of `products`, each scale * (q - zeroPoint), plus offsets; or `dense`, where `block` is 0. */
export interface NetworkMatrix {
  readonly rows: number
  /** Columns that share a scale: 16 or 32; 0: none, `dense` holds the weights. */
  readonly block: number
  readonly products?: readonly NetworkProduct[]
  /** [rows, cols / block], added to every weight of a block. */
  readonly offsets?: Float32Array | undefined
  /** [rows] */
  readonly bias?: Float32Array | undefined
  /** [rows, cols] */
  readonly dense?: Float32Array
}

export interface NetworkProduct {
  /** [rows, cols / 2] bytes, low nibble first. */
  readonly q: Uint8Array
  /** [rows, cols / block] */
  readonly scales: Float32Array
  readonly zeroPoint: number
}

export interface NetworkLayer {
  readonly attentionNorm: Float32Array
  /** Matrices whose results together are q, k and v. */
  readonly qkv: readonly NetworkMatrix[]
  readonly queryNorm?: Float32Array | undefined
  readonly keyNorm?: Float32Array | undefined
  readonly attentionOutput: readonly NetworkMatrix[]
  readonly feedForwardNorm: Float32Array
  /** Matrices whose results together are gate and up. */
  readonly gateUp: readonly NetworkMatrix[]
  readonly down: readonly NetworkMatrix[]
}

/** What is there beside the layers. */
export interface NetworkEnds {
  readonly embedding: NetworkMatrix
  readonly outputNorm: Float32Array
  readonly head: readonly NetworkMatrix[]
  /** [positions, ropeDim / 2] */
  readonly cos: Float32Array
  readonly sin: Float32Array
}

export interface NetworkShape {
  readonly layers: number
  readonly heads: number
  readonly kvHeads: number
  readonly headDim: number
  readonly dim: number
  readonly hiddenDim: number
  readonly vocabSize: number
  readonly positions: number
  readonly epsilon: number
  readonly ropeDim: number
  readonly interleaved: boolean
  /** New K and V are rounded to what fp16 can hold before anything attends to them. */
  readonly roundKv: boolean
  readonly threads: number
}

/** The buffers of one slot, [kvHeads, capacity, headDim] for each layer. */
export interface NetworkSlot {
  readonly k: readonly Float32Array[]
  readonly v: readonly Float32Array[]
  readonly capacity: number
}

/** Numbers that one token takes in `forward`: id, slot, sees, extra, extras, row, wantsLogits. */
export const TOKEN_FIELDS = 7

/** Built by every layer in order, then the ends. @throws RangeError for sizes that do not fit, and nothing is computed. */
export interface Network {
  addLayer(layer: NetworkLayer): void
  finish(ends: NetworkEnds): void
  /**
   * Computes tokens [n, TOKEN_FIELDS] and writes their K and V into their slots. A token sees rows [0, sees) of its slot
   * and then the rows extra[extra .. extra + extras), the last of all of these is its own `row`; its position is their
   * count less one. Tokens of a slot stand together, those that others see before them. `logits` takes [vocabSize] for
   * each that wants them, in order. Holds the thread.
   */
  forward(tokens: Int32Array, extra: Int32Array, slots: readonly NetworkSlot[], logits: Float32Array): void
  close(): void
}

export interface NetworkForm {
  /** The instructions that it uses, e.g. `avx512vnni`; `scalar` is there for tests. */
  readonly name: string
  readonly Network: new (shape: NetworkShape) => Network
}

/** Every form that runs here, fastest first; none where the addon is absent. */
export function networkForms(): readonly NetworkForm[] {
  const addon = loadAddon()
  return 'networks' in addon ? addon.networks : []
}

/** The form to serve with: undefined where this processor has none that is faster than a general engine. */
export function fastNetwork(): NetworkForm | undefined {
  return networkForms().find(({ name }) => name !== 'scalar')
}
