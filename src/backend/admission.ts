// The door of a backend that runs a bounded number of requests at once: the rest wait here, most urgent class first,
// oldest first within a class. Invariant: whoever is let in leaves exactly once; whoever gives up waiting leaves no trace.

import type { Clock } from '../core/clock.js'
import { RefrainError } from '../core/errors.js'
import type { Priority } from '../core/request.js'

export interface AdmissionOptions {
  readonly maxRunning: number
  /** limits.queuedRequests */
  readonly queuedRequests: number
  /** limits.queueMs */
  readonly queueMs: number
  readonly clock: Clock
}

export interface Admission {
  readonly running: number
  readonly waiting: number
  /**
   * Resolves with the function that leaves again.
   * @throws RefrainError `queue_full`, `queue_timeout`; the signal's reason.
   */
  enter(priority: Priority, signal: AbortSignal): Promise<() => void>
}

interface Waiter {
  readonly rank: number
  admit(): void
}

const RANK: Readonly<Record<Priority, number>> = { interactive: 0, auxiliary: 1, background: 2 }

export function createAdmission(options: AdmissionOptions): Admission {
  let running = 0
  const queue: Waiter[] = []

  const leaving = () => {
    let left = false
    return () => {
      if (left) return
      left = true
      const next = queue.shift()
      if (next === undefined) running--
      else next.admit()
    }
  }

  const wait = (rank: number, signal: AbortSignal) =>
    new Promise<() => void>((resolve, reject) => {
      const settle = () => {
        cancelTimer()
        signal.removeEventListener('abort', onAbort)
      }
      const giveUp = (reason: unknown) => {
        settle()
        queue.splice(queue.indexOf(waiter), 1)
        reject(reason)
      }
      const waiter: Waiter = {
        rank,
        admit: () => {
          settle()
          resolve(leaving())
        },
      }
      const onAbort = () => giveUp(signal.reason)
      const cancelTimer = options.clock.after(options.queueMs, () =>
        giveUp(new RefrainError('queue_timeout', `the request waited longer than ${options.queueMs} ms for its turn`)),
      )
      signal.addEventListener('abort', onAbort, { once: true })
      const behind = queue.findIndex((other) => other.rank > rank)
      queue.splice(behind < 0 ? queue.length : behind, 0, waiter)
    })

  return {
    get running() {
      return running
    },
    get waiting() {
      return queue.length
    },
    async enter(priority, signal) {
      signal.throwIfAborted()
      if (running < options.maxRunning) {
        running++
        return leaving()
      }
      if (queue.length >= options.queuedRequests) {
        throw new RefrainError('queue_full', `${queue.length} requests are waiting already`, { retryAfterMs: 1000 })
      }
      return wait(RANK[priority], signal)
    },
  }
}
