// Where requests wait while every backend that could take them has all that it may get (router.maxInFlight): most urgent
// class first, oldest first within a class; one for which nothing is free lets others by. Invariant: whoever gives up
// waiting, at its deadline or because its client left, leaves no trace.

import type { Clock } from '../core/clock.js'
import { RefrainError } from '../core/errors.js'
import type { Priority } from '../core/request.js'
import type { FleetRouter, MemberPlacement, RouteQuery } from './contract.js'

export interface WaitingRoomOptions {
  readonly router: Pick<FleetRouter, 'place'>
  /** limits.queuedRequests */
  readonly queuedRequests: number
  /** limits.queueMs: how long one waits; side requests (`auxiliary`) limits.sideRequestMs. */
  readonly queueMs: number
  readonly sideRequestMs: number
  readonly clock: Clock
}

export interface WaitingRoom {
  readonly waiting: number
  /**
   * Places `query` when a backend may take it; whoever asked tells the router at once that it was sent.
   * @throws RefrainError as `FleetRouter.place`; `queue_timeout`, and `queue_full` where the room is full, too; the
   * signal's reason.
   */
  place(query: RouteQuery, signal: AbortSignal): Promise<MemberPlacement>
  /** Something may have become free: a request is over, a member came back. */
  look(): void
}

/** Members come back without a word. */
const LOOK_MS = 250

const RANK: Readonly<Record<Priority, number>> = { interactive: 0, auxiliary: 1, background: 2 }

interface Waiter {
  readonly rank: number
  /** True: it waits no longer. */
  attempt(): boolean
}

export function createWaitingRoom(options: WaitingRoomOptions): WaitingRoom {
  const { router, clock } = options
  /** In the order in which they are let in. */
  const queue: Waiter[] = []

  const wait = (query: RouteQuery, signal: AbortSignal) =>
    new Promise<MemberPlacement>((resolve, reject) => {
      const isSide = query.priority === 'auxiliary'
      const ms = isSide ? Math.min(options.sideRequestMs, options.queueMs) : options.queueMs
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
        rank: RANK[query.priority],
        attempt: () => {
          try {
            const placement = tryPlace(query)
            if (placement === undefined) return false
            settle()
            resolve(placement)
          } catch (error) {
            settle()
            reject(error)
          }
          return true
        },
      }
      const onAbort = () => giveUp(signal.reason)
      const cancelTimer = clock.after(ms, () =>
        giveUp(new RefrainError('queue_timeout', `the request waited longer than ${ms} ms for a backend`)),
      )
      signal.addEventListener('abort', onAbort, { once: true })
      const behind = queue.findIndex(({ rank }) => rank > waiter.rank)
      queue.splice(behind < 0 ? queue.length : behind, 0, waiter)
    })

  let next: { readonly at: number; readonly cancel: () => void } | undefined
  const lookAfter = (ms: number) => {
    const at = clock.now() + ms
    if (queue.length === 0 || (next !== undefined && next.at <= at)) return
    next?.cancel()
    next = { at, cancel: clock.after(ms, look) }
  }
  /** Lets one in at a time: the router decides on the next when it was told of this one. */
  const look = () => {
    next = undefined
    const first = queue.find((waiter) => waiter.attempt())
    if (first !== undefined) queue.splice(queue.indexOf(first), 1)
    lookAfter(first === undefined ? LOOK_MS : 0)
  }

  /** Undefined: all that could take it are full. */
  const tryPlace = (query: RouteQuery): MemberPlacement | undefined => {
    try {
      return router.place(query)
    } catch (error) {
      if (error instanceof RefrainError && error.code === 'queue_full') return undefined
      throw error
    }
  }

  return {
    get waiting() {
      return queue.length
    },
    async place(query, signal) {
      signal.throwIfAborted()
      // A newcomer does not pass those who wait for the same; what these wait for may be free for others only.
      const isFirst = !queue.some(({ rank }) => rank <= RANK[query.priority])
      const placement = isFirst ? tryPlace(query) : undefined
      if (placement !== undefined) return placement
      if (queue.length >= options.queuedRequests) {
        throw new RefrainError('queue_full', `${queue.length} requests are waiting already`, { retryAfterMs: 1000 })
      }
      const waited = wait(query, signal)
      lookAfter(isFirst ? LOOK_MS : 0)
      return waited
    },
    look: () => lookAfter(0),
  }
}
