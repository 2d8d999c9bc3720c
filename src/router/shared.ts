// The connection to the Valkey or Redis through which routers on several machines share their books: batches of news by
// publish and subscribe, and sessions as keys that expire, for routers that come later. The only file that imports
// iovalkey. Invariant: nobody waits for it and it never throws; while it is away everything is dropped and counted, said
// once, and sessions that changed meanwhile are written when it is back. It sees digests and members' names only.

import { readFileSync } from 'node:fs'
import { createConnection, type Socket } from 'node:net'
import { connect as connectTls } from 'node:tls'
import { AbstractConnector, Redis, type RedisOptions } from 'iovalkey'
import type { Clock } from '../core/clock.js'
import { note } from '../core/signals.js'
import { readRecord, recordFields } from './news.js'
import { BEAT_MS, type NewsWire } from './peers.js'
import type { SessionRecord } from './session-store.js'

export interface SharedOptions {
  /** `redis://` or `rediss://`; with a user and a database where there are any. */
  readonly url: string
  readonly password?: string | undefined
  /** In front of the channel's name and of every key. */
  readonly prefix: string
  readonly tls?: SharedTls | undefined
  /** How long a session is kept without a turn, and how many are read. */
  readonly ttlMs: number
  readonly sessions: number
  readonly clock: Clock
}

/** Files in PEM; as the config's `backends[].tls`. */
export interface SharedTls {
  readonly ca?: string
  readonly cert?: string
  readonly key?: string
  readonly serverName?: string
  readonly verify?: boolean
}

export interface SharedEars {
  /** One batch, of anybody's: of this process's own, too. */
  news(text: string): void
  /** Sessions that are kept there, some at a time, whenever a connection came about. */
  sessions(records: readonly SessionRecord[]): void
}

export interface SharedCounts {
  sent: number
  heard: number
  /** Batches and sessions that could not be sent. */
  lost: number
  /** How often it went away. */
  outages: number
}

export interface Shared extends NewsWire {
  readonly counts: SharedCounts
  readonly isUp: boolean
  /** Keeps sessions for whoever comes later. */
  keep(records: readonly SessionRecord[]): void
  forget(keys: readonly string[]): void
  /** Resolves once it is connected, or could not be. */
  tried(): Promise<void>
  close(): Promise<void>
}

const CONNECT_MS = 2000
/** For an answer, and for any sign of life. */
const ANSWER_MS = 5000
const MAX_RETRY_MS = 2000
/** Commands on their way; more are dropped. */
const MAX_WAITING = 2000
/** Sessions that wait for its return. */
const MAX_MISSED = 10_000
const SCAN_COUNT = 500

/** @throws Error where a file of `tls` cannot be read. */
export function openShared(options: SharedOptions, ears: SharedEars): Shared {
  return new Connection(options, ears)
}

class Connection implements Shared {
  readonly counts: SharedCounts = { sent: 0, heard: 0, lost: 0, outages: 0 }
  readonly #options: SharedOptions
  readonly #ears: SharedEars
  readonly #channel: string
  readonly #pub: Redis
  readonly #sub: Redis
  /** Sessions that changed while it was away; undefined: they were forgotten. */
  readonly #missed = new Map<string, SessionRecord | undefined>()
  #waiting = 0
  #state: 'new' | 'up' | 'away' | 'closed' = 'new'
  #cancelBeat: () => void = () => undefined
  #settleTried: () => void = () => undefined
  readonly #tried: Promise<void>

  constructor(options: SharedOptions, ears: SharedEars) {
    this.#options = options
    this.#ears = ears
    this.#channel = `${options.prefix}news`
    this.#tried = new Promise((resolve) => {
      this.#settleTried = resolve
    })
    const settings = settingsOf(options)
    this.#pub = new Redis(options.url, { ...settings, connectionName: 'refrain-tells' })
    this.#sub = new Redis(options.url, { ...settings, connectionName: 'refrain-hears', autoResubscribe: false })
    for (const client of [this.#pub, this.#sub]) {
      client.on('error', (error: Error) => this.#away(error.message))
      client.on('close', () => this.#away('the connection was closed'))
      client.on('ready', () => void this.#ready())
    }
    this.#sub.on('message', (_channel: string, text: string) => {
      this.counts.heard++
      this.#ears.news(text)
    })
    this.#beatLater()
  }

  get isUp(): boolean {
    return this.#state === 'up'
  }

  tried(): Promise<void> {
    return this.#tried
  }

  // --- coming and going ----------------------------------------------------------------------------------------------

  async #ready(): Promise<void> {
    if (this.#state === 'closed' || this.#state === 'up') return
    if (this.#pub.status !== 'ready' || this.#sub.status !== 'ready') return
    try {
      await this.#sub.subscribe(this.#channel)
    } catch (error) {
      this.#away((error as Error).message)
      return
    }
    if ((this.#state as string) === 'closed' || this.isUp) return
    if (this.#state === 'away') note.publish({ level: 'info', text: `fleet.shared: ${this.#where()} is back` })
    this.#state = 'up'
    for (const [key, record] of this.#missed) {
      if (record === undefined) this.forget([key])
      else this.keep([record])
    }
    this.#missed.clear()
    this.#settleTried()
    await this.#readSessions()
  }

  #away(why: string): void {
    this.#settleTried()
    if (this.#state === 'closed' || this.#state === 'away') return
    this.#state = 'away'
    this.counts.outages++
    const text = `fleet.shared: ${this.#where()} is not reached, routing goes on by what is known here: ${why}`
    note.publish({ level: 'warn', text })
  }

  #where(): string {
    return this.#options.url.replace(/\/\/[^/@]*@/, '//')
  }

  /** A connection that stands and says nothing is found out by asking. */
  #beatLater(): void {
    this.#cancelBeat = this.#options.clock.after(BEAT_MS, () => {
      for (const client of [this.#pub, this.#sub]) if (client.status === 'ready') this.#run(client.ping())
      this.#beatLater()
    })
  }

  async close(): Promise<void> {
    this.#state = 'closed'
    this.#settleTried()
    this.#cancelBeat()
    const ended = new Promise<void>((resolve) => {
      if (this.#pub.status !== 'ready') resolve()
      else this.#pub.quit().then(() => resolve(), resolve)
    })
    this.#sub.disconnect()
    await ended
    this.#pub.disconnect()
  }

  // --- telling -------------------------------------------------------------------------------------------------------

  send(text: string): void {
    if (!this.#canSend()) return
    this.counts.sent++
    this.#run(this.#pub.publish(this.#channel, text))
  }

  keep(records: readonly SessionRecord[]): void {
    const { ttlMs } = this.#options
    for (const record of records) {
      if (!this.isUp) this.#miss(record.key, record)
      else if (this.#canSend()) {
        this.#run(this.#pub.set(this.#keyOf(record.key), JSON.stringify(recordFields(record)), 'PX', ttlMs))
      }
    }
  }

  forget(keys: readonly string[]): void {
    for (const key of keys) {
      if (!this.isUp) this.#miss(key, undefined)
      else if (this.#canSend()) this.#run(this.#pub.del(this.#keyOf(key)))
    }
  }

  #miss(key: string, record: SessionRecord | undefined): void {
    this.#missed.delete(key)
    if (this.#missed.size < MAX_MISSED) this.#missed.set(key, record)
    else this.counts.lost++
  }

  #keyOf(key: string): string {
    return `${this.#options.prefix}session:${key}`
  }

  #canSend(): boolean {
    const can = this.isUp && this.#waiting < MAX_WAITING
    if (!can) this.counts.lost++
    return can
  }

  #run(command: Promise<unknown>): void {
    this.#waiting++
    command.then(
      () => this.#waiting--,
      () => {
        // Why is told by the connection.
        this.#waiting--
        this.counts.lost++
      },
    )
  }

  // --- hearing -------------------------------------------------------------------------------------------------------

  async #readSessions(): Promise<void> {
    const match = `${globless(this.#keyOf(''))}*`
    let cursor = '0'
    let read = 0
    try {
      do {
        const [next, keys] = await this.#pub.scan(cursor, 'MATCH', match, 'COUNT', SCAN_COUNT)
        cursor = next
        read += keys.length
        if (keys.length === 0) continue
        const texts = await this.#pub.mget(keys)
        this.#ears.sessions(texts.map(recordIn).filter((record) => record !== undefined))
      } while (cursor !== '0' && read < this.#options.sessions && this.isUp)
    } catch (error) {
      // It went away again, which is told; or it is not ours to read.
      if (this.isUp) {
        const text = `fleet.shared: sessions are not read from ${this.#where()}: ${(error as Error).message}`
        note.publish({ level: 'warn', text })
      }
    }
  }
}

/**
 * Opens connections as iovalkey does by itself, and hears of their errors to the end: iovalkey hears the first alone, and
 * TLS may tell of another (the peer's alert, behind a certificate that was refused), which would end the process.
 */
class Heard extends AbstractConnector {
  readonly #options: RedisOptions

  constructor(options: unknown) {
    const { disconnectTimeout = 2000 } = options as RedisOptions
    super(disconnectTimeout)
    this.#options = options as RedisOptions
  }

  override async connect(): Promise<Socket> {
    const { host = '127.0.0.1', port = 6379, tls } = this.#options
    this.connecting = true
    // Whoever disconnects in the same turn finds nothing begun.
    await Promise.resolve()
    if (!this.connecting) throw new Error('Connection is closed.')
    const stream = tls === undefined ? createConnection({ host, port }) : connectTls({ host, port, ...tls })
    stream.on('error', (error) => {
      this.firstError = error
    })
    this.stream = stream
    return stream
  }
}

function settingsOf({ url, password, tls }: SharedOptions): RedisOptions {
  const { ca, cert, key, serverName, verify } = tls ?? {}
  const secure = {
    ...(ca !== undefined && { ca: readFileSync(ca) }),
    ...(cert !== undefined && { cert: readFileSync(cert) }),
    ...(key !== undefined && { key: readFileSync(key) }),
    ...(serverName !== undefined && { servername: serverName }),
    ...(verify === false && { rejectUnauthorized: false }),
  }
  return {
    ...(password !== undefined && { password }),
    ...(url.startsWith('rediss:') && { tls: secure }),
    Connector: Heard,
    connectTimeout: CONNECT_MS,
    socketTimeout: ANSWER_MS,
    keepAlive: 10_000,
    enableOfflineQueue: false,
    autoResendUnfulfilledCommands: false,
    maxRetriesPerRequest: 0,
    retryStrategy: (times) => Math.min(50 * 2 ** Math.min(times, 10), MAX_RETRY_MS),
  }
}

function recordIn(text: string | null): SessionRecord | undefined {
  try {
    return text === null ? undefined : readRecord(JSON.parse(text))
  } catch {
    // Somebody else's key.
    return undefined
  }
}

/** As a pattern that matches itself only. */
function globless(text: string): string {
  return text.replace(/[*?[\]\\^]/g, '\\$&')
}
