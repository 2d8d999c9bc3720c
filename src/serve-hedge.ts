// The same request at two members (fleet.hedgeMs): where the first one chosen gives no content for so long, the next best
// one gets it as well, and whichever content comes of first answers. Invariant: of two lanes one at most is ever heard, and
// the other one's exchange ends with that; no member that is likely to be slower is asked, no more than a share of requests
// is sent twice, and nothing while requests wait for a member. Part of step 8 in fleet mode.

import type { Forward } from './api/contract.js'
import type { Ending } from './backend/remote/contract.js'
import type { Clock } from './core/clock.js'
import { Deadlines, type Due } from './core/deadlines.js'
import { RefrainError } from './core/errors.js'
import { type HedgeRefusal, hedgeSettled } from './core/signals.js'
import { Stop } from './core/stop.js'
import type { FleetRouter, MemberPlacement, RouteQuery } from './router/contract.js'
import { GENERATING, isFailure } from './serve-member.js'

export interface HedgeOptions {
  /** fleet.hedgeMs */
  readonly hedgeMs: number
  /** fleet.hedgeShare: of the requests that may be sent twice, how many are. */
  readonly hedgeShare: number
}

export interface HedgeParts {
  readonly router: Pick<FleetRouter, 'place'>
  /** Requests that wait for a member with room. */
  waiting(): number
  /** Ids of members that give a request a slot: it would be taken from a session for nothing. */
  slotted(): readonly string[]
  readonly clock: Clock
}

/** Hedges that may be sent at once after a quiet time, whatever the share: more would be a wave. */
const MOST_SAVED = 10
/** Who is late is likely to be for so many times longer again; what is expected to take more of a second one is not asked. */
const LATE = 2
/** Shares are added up, and are no binary fractions. */
const ROUNDING = 1e-9

/** Members of a body that name what is kept at one backend alone, or have it keep something. */
const KEPT_ELSEWHERE = ['session', 'refrain', 'quick', 'previous_response_id', 'conversation', 'background'] as const

export class Hedging {
  readonly #options: HedgeOptions
  readonly #parts: HedgeParts
  /** Hedges that may be sent now. */
  #saved: number

  constructor(options: HedgeOptions, parts: HedgeParts) {
    this.#options = options
    this.#parts = parts
    this.#saved = options.hedgeShare > 0 ? 1 : 0
  }

  /** Whether `asked` may be sent twice; every request that may brings its share of a hedge. */
  admits(asked: Forward): boolean {
    if (!isRepeatable(asked)) return false
    this.#saved = Math.min(MOST_SAVED, this.#saved + this.#options.hedgeShare)
    return true
  }

  /** Where else `query` goes, or why nowhere. `first`: where it is; not among what it excludes. */
  choose(query: RouteQuery, first: MemberPlacement): MemberPlacement | HedgeRefusal {
    const { router, waiting, slotted } = this.#parts
    if (this.#saved < 1 - ROUNDING) return 'share'
    if (waiting() > 0) return 'queue'
    const excluded = [...(query.excluded ?? []), first.member.id, ...slotted()]
    let second: MemberPlacement
    try {
      second = router.place({ ...query, excluded })
    } catch (error) {
      if (!(error instanceof RefrainError)) throw error
      return 'nobody'
    }
    const { hedgeMs } = this.#options
    const leftMs = Math.max(LATE * hedgeMs, expectedMs(first) - hedgeMs)
    return second.member.load.reportedQueue > 0 || expectedMs(second) > leftMs ? 'busy' : second
  }

  /** Resolves as the lane that answers, or as the last one where none does. @throws as they do; the signal's reason. */
  race<T>(heat: Heat<T>): Promise<T> {
    const { id } = heat.query()
    const told = (outcome: 'won' | 'lost' | 'refused', why?: HedgeRefusal) => hedgeSettled.publish({ id, outcome, why })
    const race = new Race<T>({
      ...heat,
      clock: this.#parts.clock,
      ms: this.#options.hedgeMs,
      over: (outcome) => told(outcome),
      second: () => {
        const found = this.choose(heat.query(), heat.placement)
        const run = typeof found === 'string' ? found : begun(heat, found)
        if (typeof run === 'string') told('refused', run)
        else this.#saved = Math.max(0, this.#saved - 1)
        return typeof run === 'string' ? undefined : run
      },
    })
    return race.run()
  }
}

/** One request that may be sent to a second member. */
export interface Heat<T> {
  /** Where it is sent first. */
  readonly placement: MemberPlacement
  readonly signal: AbortSignal
  /** With what is excluded by then. */
  query(): RouteQuery
  first(lane: Lane): Promise<T>
  /** What runs at a second member. @throws RefrainError where it cannot be put to that one. */
  second(placement: MemberPlacement): (lane: Lane) => Promise<T>
  /** One lane came to nothing, and the other one goes on. */
  failed(value: T): void
}

function begun<T>(heat: Heat<T>, placement: MemberPlacement): ((lane: Lane) => Promise<T>) | HedgeRefusal {
  try {
    return heat.second(placement)
  } catch (error) {
    if (!(error instanceof RefrainError)) throw error
    return 'unfit'
  }
}

function expectedMs({ member, scores }: MemberPlacement): number {
  return scores.find((score) => score.member === member.id)?.ttftMs ?? 0
}

/** Two answers to it are one of them and nothing else. */
function isRepeatable({ method, path, aside, body, query }: Forward): boolean {
  if (method !== 'POST' || !GENERATING.has(path) || aside !== undefined || query.priority === 'background') return false
  // Responses are kept by their backend unless they say otherwise, chats where they say so.
  const store = body.member('store')
  if (path === '/v1/responses' ? store !== 'false' : store === 'true') return false
  return KEPT_ELSEWHERE.every((key) => (body.member(key) ?? 'null') === 'null')
}

// --- two lanes -------------------------------------------------------------------------------------------------------

/** One member's part of it. */
export class Lane {
  readonly isSecond: boolean
  readonly #race: Pick<Race<unknown>, 'claim' | 'winner' | 'isHedged'>
  readonly #stop = new Stop()

  constructor(isSecond: boolean, race: Pick<Race<unknown>, 'claim' | 'winner' | 'isHedged'>) {
    this.isSecond = isSecond
    this.#race = race
  }

  /** The client left, or the other lane answers. */
  get signal(): AbortSignal {
    return this.#stop.signal
  }

  /** Content of this one came: it answers, and the other one ends. False: that one does. */
  claim(): boolean {
    return this.#race.claim(this)
  }

  /** The other one answers. */
  get isBeaten(): boolean {
    return this.#race.winner !== undefined && this.#race.winner !== this
  }

  /** Its member has no part in the answer, or none yet where it is the second one. */
  get isOut(): boolean {
    return this.#race.winner === undefined ? this.isSecond : this.isBeaten
  }

  /** Whether the second member answers; undefined: none was asked. */
  get hedged(): 'won' | 'lost' | undefined {
    if (!this.#race.isHedged) return undefined
    return this.#race.winner?.isSecond === true ? 'won' : 'lost'
  }

  abort(reason: unknown): void {
    this.#stop.abort(reason)
  }
}

/** Refusals that a member gives for itself: another one may answer. */
const OWN_REFUSALS: ReadonlySet<number> = new Set([401, 403, 404, 408, 429])

/** Whether an attempt that ended so has the answer, as far as it depends on itself; of the first one any refusal is one. */
export function answers(ending: Ending, { isSecond }: Lane): boolean {
  if (isFailure(ending)) return false
  return !isSecond || ending.kind !== 'whole' || !OWN_REFUSALS.has(ending.status)
}

/** Why an attempt ended whose answer nobody waits for. */
export class Beaten extends Error {
  constructor() {
    super('another backend was faster')
    this.name = 'Beaten'
  }
}

interface RaceOptions<T> extends Pick<Heat<T>, 'signal' | 'first' | 'failed'> {
  readonly clock: Clock
  readonly ms: number
  /** The first one is late. Undefined: it stays alone. */
  second(): ((lane: Lane) => Promise<T>) | undefined
  /** It is over, and there were two. */
  over(outcome: 'won' | 'lost'): void
}

class Race<T> implements Due {
  readonly #options: RaceOptions<T>
  readonly #deadlines: Deadlines
  readonly #first = new Lane(false, this)
  #second: Lane | undefined
  #running = 0
  #isOver = false
  #resolve: (value: T) => void = () => undefined
  #reject: (error: unknown) => void = () => undefined
  readonly #onAbort = () => this.#abort(this.#options.signal.reason)
  winner: Lane | undefined
  dueAt = 0
  seat = -1

  constructor(options: RaceOptions<T>) {
    this.#options = options
    this.#deadlines = Deadlines.of(options.clock)
  }

  get isHedged(): boolean {
    return this.#second !== undefined
  }

  run(): Promise<T> {
    const { signal, first, ms } = this.#options
    return new Promise((resolve, reject) => {
      this.#resolve = resolve
      this.#reject = reject
      if (signal.aborted) this.#onAbort()
      else signal.addEventListener('abort', this.#onAbort)
      this.#deadlines.add(this, ms)
      this.#start(this.#first, first)
    })
  }

  onDue(): void {
    const second = this.#options.second()
    if (second === undefined) return
    this.#second = new Lane(true, this)
    this.#start(this.#second, second)
  }

  claim(lane: Lane): boolean {
    if (this.winner === undefined) {
      this.winner = lane
      this.#deadlines.remove(this)
      const other = lane === this.#first ? this.#second : this.#first
      other?.abort(new Beaten())
    }
    return this.winner === lane
  }

  #start(lane: Lane, run: (lane: Lane) => Promise<T>): void {
    this.#running++
    run(lane).then(
      (value) => this.#ended(lane, value),
      (error) => this.#threw(lane, error),
    )
  }

  #ended(lane: Lane, value: T): void {
    this.#running--
    if (lane.isBeaten) return
    if (this.winner === undefined && this.#running > 0) {
      this.#options.failed(value)
      return
    }
    this.#over()
    this.#resolve(value)
  }

  #threw(lane: Lane, error: unknown): void {
    this.#running--
    if (lane.isBeaten && error instanceof Beaten) return
    this.#abort(error)
    this.#over()
    this.#reject(error)
  }

  #abort(reason: unknown): void {
    this.#first.abort(reason)
    this.#second?.abort(reason)
  }

  #over(): void {
    if (this.#isOver) return
    this.#isOver = true
    this.#deadlines.remove(this)
    this.#options.signal.removeEventListener('abort', this.#onAbort)
    const { hedged } = this.#first
    if (hedged !== undefined) this.#options.over(hedged)
  }
}
