// Host memory for blocks: a fixed number of equal slots, in slabs outside of the JavaScript heap that are allocated when
// first needed and kept. Invariant: slabs never exceed the budget, a slot has one owner from `take` to `give`.
//
//   slab 0 | slot 0 | slot 1 | ... | slot k-1 |    slab 1 | slot k | ...      slots start at multiples of 64 bytes of a slab

const ALIGNMENT = 64

/** 64 MB: 43 blocks of the 135M model; large enough that a GB is 16 allocations, small enough to grow with use. */
const DEFAULT_SLAB_BYTES = 64 * 1024 * 1024

export interface BlockPoolOptions {
  /** 0: slots without bytes, for simulations. */
  readonly blockBytes: number
  readonly capacityBytes: number
  /** Slots at most; needed where `blockBytes` is 0, else what fits into `capacityBytes` when absent. */
  readonly capacityBlocks?: number
  readonly slabBytes?: number
}

export class BlockPool {
  readonly blockBytes: number
  /** Slots that there are at most. */
  readonly capacity: number
  readonly #stride: number
  readonly #slotsPerSlab: number
  readonly #slabs: ArrayBuffer[] = []
  readonly #free: number[] = []
  readonly #owned: Uint8Array
  #next = 0

  /** @throws RangeError on a negative size, or when `blockBytes` is 0 and nothing else bounds the pool. */
  constructor(options: BlockPoolOptions) {
    const { blockBytes, capacityBytes, capacityBlocks, slabBytes = DEFAULT_SLAB_BYTES } = options
    if (!Number.isSafeInteger(blockBytes) || blockBytes < 0) throw new RangeError(`blockBytes is ${blockBytes}`)
    if (blockBytes === 0 && capacityBlocks === undefined) throw new RangeError('blockBytes is 0: give capacityBlocks')
    this.blockBytes = blockBytes
    this.#stride = Math.ceil(blockBytes / ALIGNMENT) * ALIGNMENT
    const fit = this.#stride === 0 ? Number.POSITIVE_INFINITY : Math.floor(capacityBytes / this.#stride)
    this.capacity = Math.max(0, Math.min(fit, capacityBlocks ?? fit))
    this.#slotsPerSlab = this.#stride === 0 ? this.capacity : Math.max(1, Math.floor(slabBytes / this.#stride))
    this.#owned = new Uint8Array(this.capacity)
  }

  /** Slots that have an owner. */
  get used(): number {
    return this.#next - this.#free.length
  }

  /** Bytes of the slabs that exist. */
  get allocatedBytes(): number {
    return this.#slabs.reduce((sum, slab) => sum + slab.byteLength, 0)
  }

  /** A slot, or undefined when all are owned. Its bytes are whatever its last owner left. */
  take(): number | undefined {
    const slot = this.#free.pop() ?? (this.#next < this.capacity ? this.#next++ : undefined)
    if (slot === undefined) return undefined
    this.#owned[slot] = 1
    this.#grow(slot)
    return slot
  }

  /** @throws Error when the slot has no owner: two owners of one slot would be wrong bytes. */
  give(slot: number): void {
    if (this.#owned[slot] !== 1) throw new Error(`slot ${slot} is given back twice`)
    this.#owned[slot] = 0
    this.#free.push(slot)
  }

  /** The `blockBytes` bytes of an owned slot, as a view; aligned for any typed array. */
  bytes(slot: number): Uint8Array {
    if (this.#owned[slot] !== 1) throw new Error(`slot ${slot} has no owner`)
    if (this.#stride === 0) return new Uint8Array(0)
    const slab = this.#slabs[Math.floor(slot / this.#slotsPerSlab)]!
    return new Uint8Array(slab, (slot % this.#slotsPerSlab) * this.#stride, this.blockBytes)
  }

  #grow(slot: number): void {
    if (this.#stride === 0 || slot < this.#slabs.length * this.#slotsPerSlab) return
    const slots = Math.min(this.#slotsPerSlab, this.capacity - this.#slabs.length * this.#slotsPerSlab)
    this.#slabs.push(new ArrayBuffer(slots * this.#stride))
  }
}
