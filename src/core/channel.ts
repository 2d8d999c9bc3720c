// A queue between one producer and one consumer, as an AsyncIterable. Events come up through it; failure comes up as
// its throw. Invariant: after `end` or `fail` nothing more is accepted; a consumer that stops early runs `onReturn`.

export class Channel<T> implements AsyncIterable<T>, AsyncIterator<T, undefined> {
  #items: T[] = []
  #head = 0
  #wake: (() => void) | undefined
  #done = false
  #error: unknown
  #failed = false
  readonly #onReturn: () => void

  /** `onReturn` runs once when the consumer leaves the loop before the end. */
  constructor(onReturn: () => void = () => undefined) {
    this.#onReturn = onReturn
  }

  /** Items that wait to be read. */
  get size(): number {
    return this.#items.length - this.#head
  }

  push(item: T): void {
    if (this.#done) return
    this.#items.push(item)
    this.#signal()
  }

  end(): void {
    this.#done = true
    this.#signal()
  }

  fail(error: unknown): void {
    if (this.#done) return
    this.#error = error
    this.#failed = true
    this.end()
  }

  #signal(): void {
    const wake = this.#wake
    this.#wake = undefined
    wake?.()
  }

  async next(): Promise<IteratorResult<T, undefined>> {
    for (;;) {
      if (this.#head < this.#items.length) {
        const value = this.#items[this.#head++] as T
        if (this.#head > 1024 && this.#head * 2 > this.#items.length) {
          this.#items = this.#items.slice(this.#head)
          this.#head = 0
        }
        return { value, done: false }
      }
      if (this.#failed) {
        this.#failed = false
        throw this.#error
      }
      if (this.#done) return { value: undefined, done: true }
      await new Promise<void>((resolve) => {
        this.#wake = resolve
      })
    }
  }

  async return(): Promise<IteratorResult<T, undefined>> {
    if (!this.#done) {
      this.#done = true
      this.#onReturn()
    }
    this.#items = []
    this.#head = 0
    this.#failed = false
    return { value: undefined, done: true }
  }

  [Symbol.asyncIterator](): this {
    return this
  }
}
