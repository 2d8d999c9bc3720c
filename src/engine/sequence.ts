// One request inside the engine: where its prompt stands, whose blocks it uses, and the choices that grow from it.
// Owns a lease and one slot per choice while it runs; `engine.ts` moves it from phase to phase:
//
//   queued -> acquiring -> prefill <-> following -> decode -> done
//
// Invariant: the lease is released once and every slot is given back once, whichever phase the end comes in.

import { nextHash } from '../cache/chain.js'
import type { Lease } from '../cache/contract.js'
import { BLOCK_TOKENS, type BlockHash, type CacheUsage } from '../core/block.js'
import type { Channel } from '../core/channel.js'
import type { GenerateEvent } from '../core/events.js'
import type { Job, Priority } from '../core/request.js'
import type { Kernels } from '../native/contract.js'
import type { Branches } from './branches.js'
import type { Matcher } from './grammar.js'
import type { Output } from './output.js'
import type { Sampler } from './sampler.js'
import type { Slot } from './slot.js'

export type Phase = 'queued' | 'acquiring' | 'prefill' | 'following' | 'decode' | 'done'

/** One of a request's n answers. */
export interface Choice {
  readonly index: number
  slot: Slot
  readonly sampler: Sampler
  readonly matcher: Matcher | undefined
  readonly output: Output
  /** Sampled, not yet computed; undefined once the choice has ended. */
  pending: number | undefined
  /** Sampled last, whether it was computed or not. */
  last: number | undefined
  generated: number
}

export class Sequence {
  readonly job: Job
  readonly order: number
  readonly events: Channel<GenerateEvent>
  readonly signal: AbortSignal
  phase: Phase = 'queued'
  lease: Lease | undefined
  /** The prompt's slot until the choices have theirs. */
  slot: Slot | undefined
  readonly choices: Choice[] = []
  /** Side questions; they fork off `slot`. */
  branches: Branches | undefined
  /** Rows of the prompt that were computed as any prompt's; those after it, beside branches, are not left to others. */
  exact: number | undefined
  readonly queuedAt: number
  /** Undefined: not yet. */
  admittedAt: number | undefined
  /** What was found of its prompt stands in memory. */
  restoredAt: number | undefined
  /** Its prompt is computed. */
  computedAt: number | undefined
  /** Ends the limits on waiting; called when it leaves the queue. */
  cancelTimers: (() => void) | undefined
  /** Stops listening to whoever asked; called when it is over. */
  unlink: (() => void) | undefined
  /** Tokens of the prompt by where their KV was found, so far. */
  readonly hits = { working: 0, memory: 0, disk: 0 }
  committedTokens = 0
  completionTokens = 0
  /** A side request found nothing in the working set that it may take. */
  starved = false
  /** The hash of the last full block that was offered to the cache. */
  #lastHash: BlockHash | undefined

  constructor(job: Job, init: { order: number; events: Channel<GenerateEvent>; signal: AbortSignal; now: number }) {
    this.job = job
    this.order = init.order
    this.events = init.events
    this.signal = init.signal
    this.queuedAt = init.now
  }

  get priority(): Priority {
    return this.job.request.priority
  }

  get tenant(): string {
    return this.job.request.tenant.name
  }

  get depth(): number {
    return this.slot?.length ?? 0
  }

  get remaining(): number {
    return this.job.tokens.length - this.depth
  }

  /** Tokens that a hit may use: at least the last one is computed, for its logits, where there is an answer to it. */
  get maxHit(): number {
    return this.branches?.alone === true ? this.job.tokens.length : this.job.tokens.length - 1
  }

  get maxBlocks(): number {
    return Math.floor(this.maxHit / BLOCK_TOKENS)
  }

  /** Whether tokens of an answer come. */
  get isStreaming(): boolean {
    return this.choices.some(({ pending }) => pending !== undefined)
  }

  usage(): CacheUsage {
    const { working, memory, disk } = this.hits
    return { working, memory, disk, computed: this.job.tokens.length - working - memory - disk }
  }

  /** Brings the lease's blocks that lie past the slot's rows into the slot. */
  load(kernels: Kernels): void {
    const { lease, slot } = this.held()
    const ready = Math.min(lease.ready, this.maxBlocks)
    if (ready * BLOCK_TOKENS <= slot.length) return
    const first = Math.floor(slot.length / BLOCK_TOKENS)
    for (let index = first; index < ready; index++) {
      const ids = this.job.tokens.subarray(index * BLOCK_TOKENS, (index + 1) * BLOCK_TOKENS)
      slot.readBlock(index, lease.block(index), ids, kernels)
    }
    // A block that was brought in replaces what the slot held of it.
    this.hits.working = Math.min(this.hits.working, first * BLOCK_TOKENS)
    this.hits.memory = lease.found.memory * BLOCK_TOKENS
    this.hits.disk = lease.found.disk * BLOCK_TOKENS
  }

  /** Offers the blocks of `slot` that became full to the cache. */
  commitFull(slot: Slot, kernels: Kernels): void {
    const { lease } = this.held()
    const { hashes, root } = lease.chain
    while ((lease.ready + 1) * BLOCK_TOKENS <= slot.length) {
      const index = lease.ready
      const tokens = slot.tokens.slice(index * BLOCK_TOKENS, (index + 1) * BLOCK_TOKENS)
      const parent = index === 0 ? root : (hashes[index - 1] ?? this.#lastHash)
      if (parent === undefined) throw new Error(`block ${index} has no parent`)
      const hash = hashes[index] ?? nextHash(parent, tokens)
      const kept = lease.commit(index, hash, tokens, (into) => slot.writeBlock(index, into, kernels))
      this.#lastHash = hash
      if (kept) this.committedTokens += BLOCK_TOKENS
    }
  }

  /** Its slot's rows stand in `slot` now, and with them those of the choices that work in it. */
  moveTo(slot: Slot): void {
    for (const choice of this.choices) if (choice.slot === this.slot) choice.slot = slot
    this.slot = slot
  }

  held(): { lease: Lease; slot: Slot } {
    if (this.lease === undefined || this.slot === undefined) throw new Error('the sequence holds no lease')
    return { lease: this.lease, slot: this.slot }
  }
}
