// The connections to one server in plain HTTP: as many as there are requests, used again the last one first. Invariant: one
// that has idled for as long as servers may wait is not used again, since what is sent as it closes is lost.

import { isHeaderValue } from '../../core/header-text.js'
import { Connection } from './connection.js'
import { type Client, type ClientOptions, type Incoming, type Outgoing, RemoteFault } from './contract.js'

/** Servers behind uvicorn close idle connections after 5 s; ours go before that. */
export const IDLE_MS = 4000
/** Of what a server says that it waits, what is left for the way. */
const WAY_MS = 1000
/** Between two looks at which have idled for too long. */
const SWEEP_MS = 1000

/** What cannot end a line. */
const PATH = /^[\x21-\x7e\x80-\xff]+$/

export class Connections implements Client {
  readonly #options: { readonly host: string; readonly port: number; readonly connectMs: number }
  readonly #prefix: string
  /** Behind the path of every request. */
  readonly #line: string
  readonly #all = new Set<Connection>()
  readonly #idle: Connection[] = []
  #sweep: NodeJS.Timeout | undefined
  #closed = false
  readonly #onIdle = (connection: Connection) => this.#rest(connection)
  readonly #onClosed = (connection: Connection) => this.#forget(connection)

  constructor({ url, connectMs }: ClientOptions) {
    const host = url.hostname.replace(/^\[(.*)\]$/, '$1')
    this.#options = { host, port: url.port === '' ? 80 : Number(url.port), connectMs }
    this.#prefix = url.pathname.replace(/\/$/, '')
    this.#line = ` HTTP/1.1\r\nhost: ${url.host}\r\nconnection: keep-alive\r\n`
  }

  send(out: Outgoing, into: Incoming): () => void {
    const head = this.#head(out)
    if (head === undefined || this.#closed) {
      const why = this.#closed ? 'its connections are closed' : 'a header or the path has characters that none may have'
      let isOver = false
      queueMicrotask(() => isOver || into.fail(new RemoteFault(why, { sent: false })))
      return () => {
        isOver = true
      }
    }
    return this.#take().send(head, out, into)
  }

  async close(): Promise<void> {
    this.#closed = true
    clearTimeout(this.#sweep)
    for (const connection of [...this.#all]) connection.fail('its connections are closed')
  }

  /** Undefined: it cannot be written. */
  #head({ method, path, headers, body }: Outgoing): string | undefined {
    let head = `${method} ${this.#prefix}${path}${this.#line}`
    if (!PATH.test(path)) return undefined
    for (const name in headers) {
      const value = headers[name] as string
      if (!isHeaderValue(value)) return undefined
      // What the config adds may name another host.
      if (name === 'host') head = head.replace(/\r\nhost: [^\r]*/, '')
      head += `${name}: ${value}\r\n`
    }
    if (body !== undefined) head += `content-length: ${body.length}\r\n`
    else if (method !== 'GET' && method !== 'HEAD') head += 'content-length: 0\r\n'
    return `${head}\r\n`
  }

  #take(): Connection {
    const now = performance.now()
    for (;;) {
      const connection = this.#idle.pop()
      if (connection === undefined) break
      if (now - connection.idleSince < limitOf(connection)) {
        connection.wake()
        return connection
      }
      connection.close()
    }
    const connection = new Connection({ ...this.#options, onIdle: this.#onIdle, onClosed: this.#onClosed })
    this.#all.add(connection)
    return connection
  }

  #rest(connection: Connection): void {
    if (this.#closed) {
      connection.close()
      return
    }
    connection.idleSince = performance.now()
    connection.rest()
    this.#idle.push(connection)
    this.#sweep ??= setTimeout(() => this.#look(), SWEEP_MS).unref()
  }

  #look(): void {
    this.#sweep = undefined
    const now = performance.now()
    const old = this.#idle.filter((connection) => now - connection.idleSince >= limitOf(connection))
    for (const connection of old) connection.close()
    if (this.#idle.length > 0) this.#sweep = setTimeout(() => this.#look(), SWEEP_MS).unref()
  }

  #forget(connection: Connection): void {
    this.#all.delete(connection)
    const at = this.#idle.indexOf(connection)
    if (at >= 0) this.#idle.splice(at, 1)
  }
}

function limitOf({ idleMs }: Connection): number {
  return idleMs === undefined ? IDLE_MS : Math.min(IDLE_MS, Math.max(0, idleMs - WAY_MS))
}
