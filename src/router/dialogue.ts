// Two processes that talk over one channel: things told, and questions that are answered. Invariant: what comes before
// anybody listens waits in order; a question ends with its answer, with the asker's giving up or with the channel.

import { RefrainError } from '../core/errors.js'

/** One end of a channel between processes; messages are cloned as structures. */
export interface Port {
  /** `done`: it left, or never will. Never throws. */
  post(message: unknown, done: () => void): void
  onMessage(listener: (message: unknown) => void): void
}

type Hears = (body: never) => void
/** @throws what the asker is told; an error of ours arrives as one. */
type Answers = (body: never, signal: AbortSignal) => Promise<unknown>

interface Asked {
  resolve(value: unknown): void
  reject(error: unknown): void
}

/** As they lie in a message: `[mark, what, kind or id, ...]`. */
type Message =
  | readonly [mark: typeof MARK, what: 'tell', kind: string, body: unknown]
  | readonly [mark: typeof MARK, what: 'ask', id: number, kind: string, body: unknown]
  | readonly [mark: typeof MARK, what: 'answer', id: number, value: unknown]
  | readonly [mark: typeof MARK, what: 'refuse', id: number, error: Refusal]
  | readonly [mark: typeof MARK, what: 'give-up', id: number]

interface Refusal {
  readonly code?: string
  readonly message: string
  readonly retryAfterMs?: number | undefined
  readonly param?: string | undefined
}

const MARK = 'refrain'
/** Messages that have not left; more of those that may be lost are. */
const MAX_WAITING = 1000

export class Dialogue {
  readonly #port: Port
  readonly #hears = new Map<string, Hears>()
  readonly #answers = new Map<string, Answers>()
  readonly #asked = new Map<number, Asked>()
  readonly #answering = new Map<number, AbortController>()
  /** Until somebody listens. */
  #early: Message[] | undefined = []
  #nextId = 0
  #waiting = 0
  #closed: Error | undefined
  /** Messages that were let go because too many waited. */
  lost = 0

  constructor(port: Port) {
    this.#port = port
    port.onMessage((message) => {
      if (!Array.isArray(message) || message[0] !== MARK) return
      const [, what] = message
      // Answers were waited for by whoever asked.
      if (this.#early === undefined || (what !== 'tell' && what !== 'ask')) this.#take(message as unknown as Message)
      else this.#early.push(message as unknown as Message)
    })
  }

  hears<T>(kind: string, listener: (body: T) => void): void {
    this.#hears.set(kind, listener as Hears)
  }

  answers<T>(kind: string, answer: (body: T, signal: AbortSignal) => Promise<unknown>): void {
    this.#answers.set(kind, answer as Answers)
  }

  /** All that is heard is set: what has come meanwhile is taken first. */
  listen(): void {
    const early = this.#early ?? []
    this.#early = undefined
    for (const message of early) this.#take(message)
  }

  tell(kind: string, body?: unknown): void {
    this.#post([MARK, 'tell', kind, body])
  }

  /** The same for what may be lost where the other side does not keep up. False: it is. */
  mention(kind: string, body: unknown): boolean {
    const fits = this.#waiting < MAX_WAITING
    if (fits) this.tell(kind, body)
    else this.lost++
    return fits
  }

  /** @throws what the other side answers; the signal's reason; Error where the channel ends. */
  ask<T>(kind: string, body?: unknown, signal?: AbortSignal): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      signal?.throwIfAborted()
      if (this.#closed !== undefined) throw this.#closed
      const id = this.#nextId++
      const onAbort = () => {
        this.#asked.delete(id)
        this.#post([MARK, 'give-up', id])
        reject(signal?.reason)
      }
      const settled = <V>(how: (value: V) => void) => {
        return (value: V) => {
          signal?.removeEventListener('abort', onAbort)
          this.#asked.delete(id)
          how(value)
        }
      }
      this.#asked.set(id, { resolve: settled(resolve as (value: unknown) => void), reject: settled(reject) })
      signal?.addEventListener('abort', onAbort, { once: true })
      this.#post([MARK, 'ask', id, kind, body])
    })
  }

  /** The channel is no more. */
  close(): void {
    this.#closed ??= new Error('the other process is gone')
    for (const asked of [...this.#asked.values()]) asked.reject(this.#closed)
    for (const answering of this.#answering.values()) answering.abort(this.#closed)
    this.#answering.clear()
  }

  #post(message: Message): void {
    if (this.#closed !== undefined) return
    this.#waiting++
    this.#port.post(message, () => {
      this.#waiting--
    })
  }

  #take(message: Message): void {
    switch (message[1]) {
      case 'tell':
        this.#hears.get(message[2])?.(message[3] as never)
        break
      case 'ask':
        void this.#answer(message[2], message[3], message[4])
        break
      case 'answer':
        this.#asked.get(message[2])?.resolve(message[3])
        break
      case 'refuse':
        this.#asked.get(message[2])?.reject(errorOf(message[3]))
        break
      case 'give-up':
        this.#answering.get(message[2])?.abort(new Error('the question was given up'))
        break
    }
  }

  async #answer(id: number, kind: string, body: unknown): Promise<void> {
    const stop = new AbortController()
    this.#answering.set(id, stop)
    try {
      const answer = this.#answers.get(kind)
      if (answer === undefined) throw new Error(`nobody answers '${kind}'`)
      this.#post([MARK, 'answer', id, await answer(body as never, stop.signal)])
    } catch (error) {
      this.#post([MARK, 'refuse', id, refusalOf(error)])
    } finally {
      this.#answering.delete(id)
    }
  }
}

function refusalOf(error: unknown): Refusal {
  if (!(error instanceof RefrainError)) return { message: error instanceof Error ? error.message : String(error) }
  const { code, message, retryAfterMs, param } = error
  return { code, message, retryAfterMs, param }
}

function errorOf({ code, message, retryAfterMs, param }: Refusal): Error {
  if (code === undefined) return new Error(message)
  return new RefrainError(code as RefrainError['code'], message, {
    ...(retryAfterMs !== undefined && { retryAfterMs }),
    ...(param !== undefined && { param }),
  })
}
