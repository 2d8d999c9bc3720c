// A binary heap that can also take out an item from its middle. Invariant: `positions` says where each item stands; the
// item at 0 precedes all others. All operations take O(log n).

export class Heap<T> {
  readonly #items: T[] = []
  readonly #positions = new Map<T, number>()
  readonly #before: (a: T, b: T) => boolean

  /** `before(a, b)`: a leaves first. An item's order must not change while it is inside. */
  constructor(before: (a: T, b: T) => boolean) {
    this.#before = before
  }

  get size(): number {
    return this.#items.length
  }

  has(item: T): boolean {
    return this.#positions.has(item)
  }

  peek(): T | undefined {
    return this.#items[0]
  }

  /** An item that is inside already stays where it is. */
  add(item: T): void {
    if (this.#positions.has(item)) return
    this.#items.push(item)
    this.#rise(this.#items.length - 1)
  }

  /** False: it was not inside. */
  remove(item: T): boolean {
    const at = this.#positions.get(item)
    if (at === undefined) return false
    this.#positions.delete(item)
    const last = this.#items.pop()!
    if (last !== item) {
      this.#items[at] = last
      this.#positions.set(last, at)
      this.#rise(at)
      this.#sink(this.#positions.get(last)!)
    }
    return true
  }

  #rise(from: number): void {
    const item = this.#items[from]!
    let at = from
    while (at > 0) {
      const up = (at - 1) >> 1
      const other = this.#items[up]!
      if (!this.#before(item, other)) break
      this.#put(other, at)
      at = up
    }
    this.#put(item, at)
  }

  #sink(from: number): void {
    const item = this.#items[from]!
    let at = from
    for (;;) {
      let down = 2 * at + 1
      if (down >= this.#items.length) break
      if (down + 1 < this.#items.length && this.#before(this.#items[down + 1]!, this.#items[down]!)) down++
      const other = this.#items[down]!
      if (!this.#before(other, item)) break
      this.#put(other, at)
      at = down
    }
    this.#put(item, at)
  }

  #put(item: T, at: number): void {
    this.#items[at] = item
    this.#positions.set(item, at)
  }
}
