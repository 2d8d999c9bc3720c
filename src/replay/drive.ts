// Sends a plan to targets: at the trace's times, or a number of sessions at once, each turn behind the one before. Invariant:
// no request is sent before what it follows is over, whatever came of that; a target that only fails is given up; nothing
// is sent after the stop, and what was under way then counts as never sent.

import { setMaxListeners } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import type { PlannedRequest } from './plan.js'

export interface DriveOptions {
  /** Sessions at once; undefined: at the trace's times. */
  readonly sessions: number | undefined
  /** The trace's times pass so many times as fast. */
  readonly speed: number
  /** One target after the other, or all by turns. */
  readonly order: 'after' | 'interleaved'
  /** No request begins later, for each target. */
  readonly maxMs: number
  /** Failures in a row after which a target is given up. */
  readonly giveUp: number
  readonly signal: AbortSignal
}

export interface DriveParts {
  /** Sends it and keeps what came of it; false: it failed. @throws the signal's reason. */
  send(target: string, request: PlannedRequest, signal: AbortSignal): Promise<boolean>
  /** The target is begun with, `now` is its time 0. */
  begun(target: string): void
}

export type Ended = 'done' | 'stopped' | 'time' | 'given up'

/** `requests` of each target by its name: what is left to send. Returns how each target's part ended. */
export async function drive(
  requests: ReadonlyMap<string, readonly PlannedRequest[]>,
  options: DriveOptions,
  parts: DriveParts,
): Promise<ReadonlyMap<string, Ended>> {
  const runs = [...requests].map(([target, list]) => new TargetRun(target, list, options, parts))
  if (options.sessions === undefined) {
    if (options.order === 'after') for (const run of runs) await run.byTime()
    else await Promise.all(runs.map((run) => run.byTime()))
  } else if (options.order === 'after') {
    for (const run of runs) await inLanes(run.families(), options.sessions)
  } else await inLanes(byTurns(runs.map((run) => run.families())), options.sessions)
  return new Map(runs.map((run) => [run.target, run.ended]))
}

type Work = () => Promise<void>

async function inLanes(work: readonly Work[], lanes: number): Promise<void> {
  const waiting = work[Symbol.iterator]()
  const lane = async () => {
    for (const each of waiting) await each()
  }
  await Promise.all(Array.from({ length: lanes }, lane))
}

/** The first of each list, then the second of each, and so on. */
function byTurns<T>(lists: readonly (readonly T[])[]): T[] {
  const longest = Math.max(0, ...lists.map((list) => list.length))
  return Array.from({ length: longest }, (_, i) => lists.flatMap((list) => list[i] ?? [])).flat()
}

class TargetRun {
  readonly target: string
  readonly #requests: readonly PlannedRequest[]
  readonly #options: DriveOptions
  readonly #parts: DriveParts
  /** Ends with the options' signal, or when the target is given up. */
  readonly #stop = new AbortController()
  #startedAt: number | undefined
  #failures = 0
  #ended: Ended = 'done'

  constructor(target: string, requests: readonly PlannedRequest[], options: DriveOptions, parts: DriveParts) {
    this.target = target
    this.#requests = requests
    this.#options = options
    this.#parts = parts
    // One for each request that waits.
    setMaxListeners(0, this.#stop.signal)
  }

  get ended(): Ended {
    return this.#options.signal.aborted ? 'stopped' : this.#ended
  }

  /** All of it, at the trace's times from the first request that is left on. */
  async byTime(): Promise<void> {
    const first = this.#requests[0]?.at ?? 0
    this.#begin()
    await this.#all(this.#requests, first)
  }

  /** Each family as a piece of work, in order of its first request. */
  families(): Work[] {
    const families = new Map<string, PlannedRequest[]>()
    for (const request of this.#requests) {
      const list = families.get(request.family) ?? []
      families.set(request.family, list)
      list.push(request)
    }
    return [...families.values()].map((list) => async () => {
      this.#begin()
      await this.#all(list, undefined)
    })
  }

  #begin(): void {
    if (this.#startedAt !== undefined) return
    this.#startedAt = performance.now()
    this.#parts.begun(this.target)
    const { signal } = this.#options
    if (signal.aborted) this.#stop.abort()
    signal.addEventListener('abort', () => this.#stop.abort(), { once: true })
  }

  /** `list` with what it follows; `from`: the trace's time that is now, undefined: times do not count. */
  async #all(list: readonly PlannedRequest[], from: number | undefined): Promise<void> {
    const startedAt = performance.now()
    const over = new Map<number, Promise<void>>()
    for (const request of list) {
      const before = request.after.flatMap((index) => over.get(index) ?? [])
      over.set(request.index, this.#one(request, { before, from, startedAt }))
    }
    await Promise.all(over.values())
  }

  async #one(
    request: PlannedRequest,
    { before, from, startedAt }: { before: Promise<void>[]; from: number | undefined; startedAt: number },
  ): Promise<void> {
    const { signal } = this.#stop
    await Promise.all(before)
    if (from !== undefined) {
      const { speed } = this.#options
      const due = startedAt + ((request.at - from) * 1000) / speed
      // A client takes its time after an answer that came late, too.
      const rested = before.length === 0 ? 0 : performance.now() + (request.pause * 1000) / speed
      const waitMs = Math.max(due, rested) - performance.now()
      // Requests that will not be sent any more are not waited for.
      const leftMs = this.#leftMs()
      if (waitMs > 0) await sleep(Math.min(waitMs, leftMs), undefined, { signal }).catch(() => undefined)
    }
    if (signal.aborted) return
    if (this.#leftMs() <= 0) {
      if (this.#ended === 'done') this.#ended = 'time'
      return
    }
    try {
      const isFine = await this.#parts.send(this.target, request, signal)
      this.#failures = isFine ? 0 : this.#failures + 1
      if (this.#failures < this.#options.giveUp || this.#ended === 'given up') return
      this.#ended = 'given up'
      this.#stop.abort()
    } catch (error) {
      if (!signal.aborted) throw error
    }
  }

  #leftMs(): number {
    return this.#options.maxMs - (performance.now() - (this.#startedAt ?? performance.now()))
  }
}
