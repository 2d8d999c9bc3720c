// The members of a fleet: who is there, who is up, who may get requests. It asks each what it is, looks after its health,
// and takes members in and out while requests run. Invariant: one member's silence delays nobody else's requests, and a
// member that was taken out is closed only when its last request is over.

import type {
  Ending,
  ExchangeRequest,
  ExchangeWatch,
  Remote,
  RemoteOptions,
  WaitingThere,
} from '../backend/remote/contract.js'
import type { Clock } from '../core/clock.js'
import { RefrainError } from '../core/errors.js'
import { note } from '../core/signals.js'
import type { Knowledge, Member, MemberView } from './contract.js'
import { FleetMember } from './fleet-member.js'
import type { HealthOptions } from './health.js'

export interface FleetParts {
  /** What becomes of members is told nobody. */
  readonly isQuiet?: boolean
  /** Members that stay drained when the router is started anew; undefined: none do. */
  readonly drains?: Drains
  /** @throws Error where the URL or a file cannot be used. */
  open(options: RemoteOptions): Remote
  readonly clock: Clock
  /** How well a member's cache can be known at best; undefined: `learned`. */
  knowledgeOf?(id: string): Knowledge | undefined
  /** What the router knows of it. */
  viewOf?(member: Member): MemberView
  /** Requests that wait there, whoever sent them; undefined: it does not say. @throws RemoteFault */
  waitingAt?(remote: Remote, signal: AbortSignal): Promise<WaitingThere | undefined>
  /** Its process was gone, and what it held in memory with it. */
  onEmptied?(id: string): void
  /** It went up or down: others that use it may look for themselves. */
  onTurned?(id: string): void
  /** Its circuit opened, the `nth` time since it closed last; 0: it closed. */
  onCircuit?(id: string, nth: number): void
}

/** Ids of drained members, where they outlive the process; drained-ids.ts is one. */
export interface Drains {
  has(id: string): boolean
  add(id: string): void
  remove(id: string): void
}

/** A member as another process of the same fleet takes it in. */
export interface MemberEntry {
  readonly options: RemoteOptions
  readonly source: string
  readonly drained: boolean
}

/** A member for operators. */
export interface MemberReport {
  readonly member: Member
  /** Who put it there: `config`, `api`, the name of a watched file or of a host. */
  readonly source: string
  readonly version: string | undefined
  /** Why it is not up. */
  readonly why: string | undefined
  readonly view: MemberView | undefined
}

/** Starts an exchange and is told of it; see FleetMember. */
type Run = (watch?: ExchangeWatch) => Promise<Ending>

export class Fleet {
  readonly #parts: FleetParts
  readonly #health: HealthOptions
  readonly #members = new Map<string, FleetMember>()
  #list: readonly FleetMember[] = []
  #remotes: readonly Remote[] = []
  #running = false
  #exchanges = 0

  constructor(health: HealthOptions, parts: FleetParts) {
    this.#health = health
    this.#parts = parts
  }

  /** Those that have said what they are; the router chooses among them. */
  members(): readonly Member[] {
    return this.#list
  }

  /** That were begun so far. */
  get exchanges(): number {
    return this.#exchanges
  }

  /** All, in the order in which they came. */
  remotes(): readonly Remote[] {
    return this.#remotes
  }

  /** Ids of those that are drained. */
  drained(): string[] {
    return this.#list.filter(({ drained }) => drained).map(({ id }) => id)
  }

  entries(): MemberEntry[] {
    return this.#list.map(({ remote, source, drained }) => ({ options: remote.options, source, drained }))
  }

  reports(): MemberReport[] {
    return this.#list.map((member) => ({
      member,
      source: member.source,
      version: member.remote.facts?.version,
      why: member.why,
      view: this.#parts.viewOf?.(member),
    }))
  }

  report(id: string): MemberReport {
    const member = this.#member(id)
    return this.reports().find((each) => each.member === member) as MemberReport
  }

  /** Takes a member in; it gets requests once it answered. @throws RefrainError `invalid_request` naming the field. */
  add(options: RemoteOptions, source: string): Member {
    const { clock, open } = this.#parts
    let remote: Remote
    try {
      remote = open(options)
    } catch (error) {
      throw new RefrainError('invalid_request', (error as Error).message, { param: 'url' })
    }
    if (this.#members.has(remote.id)) {
      void remote.close()
      const param = options.name === undefined ? 'url' : 'name'
      throw new RefrainError('invalid_request', `there is a backend '${remote.id}' already`, { param })
    }
    const member = new FleetMember(remote, source, { health: this.#health, clock, fleet: this.#parts })
    member.drained = this.#parts.drains?.has(remote.id) === true
    this.#members.set(remote.id, member)
    this.#changed()
    if (this.#running) member.start()
    return member
  }

  /** No new requests from now on; closed when the last is over. @throws RefrainError `not_found`. */
  async remove(id: string): Promise<void> {
    const member = this.#member(id)
    this.#parts.drains?.remove(id)
    this.#members.delete(id)
    this.#changed()
    note.publish({ level: 'info', text: `${id} is taken out` })
    await member.leave()
  }

  /** No new requests until `undrain`. @throws RefrainError `not_found`. */
  drain(id: string): void {
    this.#member(id).drained = true
    this.#parts.drains?.add(id)
  }

  undrain(id: string): void {
    this.#member(id).drained = false
    this.#parts.drains?.remove(id)
  }

  /** Asks a member at once how it is; unknown ones are passed over. */
  look(id: string): void {
    if (this.#running) this.#members.get(id)?.look()
  }

  /** Members whose circuits are open, and how often each has opened since it closed last. */
  circuits(): (readonly [id: string, nth: number])[] {
    return this.#list.filter(({ trips }) => trips > 0).map(({ id, trips }) => [id, trips] as const)
  }

  /** Another router's circuit opened, the `nth` time, or closed (0); unknown ids are passed over. */
  turnCircuit(id: string, nth: number): void {
    this.#members.get(id)?.turnCircuit(nth)
  }

  /**
   * Makes the members of `source` those of `wanted`; others stay as they are. One whose options changed is opened anew,
   * drained where it was.
   * What cannot be opened is told in a note and left out.
   */
  assign(source: string, wanted: readonly RemoteOptions[]): void {
    const mine = new Map(this.#list.filter((each) => each.source === source).map((each) => [keyOf(each.remote), each]))
    const kept = new Set<FleetMember>()
    const fresh = wanted.filter((options) => {
      const member = mine.get(JSON.stringify(options))
      if (member !== undefined) kept.add(member)
      return member === undefined
    })
    const left = [...mine.values()].filter((member) => !kept.has(member))
    const drained = new Set(left.filter((member) => member.drained).map(({ id }) => id))
    for (const member of left) void this.remove(member.id)
    for (const options of fresh) {
      try {
        const { id } = this.add(options, source)
        if (drained.has(id)) this.drain(id)
      } catch (error) {
        if (!(error instanceof RefrainError)) throw error
        note.publish({ level: 'error', text: `${source}: ${options.url} is left out: ${error.message}` })
      }
    }
  }

  /** One exchange, watched: its ending says how the member is, and it ends when the member goes down before it began. */
  exchange({ remote }: Pick<ExchangeRequest, 'remote'>, run: Run): Promise<Ending> {
    this.#exchanges++
    const member = this.#members.get(remote.id)
    return member?.remote === remote ? member.exchange(run) : run()
  }

  start(): void {
    this.#running = true
    for (const member of this.#list) member.start()
  }

  /** Ends all connections. */
  async stop(): Promise<void> {
    this.#running = false
    await Promise.all(this.#list.map((member) => member.close()))
  }

  #changed(): void {
    this.#list = [...this.#members.values()]
    this.#remotes = this.#list.map(({ remote }) => remote)
  }

  #member(id: string): FleetMember {
    const member = this.#members.get(id)
    if (member === undefined) throw new RefrainError('not_found', `there is no backend '${id.slice(0, 128)}'`)
    return member
  }
}

/** Equal where the options are, whatever was resolved of them. */
function keyOf({ options }: Remote): string {
  return JSON.stringify(options)
}
