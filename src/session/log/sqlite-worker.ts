// The thread that owns the session log. Requests that wait together are one transaction and one sync (group commit): what is
// answered is durable. Invariant: writes are answered after their commit; one that fails takes no other with it. Started by
// sqlite.ts, which says what becomes of a thread that ends.

import { type MessagePort, parentPort, receiveMessageOnPort, workerData } from 'node:worker_threads'
import { RefrainError } from '../../core/errors.js'
import { masterKeys } from './master-key.js'
import { databaseFault, logExists, makeFolder, openDatabase, removeLeftovers } from './sqlite-database.js'
import { SqliteStore } from './sqlite-store.js'
import type { LogAnswer, LogReply, LogRequest, LogSetup, Opened } from './sqlite-wire.js'

/** Requests in one transaction; more make the first wait for the last. */
const GROUP = 256
const GROUPED: ReadonlySet<string> = new Set<keyof SqliteStore>([
  ...(['create', 'append', 'keepResult', 'noteBlocks', 'setGrant', 'setSharedMemory'] as const),
])
const ERASING: ReadonlySet<string> = new Set<keyof SqliteStore>(['erase', 'eraseEvents'])

if (parentPort === null) throw new Error('sqlite-worker.js is started by the session log')
const parent: MessagePort = parentPort
const setup = workerData as LogSetup

function begin(): void {
  let opened: ReturnType<typeof openAll>
  try {
    opened = openAll()
  } catch (error) {
    parent.postMessage({ refused: (error as Error).message } satisfies Opened)
    return
  }
  const { db, store, made } = opened
  parent.on('message', (first: LogRequest | 'close') => {
    const batch = [first]
    for (let next = receive(); next !== undefined; next = batch.length < GROUP ? receive() : undefined) batch.push(next)
    serve(batch.filter((each) => each !== 'close'))
    if (!batch.includes('close')) return
    db.close()
    parent.close()
  })

  function receive(): LogRequest | 'close' | undefined {
    return receiveMessageOnPort(parent)?.message
  }

  function serve(requests: readonly LogRequest[]): void {
    const grouped = requests.filter(({ call }) => GROUPED.has(call))
    for (const reply of writeAll(grouped)) parent.postMessage(reply)
    for (const request of requests) {
      if (GROUPED.has(request.call)) continue
      const run = ERASING.has(request.call) ? () => writeAlone(request) : () => answer(request)
      parent.postMessage(run())
    }
  }

  /** One transaction for all; where the file fails under it, one for each, so that a large one fails alone. */
  function writeAll(requests: readonly LogRequest[]): LogReply[] {
    if (requests.length === 0) return []
    try {
      return db.transaction(() => requests.map((request) => answer(request)))
    } catch (error) {
      store.forget()
      return requests.length === 1
        ? [{ id: requests[0]!.id, answer: failure(error) }]
        : requests.flatMap((request) => writeAll([request]))
    }
  }

  function writeAlone(request: LogRequest): LogReply {
    const [reply] = writeAll([request])
    try {
      if ('value' in reply!.answer) db.scrub()
      return reply!
    } catch (error) {
      return { id: request.id, answer: failure(error) }
    }
  }

  /** @throws what is no RefrainError: nothing of the transaction can stand. */
  function answer({ id, call, args }: LogRequest): LogReply {
    try {
      const value = (store[call] as (...args: unknown[]) => unknown).apply(store, [...args])
      return { id, answer: { value } }
    } catch (error) {
      if (!GROUPED.has(call) && !ERASING.has(call)) return { id, answer: failure(error) }
      if (error instanceof RefrainError) return { id, answer: failure(error) }
      throw error
    }
  }

  parent.postMessage({ made } satisfies Opened)
}

function openAll() {
  const { folder, keys, durability, maxBytes, limits } = setup
  makeFolder(folder)
  const master = masterKeys(keys, folder, logExists(folder))
  const db = openDatabase(folder, { durability, maxBytes })
  try {
    removeLeftovers(folder)
    const store = new SqliteStore(db, master, limits)
    db.scrub()
    return { db, store, made: master.made }
  } catch (error) {
    db.close()
    throw error
  }
}

function failure(error: unknown): LogAnswer {
  const fault = databaseFault(error)
  if (fault instanceof RefrainError) {
    const { code, message, param } = fault
    return { error: { code, message, ...(param !== undefined && { param }) } }
  }
  return { fault: fault instanceof Error ? (fault.stack ?? fault.message) : String(fault) }
}

begin()
