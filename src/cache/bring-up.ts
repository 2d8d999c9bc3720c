// Blocks on their way from the slow tier to memory: loads in order of request, a few at a time, straight into pool slots.
// Invariants: a block is loaded once however many wait for it; a slot is given back only when the tier no longer writes
// into it; who stops waiting stops nobody else.

import type { Clock } from '../core/clock.js'
import type { Priority } from '../core/request.js'
import type { BlockName, Entry, PrefixIndex } from './prefix-index.js'
import type { MemoryTier } from './tier/memory.js'
import type { LoadOutcome } from './tier/tier.js'

/** A block that is wanted in memory: its entry, and the name that the tier must prove. */
export interface Wanted {
  readonly entry: Entry
  readonly name: BlockName
}

interface Load extends Wanted {
  readonly slot: number
  readonly done: Promise<boolean>
  readonly finish: (loaded: boolean) => void
  /** Callers that wait for it. */
  waiting: number
}

export interface BringUpParts {
  readonly index: PrefixIndex
  readonly memory: MemoryTier
  readonly clock: Clock
  /** False: `load` would fail. */
  readable(): boolean
  /** See `SlowTier.load`. */
  load(block: BlockName, into: Uint8Array): Promise<LoadOutcome>
}

export interface BringUpOptions {
  readonly concurrency: number
  /** Longest wait for one block after the one before it. */
  readonly patienceMs: number
}

export class BringUp {
  readonly #parts: BringUpParts
  readonly #options: BringUpOptions
  readonly #loads = new Map<Entry, Load>()
  readonly #queue = new Set<Load>()
  #running = 0

  constructor(parts: BringUpParts, options: BringUpOptions) {
    this.#parts = parts
    this.#options = options
  }

  /** Blocks that wait or are being read. */
  get pending(): number {
    return this.#loads.size
  }

  isLoading(entry: Entry): boolean {
    return this.#loads.has(entry)
  }

  /**
   * Brings up those of `wanted` that are not in memory. Returns how many of the first are there then, and held for the
   * caller; the rest met a fault, a stall or a memory in which nobody may go for them.
   * @throws the signal's reason; nothing is held then.
   */
  async load(wanted: readonly Wanted[], priority: Priority, signal: AbortSignal | undefined): Promise<number> {
    const { index } = this.#parts
    for (const { entry } of wanted) index.hold(entry)
    const loads = this.#begin(wanted, priority)
    let ready = 0
    try {
      while (ready < loads.length && (await this.#isThere(loads[ready], signal))) ready++
      signal?.throwIfAborted()
    } catch (reason) {
      ready = 0
      throw reason
    } finally {
      for (const load of loads) if (load !== undefined) this.#leave(load)
      for (const { entry } of wanted.slice(ready, loads.length)) index.unhold(entry)
    }
    return ready
  }

  /**
   * One load, or undefined where none is needed, for as many of the first of `wanted` as memory can take; the others are
   * no longer held. Where room is short, blocks at the end give way to those before them.
   */
  #begin(wanted: readonly Wanted[], priority: Priority): (Load | undefined)[] {
    const { index, readable } = this.#parts
    const loads: (Load | undefined)[] = []
    let end = wanted.length
    while (loads.length < end) {
      const one = wanted[loads.length]!
      let load: Load | undefined
      if (one.entry.slot === undefined) {
        load = readable() ? (this.#loads.get(one.entry) ?? this.#start(one, priority)) : undefined
        if (load === undefined) {
          index.unhold(wanted[--end]!.entry)
          continue
        }
        load.waiting++
      }
      loads.push(load)
    }
    this.#pump()
    return loads
  }

  #start({ entry, name }: Wanted, priority: Priority): Load | undefined {
    const { index, memory } = this.#parts
    const slot = memory.reserve(priority)
    if (slot === undefined) return undefined
    index.hold(entry)
    let finish: (loaded: boolean) => void = () => undefined
    const done = new Promise<boolean>((resolve) => {
      finish = resolve
    })
    const load = { entry, name, slot, done, finish, waiting: 0 }
    this.#loads.set(entry, load)
    this.#queue.add(load)
    return load
  }

  #pump(): void {
    for (const load of this.#queue) {
      if (this.#running >= this.#options.concurrency) return
      this.#queue.delete(load)
      void this.#run(load)
    }
  }

  async #run(load: Load): Promise<void> {
    this.#running++
    const outcome = await this.#parts.load(load.name, this.#parts.memory.pool.bytes(load.slot))
    this.#running--
    this.#settle(load, outcome)
    this.#pump()
  }

  /** One caller less waits; a load that nobody waits for is not begun. */
  #leave(load: Load): void {
    if (--load.waiting === 0 && this.#queue.delete(load)) this.#settle(load, 'failed')
  }

  #settle(load: Load, outcome: LoadOutcome): void {
    const { index, memory } = this.#parts
    const { entry, name, slot } = load
    this.#loads.delete(entry)
    if (outcome === 'absent') index.leaveStore(entry)
    if (outcome === 'loaded' && entry.slot === undefined) {
      index.name(name.hash, name.root, name.parent, name.tokens)
      memory.place(entry, slot)
    } else memory.give(slot)
    load.finish(entry.slot !== undefined)
    index.unhold(entry)
  }

  /** False: not loaded, or not in time. No load: there already. */
  async #isThere(load: Load | undefined, signal: AbortSignal | undefined): Promise<boolean> {
    signal?.throwIfAborted()
    if (load === undefined) return true
    let stop: () => void = () => undefined
    const given = new Promise<boolean>((resolve, reject) => {
      const cancel = this.#parts.clock.after(this.#options.patienceMs, () => resolve(false))
      const abort = () => reject(signal?.reason)
      signal?.addEventListener('abort', abort, { once: true })
      stop = () => {
        cancel()
        signal?.removeEventListener('abort', abort)
      }
    })
    try {
      return await Promise.race([load.done, given])
    } finally {
      stop()
    }
  }
}
