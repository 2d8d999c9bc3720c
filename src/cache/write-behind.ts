// Blocks on their way from memory to the slow tier: a bounded queue with one writer. Invariants: a queued block is held, so
// its bytes stay; the queue never weighs more than its bound, what does not fit is not written and counted; nobody waits
// for it but `flush`.

import type { Entry, PrefixIndex } from './prefix-index.js'
import type { MemoryTier } from './tier/memory.js'

interface Write {
  readonly entry: Entry
  readonly done: Promise<void>
  readonly finish: () => void
}

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
  #queue: Write[] = []
  #running: Write | undefined

  /** `queueBytes` bounds what waits; at least one block may. */
  constructor(parts: WriteBehindParts, queueBytes: number) {
    this.#parts = parts
    const { blockBytes } = parts.memory.pool
    this.#limit = blockBytes === 0 ? Number.POSITIVE_INFINITY : Math.max(1, Math.floor(queueBytes / blockBytes))
  }

  /** Blocks that wait or are being written. */
  get pending(): number {
    return this.#queue.length + (this.#running === undefined ? 0 : 1)
  }

  /** Whether one more block would be written. */
  get hasRoom(): boolean {
    return this.#parts.writable() && this.pending < this.#limit
  }

  /** Writes the block, which is in memory, when its turn comes. */
  add(entry: Entry): void {
    if (entry.stored || entry.queued) return
    if (!this.hasRoom) {
      this.#parts.dropped(entry)
      return
    }
    entry.queued = true
    this.#parts.index.hold(entry)
    let finish: () => void = () => undefined
    const done = new Promise<void>((resolve) => {
      finish = resolve
    })
    this.#queue.push({ entry, done, finish })
    if (this.#running === undefined) void this.#run()
  }

  /** Takes matching blocks out of the queue; resolves when the one being written, if it matches, is through. */
  async cancel(matches: (entry: Entry) => boolean): Promise<void> {
    const cancelled = this.#queue.filter(({ entry }) => matches(entry))
    this.#queue = this.#queue.filter(({ entry }) => !matches(entry))
    for (const write of cancelled) this.#finish(write)
    if (this.#running !== undefined && matches(this.#running.entry)) await this.#running.done
  }

  /** Resolves when what waits now is written or dropped. */
  async flush(): Promise<void> {
    const running = this.#running === undefined ? [] : [this.#running.done]
    await Promise.all([...running, ...this.#queue.map(({ done }) => done)])
  }

  async #run(): Promise<void> {
    const { index, memory, store, dropped } = this.#parts
    for (;;) {
      this.#running = this.#queue.shift()
      if (this.#running === undefined) return
      const { entry } = this.#running
      if (await store(entry, memory.bytes(entry))) index.placeInStore(entry)
      else dropped(entry)
      this.#finish(this.#running)
    }
  }

  #finish({ entry, finish }: Write): void {
    entry.queued = false
    this.#parts.index.unhold(entry)
    finish()
  }
}
