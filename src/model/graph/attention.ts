// What a form of attention is: a function that adds one layer's attention to a graph. A form declares the graph's inputs
// and outputs for past and new K/V, because their layout is its own. Invariant of all: what goes out as new K/V is what
// this run's own attention uses, so that a restored prefix attends to the very values that a computed one did.

/** Of one layer, after rope and rounding: q [b, n, heads * headDim], k and v [b, n, kvHeads * headDim]. */
export interface Qkv {
  readonly q: string
  readonly k: string
  readonly v: string
}

/**
 * Returns the heads' outputs, the values of [b, n, heads, headDim] in any grouping of dimensions. Layers are asked for
 * in order, from 0.
 */
export type Attention = (layer: number, qkv: Qkv) => string
