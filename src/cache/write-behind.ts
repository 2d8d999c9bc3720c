// Blocks on their way from memory to the slow tier, oldest first, one writer. Invariants: the first of them, up to a bound,
// are held so that their bytes stay; those behind wait unheld and are counted as dropped when memory evicts them first;
// while the tier cannot be written, none is held and all wait. Nobody waits for a write but `flush`.
//
//   add -> spare (evictable) -> due (held, at most `limit`) -> being written -> stored

import type { Entry, PrefixIndex } from './prefix-index.js'
import type { MemoryTier } from './tier/memory.js'

export interface WriteBehindParts {
  readonly index: PrefixIndex
  readonly memory: MemoryTier
  /** False: `store` would fail. */
  writable(): boolean
  /** Whether the block was stored. Never rejects. */
  store(entry: Entry, bytes: Uint8Array): Promise<boolean>
  /** The block will not be written. */
  dropped(entry: Entry): void
}

export class WriteBehind {
  readonly #parts: WriteBehindParts
  readonly #limit: number
  readonly #due = new Set<Entry>()
  #spare = new Set<Entry>()
  #running: { readonly entry: Entry; readonly done: Promise<boolean> } | undefined

  /** `queueBytes` bounds what is held; at least one block may be. */
  constructor(parts: WriteBehindParts, queueBytes: number) {
    this.#parts = parts
    const { blockBytes } = parts.memory.pool
    this.#limit = blockBytes === 0 ? Number.POSITIVE_INFINITY : Math.max(1, Math.floor(queueBytes / blockBytes))
  }

  /** Blocks that wait or are being written. */
  get pending(): number {
    return this.#due.size + this.#spare.size
  }

  /** Writes the block, which is in memory, when its turn comes. One that is stored or waits already: no change. */
  add(entry: Entry): void {
    if (!entry.stored && !entry.queued) {
      entry.queued = true
      this.#spare.add(entry)
      this.#forgetEvicted()
    }
    this.resume()
  }

  /** Goes on when the tier can be written again. */
  resume(): void {
    if (this.#running === undefined) void this.#run()
  }

  /** Takes matching blocks out; resolves when the one being written, if it matches, is through. */
  async cancel(matches: (entry: Entry) => boolean): Promise<void> {
    const running = this.#running
    for (const entry of [...this.#due, ...this.#spare])
      if (entry !== running?.entry && matches(entry)) this.#remove(entry)
    if (running !== undefined && matches(running.entry)) await running.done
  }

  /** Resolves when what waits now is written or dropped, or the tier cannot be written. */
  async flush(): Promise<void> {
    const asked = [...this.#due, ...this.#spare]
    this.resume()
    while (this.#running !== undefined && asked.some(({ queued }) => queued)) await this.#running.done
  }

  async #run(): Promise<void> {
    const { index, memory, writable, store, dropped } = this.#parts
    for (;;) {
      this.#fill()
      const [entry] = this.#due
      this.#running = undefined
      if (entry === undefined) return
      const done = store(entry, memory.bytes(entry))
      this.#running = { entry, done }
      const stored = await done
      if (stored) index.placeInStore(entry)
      // Refused by a tier that is well: no room for it. By one that is not: its turn comes again.
      else if (writable()) dropped(entry)
      else continue
      this.#remove(entry)
    }
  }

  /** Makes due what may be; nothing is while the tier cannot be written. */
  #fill(): void {
    const { index, writable } = this.#parts
    if (!writable()) {
      for (const entry of this.#due) index.unhold(entry)
      this.#spare = new Set([...this.#due, ...this.#spare])
      this.#due.clear()
      return
    }
    for (const entry of this.#spare) {
      if (this.#due.size >= this.#limit) return
      if (entry.slot === undefined) {
        this.#drop(entry)
        continue
      }
      this.#spare.delete(entry)
      this.#due.add(entry)
      index.hold(entry)
    }
  }

  #remove(entry: Entry): void {
    entry.queued = false
    this.#spare.delete(entry)
    if (this.#due.delete(entry)) this.#parts.index.unhold(entry)
  }

  #drop(entry: Entry): void {
    this.#remove(entry)
    this.#parts.dropped(entry)
  }

  /** Keeps what waits from outgrowing the memory while the disk is away. */
  #forgetEvicted(): void {
    if (this.#spare.size <= 2 * this.#parts.memory.pool.capacity) return
    for (const entry of this.#spare) if (entry.slot === undefined) this.#drop(entry)
  }
}
