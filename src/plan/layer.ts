// What one layer of a model keeps of the tokens before: the kinds of attention, and their bytes at any length. Invariant:
// arithmetic only, from the numbers of a shape; a packed size (`entryBytes`) counts as it is, everything else is elements
// times the width of the data type.
//
//   full        K and V of every token (MHA, GQA, MQA)          grows for ever
//   latent      one joint vector a token (MLA), maybe an index   grows for ever
//   sliding     K and V of the last `window` tokens              bounded
//   state       a state that does not depend on the length       constant
//   compressed  the last `window` tokens, and one entry for every `ratio` tokens, maybe with an index (DeepSeek V4)

export type DataType = 'fp32' | 'bf16' | 'fp16' | 'fp8'

const WIDTH: Readonly<Record<DataType, number>> = { fp32: 4, bf16: 2, fp16: 2, fp8: 1 }

interface Heads {
  readonly kvHeads: number
  readonly headDim: number
  /** Absent: as `headDim`. */
  readonly valueDim?: number
}

/** A vector of `dim` elements, or packed into `entryBytes` (with scales, or in mixed widths). */
interface Entry {
  readonly dim: number
  readonly entryBytes?: number
}

export type Layer =
  | ({ readonly kind: 'full' } & Heads)
  | ({ readonly kind: 'latent'; readonly index?: Entry } & Entry)
  | ({ readonly kind: 'sliding'; readonly window: number } & Heads)
  /** Bytes a session, as the model's engine keeps them. */
  | { readonly kind: 'state'; readonly stateBytes: number }
  | ({
      readonly kind: 'compressed'
      readonly window: number
      /** Tokens an entry; absent: only the window is kept. */
      readonly ratio?: number
      /** Beside every compressed entry. */
      readonly index?: Entry
    } & Entry)

/** Bytes by what they are for. */
export interface KvBytes {
  readonly entries: number
  /** What the choice of entries is made by. */
  readonly index: number
  readonly state: number
}

export interface Widths {
  readonly dtype: DataType
  /** Packed sizes count; false where another data type than the shape's is asked for. */
  readonly packed: boolean
}

/** Bytes that one layer keeps for a session of `tokens`. */
export function layerBytes(layer: Layer, tokens: number, widths: Widths): KvBytes {
  const entry = ({ dim, entryBytes }: Entry) =>
    widths.packed && entryBytes !== undefined ? entryBytes : dim * WIDTH[widths.dtype]
  const heads = ({ kvHeads, headDim, valueDim = headDim }: Heads) =>
    kvHeads * (headDim + valueDim) * WIDTH[widths.dtype]
  const none = { entries: 0, index: 0, state: 0 }
  switch (layer.kind) {
    case 'full':
      return { ...none, entries: tokens * heads(layer) }
    case 'latent':
      return { ...none, entries: tokens * entry(layer), index: layer.index ? tokens * entry(layer.index) : 0 }
    case 'sliding':
      return { ...none, entries: Math.min(tokens, layer.window) * heads(layer) }
    case 'state':
      return { ...none, state: tokens > 0 ? layer.stateBytes : 0 }
    case 'compressed': {
      const compressed = layer.ratio === undefined ? 0 : Math.floor(tokens / layer.ratio)
      const entries = (Math.min(tokens, layer.window) + compressed) * entry(layer)
      return { ...none, entries, index: layer.index ? compressed * entry(layer.index) : 0 }
    }
  }
}

/** Bytes that a token adds once every window is full. */
export function bytesPerToken(layer: Layer, widths: Widths): number {
  // Far enough for any window; a multiple of any ratio in use.
  const ratio = layer.kind === 'compressed' ? (layer.ratio ?? 1) : 1
  const far = ratio * 1_000_000
  const at = (tokens: number) => {
    const { entries, index } = layerBytes(layer, tokens, widths)
    return entries + index
  }
  return (at(far + ratio) - at(far)) / ratio
}
