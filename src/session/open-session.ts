// Sessions whose events are in memory: read from the log once, then added to as they are appended. Invariant: what is in
// memory is what the log has, in its order; a session that a turn holds is not put away.

import { RefrainError } from '../core/errors.js'
import { type LinkedAbort, linkAbort } from '../core/linked-abort.js'
import { createIncrementalCompiler } from './compile/compilers.js'
import type { CompiledContext, IncrementalCompiler } from './compile/contract.js'
import type { SessionLog, SessionRecord } from './log/contract.js'
import type { NewEvent, PolicySnapshot, SessionEvent } from './log/event.js'
import { wasErased } from './log/log-faults.js'
import { SessionFold } from './session-fold.js'

/** Events that are read at once. */
const PAGE = 1000

export interface Whose {
  readonly tenant: string
  readonly session: string
}

const NEVER = new AbortController().signal

/** Told of events as they are logged, or read again: `past`. */
export type SeenEvents = (whose: Whose, events: readonly SessionEvent[], isPast?: 'past') => void

/** A turn that runs, or something else that nothing may come between. */
export interface Hold {
  /** Also aborted when the session is erased or its sources are revoked meanwhile. */
  readonly signal: AbortSignal
  release(): void
}

export class OpenSession {
  readonly record: SessionRecord
  readonly events: SessionEvent[] = []
  readonly fold = new SessionFold()
  readonly #log: SessionLog
  readonly #seen: SeenEvents | undefined
  readonly #compiler: IncrementalCompiler
  /** Appends follow each other, so that events are added here in the log's order. */
  #last: Promise<unknown> = Promise.resolve()
  #held: { readonly stop: LinkedAbort; readonly released: Promise<void>; readonly how: 'long' | 'brief' } | undefined
  #closed = false
  readonly #noted = new Set<string>()

  constructor(record: SessionRecord, log: SessionLog, seen?: SeenEvents) {
    this.record = record
    this.#log = log
    this.#seen = seen
    this.#compiler = createIncrementalCompiler()
  }

  get whose(): Whose {
    return { tenant: this.record.tenant, session: this.record.id }
  }

  get position(): number {
    return this.events.at(-1)?.position ?? 0
  }

  get isHeld(): boolean {
    return this.#held !== undefined
  }

  /** All events of the log up to `position`. */
  async load(position = this.record.position): Promise<void> {
    const { tenant, id } = this.record
    while (this.position < position) {
      const limit = Math.min(PAGE, position - this.position)
      const page = await this.#log.read(tenant, id, { from: this.position + 1, limit })
      if (page.length === 0) throw new Error(`the log of ${id} ends at ${this.position} of ${position}`)
      this.#add(page, 'past')
    }
  }

  /** @throws RefrainError `conflict`. */
  append(events: readonly NewEvent[], expected?: number): Promise<readonly SessionEvent[]> {
    const { tenant, session } = this.whose
    const appended = this.#last.then(async () => {
      const added = await this.#log.append({ tenant, session, events, ...(expected !== undefined && { expected }) })
      const [first] = added
      // It was put away in the meantime, and opened by somebody else.
      if (first !== undefined && first.position > this.position + 1) await this.load(first.position - 1)
      this.#add(added)
      return added
    })
    this.#last = appended.catch(() => undefined)
    return appended
  }

  /** Told all of `events`. */
  get compiled(): IncrementalCompiler {
    return this.#compiler
  }

  compile(policy: PolicySnapshot): CompiledContext {
    return this.#compiler.compile(policy)
  }

  /**
   * Behind whoever holds it for an append alone. `brief`: is such a one itself.
   * @throws RefrainError `conflict` where a turn, or something else that takes its time, holds it.
   */
  async take(signal?: AbortSignal, how?: 'brief'): Promise<Hold> {
    while (this.#held?.how === 'brief') await this.#held.released
    return this.hold(signal, how)
  }

  /** @throws RefrainError `conflict` where somebody holds it. */
  hold(signal?: AbortSignal, how: 'long' | 'brief' = 'long'): Hold {
    if (this.#closed) throw wasErased(this.record.id)
    if (this.#held !== undefined) throw new RefrainError('conflict', `a turn of '${this.record.id}' is running`)
    const stop = linkAbort(signal ?? NEVER)
    let release = () => {}
    const released = new Promise<void>((resolve) => {
      release = resolve
    })
    this.#held = { stop, released, how }
    return {
      signal: stop.signal,
      release: () => {
        stop.unlink()
        this.#held = undefined
        release()
      },
    }
  }

  /** Ends what holds it and waits until it has let go. */
  async interrupt(why: RefrainError): Promise<void> {
    while (this.#held !== undefined) {
      const { stop, released } = this.#held
      stop.abort(why)
      await released
    }
  }

  /** The same, and holds it then. */
  async takeOver(why: RefrainError): Promise<Hold> {
    // Whoever waited as well may have it before this goes on.
    while (this.#held !== undefined) await this.interrupt(why)
    return this.hold()
  }

  /** Those of `hashes` that this process has not noted as the session's. */
  newBlocks(hashes: readonly string[]): readonly string[] {
    return hashes.filter((hash) => !this.#noted.has(hash))
  }

  noted(hashes: readonly string[]): void {
    for (const hash of hashes) this.#noted.add(hash)
  }

  /** Nobody may hold it any more. */
  close(): void {
    this.#closed = true
  }

  #add(events: readonly SessionEvent[], isPast?: 'past'): void {
    for (const event of events) {
      this.events.push(event)
      this.fold.add(event)
    }
    this.#compiler.append(events)
    this.#seen?.(this.whose, events, isPast)
  }
}

export class OpenSessions {
  readonly #log: SessionLog
  readonly #max: number
  readonly #seen: SeenEvents | undefined
  /** Least recently used first. */
  readonly #open = new Map<string, { readonly opening: Promise<OpenSession>; opened?: OpenSession }>()

  /** `max`: sessions in memory. */
  constructor(log: SessionLog, max: number, seen?: SeenEvents) {
    this.#log = log
    this.#seen = seen
    this.#max = max
  }

  /** @throws RefrainError `not_found`, `erased`. */
  async open({ tenant, session }: Whose): Promise<OpenSession> {
    const key = JSON.stringify([tenant, session])
    const entry: { readonly opening: Promise<OpenSession>; opened?: OpenSession } = this.#open.get(key) ?? {
      opening: this.#load(tenant, session),
    }
    this.#open.delete(key)
    this.#open.set(key, entry)
    try {
      entry.opened = await entry.opening
    } catch (error) {
      this.#open.delete(key)
      throw error
    }
    this.#makeRoom(entry.opened)
    return entry.opened
  }

  /** Those in memory: of a session, or of all of a tenant's. */
  async inMemory({ tenant, session }: { readonly tenant: string; readonly session?: string }): Promise<OpenSession[]> {
    const all = await Promise.allSettled([...this.#open.values()].map(({ opening }) => opening))
    return all
      .flatMap((each) => (each.status === 'fulfilled' ? [each.value] : []))
      .filter(({ record }) => record.tenant === tenant && (session === undefined || record.id === session))
  }

  forget({ tenant, session }: Whose): void {
    this.#open.delete(JSON.stringify([tenant, session]))
  }

  async #load(tenant: string, id: string): Promise<OpenSession> {
    const record = await this.#log.session(tenant, id)
    if (record === undefined) {
      // Says which of the two it is.
      await this.#log.read(tenant, id.slice(0, 64), { from: 1, limit: 1 })
      throw new RefrainError('not_found', `there is no session '${id.slice(0, 64)}'`)
    }
    const opened = new OpenSession(record, this.#log, this.#seen)
    await opened.load()
    return opened
  }

  /** What is still being read was asked for just now. */
  #makeRoom(kept: OpenSession): void {
    for (const [key, { opened }] of this.#open) {
      if (this.#open.size <= this.#max) return
      if (opened !== undefined && opened !== kept && !opened.isHeld) this.#open.delete(key)
    }
  }
}
