// Pins by name, each with a time to live: operators' promises that a prefix stays. Invariant: a pin's blocks are pinned in
// the index from `set` to `remove` or to the end of its time, whichever comes first.

import type { Clock } from '../core/clock.js'
import { cacheMoved } from '../core/signals.js'
import type { Entry, PrefixIndex } from './prefix-index.js'

interface Pin {
  readonly entries: readonly Entry[]
  readonly expiresAt: number
  readonly cancel: () => void
}

export class Pins {
  readonly #index: PrefixIndex
  readonly #clock: Clock
  readonly #limit: number
  readonly #blockBytes: number
  readonly #pins = new Map<string, Pin>()

  constructor(index: PrefixIndex, clock: Clock, bounds: { readonly limitBlocks: number; readonly blockBytes: number }) {
    this.#index = index
    this.#clock = clock
    this.#limit = bounds.limitBlocks
    this.#blockBytes = bounds.blockBytes
  }

  /** Pins as many of the first `entries` as the limit allows, in place of what `id` pinned; returns them. */
  set(id: string, entries: readonly Entry[], ttlMs: number): readonly Entry[] {
    const taken: Entry[] = []
    for (const entry of entries) {
      if (entry.pins === 0 && this.#index.pinnedBlocks >= this.#limit) break
      this.#index.pin(entry)
      taken.push(entry)
    }
    // The old ones go last: what both name is never unpinned in between.
    this.remove(id)
    const cancel = this.#clock.after(ttlMs, () => this.#expire(id))
    this.#pins.set(id, { entries: taken, expiresAt: this.#clock.now() + ttlMs, cancel })
    return taken
  }

  /** False: no such pin. */
  remove(id: string): boolean {
    const pin = this.#pins.get(id)
    if (pin === undefined) return false
    this.#pins.delete(id)
    pin.cancel()
    for (const entry of pin.entries) this.#index.unpin(entry)
    return true
  }

  list(): { id: string; blocks: number; expiresInMs: number }[] {
    const now = this.#clock.now()
    return [...this.#pins].map(([id, { entries, expiresAt }]) => ({
      id,
      blocks: entries.length,
      expiresInMs: Math.max(0, expiresAt - now),
    }))
  }

  clear(): void {
    for (const id of [...this.#pins.keys()]) this.remove(id)
  }

  #expire(id: string): void {
    const blocks = this.#pins.get(id)?.entries.length ?? 0
    this.remove(id)
    cacheMoved.publish({ what: 'expired', tier: 'memory', blocks, bytes: blocks * this.#blockBytes })
  }
}
