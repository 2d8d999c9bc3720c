// Runs a trace through the cache that serves, without a model: the same lookups, leases, commits, evictors and disk tier
// over blocks without bytes. Invariant: requests go one after the other in the trace's order, and a disk keeps up with what
// is written, so that a run says what the cache holds, not how fast anything is; equal input gives equal output.

import { recordBytes, SEGMENT_HEADER_BYTES } from '../cache/block-file.js'
import { type ErasableKvCache, openKvCache } from '../cache/kv-cache.js'
import type { DiskOptions } from '../cache/tier/disk.js'
import { BLOCK_TOKENS } from '../core/block.js'
import type { Clock } from '../core/clock.js'
import { memoryFiles } from './memory-files.js'
import { NAME_TOKENS, type References, type SimulatedRequest } from './references.js'

export interface SimulationOptions {
  /** Blocks of 64 tokens in host memory. */
  readonly memoryBlocks: number
  /** Blocks on disk; absent: no disk. */
  readonly diskBlocks?: number
  /** A kind of cache/evictor. */
  readonly evictor: string
}

export interface TurnHits {
  readonly turn: number
  readonly requests: number
  readonly hitRate: number
}

export interface Simulation extends SimulationOptions {
  readonly requests: number
  /** Blocks that were asked for. */
  readonly references: number
  readonly memoryHits: number
  readonly diskHits: number
  /** Hits of references, 0 to 1. */
  readonly hitRate: number
  readonly promptTokens: number
  readonly reusedTokens: number
  readonly evictedBlocks: number
  /** By turn of the conversation, the first 32; none where the trace names no conversations. */
  readonly turns: readonly TurnHits[]
}

/** Turns that are told apart. */
const MOST_TURNS = 32
/** Segments that a disk is split into. */
const SEGMENTS = 64
const FEWEST_DISK_BLOCKS = 8

/** Stands still: what a simulation would wait for has happened when it is asked. */
const stillClock: Clock = { now: () => 0, after: () => () => undefined }

/** @throws Error where the evictor is not known or the disk is smaller than eight blocks. */
export async function simulate(references: References, options: SimulationOptions): Promise<Simulation> {
  const { memoryBlocks, diskBlocks, evictor } = options
  const cache = await openKvCache(
    {
      ...{ blockBytes: 0, memoryBytes: 0, memoryBlocks, evictor, restore: 'always' as const },
      ...(diskBlocks !== undefined && { disk: diskOf(diskBlocks) }),
    },
    { clock: stillClock, files: memoryFiles() },
  )
  try {
    return await new Run(cache, references, options).all()
  } finally {
    await cache.close()
  }
}

function diskOf(blocks: number): DiskOptions {
  if (blocks < FEWEST_DISK_BLOCKS)
    throw new RangeError(`a disk of ${blocks} blocks is too small: ${FEWEST_DISK_BLOCKS} at least`)
  const records = Math.max(1, Math.floor(blocks / SEGMENTS))
  const segmentBytes = records * recordBytes(0) + SEGMENT_HEADER_BYTES
  const capacityBytes = blocks * recordBytes(0) + Math.ceil(blocks / records) * SEGMENT_HEADER_BYTES
  return { folder: '/simulated', capacityBytes, segmentBytes, keepFreeBytes: 0 }
}

class Run {
  readonly #cache: ErasableKvCache
  readonly #references: References
  readonly #options: SimulationOptions
  /** The request's tokens; only each block's first few ever differ from 0. */
  #tokens = new Int32Array(BLOCK_TOKENS)
  readonly #turns = new Map<number, { requests: number; hits: number; asked: number }>()
  #memoryHits = 0
  #diskHits = 0

  constructor(cache: ErasableKvCache, references: References, options: SimulationOptions) {
    this.#cache = cache
    this.#references = references
    this.#options = options
  }

  async all(): Promise<Simulation> {
    const { requests, count } = this.#references
    for (const request of requests) await this.#request(request)
    const hits = this.#memoryHits + this.#diskHits
    return {
      ...this.#options,
      requests: requests.length,
      references: count,
      memoryHits: this.#memoryHits,
      diskHits: this.#diskHits,
      hitRate: count === 0 ? 0 : hits / count,
      promptTokens: requests.reduce((sum, { promptTokens }) => sum + promptTokens, 0),
      reusedTokens: hits * BLOCK_TOKENS,
      evictedBlocks: this.#cache.status().reduce((sum, { evictedBlocks }) => sum + evictedBlocks, 0),
      turns: [...this.#turns]
        .sort(([a], [b]) => a - b)
        .map(([turn, each]) => ({
          turn,
          requests: each.requests,
          hitRate: each.asked === 0 ? 0 : each.hits / each.asked,
        })),
    }
  }

  async #request({ nodes, promptTokens, turn }: SimulatedRequest): Promise<void> {
    const { root } = this.#references
    const hashes = Array.from(nodes, (node) => this.#references.hashes[node]!)
    const tokens = this.#tokensOf(nodes)
    // As the engine does: the last token of a prompt is always computed.
    const maxBlocks = Math.max(0, Math.floor((promptTokens - 1) / BLOCK_TOKENS))
    const lease = await this.#cache.acquire({
      ...{ chain: { root, hashes }, tokens, priority: 'interactive' as const, resident: 0, maxBlocks },
    })
    this.#count(turn, lease.ready, nodes.length)
    this.#memoryHits += lease.found.memory
    this.#diskHits += lease.found.disk
    const { memoryBlocks, diskBlocks } = this.#options
    // What waits to be written cannot be evicted: the disk gets its turn before that is all of the memory.
    const pause = diskBlocks === undefined ? Number.POSITIVE_INFINITY : Math.max(1, memoryBlocks >> 2)
    for (let i = lease.ready, done = 1; i < hashes.length; i++, done++) {
      lease.commit(i, hashes[i]!, tokens.subarray(i * BLOCK_TOKENS, (i + 1) * BLOCK_TOKENS), () => undefined)
      if (done % pause === 0) await this.#cache.flush()
    }
    lease.release()
    if (diskBlocks !== undefined) await this.#cache.flush()
  }

  #tokensOf(nodes: Uint32Array): Int32Array {
    const length = nodes.length * BLOCK_TOKENS
    if (this.#tokens.length < length) this.#tokens = new Int32Array(2 * length)
    const { names } = this.#references
    for (let i = 0; i < nodes.length; i++) {
      const from = nodes[i]! * NAME_TOKENS
      for (let j = 0; j < NAME_TOKENS; j++) this.#tokens[i * BLOCK_TOKENS + j] = names[from + j]!
    }
    return this.#tokens.subarray(0, length)
  }

  #count(turn: number, hits: number, asked: number): void {
    if (turn === 0 || turn > MOST_TURNS) return
    const sum = this.#turns.get(turn) ?? { requests: 0, hits: 0, asked: 0 }
    sum.requests++
    sum.hits += hits
    sum.asked += asked
    this.#turns.set(turn, sum)
  }
}
