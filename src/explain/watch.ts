// Sees the events of a turn as they pass, and says once how it ended. Invariant: events, throws and leaving early come
// through unchanged, and nothing is waited for.

import type { GenerateEvent } from '../core/events.js'

export interface EventSink {
  see(event: GenerateEvent): void
  /** Once; `finished` is false where it threw or was left. */
  end(how: { readonly finished: boolean }): void
}

export function watched(events: AsyncIterable<GenerateEvent>, sink: EventSink): AsyncIterable<GenerateEvent> {
  return { [Symbol.asyncIterator]: () => new Watch(events[Symbol.asyncIterator](), sink) }
}

class Watch implements AsyncIterator<GenerateEvent> {
  readonly #inner: AsyncIterator<GenerateEvent>
  readonly #sink: EventSink
  #ended = false
  #finished = false

  constructor(inner: AsyncIterator<GenerateEvent>, sink: EventSink) {
    this.#inner = inner
    this.#sink = sink
  }

  next(): Promise<IteratorResult<GenerateEvent>> {
    return this.#inner.next().then(this.#seen, this.#failed)
  }

  return(): Promise<IteratorResult<GenerateEvent>> {
    this.#end()
    return this.#inner.return?.() ?? Promise.resolve({ value: undefined, done: true })
  }

  readonly #seen = (step: IteratorResult<GenerateEvent>): IteratorResult<GenerateEvent> => {
    if (step.done === true) this.#end()
    else {
      this.#finished ||= step.value.type === 'finish'
      this.#sink.see(step.value)
      // Who is told may ask again at once.
      if (this.#finished) this.#end()
    }
    return step
  }

  readonly #failed = (error: unknown): never => {
    this.#end()
    throw error
  }

  #end(): void {
    if (this.#ended) return
    this.#ended = true
    this.#sink.end({ finished: this.#finished })
  }
}
