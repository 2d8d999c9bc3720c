// A block is 64 consecutive tokens' KV. This file holds the nouns that name one: root, hash, chain. Invariant: a hash
// covers its root and every token before it, so equal hashes mean equal prefixes (tokens are compared all the same).

/** Tokens in a block. */
export const BLOCK_TOKENS = 64

/** 32 hex digits: the hash of a block and of everything before it. */
export type BlockHash = string & { readonly __brand: 'BlockHash' }

/** 32 hex digits: where a chain starts. Carries format, weights, tokenizer, KV layout, rounding, adapter, tenant and salt. */
export type Root = string & { readonly __brand: 'Root' }

/** The chained hashes of a prompt's full blocks: `hashes[i]` names tokens `[0, (i + 1) * 64)`. */
export interface Chain {
  readonly root: Root
  readonly hashes: readonly BlockHash[]
}

/** How one block's bytes lie. `bytes` = 64 * layers * 2 * kvHeads * headDim * (2 or 4). */
export interface KvLayout {
  readonly layers: number
  readonly kvHeads: number
  readonly headDim: number
  readonly dtype: 'fp16' | 'fp32'
}

/** Bytes of one block under `layout`. */
export function blockBytes(layout: KvLayout): number {
  return BLOCK_TOKENS * layout.layers * 2 * layout.kvHeads * layout.headDim * (layout.dtype === 'fp16' ? 2 : 4)
}

/** Where a block's KV was found: the ladder from fast to slow. */
export type TierName = 'working' | 'memory' | 'disk'

/** Tokens of a prompt by where their KV came from; the four sum to the prompt's length. */
export interface CacheUsage {
  readonly working: number
  readonly memory: number
  readonly disk: number
  readonly computed: number
}
