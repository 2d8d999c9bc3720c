// One member: its remote, its health, and what is under way there. It is what the router reads as a `Member`, kept current.
// Invariant: a probe is never beside another of the same member; a request that has not begun ends when its member goes
// down, so that another member gets it.

import type { Ending, ExchangeWatch, Remote, RemoteFault } from '../backend/remote/contract.js'
import type { Clock } from '../core/clock.js'
import { note } from '../core/signals.js'
import type { Knowledge, Member, MemberLoad, MemberRates, MemberState } from './contract.js'
import type { FleetParts } from './fleet.js'
import { Health, type HealthOptions } from './health.js'
import { OthersQueue } from './others-queue.js'

export interface FleetMemberParts {
  readonly health: HealthOptions
  readonly clock: Clock
  readonly fleet: Pick<
    FleetParts,
    'knowledgeOf' | 'viewOf' | 'waitingAt' | 'onEmptied' | 'isQuiet' | 'onTurned' | 'onCircuit'
  >
}

const RATES: MemberRates = {
  prefillTokensPerSecond: 2000,
  restoreCost: { device: 0, host: 0.1, disk: 0.3, remote: 0.5 },
}

interface Counts {
  inFlight: number
  decoding: number
}

/** An exchange; among `waiting` until it has begun. */
class Watched implements ExchangeWatch {
  readonly #waiting: Set<Watched>
  readonly #counts: Counts
  #hasBegun = false
  #lose: ((why: string) => void) | undefined

  constructor(waiting: Set<Watched>, counts: Counts) {
    this.#waiting = waiting
    this.#counts = counts
    counts.inFlight++
  }

  begun(): void {
    this.#waiting.delete(this)
    if (!this.#hasBegun) this.#counts.decoding++
    this.#hasBegun = true
  }

  losable(lose: (why: string) => void): void {
    this.#lose = lose
    this.#waiting.add(this)
  }

  lose(why: string): void {
    this.#lose?.(why)
  }

  over(): void {
    this.#waiting.delete(this)
    this.#lose = undefined
    if (this.#hasBegun) this.#counts.decoding--
    this.#counts.inFlight--
  }
}

export class FleetMember implements Member {
  readonly remote: Remote
  readonly source: string
  readonly rates = RATES
  readonly load: MemberLoad
  drained = false
  readonly #parts: FleetMemberParts
  readonly #health: Health
  readonly #waiting = new Set<Watched>()
  readonly #now = () => this.#parts.clock.now()
  readonly #counts: Counts = { inFlight: 0, decoding: 0 }
  readonly #others = new OthersQueue()
  #models: readonly string[] = []
  #probing: AbortController | undefined
  #cancelTimer: () => void = () => undefined
  readonly #leaving = new AbortController()
  #gone = false
  #wasTold = false
  #onIdle: (() => void) | undefined

  constructor(remote: Remote, source: string, parts: FleetMemberParts) {
    this.remote = remote
    this.source = source
    this.#parts = parts
    this.#health = new Health(parts.health, parts.clock.now())
    const counts = this.#counts
    const others = this.#others
    const queued = () => parts.fleet.viewOf?.(this).load.queuedPrefillTokens ?? 0
    this.load = {
      get inFlight() {
        return counts.inFlight
      },
      get decoding() {
        return counts.decoding
      },
      get queuedPrefillTokens() {
        return queued()
      },
      get reportedQueue() {
        return others.requests
      },
    }
  }

  get id(): string {
    return this.remote.id
  }

  /** Without credentials. */
  get url(): string {
    return this.remote.options.url.replace(/\/\/[^/@]*@/, '//')
  }

  get kind(): Member['kind'] {
    const { kind } = this.remote.options
    return this.remote.facts?.kind ?? (kind === 'auto' ? 'openai' : kind)
  }

  get models(): readonly string[] {
    return this.#models
  }

  get state(): MemberState {
    const { state } = this.#health
    return this.drained && state === 'up' ? 'draining' : state
  }

  get why(): string | undefined {
    return this.#health.why
  }

  /** How often its circuit has opened since it closed last, where it is open; else 0. */
  get trips(): number {
    return this.#health.isOpen(this.#now()) ? this.#health.trips : 0
  }

  get weight(): number {
    return this.#health.weight(this.#now)
  }

  get knowledge(): Knowledge {
    return this.#parts.fleet.knowledgeOf?.(this.id) ?? 'learned'
  }

  // --- requests ------------------------------------------------------------------------------------------------------

  exchange(run: (watch: ExchangeWatch) => Promise<Ending>): Promise<Ending> {
    const watched = new Watched(this.#waiting, this.#counts)
    const over = () => {
      watched.over()
      if (this.#counts.inFlight === 0) this.#onIdle?.()
    }
    return run(watched).then(
      (ending) => {
        this.#heard(ending)
        over()
        return ending
      },
      (error) => {
        over()
        throw error
      },
    )
  }

  #heard(ending: Ending): void {
    const now = this.#parts.clock.now()
    if (ending.kind === 'fault') {
      const { fault } = ending
      if (fault.code === 'LOST') return
      if (!fault.sent) this.#silent((health) => health.unreachable(silenceOf(fault), now))
      else if (!ending.stale) this.#opened(this.#health.failed(fault.message, now))
      // Whether its process is there is known in a moment.
      this.#probeNow()
    } else if (ending.kind === 'whole' && ending.status >= 500 && ending.status !== 503) {
      this.#opened(this.#health.failed(`it answers ${ending.status}`, now))
    } else if (this.#health.succeeded()) this.#parts.fleet.onCircuit?.(this.id, 0)
  }

  /** Asks it once, and nothing more. @throws RemoteFault where it does not answer. */
  async begin(): Promise<void> {
    await this.#ask(new AbortController().signal)
    this.#rose()
  }

  // --- probes --------------------------------------------------------------------------------------------------------

  start(): void {
    void this.#probe()
  }

  /** How it is is asked now, not when it is due. */
  look(): void {
    this.#probeNow()
  }

  #probeNow(): void {
    if (this.#probing !== undefined || this.#gone) return
    this.#cancelTimer()
    void this.#probe()
  }

  async #probe(): Promise<void> {
    if (this.#probing !== undefined || this.#gone) return
    const probing = new AbortController()
    this.#probing = probing
    try {
      await this.#ask(probing.signal)
      if (!this.#gone) {
        this.#rose()
        this.#askWaiting()
      }
    } catch (error) {
      if (!isFault(error)) throw error
      if (!this.#gone) this.#silent((health) => health.silent(silenceOf(error), this.#parts.clock.now()))
    } finally {
      this.#probing = undefined
    }
    const { clock } = this.#parts
    if (!this.#gone) this.#cancelTimer = clock.after(this.#health.nextProbeMs(clock.now()), () => void this.#probe())
  }

  /** One that is up is asked whether it still is; any other, what it is now. */
  async #ask(signal: AbortSignal): Promise<void> {
    await this.remote.ping(signal)
    if (this.#health.state === 'up') return
    const { models } = await this.remote.ask(signal)
    this.#models = [...models.map(({ id }) => id), ...Object.keys(this.remote.options.models)]
  }

  /** Beside the probe, which does not wait for it. */
  #askWaiting(): void {
    const { health, clock, fleet } = this.#parts
    const { queueMs = 0 } = health
    if (fleet.waitingAt === undefined || queueMs === 0 || !this.#others.isDue(clock.now(), queueMs)) return
    const asked = this.#others.ask(clock.now())
    fleet.waitingAt(this.remote, this.#leaving.signal).then(
      (said) => asked(said, this.#ours()),
      (error) => {
        if (!isFault(error)) throw error
        asked(undefined, this.#ours())
      },
    )
  }

  /** What was sent there from here, and by routers that share their books with this one. */
  #ours() {
    const { inFlight, decoding } = this.#parts.fleet.viewOf?.(this).load ?? this.load
    return { inFlight, decoding }
  }

  #rose(): void {
    const { wasGone } = this.#health
    if (!this.#health.answered(this.#parts.clock.now())) return
    if (wasGone) this.#parts.fleet.onEmptied?.(this.id)
    this.#wasTold = false
    if (this.#parts.fleet.isQuiet === true) return
    note.publish({ level: 'info', text: `${this.id} is up`, detail: { kind: this.kind, models: this.#models } })
    this.#parts.fleet.onTurned?.(this.id)
  }

  #silent(hear: (health: Health) => boolean): void {
    const { trips } = this.#health
    this.#fell(hear(this.#health))
    // Its process is gone, and with it what was held against it.
    if (trips > 0 && this.#health.trips === 0) this.#parts.fleet.onCircuit?.(this.id, 0)
  }

  #fell(isNew: boolean): void {
    if (isNew || (this.#health.state === 'starting' && !this.#wasTold)) this.#tell()
    if (!isNew) return
    this.#others.clear()
    this.#parts.fleet.onTurned?.(this.id)
    for (const watched of [...this.#waiting]) watched.lose(this.#health.why ?? '')
  }

  /** What waits there may still be answered. */
  #opened(isNew: boolean): void {
    if (!isNew) return
    this.#tell()
    this.#parts.fleet.onCircuit?.(this.id, this.#health.trips)
  }

  /** Another router's circuit opened, the `nth` time; 0: it closed. */
  turnCircuit(nth: number): void {
    if (nth > 0) {
      if (this.#health.opened(nth, this.#now())) this.#tell()
      return
    }
    this.#health.closed()
    if (this.#health.state !== 'up') this.#probeNow()
  }

  #tell(): void {
    this.#wasTold = true
    if (this.#parts.fleet.isQuiet === true) return
    note.publish({ level: 'warn', text: `${this.id} is not up: ${this.#health.why}` })
  }

  // --- leaving -------------------------------------------------------------------------------------------------------

  /** Resolves when its last request is over and its connections are closed. */
  async leave(): Promise<void> {
    this.#rest()
    if (this.#counts.inFlight > 0) {
      await new Promise<void>((resolve) => {
        this.#onIdle = resolve
      })
    }
    await this.remote.close()
  }

  async close(): Promise<void> {
    this.#rest()
    await this.remote.close()
  }

  #rest(): void {
    this.#gone = true
    this.#cancelTimer()
    this.#probing?.abort()
    this.#leaving.abort()
  }
}

function silenceOf(fault: RemoteFault) {
  return { refused: fault.code === 'ECONNREFUSED', why: fault.message }
}

/** Told by its name: the class is the remotes' own. */
function isFault(error: unknown): error is RemoteFault {
  return error instanceof Error && error.name === 'RemoteFault'
}
