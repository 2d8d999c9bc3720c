// What is counted of every request, counted for many at once: one after the other it costs a fifth of what it costs between
// other work. Invariant: everything that was said is counted before anybody looks.

interface Source<T> {
  subscribe(listener: (payload: T) => void): () => void
}

/** Payloads that wait at most: what they hold waits with them. */
const MOST = 64

export class Batches {
  readonly #drains = new Set<() => void>()

  /** `take` hears what `source` says, later; the function ends that. */
  subscribe<T>(source: Source<T>, take: (payload: T) => void): () => void {
    let waiting: T[] = []
    const drain = () => {
      const taken = waiting
      waiting = []
      for (const payload of taken) take(payload)
    }
    this.#drains.add(drain)
    const stop = source.subscribe((payload) => {
      if (waiting.push(payload) >= MOST) drain()
    })
    return () => {
      stop()
      drain()
      this.#drains.delete(drain)
    }
  }

  /** Counts what waits. */
  drain(): void {
    for (const drain of this.#drains) drain()
  }
}
