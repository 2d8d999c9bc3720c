// Own keys of an engine's blocks: chained 64-bit hashes over token ids, in chunks of the engine's block size. They say which
// blocks of a prompt a member elsewhere may hold, whatever hash its engine uses. Invariant: equal tokens, size, adapter and
// salt give equal keys in every process. Not SHA-256: a collision costs one wrong prediction, never anybody's answer.

/** Where a chain of keys starts. */
export interface KeyRoot {
  readonly blockTokens: number
  /** Adapter (LoRA) that computes the KV; undefined: the model itself. */
  readonly adapter?: string | undefined
  /** The request's `cache_salt` as its engine sees it. */
  readonly salt?: string | undefined
}

/** A key as two unsigned 32-bit words. */
export type KeyWords = readonly [number, number]

// Two lanes of multiply-rotate-multiply with the constants of MurmurHash3 (x86_32 and x86_128), mixed at the end of a block.
const C1 = 0xcc9e2d51
const C2 = 0x1b873593
const D1 = 0x239b961b
const D2 = 0xab0e9789

let low = 0
let high = 0

function mixIn(word: number): void {
  let k = Math.imul(word, C1)
  k = (k << 15) | (k >>> 17)
  low ^= Math.imul(k, C2)
  low = (low << 13) | (low >>> 19)
  low = (Math.imul(low, 5) + 0xe6546b64) | 0
  let j = Math.imul(word, D1)
  j = (j << 16) | (j >>> 16)
  high ^= Math.imul(j, D2)
  high = (high << 15) | (high >>> 17)
  high = (Math.imul(high, 5) + 0x0bcaa747) | 0
}

/** Every bit of both lanes moves with every bit of either. */
function finish(length: number): void {
  low ^= length
  high ^= length
  low = (low + high) | 0
  high = (high + low) | 0
  low = avalanche(low)
  high = avalanche(high)
  low = (low + high) | 0
  high = (high + low) | 0
}

function avalanche(word: number): number {
  let h = word ^ (word >>> 16)
  h = Math.imul(h, 0x85ebca6b)
  h ^= h >>> 13
  h = Math.imul(h, 0xc2b2ae35)
  return h ^ (h >>> 16)
}

function mixText(text: string | undefined): void {
  if (text === undefined) {
    mixIn(-1)
    return
  }
  mixIn(text.length)
  for (let i = 0; i < text.length; i++) mixIn(text.charCodeAt(i))
}

export function rootKey({ blockTokens, adapter, salt }: KeyRoot): KeyWords {
  low = 0x52656672
  high = 0x61696e31
  mixIn(blockTokens)
  mixText(adapter)
  mixText(salt)
  finish(blockTokens)
  return [low >>> 0, high >>> 0]
}

/** What is chained: `count` blocks of `blockTokens` ids from `tokens[at]` on. */
export interface Run {
  readonly parent: KeyWords
  readonly tokens: ArrayLike<number>
  readonly at: number
  readonly blockTokens: number
  readonly count: number
  /** What else a block's KV depends on (images), by its place in the run. */
  readonly extras?: readonly (string | undefined)[] | undefined
}

/** Writes the keys of `run` into `into`, two words a block. */
export function chainKeys(run: Run, into: Uint32Array): void {
  const { parent, tokens, blockTokens, count, extras } = run
  let at = run.at
  low = parent[0] | 0
  high = parent[1] | 0
  for (let i = 0; i < count; i++) {
    for (const end = at + blockTokens; at < end; at++) mixIn(tokens[at] as number)
    const extra = extras?.[i]
    if (extra !== undefined) mixText(extra)
    finish(blockTokens)
    into[2 * i] = low
    into[2 * i + 1] = high
  }
}

/** The keys of the full blocks of `tokens`: two words each. */
export function promptKeys(tokens: ArrayLike<number>, root: KeyRoot): Uint32Array {
  const { blockTokens } = root
  const count = Math.floor(tokens.length / blockTokens)
  const keys = new Uint32Array(2 * count)
  chainKeys({ parent: rootKey(root), tokens, at: 0, blockTokens, count }, keys)
  return keys
}
