// The one file of the log, opened: who owns it, how durable a commit is, what its faults are called. The only importer of
// libsql. Invariant: one process owns the file; a file that is damaged, foreign or newer is refused and left as it is.

import { closeSync, existsSync, fsyncSync, linkSync, mkdirSync, openSync, readdirSync, rmSync, statSync } from 'node:fs'
import { join } from 'node:path'
import Libsql from 'libsql'
import { RefrainError } from '../../core/errors.js'
import { UsageError } from '../../core/usage-error.js'
import { APPLICATION_ID, migrate, SCHEMA_VERSION } from './sqlite-schema.js'

/** `power`: a commit is on the disk when it returns. `process`: it is with the operating system, which outlives the process. */
export type Durability = 'process' | 'power'

export type Row = Readonly<Record<string, number | Uint8Array | null>>
type Value = number | string | Uint8Array | null

/**
 * Columns to select, as what they were declared: in a damaged file one may hold another type, and the binding ends the whole
 * process at text that is no UTF-8.
 */
export const blobs = (...columns: string[]) => columns.map((name) => `CAST(${name} AS BLOB) AS ${bare(name)}`).join()
export const numbers = (...columns: string[]) =>
  columns.map((name) => `CAST(${name} AS INTEGER) AS ${bare(name)}`).join()
const bare = (name: string) => name.slice(name.indexOf('.') + 1)

const FILE = 'log.db'
/** The whole of a smaller file is checked before it is used; of a larger one what is read, when it is read. */
const CHECKED_BYTES = 64 * 1024 * 1024
/**
 * Pages of the write-ahead log after which it is written back, which is several syncs that appends wait for: more than SQLite's
 * 1000, so that it meets fewer than one in a hundred (bench/session-log.ts). Its file stays that long and is written over.
 */
const WAL_PAGES = 8000
const WAL_BYTES = WAL_PAGES * 4200

export class SqliteDatabase {
  readonly #db: Libsql.Database
  readonly #statements = new Map<string, Libsql.Statement<unknown[]>>()

  constructor(path: string) {
    this.#db = new Libsql(path)
  }

  exec(sql: string): void {
    this.#db.exec(sql)
  }

  /** The number that a pragma answers. */
  pragma(name: string): number {
    const [row] = this.#db.pragma(name) as Row[]
    return Number(Object.values(row ?? {})[0] ?? 0)
  }

  /** Rows that changed. */
  run(sql: string, ...values: Value[]): number {
    return this.#prepare(sql).run(values).changes
  }

  /** Id of the row that was added. */
  insert(sql: string, ...values: Value[]): number {
    return Number(this.#prepare(sql).run(values).lastInsertRowid)
  }

  get(sql: string, ...values: Value[]): Row | undefined {
    return this.#prepare(sql).get(values) as Row | undefined
  }

  all(sql: string, ...values: Value[]): Row[] {
    return (this.#prepare(sql).all(values) as Record<string, Value | ArrayBuffer>[]).map(withBytes)
  }

  /** All of it or nothing. */
  transaction<T>(run: () => T): T {
    this.#db.exec('BEGIN IMMEDIATE')
    try {
      const result = run()
      this.#db.exec('COMMIT')
      return result
    } catch (error) {
      // A full disk has ended it already.
      if (this.#db.inTransaction) this.#db.exec('ROLLBACK')
      throw error
    }
  }

  /** What was deleted or written over is in no file any more. */
  scrub(): void {
    const [row] = this.#db.pragma('wal_checkpoint(TRUNCATE)') as Row[]
    if (row?.['busy'] !== 0)
      throw new RefrainError('storage_failed', 'the session log could not be cleared of what was erased')
  }

  get bytes(): number {
    return (this.pragma('page_count') - this.pragma('freelist_count')) * this.pragma('page_size')
  }

  close(): void {
    this.#statements.clear()
    this.#db.close()
  }

  #prepare(sql: string): Libsql.Statement<unknown[]> {
    const known = this.#statements.get(sql)
    if (known !== undefined) return known
    const statement = this.#db.prepare(sql)
    this.#statements.set(sql, statement)
    return statement
  }
}

export function logExists(folder: string): boolean {
  return existsSync(join(folder, FILE))
}

/** Makes the log's folder, its owner's alone. */
export function makeFolder(folder: string): void {
  try {
    mkdirSync(folder, { recursive: true, mode: 0o700 })
  } catch (error) {
    throw new UsageError(`the folder of the session log cannot be made: ${(error as Error).message}`)
  }
}

/** Opens or makes it. @throws UsageError with a sentence that says what to do. */
export function openDatabase(folder: string, options: { durability: Durability; maxBytes: number }): SqliteDatabase {
  const path = join(folder, FILE)
  if (!existsSync(path)) create(folder, path)
  // Where SQLite finds nothing it makes a new log, and the old one would be gone without a word.
  if (statSync(path).size === 0) throw new UsageError(`${path} is empty, and ${RESTORE}`)
  return asking(folder, () => {
    const db = new SqliteDatabase(path)
    try {
      prepare(db, path, options)
    } catch (error) {
      db.close()
      throw error
    }
    return db
  })
}

const RESTORE =
  'was a session log: bring it back from a copy, or move its folder away to begin with an empty log; it is left as it is'

function prepare(db: SqliteDatabase, path: string, options: { durability: Durability; maxBytes: number }): void {
  db.pragma('locking_mode = EXCLUSIVE')
  db.pragma('journal_mode = WAL')
  db.exec(`PRAGMA synchronous = ${options.durability === 'power' ? 'FULL' : 'NORMAL'}`)
  db.exec('PRAGMA secure_delete = ON')
  db.exec('PRAGMA temp_store = MEMORY')
  db.pragma(`journal_size_limit = ${WAL_BYTES}`)
  db.pragma(`wal_autocheckpoint = ${WAL_PAGES}`)
  // The lock is taken with the first write.
  db.transaction(() => undefined)
  if (db.pragma('application_id') !== APPLICATION_ID) throw new UsageError(`${path} is no session log; ${RESTORE}`)
  const version = db.pragma('user_version')
  if (version > SCHEMA_VERSION)
    throw new UsageError(
      `${path} was written by a newer Refrain (${version}, this one knows ${SCHEMA_VERSION}); use that`,
    )
  if (statSync(path).size <= CHECKED_BYTES) checkWhole(db, path)
  migrate(db)
  db.pragma(`max_page_count = ${Math.max(1, Math.floor(options.maxBytes / db.pragma('page_size')))}`)
}

function checkWhole(db: SqliteDatabase, path: string): void {
  const [row] = db.all('PRAGMA quick_check(1)')
  const answer: unknown = Object.values(row ?? {})[0]
  if (answer !== 'ok')
    throw new UsageError(`${path} is damaged (${String(answer).replaceAll('\n', ' ')}), and ${RESTORE}`)
}

/** Beside its place, and put there when it is whole: what is found there later and is empty was damaged. */
function create(folder: string, path: string): void {
  makeFolder(folder)
  const fresh = join(folder, `${FILE}.${process.pid}.new`)
  rmSync(fresh, { force: true })
  closeSync(openSync(fresh, 'wx', 0o600))
  const db = new SqliteDatabase(fresh)
  // Nobody can see it before it is whole: one sync, at the end.
  db.exec('PRAGMA synchronous = OFF')
  db.exec(`PRAGMA application_id = ${APPLICATION_ID}`)
  migrate(db)
  db.close()
  sync(fresh)
  try {
    linkSync(fresh, path)
    sync(folder)
  } catch (error) {
    // Another process was faster; whose it is shows when it is opened.
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  } finally {
    rmSync(fresh, { force: true })
  }
}

function sync(path: string): void {
  const file = openSync(path, 'r')
  try {
    fsyncSync(file)
  } finally {
    closeSync(file)
  }
}

/** Files of makers that were killed in the midst of it. Called by the owner. */
export function removeLeftovers(folder: string): void {
  for (const name of readdirSync(folder)) if (/\.new(-\w+)?$/.test(name)) rmSync(join(folder, name), { force: true })
}

function asking<T>(folder: string, run: () => T): T {
  try {
    return run()
  } catch (error) {
    if (error instanceof UsageError) throw error
    const { code, message } = error as Error & { code?: string }
    if (code === 'SQLITE_BUSY' || code === 'SQLITE_LOCKED')
      throw new UsageError(
        `the session log in ${folder} belongs to another process that runs; stop that one, or give this one a dataDir of its own`,
      )
    if (code === 'SQLITE_CORRUPT' || code === 'SQLITE_NOTADB')
      throw new UsageError(`the session log in ${folder} is damaged (${message}), and ${RESTORE}`)
    throw new UsageError(`the session log in ${folder} cannot be opened: ${message}`)
  }
}

/** Of several rows the binding hands blobs out as bare buffers. */
function withBytes(row: Record<string, Value | ArrayBuffer>): Row {
  for (const name in row) {
    const value = row[name]
    if (value instanceof ArrayBuffer) row[name] = new Uint8Array(value)
  }
  return row as Row
}

/** What a caller is told of a fault of the file; anything else is handed back as it is. */
export function databaseFault(error: unknown): unknown {
  const { code, message } = error as { code?: unknown; message?: string }
  if (error instanceof RefrainError || typeof code !== 'string' || !code.startsWith('SQLITE_')) return error
  if (code === 'SQLITE_CORRUPT' || code === 'SQLITE_NOTADB')
    return new RefrainError('log_damaged', `the session log is damaged (${message}); bring it back from a copy`)
  if (code === 'SQLITE_FULL')
    return new RefrainError('storage_failed', 'the session log is full: the disk, or sessions.log.maxBytes')
  if (/^SQLITE_(IOERR|READONLY|CANTOPEN|BUSY|LOCKED|NOMEM|PERM)/.test(code))
    return new RefrainError('storage_failed', `the session log cannot be written: ${message}`)
  return error
}
