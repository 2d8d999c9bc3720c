// Sessions on disk, so that they return home after the router was started anew: one file, appended to behind everybody's
// back, written anew when most of it is old. Invariant: a torn, garbled or missing line costs one session's hits; a disk
// that fails costs all of them and nothing else. One process writes it.
//
//   <folder>/sessions.log   one JSON array a line: [time, key, member, scope, tail, tokens, head?, head's tokens?]
//                           [time, key]: it is forgotten

import { appendFile, mkdir, open, readFile, rename } from 'node:fs/promises'
import { join } from 'node:path'
import type { Clock } from '../core/clock.js'
import { note } from '../core/signals.js'
import type { SessionRecord, SessionStore } from './session-store.js'

export interface SessionLogOptions {
  readonly folder: string
  /** Sessions that are kept; those that were used last stay. */
  readonly max: number
  readonly ttlMs: number
  readonly clock: Clock
  /** The time of day, which outlives the process; tests set it. */
  readonly dateNow?: () => number
}

export interface SessionLog extends SessionStore {
  /** Everything that was put is on its way to the disk, and there. */
  flush(): Promise<void>
  close(): Promise<void>
}

/** Between a change and its writing; what a crash may lose. */
const WRITE_MS = 500
/** The file is written anew when it is so many times as large as what counts of it, and no smaller than this. */
const SLACK = 4
/** The bound is passed by one in so many. */
const BATCHES = 16
const MIN_REWRITE_BYTES = 1024 * 1024

/** Opens the log, and makes the folder where there is none. Never throws: a disk that fails is a note. */
export async function openSessionLog(options: SessionLogOptions): Promise<SessionLog> {
  const log = new Log(options)
  await log.load()
  return log
}

class Log implements SessionLog {
  readonly #options: SessionLogOptions
  readonly #path: string
  /** Lines by key, those that were written last at the end. */
  readonly #lines = new Map<string, string>()
  #lineBytes = 0
  /** What is not written yet, by key: of several turns of a session the last, as it was put; undefined: it is forgotten. */
  #waiting = new Map<string, Waiting>()
  #fileBytes = 0
  #endsTorn = false
  #cancelTimer: (() => void) | undefined
  #work: Promise<void> = Promise.resolve()
  #failed = false
  #closed = false

  constructor(options: SessionLogOptions) {
    this.#options = options
    this.#path = join(options.folder, 'sessions.log')
  }

  get #now(): number {
    return Math.round(this.#options.dateNow?.() ?? Date.now())
  }

  async load(): Promise<void> {
    await this.#guarded('read', async () => {
      await mkdir(this.#options.folder, { recursive: true, mode: 0o700 })
      const text = await readFile(this.#path, 'utf8').catch(absentAsEmpty)
      this.#fileBytes = Buffer.byteLength(text)
      this.#endsTorn = text !== '' && !text.endsWith('\n')
      const since = this.#now - this.#options.ttlMs
      for (const line of text.split('\n')) {
        const entry = entryOf(line)
        if (entry === undefined) continue
        this.#forget(entry.key)
        if (entry.record !== undefined && entry.at >= since) this.#keep(entry.key, line)
      }
    })
  }

  *records(): Iterable<SessionRecord> {
    this.#settle()
    for (const line of this.#lines.values()) {
      const record = entryOf(line)?.record
      if (record !== undefined) yield record
    }
  }

  put(record: SessionRecord): void {
    this.#write(record.key, record)
  }

  remove(key: string): void {
    if (this.#lines.has(key) || this.#waiting.has(key)) this.#write(key, undefined)
  }

  /** Makes lines of what waits. Returns them. */
  #settle(): string[] {
    const lines: string[] = []
    for (const [key, { at, record }] of this.#waiting) {
      this.#forget(key)
      const line = record === undefined ? JSON.stringify([at, key]) : lineOf(at, record)
      if (record !== undefined) this.#keep(key, line)
      lines.push(line)
    }
    this.#waiting = new Map()
    return lines
  }

  #keep(key: string, line: string): void {
    this.#lines.set(key, line)
    this.#lineBytes += line.length + 1
    const { max } = this.#options
    if (this.#lines.size <= max + max / BATCHES) return
    // In batches: to find the first of a map that changes takes a search.
    for (const oldest of this.#lines.keys()) {
      if (this.#lines.size <= max) return
      this.#forget(oldest)
    }
  }

  #forget(key: string): void {
    const line = this.#lines.get(key)
    if (line === undefined) return
    this.#lines.delete(key)
    this.#lineBytes -= line.length + 1
  }

  #write(key: string, record: SessionRecord | undefined): void {
    if (this.#closed) return
    this.#waiting.delete(key)
    this.#waiting.set(key, { at: this.#now, record })
    this.#cancelTimer ??= this.#options.clock.after(WRITE_MS, () => {
      this.#cancelTimer = undefined
      void this.flush()
    })
  }

  flush(): Promise<void> {
    this.#work = this.#work.then(() => this.#guarded('write', () => this.#flushNow()))
    return this.#work
  }

  async #flushNow(): Promise<void> {
    if (this.#waiting.size === 0) return
    const lines = this.#settle()
    if (this.#fileBytes > Math.max(MIN_REWRITE_BYTES, SLACK * this.#lineBytes)) return this.#rewrite()
    // Behind a torn line the next one begins on a line of its own.
    const text = `${this.#endsTorn ? '\n' : ''}${lines.join('\n')}\n`
    // Whatever becomes of this write, the next one cannot rely on where it ended.
    this.#endsTorn = true
    await appendFile(this.#path, text, { mode: 0o600 })
    this.#endsTorn = false
    this.#fileBytes += Buffer.byteLength(text)
  }

  async #rewrite(): Promise<void> {
    const text = [...this.#lines.values(), ''].join('\n')
    const beside = `${this.#path}.new`
    const file = await open(beside, 'w', 0o600)
    try {
      await file.writeFile(text)
      await file.sync()
    } finally {
      await file.close()
    }
    await rename(beside, this.#path)
    this.#fileBytes = Buffer.byteLength(text)
    this.#endsTorn = false
  }

  async close(): Promise<void> {
    this.#cancelTimer?.()
    this.#cancelTimer = undefined
    await this.flush()
    this.#closed = true
  }

  async #guarded(what: string, work: () => Promise<void>): Promise<void> {
    try {
      await work()
      this.#failed = false
    } catch (error) {
      // Once for each time that it begins to fail.
      if (!this.#failed) {
        note.publish({ level: 'warn', text: `cannot ${what} ${this.#path}: sessions may be lost`, detail: { error } })
      }
      this.#failed = true
    }
  }
}

function absentAsEmpty(error: NodeJS.ErrnoException): string {
  if (error.code === 'ENOENT') return ''
  throw error
}

function lineOf(at: number, { key, member, scope, tail, tokens, head, headTokens }: SessionRecord): string {
  const front = head === undefined ? [] : [head, headTokens]
  return JSON.stringify([at, key, member, scope, tail, tokens, ...front])
}

interface Waiting {
  readonly at: number
  readonly record: SessionRecord | undefined
}

interface Entry {
  readonly at: number
  readonly key: string
  /** Undefined: it was forgotten. */
  readonly record: SessionRecord | undefined
}

/** Undefined: it is no whole line of ours. */
function entryOf(line: string): Entry | undefined {
  if (!line.startsWith('[') || !line.endsWith(']')) return undefined
  const fields = parsed(line)
  if (!Array.isArray(fields)) return undefined
  const [at, key, member, scope, tail, tokens, head, headTokens] = fields as unknown[]
  if (typeof at !== 'number' || typeof key !== 'string') return undefined
  if (fields.length === 2) return { at, key, record: undefined }
  if (typeof member !== 'string' || typeof scope !== 'string' || typeof tail !== 'string') return undefined
  if (typeof tokens !== 'number') return undefined
  const hasHead = typeof head === 'string' && typeof headTokens === 'number'
  const record = { key, member, scope, tail, tokens, ...(hasHead && { head, headTokens }) }
  return { at, key, record }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
