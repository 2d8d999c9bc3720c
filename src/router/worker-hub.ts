// The router processes as their owner has them: what one tells is passed on to the others and to other machines, what it
// asks is answered, and whoever comes anew gets what it must know. Invariant: a process that ended leaves nothing behind:
// no seat, and no request that counts as under way. The other end of owner-link.ts.

import type { EventSink, FollowState, HeldBlocks } from '../backend/kv-events/contract.js'
import type { Clock } from '../core/clock.js'
import type { Medium } from './contract.js'
import { Dialogue, type Port } from './dialogue.js'
import { itemText, newsText } from './news.js'
import type { Assigned, DeskChange, KvTold, Question, Scraped, SeatAsked, SeatLeft, Welcome } from './owner-link.js'
import type { SlotSeats } from './slot-seats.js'

export interface HubParts {
  /** Of the owner itself; processes are named after it. */
  readonly origin: string
  readonly clock: Clock
  /** Without the name; made at the moment that it is asked for. */
  welcome(): Omit<Welcome, 'origin'>
  /** Tells a sink everything that is known of members' caches. */
  retell(sink: EventSink): void
  /** A batch of one of the processes, for other machines and for what is kept. */
  told(text: string): void
  changed(change: DeskChange): void
  look(member: string): void
  readonly seats: SlotSeats
  /** What came along with the news of a process; by its `origin` it is known. */
  enclosed(origin: string, what: unknown): void
  /** A process is no more. */
  ended(origin: string): void
  /** @throws RefrainError, which the process gets that asked. */
  answer(question: Question): Promise<object>
  /** The owner's own metrics and those of all processes, added up. */
  scrape(parts: readonly (readonly unknown[])[]): Promise<Scraped>
}

export interface WorkerEnd {
  readonly origin: string
  readonly dialogue: Dialogue
  /** It is no more. */
  close(): void
}

export interface WorkerEars {
  /** For people. */
  readonly name: string
  listening(url: string): void
}

/** For the metrics of one process. */
const SCRAPE_MS = 2000
/** For what one process has gathered. */
const GATHER_MS = 500
/** Between events of members' caches and their telling. */
const KV_MS = 5

interface Worker {
  readonly origin: string
  readonly name: string
  readonly dialogue: Dialogue
  isListening: boolean
  /** When it was asked for what it has gathered, of each question that it has not answered; they are answered in order. */
  readonly askedAt: number[]
  readonly seats: Map<number, { leave(usage: SeatLeft['usage']): void }>
}

export class WorkerHub {
  readonly #parts: HubParts
  /** Those that got their welcome. */
  readonly #workers = new Set<Worker>()
  #count = 0
  #kv: KvTold[] = []

  constructor(parts: HubParts) {
    this.#parts = parts
  }

  /** A process was started at the other end of `port`. */
  add(port: Port, ears: WorkerEars, config: unknown): WorkerEnd {
    const worker: Worker = {
      origin: `${this.#parts.origin}.${this.#count++}`,
      name: ears.name,
      dialogue: new Dialogue(port),
      isListening: false,
      askedAt: [],
      seats: new Map(),
    }
    const { dialogue, origin } = worker
    dialogue.answers('config', async () => config)
    dialogue.answers('welcome', async () => this.#welcome(worker))
    dialogue.answers('scrape', () => this.#scrape())
    dialogue.answers<SeatAsked>('seat', (asked, signal) => this.#seat(worker, asked, signal))
    dialogue.hears<SeatLeft>('leave', ({ seat, usage }) => {
      worker.seats.get(seat)?.leave(usage)
      worker.seats.delete(seat)
    })
    dialogue.answers<Question>('question', (question) => this.#parts.answer(question))
    dialogue.hears<string | readonly [string, unknown]>('news', (told) => {
      // Its last words may come after its end.
      if (!this.#workers.has(worker)) return
      const [text, enclosed] = typeof told === 'string' ? [told] : told
      this.#toOthers(worker, 'news', text)
      this.#parts.told(text)
      if (enclosed !== undefined) this.#parts.enclosed(origin, enclosed)
    })
    dialogue.hears('enclosed', (what) => {
      if (this.#workers.has(worker)) this.#parts.enclosed(origin, what)
    })
    dialogue.hears<DeskChange>('desk', (change) => {
      this.#parts.changed(change)
      this.#toOthers(worker, 'desk', change)
    })
    dialogue.hears<string>('look', (member) => {
      this.#parts.look(member)
      this.#toOthers(worker, 'look', member)
    })
    dialogue.hears<string>('listening', (url) => {
      worker.isListening = true
      ears.listening(url)
    })
    dialogue.listen()
    return { origin, dialogue, close: () => this.#close(worker) }
  }

  #welcome(worker: Worker): Welcome {
    const { welcome, retell } = this.#parts
    const said = { ...welcome(), origin: worker.origin }
    this.flushKv()
    this.#workers.add(worker)
    const known: KvTold[] = []
    retell(sinkInto(known))
    if (known.length > 0) worker.dialogue.tell('kv', known)
    return said
  }

  #close(worker: Worker): void {
    worker.dialogue.close()
    this.#workers.delete(worker)
    this.#parts.ended(worker.origin)
    for (const seat of worker.seats.values()) seat.leave(undefined)
    worker.seats.clear()
    const text = newsText(this.#parts.origin, [itemText({ kind: 'gone', origin: worker.origin })])
    this.news(text)
    this.#parts.told(text)
  }

  #toOthers(from: Worker, kind: string, body: unknown): void {
    for (const worker of this.#workers) {
      if (worker === from) continue
      if (kind === 'news') worker.dialogue.mention(kind, body)
      else worker.dialogue.tell(kind, body)
    }
  }

  async #seat(worker: Worker, { seat, member, query }: SeatAsked, signal: AbortSignal) {
    const taken = await this.#parts.seats.take(member, query, signal)
    if (taken === undefined) return []
    if (signal.aborted) {
      taken.leave(undefined)
      throw signal.reason
    }
    worker.seats.set(seat, taken)
    return taken.settings
  }

  async #scrape(): Promise<Scraped> {
    const asked = [...this.#workers].map(({ dialogue }) => this.#metricsOf(dialogue))
    const parts = await Promise.all(asked)
    return this.#parts.scrape(parts.filter((part) => part !== undefined))
  }

  /** Undefined: it does not answer. */
  #metricsOf(dialogue: Dialogue): Promise<readonly unknown[] | undefined> {
    return new Promise((resolve) => {
      const cancel = this.#parts.clock.after(SCRAPE_MS, () => resolve(undefined))
      const settle = (part: readonly unknown[] | undefined) => {
        cancel()
        resolve(part)
      }
      dialogue.ask<readonly unknown[]>('metrics').then(settle, () => settle(undefined))
    })
  }

  /**
   * Has all processes hand over what they have gathered. Names of those that do not in time: what they have comes later,
   * and one that stands still is waited for once.
   */
  async gather(): Promise<readonly string[]> {
    const asked = [...this.#workers].filter(({ isListening }) => isListening)
    const silent = await Promise.all(
      asked.map(async (worker) => ((await this.#handsOver(worker)) ? [] : [worker.name])),
    )
    return silent.flat()
  }

  #handsOver(worker: Worker): Promise<boolean> {
    const { clock } = this.#parts
    const [oldest] = worker.askedAt
    if (oldest !== undefined && clock.now() - oldest >= GATHER_MS) return Promise.resolve(false)
    worker.askedAt.push(clock.now())
    return new Promise((resolve) => {
      const cancel = clock.after(GATHER_MS, () => resolve(false))
      const settle = (isThere: boolean) => {
        worker.askedAt.shift()
        cancel()
        resolve(isThere)
      }
      worker.dialogue.ask('gather').then(
        () => settle(true),
        // It is gone.
        () => settle(false),
      )
    })
  }

  // --- to all of them ------------------------------------------------------------------------------------------------

  /** A batch of another machine's. */
  news(text: string): void {
    for (const { dialogue } of this.#workers) dialogue.mention('news', text)
  }

  assign(assigned: Assigned): void {
    for (const { dialogue } of this.#workers) dialogue.tell('assign', assigned)
  }

  changed(change: DeskChange): void {
    for (const { dialogue } of this.#workers) dialogue.tell('desk', change)
  }

  watched(isWatched: boolean): void {
    for (const { dialogue } of this.#workers) dialogue.tell('watched', isWatched)
  }

  look(member: string): void {
    for (const { dialogue } of this.#workers) dialogue.tell('look', member)
  }

  /** What is told to it is told to all. */
  readonly kv: EventSink = sinkInto({
    push: (told: KvTold) => {
      if (this.#workers.size === 0) return 0
      if (this.#kv.length === 0) this.#parts.clock.after(KV_MS, () => this.flushKv())
      return this.#kv.push(told)
    },
  })

  flushKv(): void {
    const kv = this.#kv
    this.#kv = []
    if (kv.length > 0) for (const { dialogue } of this.#workers) dialogue.tell('kv', kv)
  }
}

/** Keys are copied: whoever tells them uses the array again. */
function sinkInto(list: { push(told: KvTold): number }): EventSink {
  const keep = (what: 'stored' | 'removed', member: string, { medium, keys }: HeldBlocks) =>
    void list.push([what, member, medium, keys.slice()])
  return {
    stored: (member, blocks) => keep('stored', member, blocks),
    removed: (member, blocks) => keep('removed', member, blocks),
    cleared: (member: string, medium?: Medium) => void list.push(['cleared', member, medium]),
    lost: (member) => void list.push(['lost', member]),
    followed: (member: string, state: FollowState) => void list.push(['followed', member, state]),
  }
}
