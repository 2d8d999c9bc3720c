// The working set: all slots under one byte budget. A slot that a sequence leaves stays warm, so that the session's next
// turn goes on in place; it is given up, least recently used first, when room is needed. Invariant: a busy slot belongs
// to one sequence and is never taken; the sum of all slots' bytes stays within the budget.

import type { KvLayout } from '../core/block.js'
import { capacityClass, Slot, slotBytes } from './slot.js'

export interface WorkingSetOptions {
  readonly layout: KvLayout
  readonly contextLength: number
  readonly capacityBytes: number
  /** False: a slot that is left is empty; the baseline without a cache. */
  readonly reuse: boolean
}

/** Which warm slots a side request may take: those whose leaving costs their session nothing. */
export type Spares = (slot: Slot) => boolean

/** Tokens that a slot is to hold. */
export interface Room {
  readonly capacity: number
  /** What is enough of a slot that is there; absent: all of it. */
  readonly least?: number
}

/** A slot to work in, and how many of its leading tokens are the asked prefix already. */
export interface Seat {
  readonly slot: Slot
  readonly resident: number
}

export class WorkingSet {
  readonly #options: WorkingSetOptions
  readonly #slots = new Set<Slot>()
  #usedBytes = 0
  #ticks = 0

  constructor(options: WorkingSetOptions) {
    const needed = slotBytes(options.layout, capacityClass(options.contextLength, options.contextLength))
    if (options.capacityBytes < needed) {
      throw new Error(
        `engine.workingSetBytes is ${options.capacityBytes}, but one sequence of ${options.contextLength} tokens ` +
          `needs ${needed}: raise it, or lower model.contextLength`,
      )
    }
    this.#options = options
  }

  status(): { slots: number; usedSlots: number; usedBytes: number; capacityBytes: number } {
    const usedSlots = [...this.#slots].filter((slot) => slot.busy).length
    const { capacityBytes } = this.#options
    return { slots: this.#slots.size, usedSlots, usedBytes: this.#usedBytes, capacityBytes }
  }

  /** What stands in the slots, those in use too: views that change with them. */
  held(): { readonly root: string; readonly tokens: Int32Array }[] {
    return [...this.#slots].flatMap(({ root, tokens, length }) =>
      root === undefined || length === 0 ? [] : [{ root, tokens: tokens.subarray(0, length) }],
    )
  }

  /**
   * A busy slot for `tokens` with room for `capacity`, or a warm one with room for `least`: more can be made later, and
   * moving its rows now would make the request wait. A warm slot is gone on with when most of what it holds is the asked
   * prefix; otherwise it is left to its session and another one is taken. `spares` bounds what is taken: a slot
   * that it does not name is gone on with only where nothing of it is cut off. Undefined: no room until a slot is free.
   */
  take(root: string, tokens: Int32Array, { capacity, least = capacity }: Room, spares?: Spares): Seat | undefined {
    const { contextLength } = this.#options
    const wanted = capacityClass(capacity, contextLength)
    let best: Slot | undefined
    let bestLength = 0
    for (const slot of this.#slots) {
      if (slot.busy || slot.root !== root) continue
      const length = sharedLength(slot, tokens)
      if (spares !== undefined && length < slot.length && !spares(slot)) continue
      if (length * 2 > slot.length && length > bestLength) {
        best = slot
        bestLength = length
      }
    }
    if (best !== undefined) {
      const { length } = best
      best.busy = true
      best.length = bestLength
      const slot = best.capacity >= least ? best : this.grow(best, capacity, spares)
      if (slot !== undefined) return { slot, resident: bestLength }
      best.length = length
      best.busy = false
    }
    const slot = this.#allocate(wanted, spares) ?? this.#allocate(capacityClass(least, contextLength), spares)
    if (slot === undefined) return undefined
    slot.root = root
    return { slot, resident: 0 }
  }

  /** Moves a busy slot's rows up to a class that holds `capacity` beside its reserved ones; the old one is gone. Undefined: no room. */
  grow(slot: Slot, capacity: number, spares?: Spares): Slot | undefined {
    const { contextLength } = this.#options
    const larger = this.#allocate(capacityClass(capacity + slot.reserved, contextLength), spares)
    if (larger === undefined) return undefined
    larger.copyFrom(slot, slot.length)
    larger.takeReserved(slot)
    larger.owned = slot.owned
    this.#drop(slot)
    return larger
  }

  /** A busy copy of `slot`, for another choice on the same prefix. Undefined: no room. */
  fork(slot: Slot, capacity: number, spares?: Spares): Slot | undefined {
    const copy = this.#allocate(capacityClass(capacity, this.#options.contextLength), spares)
    copy?.copyFrom(slot, slot.length)
    return copy
  }

  /** Leaves a slot warm; what a side request leaves is nobody's. */
  release(slot: Slot, by: 'session' | 'side' = 'session'): void {
    if (!slot.busy) throw new Error('a slot was released twice')
    slot.busy = false
    slot.reserved = 0
    slot.owned = by === 'session' ? slot.length : Math.min(slot.owned, slot.length)
    slot.lastUsed = ++this.#ticks
    if (!this.#options.reuse) slot.length = 0
  }

  /** Whether a sequence of `capacity` tokens could ever be seated. */
  fits(capacity: number): boolean {
    const { layout, contextLength, capacityBytes } = this.#options
    return slotBytes(layout, capacityClass(capacity, contextLength)) <= capacityBytes
  }

  /** Forgets every warm slot. */
  clear(): void {
    for (const slot of [...this.#slots]) if (!slot.busy) this.#drop(slot)
  }

  /** Forgets the warm slots that match and overwrites their ids. How many of the busy ones match: ask again when they are free. */
  erase(matches: (slot: Slot) => boolean): number {
    let busy = 0
    for (const slot of [...this.#slots]) {
      if (!matches(slot)) continue
      if (slot.busy) {
        busy++
        continue
      }
      slot.tokens.fill(0)
      this.#drop(slot)
    }
    return busy
  }

  /** A fresh or reused slot of exactly `capacity`, busy and empty. Reuse spares the page faults of fresh memory. */
  #allocate(capacity: number, spares: Spares = () => true): Slot | undefined {
    const bytes = slotBytes(this.#options.layout, capacity)
    let free = this.#options.capacityBytes - this.#usedBytes
    const idle = [...this.#slots].filter((slot) => !slot.busy).sort((a, b) => a.lastUsed - b.lastUsed)
    for (const slot of idle) {
      if (free >= bytes) break
      if (!spares(slot)) continue
      if (slot.capacity === capacity) return empty(slot)
      free += slot.bytes
      this.#drop(slot)
    }
    if (free < bytes) return undefined
    const slot = new Slot(this.#options.layout, capacity)
    slot.busy = true
    this.#slots.add(slot)
    this.#usedBytes += slot.bytes
    return slot
  }

  #drop(slot: Slot): void {
    if (this.#slots.delete(slot)) this.#usedBytes -= slot.bytes
  }
}

function empty(slot: Slot): Slot {
  slot.busy = true
  slot.length = 0
  slot.owned = 0
  slot.root = undefined
  return slot
}

/** Leading tokens that the slot and the prompt have in common. */
function sharedLength(slot: Slot, tokens: Int32Array): number {
  const end = Math.min(slot.length, tokens.length)
  let i = 0
  while (i < end && slot.tokens[i] === tokens[i]) i++
  return i
}
