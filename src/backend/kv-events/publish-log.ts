// What blocks did, as numbered batches in vLLM's form, and the last of them kept to be given again. Invariant: whoever takes all
// that `since(0)` gives knows all that is held: what is too old to be kept is folded into one batch in front that begins
// with a clear. Hashes go out as integers of 64 bits, the last eight bytes of our own.
//
//   since(0)  =  [number of the first kept - 1: AllBlocksCleared, everything held then] [kept] [kept] ...

import { pack } from 'msgpackr'
import { BLOCK_TOKENS, type BlockHash, type Root } from '../../core/block.js'
import type { BlockPlaced } from '../../core/signals.js'

type Placed = Exclude<BlockPlaced, { what: 'cleared' }>
type Tier = Placed['tier']

export interface LogOptions {
  /** Batches that are kept, and their bytes. */
  readonly steps: number
  readonly bytes: number
  /** Milliseconds since 1970. */
  readonly now: () => number
}

export interface LoggedBatch {
  readonly seq: number
  readonly payload: Buffer
}

interface Step extends LoggedBatch {
  readonly blocks: readonly BlockPlaced[]
}

/** How the tiers are called on the wire; restoring from memory is a copy, from disk a read. */
const MEDIA: Readonly<Record<Tier, string>> = { memory: 'CPU', disk: 'DISK' }

export class PublishLog {
  readonly #options: LogOptions
  readonly #held = new Holding()
  /** As it was before the first kept step. */
  readonly #base = new Holding()
  /** On disk, and not named yet: nobody knows their tokens before they are read. */
  readonly #unnamed = new Set<BlockHash>()
  readonly #steps: Step[] = []
  #bytes = 0
  #next = 0

  constructor(options: LogOptions) {
    this.#options = options
  }

  /** The number of the next batch. */
  get next(): number {
    return this.#next
  }

  /** One batch of what happened; undefined: nothing of it can be told. */
  add(placed: readonly BlockPlaced[]): LoggedBatch | undefined {
    const blocks = placed.flatMap((block) => this.#tellable(block))
    if (blocks.length === 0) return undefined
    const wasEmpty = this.#held.size === 0
    for (const block of blocks) this.#held.apply(block)
    const isEmptied = !wasEmpty && this.#held.size === 0
    const told: readonly BlockPlaced[] = isEmptied ? [{ what: 'cleared' }] : blocks
    const step = { seq: this.#next++, payload: this.#encode(told), blocks: told }
    this.#steps.push(step)
    this.#bytes += step.payload.length
    const { steps, bytes } = this.#options
    while (this.#steps.length > steps || (this.#bytes > bytes && this.#steps.length > 1)) this.#fold()
    return step
  }

  /** From batch `from` on; where that is not kept any more, from a batch on that tells all that was held. */
  *since(from: number): IterableIterator<LoggedBatch> {
    const first = this.#next - this.#steps.length
    if (from < first) yield { seq: first - 1, payload: this.#encode([{ what: 'cleared' }, ...this.#base.blocks()]) }
    for (const { seq, payload } of [...this.#steps]) if (seq >= from) yield { seq, payload }
  }

  #fold(): void {
    const { blocks, payload } = this.#steps.shift() as Step
    this.#bytes -= payload.length
    for (const block of blocks) this.#base.apply(block)
  }

  #tellable(block: BlockPlaced): BlockPlaced[] {
    if (block.what === 'cleared') {
      this.#unnamed.clear()
      return this.#held.size === 0 ? [] : [block]
    }
    const { what, hash, tier, tokens, root, parent } = block
    if (what === 'removed') {
      const isUnnamed = tier === 'disk' && this.#unnamed.delete(hash)
      return isUnnamed || !this.#held.has(hash, tier) ? [] : [block]
    }
    if (tokens === undefined || root === undefined || parent === undefined) {
      if (tier === 'disk') this.#unnamed.add(hash)
      return []
    }
    return this.#unnamed.delete(hash) ? [block, { ...block, tier: 'disk' }] : [block]
  }

  #encode(blocks: readonly BlockPlaced[]): Buffer {
    return pack([this.#options.now() / 1000, eventsOf(blocks), 0]) as Buffer
  }
}

/** Which blocks are held where, in the order in which they came. */
class Holding {
  readonly #tiers: Readonly<Record<Tier, Map<BlockHash, Placed>>> = { memory: new Map(), disk: new Map() }

  get size(): number {
    return this.#tiers.memory.size + this.#tiers.disk.size
  }

  has(hash: BlockHash, tier: Tier): boolean {
    return this.#tiers[tier].has(hash)
  }

  apply(block: BlockPlaced): void {
    if (block.what === 'cleared') for (const tier of Object.values(this.#tiers)) tier.clear()
    else if (block.what === 'removed') this.#tiers[block.tier].delete(block.hash)
    else this.#tiers[block.tier].set(block.hash, block)
  }

  /** Everything as stores, a parent before its children; what has lost a parent is out of reach, and left out. */
  *blocks(): IterableIterator<Placed> {
    const { memory, disk } = this.#tiers
    const done = new Set<BlockHash | Root>()
    for (const hash of [...memory.keys(), ...disk.keys()]) {
      const line: Placed[] = []
      let at: BlockHash | Root = hash
      while (!done.has(at)) {
        const block: Placed | undefined = memory.get(at as BlockHash) ?? disk.get(at as BlockHash)
        if (block === undefined) break
        line.push(block)
        at = block.parent as BlockHash | Root
        if (at === block.root) done.add(at)
      }
      if (!done.has(at)) continue
      for (const { hash: each } of line.reverse()) {
        done.add(each)
        for (const tier of [memory, disk]) if (tier.has(each)) yield tier.get(each) as Placed
      }
    }
  }
}

/** Blocks that follow each other go in one event. */
function eventsOf(blocks: readonly BlockPlaced[]): unknown[] {
  const events: unknown[] = []
  let run: Placed[] = []
  const flush = () => {
    if (run.length > 0) events.push(run[0]?.what === 'stored' ? storedEvent(run) : removedEvent(run))
    run = []
  }
  for (const block of blocks) {
    if (block.what === 'cleared') {
      flush()
      events.push({ type: 'AllBlocksCleared' })
      continue
    }
    const last = run.at(-1)
    const isSame = last?.what === block.what && last.tier === block.tier
    if (!isSame || (block.what === 'stored' && block.parent !== last.hash)) flush()
    run.push(block)
  }
  flush()
  return events
}

function storedEvent(run: readonly Placed[]): object {
  const [{ parent, root, salt, tier }] = run as [Placed]
  const isFirst = parent === root
  return {
    type: 'BlockStored',
    block_hashes: run.map(({ hash }) => wireHash(hash)),
    parent_block_hash: isFirst ? null : wireHash(parent as BlockHash | Root),
    token_ids: run.flatMap(({ tokens }) => [...(tokens as Int32Array)]),
    block_size: BLOCK_TOKENS,
    lora_id: null,
    medium: MEDIA[tier],
    lora_name: null,
    extra_keys: run.map((_, i) => (isFirst && i === 0 && salt !== undefined ? [salt] : null)),
    group_idx: 0,
    kv_cache_spec_kind: 'full_attention',
  }
}

function removedEvent(run: readonly Placed[]): object {
  const [{ tier }] = run as [Placed]
  return {
    type: 'BlockRemoved',
    block_hashes: run.map(({ hash }) => wireHash(hash)),
    medium: MEDIA[tier],
    group_idx: 0,
  }
}

function wireHash(hash: BlockHash | Root): bigint {
  return BigInt(`0x${hash.slice(-16)}`)
}
