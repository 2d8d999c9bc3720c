// The log in SQLite, seen from the thread that serves: each call is one message to the log's own thread and one back.
// Invariant: what was answered is durable; a thread that ends fails what it had not answered, and the next call starts
// another one over the same file.
//
//   sqlite.ts  -- requests -->  sqlite-worker.ts: SqliteStore over one database file
//              <-- answers --

import { Worker } from 'node:worker_threads'
import { RefrainError } from '../../core/errors.js'
import { note } from '../../core/signals.js'
import { UsageError } from '../../core/usage-error.js'
import type { Append, Page, SessionLog, SessionRecord, SharedMemory, SourceGrant, StoredResult } from './contract.js'
import type { NewEvent, SessionEvent } from './event.js'
import type { PlacedPart, Whose, WhoseAll, WhoseBlocks } from './sqlite-store.js'
import type { LogAnswer, LogReply, LogRequest, LogSetup, Opened } from './sqlite-wire.js'

export interface SqliteLogOptions extends LogSetup {
  /** The compiled sqlite-worker.js; a file URL. */
  readonly workerUrl: URL
}

/** Events in one message: others' appends come between two. */
const READ_AT_ONCE = 256

/** @throws UsageError with a sentence for the operator: not its owner, damaged, another key. */
export async function openSqliteLog(options: SqliteLogOptions): Promise<SessionLog> {
  const log = new SqliteLog(options)
  await log.start()
  return log
}

interface Waiting {
  resolve(value: unknown): void
  reject(error: unknown): void
}

class SqliteLog implements SessionLog {
  readonly #setup: LogSetup
  readonly #workerUrl: URL
  readonly #waiting = new Map<number, Waiting>()
  #worker: Promise<Worker> | undefined
  #live: Worker | undefined
  #next = 0
  #closed = false

  constructor({ workerUrl, ...setup }: SqliteLogOptions) {
    this.#setup = setup
    this.#workerUrl = workerUrl
  }

  start(): Promise<Worker> {
    this.#worker ??= this.#start()
    return this.#worker
  }

  create(
    session: Pick<SessionRecord, 'id' | 'tenant' | 'model' | 'metadata' | 'parent'>,
    events: readonly NewEvent[],
  ): Promise<SessionRecord> {
    return this.#ask('create', session, events)
  }

  async append(append: Append): Promise<readonly SessionEvent[]> {
    const { tenant, session, events } = append
    const placed = await this.#ask<readonly PlacedPart[]>('append', append)
    return placed.map((part, i) => {
      const { body, layer } = events[i] as NewEvent
      return { ...part, session, tenant, body, ...(layer !== undefined && { layer }) }
    })
  }

  session(tenant: string, id: string): Promise<SessionRecord | undefined> {
    return this.#ask('session', tenant, id)
  }

  sessions(tenant: string, page: { readonly before?: number; readonly limit: number }) {
    return this.#ask<readonly SessionRecord[]>('sessions', tenant, page)
  }

  async read(tenant: string, session: string, { from, limit }: Page): Promise<readonly SessionEvent[]> {
    const events: SessionEvent[] = []
    while (events.length < limit) {
      const page = { from: from + events.length, limit: Math.min(READ_AT_ONCE, limit - events.length) }
      const more = await this.#ask<readonly SessionEvent[]>('read', tenant, session, page)
      events.push(...more)
      if (more.length < page.limit) break
    }
    return events
  }

  keepResult(whose: Whose, result: StoredResult): Promise<void> {
    return this.#ask('keepResult', whose, result)
  }

  result(whose: Whose, locator: string): Promise<StoredResult | undefined> {
    return this.#ask('result', whose, locator)
  }

  noteBlocks(whose: Whose, hashes: readonly Uint8Array[]): Promise<void> {
    // A view's whole buffer would travel with it.
    const copies = hashes.map((hash) => Uint8Array.from(hash))
    return this.#ask('noteBlocks', whose, copies)
  }

  blocksOf(whose: WhoseBlocks): Promise<readonly Uint8Array[]> {
    return this.#ask('blocksOf', whose)
  }

  grants(tenant: string): Promise<readonly SourceGrant[]> {
    return this.#ask('grants', tenant)
  }

  setGrant(tenant: string, grant: SourceGrant): Promise<readonly string[]> {
    return this.#ask('setGrant', tenant, grant)
  }

  sharedMemory(tenant: string): Promise<readonly SharedMemory[]> {
    return this.#ask('sharedMemory', tenant)
  }

  setSharedMemory(tenant: string, block: SharedMemory): Promise<void> {
    return this.#ask('setSharedMemory', tenant, block)
  }

  forksOf(tenant: string, session: string): Promise<readonly string[]> {
    return this.#ask('forksOf', tenant, session)
  }

  erase(whose: WhoseAll): Promise<void> {
    return this.#ask('erase', whose)
  }

  eraseEvents(whose: Whose, what: { readonly positions: readonly number[]; readonly locators: readonly string[] }) {
    return this.#ask<void>('eraseEvents', whose, what)
  }

  status(): Promise<{ readonly sessions: number; readonly events: number; readonly bytes: number }> {
    return this.#ask('status')
  }

  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    const worker = await this.#worker?.catch(() => undefined)
    if (worker === undefined) return
    const ended = new Promise((resolve) => worker.once('exit', resolve))
    worker.ref()
    // Behind all that was asked before: that is answered first.
    worker.postMessage('close')
    await ended
  }

  async #ask<T>(call: LogRequest['call'], ...args: readonly unknown[]): Promise<T> {
    if (this.#closed) throw new RefrainError('draining', 'the session log is closed')
    const worker = await this.start().catch(cannotStart)
    const id = this.#next++
    return new Promise<T>((resolve, reject) => {
      this.#waiting.set(id, { resolve: resolve as (value: unknown) => void, reject })
      // Who waits keeps the process alive; a log that nobody asks does not.
      worker.ref()
      worker.postMessage({ id, call, args } satisfies LogRequest)
    })
  }

  async #start(): Promise<Worker> {
    const worker = new Worker(this.#workerUrl, { workerData: this.#setup, name: 'refrain-session-log' })
    const opened = await new Promise<Opened>((resolve) => {
      worker.once('message', resolve)
      worker.once('error', (error) => resolve({ refused: `the session log's thread failed: ${error.message}` }))
    })
    if ('refused' in opened) {
      this.#worker = undefined
      await worker.terminate()
      throw new UsageError(opened.refused)
    }
    if (opened.made !== undefined) note.publish({ level: 'warn', text: madeKey(opened.made) })
    worker.on('message', ({ id, answer }: LogReply) => this.#settle(id, answer))
    worker.on('error', (error) =>
      note.publish({ level: 'error', text: `the session log's thread failed: ${error.message}` }),
    )
    worker.on('exit', () => this.#lose())
    worker.unref()
    this.#live = worker
    return worker
  }

  #settle(id: number, answer: LogAnswer): void {
    const waiting = this.#waiting.get(id)
    this.#waiting.delete(id)
    if (this.#waiting.size === 0) this.#live?.unref()
    if ('value' in answer) waiting?.resolve(answer.value)
    else if ('fault' in answer) waiting?.reject(new Error(`the session log failed: ${answer.fault}`))
    else waiting?.reject(new RefrainError(answer.error.code, answer.error.message, answer.error))
  }

  #lose(): void {
    this.#worker = undefined
    this.#live = undefined
    const lost = [...this.#waiting.values()]
    this.#waiting.clear()
    const error = "the session log's thread ended before it answered; whether it was written is not known"
    for (const { reject } of lost) reject(new RefrainError('storage_failed', error))
  }
}

/** The operator's fault at boot; later, when a thread that ended is to be replaced, what a caller meets. */
function cannotStart(error: Error): never {
  throw new RefrainError('storage_failed', error.message, { cause: error })
}

function madeKey(path: string): string {
  return (
    `a key for the session log was made: ${path}. Keep a copy elsewhere: without it the log cannot be read. Beside the log ` +
    'it protects only what is erased; sessions.log.keyFile names one that lies elsewhere'
  )
}
