// Tokens -> chain: one hash per full block, each over the hash before it, from a root that says whose KV it is.
// Invariant: whatever changes the KV of a token changes the root, and a part that is missing is an error, never a
// default: two models, layouts or tenants can't meet. Step 6 of a request's path, the only place where hashes are made.
//
//   root    = SHA-256('refrain-root' | each part: name, value, both length-prefixed)[0..16)
//   salted  = root of the same parts without the salt [0..8) | SHA-256 as above with it [8..16)
//   hash[i] = SHA-256(hash[i-1] or root, 16 bytes | 64 token ids, int32 little-endian)[0..16)

import { createHash, hash } from 'node:crypto'
import { BLOCK_TOKENS, type BlockHash, type Chain, type KvLayout, type Root } from '../core/block.js'

/** Raised whenever the meaning of stored KV changes: the bytes of a block, the hashing, the graph's arithmetic. */
export const CHAIN_VERSION = 2

export interface RootParts {
  /** SHA-256 of the weights file, hex. */
  readonly weightsDigest: string
  /** SHA-256 of the tokenizer, hex. */
  readonly tokenizerDigest: string
  readonly layout: KvLayout
  /** What the graph does to new K/V before anything uses them. */
  readonly rounding: 'fp16' | 'none'
  /** What computes: its KV differs in the last bits from another's. */
  readonly arithmetic: string
  /** Digest of an adapter (LoRA) on the weights. */
  readonly adapter?: string
  readonly tenantSalt: string
  /** The request's `cache_salt`. */
  readonly cacheSalt?: string
}

/**
 * The root of every chain with these parts. Two calls give the same root exactly if all parts are equal; an absent
 * optional part differs from an empty one.
 * @throws Error naming a required part that is missing, empty or out of range.
 */
export function makeRoot(parts: RootParts): Root {
  const { layout } = parts
  if (layout === undefined) throw new Error('root: layout is missing')
  const required = {
    version: String(CHAIN_VERSION),
    weights: text('weightsDigest', parts.weightsDigest),
    tokenizer: text('tokenizerDigest', parts.tokenizerDigest),
    blockTokens: String(BLOCK_TOKENS),
    layers: count('layout.layers', layout.layers),
    kvHeads: count('layout.kvHeads', layout.kvHeads),
    headDim: count('layout.headDim', layout.headDim),
    dtype: text('layout.dtype', layout.dtype),
    rounding: text('rounding', parts.rounding),
    arithmetic: text('arithmetic', parts.arithmetic),
    tenant: text('tenantSalt', parts.tenantSalt),
  }
  const named = Object.entries({ ...required, adapter: parts.adapter })
  const plain = digestOf(named)
  if (parts.cacheSalt === undefined) return plain as Root
  // A tenant's blocks are found by what their roots begin with, whatever salts there were.
  return (plain.slice(0, TENANT_DIGITS) + digestOf([...named, ['salt', parts.cacheSalt]]).slice(TENANT_DIGITS)) as Root
}

const ROOT_DIGITS = 32
const TENANT_DIGITS = 16

function digestOf(parts: readonly (readonly [name: string, value: string | undefined])[]): string {
  const sum = createHash('sha256').update('refrain-root')
  for (const [name, value] of parts) {
    if (value !== undefined) sum.update(prefixed(name)).update(prefixed(value))
  }
  return sum.digest('hex').slice(0, ROOT_DIGITS)
}

/** Whether `root` is `tenant`, a root without a salt, or one of the same parts with a salt. */
export function isOfTenant(root: Root, tenant: Root): boolean {
  return root.slice(0, TENANT_DIGITS) === tenant.slice(0, TENANT_DIGITS)
}

function text(name: string, value: string | undefined): string {
  if (typeof value !== 'string' || value === '') throw new Error(`root: ${name} is missing`)
  return value
}

function count(name: string, value: number | undefined): string {
  if (!Number.isSafeInteger(value) || value! <= 0) throw new Error(`root: ${name} is missing or not a positive integer`)
  return String(value)
}

function prefixed(value: string): Buffer {
  const bytes = Buffer.from(value, 'utf8')
  const length = Buffer.alloc(4)
  length.writeUInt32LE(bytes.length)
  return Buffer.concat([length, bytes])
}

// One input buffer for all calls: hashing is synchronous, and allocating took longer than the hash itself.
const input = Buffer.alloc(16 + 4 * BLOCK_TOKENS)
const inputTokens = new DataView(input.buffer, input.byteOffset + 16, 4 * BLOCK_TOKENS)

/**
 * The hash of the block that follows `parent` (the root for the first block).
 * @throws RangeError unless `tokens` are exactly one block's.
 */
export function nextHash(parent: BlockHash | Root, tokens: Int32Array): BlockHash {
  if (tokens.length !== BLOCK_TOKENS) throw new RangeError(`a block has ${BLOCK_TOKENS} tokens, not ${tokens.length}`)
  if (input.write(parent, 0, 16, 'hex') !== 16) throw new RangeError(`'${parent}' is no hash`)
  for (let i = 0; i < BLOCK_TOKENS; i++) inputTokens.setInt32(4 * i, tokens[i]!, true)
  return hash('sha256', input, 'hex').slice(0, 32) as BlockHash
}

/** The chain of the full blocks of `tokens`: `floor(tokens.length / 64)` hashes. */
export function chainOf(root: Root, tokens: Int32Array): Chain {
  return chainFrom(root, tokens, [])
}

/** The chain whose first hashes are `known`. */
function chainFrom(root: Root, tokens: Int32Array, known: readonly BlockHash[]): Chain {
  const hashes = [...known]
  let parent: BlockHash | Root = known.at(-1) ?? root
  for (let end = (known.length + 1) * BLOCK_TOKENS; end <= tokens.length; end += BLOCK_TOKENS) {
    parent = nextHash(parent, tokens.subarray(end - BLOCK_TOKENS, end))
    hashes.push(parent)
  }
  return { root, hashes }
}

interface KnownChain {
  readonly chain: Chain
  /** The blocks' tokens, as bytes: they are compared as memory. */
  readonly bytes: Buffer
}

const BLOCK_BYTES = 4 * BLOCK_TOKENS
/** What a block of a known chain weighs: its tokens, its hash and the place of that in a list. */
const KNOWN_BLOCK_BYTES = BLOCK_BYTES + 64
/** Shorter chains are hashed as fast as they are looked for, and so is any where more than so many are looked through. */
const LEAST_BLOCKS = 64
const MOST_CHAINS = 256
/** A chain that has all but so many blocks of an older one takes its place: it is the same conversation, later. */
const SUPERSEDED_BLOCKS = 8

/**
 * `chainOf` that remembers the last chains, `maxBytes` of them: a conversation's next turn hashes its new blocks only.
 * What it answers is always exact: a hash is taken over only where all tokens up to its block are the same.
 */
export function createChainMemo(maxBytes: number): (root: Root, tokens: Int32Array) => Chain {
  /** Least recently used first. */
  let known: KnownChain[] = []
  return (root, tokens) => {
    if (tokens.length < LEAST_BLOCKS * BLOCK_TOKENS) return chainOf(root, tokens)
    const bytes = Buffer.from(tokens.buffer, tokens.byteOffset, Math.floor(tokens.length / BLOCK_TOKENS) * BLOCK_BYTES)
    let best: KnownChain | undefined
    let shared = 0
    for (const each of known) {
      if (each.chain.root !== root) continue
      const blocks = sharedBlocks(each.bytes, bytes, shared)
      if (blocks > shared) [best, shared] = [each, blocks]
    }
    const chain = chainFrom(root, tokens, best?.chain.hashes.slice(0, shared) ?? [])
    const isLater = best !== undefined && shared >= best.chain.hashes.length - SUPERSEDED_BLOCKS
    known = known.filter((each) => each !== best || !isLater)
    if (best !== undefined && !isLater) known = [...known.filter((each) => each !== best), best]
    // A copy: the tokens go on to other threads, and may be given away there.
    known.push({ chain, bytes: Buffer.from(bytes) })
    let total = known.reduce((sum, each) => sum + each.chain.hashes.length * KNOWN_BLOCK_BYTES, 0)
    while (total > maxBytes || known.length > MOST_CHAINS)
      total -= known.shift()!.chain.hashes.length * KNOWN_BLOCK_BYTES
    return chain
  }
}

/** How many blocks are the same from the start; anything up to `least` where it is not more than that. */
function sharedBlocks(a: Buffer, b: Buffer, least: number): number {
  const same = (from: number, to: number): boolean =>
    a.compare(b, from * BLOCK_BYTES, to * BLOCK_BYTES, from * BLOCK_BYTES, to * BLOCK_BYTES) === 0
  let low = least + 1
  let high = Math.min(a.length, b.length) / BLOCK_BYTES
  if (low > high || !same(0, low)) return least
  while (low < high) {
    const middle = (low + high + 1) >> 1
    if (same(low, middle)) low = middle
    else high = middle - 1
  }
  return low
}
