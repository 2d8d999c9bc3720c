// Blocks for tests of the cache: token ids from a seed, KV bytes that follow from the hash alone, so that any test can tell
// whether bytes are the right ones for their name.

import { chainOf, makeRoot, nextHash } from '../cache/chain.js'
import type { KvCache, Lease } from '../cache/contract.js'
import type { BlockName } from '../cache/prefix-index.js'
import { BLOCK_TOKENS, type BlockHash, type Chain, type Root } from '../core/block.js'
import type { Priority } from '../core/request.js'
import { seeded } from './random.js'

export function toyRoot(tenantSalt = 'default'): Root {
  return makeRoot({
    weightsDigest: 'w'.repeat(64),
    tokenizerDigest: 't'.repeat(64),
    layout: { layers: 1, kvHeads: 1, headDim: 8, dtype: 'fp16' },
    rounding: 'fp16',
    arithmetic: 'toy',
    tenantSalt,
  })
}

/** `blocks` blocks of token ids; prompts with the same `path` up to a block share the prefix up to there. */
export function toyTokens(path: readonly number[]): Int32Array {
  const tokens = new Int32Array(path.length * BLOCK_TOKENS)
  for (let i = 0; i < tokens.length; i++) tokens[i] = (path[i >> 6]! * 1000 + (i % BLOCK_TOKENS)) | 0
  return tokens
}

export interface ToyPrompt {
  readonly tokens: Int32Array
  readonly chain: Chain
}

/** One block per number of `path`. */
export function toyPrompt(path: readonly number[], root: Root = toyRoot()): ToyPrompt {
  const tokens = toyTokens(path)
  return { tokens, chain: chainOf(root, tokens) }
}

/** A straight prompt of `blocks` blocks that shares nothing with another `seed`'s. */
export function straightPrompt(seed: number, blocks: number, root: Root = toyRoot()): ToyPrompt {
  return toyPrompt(
    Array.from({ length: blocks }, (_, i) => seed * 1000 + i),
    root,
  )
}

/** The full names of the blocks of `straightPrompt(seed, count)`. */
export function blocksOf(seed: number, count: number): BlockName[] {
  const { chain, tokens } = straightPrompt(seed, count)
  return chain.hashes.map((hash, i) => ({
    ...{ hash, root: chain.root, parent: chain.hashes[i - 1] ?? chain.root },
    tokens: tokens.subarray(BLOCK_TOKENS * i, BLOCK_TOKENS * (i + 1)),
  }))
}

/** The bytes that the block of this hash has in all tests. */
export function toyBytes(hash: BlockHash, length: number): Uint8Array {
  const { next } = seeded(Number.parseInt(hash.slice(0, 8), 16))
  const words = Uint32Array.from({ length: Math.ceil(length / 4) }, () => next() * 2 ** 32)
  return new Uint8Array(words.buffer, 0, length)
}

export interface AskOptions {
  readonly priority?: Priority
  readonly resident?: number
  readonly maxBlocks?: number
  readonly transient?: boolean
  readonly signal?: AbortSignal
}

export async function ask(cache: KvCache, prompt: ToyPrompt, options: AskOptions = {}): Promise<Lease> {
  return await cache.acquire({
    ...prompt,
    priority: 'interactive',
    resident: 0,
    maxBlocks: prompt.chain.hashes.length,
    ...options,
  })
}

/** Commits the lease's next block with its right bytes. */
export function commitNext(lease: Lease, prompt: ToyPrompt): boolean {
  const index = lease.ready
  const tokens = prompt.tokens.subarray(index * BLOCK_TOKENS, (index + 1) * BLOCK_TOKENS)
  const hash = nextHash(index === 0 ? prompt.chain.root : prompt.chain.hashes[index - 1]!, tokens)
  return lease.commit(index, hash, tokens, (into) => into.set(toyBytes(hash, into.length)))
}

/** What an engine does with a prompt: acquire, check the restored bytes, compute and commit the rest, release. */
export async function serve(cache: KvCache, prompt: ToyPrompt, options: AskOptions = {}): Promise<Lease['found']> {
  const lease = await ask(cache, prompt, options)
  expectRight(lease, options.resident ?? 0)
  const { found } = lease
  while (lease.ready < prompt.chain.hashes.length) commitNext(lease, prompt)
  lease.release()
  return found
}

/** @throws Error unless every block that the lease shows has the bytes of its name. */
export function expectRight(lease: Lease, from = 0): void {
  for (let i = from; i < lease.ready; i++) {
    const bytes = lease.block(i)
    const right = toyBytes(lease.chain.hashes[i]!, bytes.length)
    if (Buffer.compare(bytes, right) !== 0) throw new Error(`block ${i} has wrong bytes`)
  }
}
