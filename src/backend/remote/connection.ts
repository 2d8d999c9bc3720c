// One connection to a server in plain HTTP/1.1: one request at a time, its bytes written at once, its answer read out of a
// buffer that all connections share. Node's own client costs half of what a request costs a router. Invariant: an exchange
// is told its end once, `end` or `fail`, and nothing after an abort; a connection is used again only when all of an answer
// was read, all of the request was written, and neither side said that it closes.

import { connect, type Socket } from 'node:net'
import { AnswerReader } from './answer-reader.js'
import { type Incoming, type Outgoing, RemoteFault } from './contract.js'

export interface ConnectionOptions {
  readonly host: string
  readonly port: number
  readonly connectMs: number
  /** It may take the next request. */
  readonly onIdle: (connection: Connection) => void
  readonly onClosed: (connection: Connection) => void
}

const BUFFER_BYTES = 65_536
/** What is read is told, as copies, before anything else is read. Elsewhere a read may be under way all the time. */
const shared = process.platform === 'win32' ? undefined : Buffer.allocUnsafeSlow(BUFFER_BYTES)

/** A connection that was closed where nothing says why. */
export const CLOSED = 'CLOSED'
export const CONNECT_TIMEOUT = 'CONNECT_TIMEOUT'

export class Connection {
  readonly #options: ConnectionOptions
  readonly #socket: Socket
  readonly #reader = new AnswerReader()
  #into: Incoming | undefined
  /** Of the exchange, so that an abort that comes late ends no other. */
  #number = 0
  #closed = false
  #connectTimer: NodeJS.Timeout | undefined
  /** Since when nothing goes over it, on the caller's clock. */
  idleSince = 0

  constructor(options: ConnectionOptions) {
    this.#options = options
    const { host, port, connectMs } = options
    const socket = connect({
      host,
      port,
      noDelay: true,
      keepAlive: true,
      keepAliveInitialDelay: 60_000,
      onread: {
        buffer: shared ?? Buffer.allocUnsafeSlow(BUFFER_BYTES),
        callback: (count, buffer) => {
          this.#read(buffer as Buffer, count)
          return true
        },
      },
    })
    this.#socket = socket
    this.#connectTimer = setTimeout(
      () => this.#fail(new RemoteFault(`no connection in ${connectMs} ms`, { sent: false, code: CONNECT_TIMEOUT })),
      connectMs,
    )
    socket.once('connect', () => this.#connected())
    socket.on('error', (error) => this.#fail(faultOf(error, this.#connectTimer === undefined)))
    socket.on('end', () => this.#ended())
    socket.on('close', () => this.#ended())
  }

  /** How long the server lets it idle; undefined: it does not say. */
  get idleMs(): number | undefined {
    return this.#reader.idleMs
  }

  /** Sends a request and tells of its answer; the function ends it. */
  send(head: string, { method, body }: Outgoing, into: Incoming): () => void {
    this.#into = into
    const number = ++this.#number
    this.#reader.begin(method, into)
    const socket = this.#socket
    if (body === undefined || body.length === 0) socket.write(head, 'latin1')
    else {
      socket.cork()
      socket.write(head, 'latin1')
      socket.write(body)
      socket.uncork()
    }
    return () => {
      if (this.#number === number && !this.#reader.done) this.#close()
    }
  }

  /** An idle connection does not keep the process alive. */
  rest(): void {
    this.#socket.unref()
  }

  wake(): void {
    this.#socket.ref()
  }

  /** Ends it, whatever goes over it; that is told nobody. */
  close(): void {
    this.#close()
  }

  /** Ends it; whose answer is under way is told. */
  fail(why: string): void {
    this.#fail(new RemoteFault(why, { sent: true, code: CLOSED }))
  }

  #connected(): void {
    clearTimeout(this.#connectTimer)
    this.#connectTimer = undefined
  }

  #read(buffer: Buffer, count: number): void {
    if (this.#closed) return
    // A server that speaks unasked says that it closes, at best.
    if (this.#into === undefined) {
      this.#close()
      return
    }
    let isClean: boolean
    try {
      isClean = this.#reader.read(count === buffer.length ? buffer : buffer.subarray(0, count))
    } catch (error) {
      if (!(error instanceof RemoteFault)) throw error
      this.#fail(error)
      return
    }
    if (!this.#reader.done || this.#closed) return
    this.#into = undefined
    if (isClean && this.#reader.keepsAlive && this.#socket.writableLength === 0) this.#options.onIdle(this)
    else this.#close()
  }

  /** The server sends no more. */
  #ended(): void {
    if (this.#closed) return
    if (this.#into !== undefined && this.#reader.closed()) {
      this.#into = undefined
      this.#close()
      return
    }
    this.#fail(new RemoteFault('the connection was closed', { sent: true, code: CLOSED }))
  }

  #fail(fault: RemoteFault): void {
    const into = this.#into
    this.#close()
    into?.fail(fault)
  }

  #close(): void {
    if (this.#closed) return
    this.#closed = true
    this.#into = undefined
    this.#reader.stop()
    this.#connected()
    this.#socket.destroy()
    this.#options.onClosed(this)
  }
}

/** Faults of a connection that came before the request could be read. */
const UNSENT = new Set(['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'EHOSTUNREACH', 'ENETUNREACH'])

function faultOf(error: Error, wasConnected: boolean): RemoteFault {
  // Node tries every address of a name and gathers what each said.
  const { code, errors } = error as { code?: string; errors?: readonly { code?: string }[] }
  const first = errors?.[0]?.code ?? code
  const sent = wasConnected || !UNSENT.has(first ?? '')
  return new RemoteFault(error.message || first || 'the connection failed', { sent, code: first, cause: error })
}
