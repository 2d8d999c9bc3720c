// Whether a disk may be asked right now. A failure or a stall opens the breaker: everything is a miss at once, nothing
// waits. A probe after a pause, twice as long after each further failure, closes it again. Invariant: while it is open
// there is a complaint, and a probe is due or running.

import { constants } from 'node:os'
import type { Clock } from '../../core/clock.js'
import { note } from '../../core/signals.js'

export interface BreakerOptions {
  /** What is broken, for the log: 'reading', 'writing'. */
  readonly name: string
  readonly clock: Clock
  /** Tries the disk again; rejects while it is not well. */
  readonly probe: () => Promise<void>
  /** Called when it closes again. */
  readonly closed?: () => void
  /** First pause. */
  readonly retryMs: number
  readonly longestRetryMs: number
}

export class Breaker {
  #complaint: string | undefined
  #failures = 0
  #cancel: (() => void) | undefined
  #closed = false
  readonly #options: BreakerOptions

  constructor(options: BreakerOptions) {
    this.#options = options
  }

  /** Why nothing is asked; undefined: all is well. */
  get complaint(): string | undefined {
    return this.#complaint
  }

  /** Opens it. While it is open further failures are echoes of the first. */
  fail(complaint: string): void {
    if (this.#closed || this.#complaint !== undefined) return
    this.#complaint = complaint
    note.publish({ level: 'warn', text: `cache disk: ${this.#options.name} stops: ${complaint}` })
    this.#retryLater()
  }

  /** The disk did what it was asked: the next failure starts with the shortest pause. */
  succeed(): void {
    if (this.#complaint === undefined) this.#failures = 0
  }

  /** No more probes. */
  close(): void {
    this.#closed = true
    this.#cancel?.()
  }

  #retryLater(): void {
    const { clock, retryMs, longestRetryMs } = this.#options
    const pause = Math.min(longestRetryMs, retryMs * 2 ** this.#failures++)
    this.#cancel = clock.after(pause, () => void this.#retry())
  }

  async #retry(): Promise<void> {
    try {
      await this.#options.probe()
    } catch (error) {
      if (this.#closed) return
      this.#complaint = describe(error)
      this.#retryLater()
      return
    }
    if (this.#closed) return
    this.#complaint = undefined
    note.publish({ level: 'info', text: `cache disk: ${this.#options.name} goes on` })
    this.#options.closed?.()
  }
}

/** The error of a volume that has space, but not for us. */
export function noSpace(): Error {
  return Object.assign(new Error('no space'), { code: 'ENOSPC', errno: -constants.errno.ENOSPC })
}

/** The sentence of a file system's error. */
export function describe(error: unknown): string {
  const code = (error as NodeJS.ErrnoException).code
  if (code === 'ENOSPC' || code === 'EDQUOT') return 'no space is left on the volume'
  return error instanceof Error ? error.message : String(error)
}
