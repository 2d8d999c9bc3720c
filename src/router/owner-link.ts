// What a router process has of the process that owns what all of them share: the data folder, followed events, slots of
// llama-servers, the watch over members. Invariant: only a seat in a slot is waited for; all else is told both ways. What
// it tells and asks is what worker-hub.ts hears and answers.

import type { EventSink, FollowState } from '../backend/kv-events/contract.js'
import type { RemoteOptions, RemoteUsage, Setting } from '../backend/remote/contract.js'
import type { Medium, RouteQuery } from './contract.js'
import type { Dialogue } from './dialogue.js'
import type { MemberEntry } from './fleet.js'
import type { NewsWire } from './peers.js'
import type { SessionRecord } from './session-store.js'

/** What a process gets when it comes. */
export interface Welcome {
  /** Its name among the routers. */
  readonly origin: string
  /** How many there are to be. */
  readonly processes: number
  readonly members: readonly MemberEntry[]
  /** Ids of those that are up. */
  readonly up: readonly string[]
  readonly records: readonly SessionRecord[]
  /** Somebody looks at what processes say of requests. */
  readonly isWatched: boolean
}

/** What goes along with news, for the owner alone. */
export interface Enclosure {
  /** What has gathered since; undefined: nothing. */
  take(): unknown
  /** What was taken last did not leave. */
  lost(): void
}

/** Asked of the owner, who answers for all processes. */
export interface Question {
  readonly kind: string
  readonly body: unknown
}

/** A change of the fleet by an operator's request. */
export type DeskChange =
  | { readonly what: 'add'; readonly options: RemoteOptions; readonly source: string }
  | { readonly what: 'remove' | 'drain' | 'undrain'; readonly id: string }

/** Calls of an `EventSink`. */
export type KvTold =
  | readonly [what: 'stored' | 'removed', member: string, medium: Medium, keys: Uint32Array]
  | readonly [what: 'cleared', member: string, medium: Medium | undefined]
  | readonly [what: 'lost', member: string]
  | readonly [what: 'followed', member: string, state: FollowState]

export interface Assigned {
  readonly source: string
  readonly wanted: readonly RemoteOptions[]
}

export interface OwnerEars {
  /** A batch of other routers'. */
  news(text: string): void
  assign(assigned: Assigned): void
  desk(change: DeskChange): void
  /** A member went up or down elsewhere. */
  look(member: string): void
  readonly kv: EventSink
  readonly enclosure: Enclosure
  /** Somebody looks now, or does no more. */
  watched(isWatched: boolean): void
  /** This process's metrics, to be added to the others'. */
  metrics(): Promise<readonly unknown[]>
  stop(drainMs: number): void
}

export interface Scraped {
  readonly type: string
  readonly text: string
}

export interface SeatAsked {
  readonly seat: number
  readonly member: string
  readonly query: RouteQuery
}

export interface SeatLeft {
  readonly seat: number
  readonly usage: RemoteUsage | undefined
}

/** For an answer of the owner's, who itself waits for processes shorter than that. */
const ANSWER_MS = 3000

export class OwnerLink implements NewsWire {
  readonly welcome: Omit<Welcome, 'records'>
  #records: readonly SessionRecord[]
  readonly #dialogue: Dialogue
  #enclosure: Enclosure | undefined
  #nextSeat = 0

  private constructor({ records, ...welcome }: Welcome, dialogue: Dialogue) {
    this.welcome = welcome
    this.#records = records
    this.#dialogue = dialogue
  }

  static async open(dialogue: Dialogue): Promise<OwnerLink> {
    return new OwnerLink(await dialogue.ask<Welcome>('welcome'), dialogue)
  }

  /** Sessions of before; they are let go of with this. */
  takeRecords(): readonly SessionRecord[] {
    const records = this.#records
    this.#records = []
    return records
  }

  listen(ears: OwnerEars): void {
    const dialogue = this.#dialogue
    this.#enclosure = ears.enclosure
    dialogue.hears<boolean>('watched', (isWatched) => ears.watched(isWatched))
    // Told, not answered: what is told stays in order with what goes along with news.
    dialogue.answers('gather', async () => {
      const enclosed = ears.enclosure.take()
      if (enclosed !== undefined) dialogue.tell('enclosed', enclosed)
    })
    dialogue.hears<string>('news', (text) => ears.news(text))
    dialogue.hears<Assigned>('assign', (assigned) => ears.assign(assigned))
    dialogue.hears<DeskChange>('desk', (change) => ears.desk(change))
    dialogue.hears<string>('look', (member) => ears.look(member))
    dialogue.hears<readonly KvTold[]>('kv', (told) => {
      for (const each of told) tellSink(ears.kv, each)
    })
    dialogue.hears<number>('stop', (drainMs) => ears.stop(drainMs))
    dialogue.answers('metrics', () => ears.metrics())
    dialogue.listen()
  }

  send(text: string): void {
    const enclosed = this.#enclosure?.take()
    const isSent = this.#dialogue.mention('news', enclosed === undefined ? text : [text, enclosed])
    if (!isSent && enclosed !== undefined) this.#enclosure?.lost()
  }

  /** Undefined: it does not answer in time, or is gone. @throws what it answers. */
  async question<T extends object>(question: Question, waitMs = ANSWER_MS): Promise<T | undefined> {
    const signal = AbortSignal.timeout(waitMs)
    try {
      return await this.#dialogue.ask<T>('question', question, signal)
    } catch (error) {
      if (signal.aborted) return undefined
      throw error
    }
  }

  /** Done here, to be done everywhere. */
  changed(change: DeskChange): void {
    this.#dialogue.tell('desk', change)
  }

  /** A member went up or down here. */
  turned(member: string): void {
    this.#dialogue.tell('look', member)
  }

  listening(url: string): void {
    this.#dialogue.tell('listening', url)
  }

  /** Metrics of all processes. */
  scrape(): Promise<Scraped> {
    return this.#dialogue.ask<Scraped>('scrape')
  }

  /** A seat in a slot of a llama-server. @throws RefrainError `queue_timeout`; the signal's reason. */
  async seat(member: string, query: RouteQuery, signal: AbortSignal) {
    const seat = this.#nextSeat++
    const leave = (usage: RemoteUsage | undefined) => this.#dialogue.tell('leave', { seat, usage } satisfies SeatLeft)
    try {
      const asked: SeatAsked = { seat, member, query }
      const settings = await this.#dialogue.ask<readonly Setting[]>('seat', asked, signal)
      return { settings, leave }
    } catch (error) {
      // It may have been given just then.
      leave(undefined)
      throw error
    }
  }
}

function tellSink(sink: EventSink, told: KvTold): void {
  switch (told[0]) {
    case 'stored':
    case 'removed':
      sink[told[0]](told[1], { medium: told[2], keys: told[3] })
      break
    case 'cleared':
      sink.cleared(told[1], told[2])
      break
    case 'lost':
      sink.lost(told[1])
      break
    case 'followed':
      sink.followed(told[1], told[2])
      break
  }
}
