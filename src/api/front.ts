// Connections of clients in front of Node's HTTP server: a request that is sent on, written as nearly all clients write it,
// is read and answered here at a fraction of what that server costs; whatever else comes is Node's, and its connection stays
// Node's. Invariant: a connection has one request at a time, answered in order; what was begun here is ended here, in full or
// by a close; each byte is read by one of the two.

import type { Server } from 'node:http'
import type { Socket } from 'node:net'
import type { Clock } from '../core/clock.js'
import { refuseSocket } from './failure.js'
import { FrontExchange } from './front-exchange.js'
import { HeadReader } from './front-head.js'
import type { Inbound, Outbound } from './inbound.js'

export interface FrontOptions {
  /** Whether a POST to `url` is sent on. */
  isOurs(url: string): boolean
  handle(request: Inbound, response: Outbound): void
  /** Gives Node a connection; what was read of it is in front of it again. */
  toNode(socket: Socket): void
  /** limits.receiveMs: for a request to arrive. */
  readonly receiveMs: number
  /** How long a connection may idle. */
  readonly idleMs: number
  readonly clock: Clock
}

/** Takes the place of `server` towards its connections. */
export function putInFront(server: Server, options: Omit<FrontOptions, 'toNode'>): Front {
  const listeners = server.listeners('connection') as ((socket: Socket) => void)[]
  server.removeAllListeners('connection')
  const front = new Front({
    ...options,
    toNode: (socket) => {
      for (const listener of listeners) listener.call(server, socket)
    },
  })
  server.on('connection', (socket) => front.accept(socket))
  return front
}

/** Between two looks at which connections have idled, or been silent, for too long. */
const SWEEP_MS = 1000
/** Of requests that came before the answer to the one in front of them; nobody honest sends more. */
const AHEAD_BYTES = 262_144
/** What a client gets to read the last answer, and to close. */
const LINGER_MS = 5000

export class Front {
  readonly options: FrontOptions
  readonly #connections = new Set<FrontConnection>()
  #cancelSweep: (() => void) | undefined
  #closing = false

  constructor(options: FrontOptions) {
    this.options = options
  }

  get isClosing(): boolean {
    return this.#closing
  }

  accept(socket: Socket): void {
    // It was on its way as the server closed.
    if (this.#closing) {
      socket.destroy()
      return
    }
    this.#connections.add(new FrontConnection(this, socket))
    this.#cancelSweep ??= this.options.clock.after(SWEEP_MS, () => this.#sweep())
  }

  forget(connection: FrontConnection): void {
    this.#connections.delete(connection)
  }

  /** Requests that are not here in full are not waited for: `reason` is their answer. */
  refuse(reason: Error): void {
    for (const connection of this.#connections) connection.refuse(reason)
  }

  /** Ends connections that idle, and the others with their answers. */
  close(): void {
    this.#closing = true
    this.#cancelSweep?.()
    for (const connection of this.#connections) connection.closeIdle()
  }

  /** Cuts off what is left. */
  destroy(): void {
    for (const connection of this.#connections) connection.destroy()
  }

  #sweep(): void {
    this.#cancelSweep = undefined
    const now = this.options.clock.now()
    for (const connection of this.#connections) connection.look(now)
    if (this.#connections.size > 0 && !this.#closing) {
      this.#cancelSweep = this.options.clock.after(SWEEP_MS, () => this.#sweep())
    }
  }
}

export class FrontConnection {
  readonly #front: Front
  readonly #socket: Socket
  readonly #heads = new HeadReader()
  #exchange: FrontExchange | undefined
  /** What came behind the request that is being answered. */
  #ahead: Buffer | undefined
  /** Since when it idles, or its request is on its way. */
  #since: number
  #hadRequest = false
  /** The last answer was given: whatever else comes is read by nobody. */
  #isDone = false
  readonly #onData = (bytes: Buffer) => this.#read(bytes)
  // A client that says that it sends no more has left, as it has for Node.
  readonly #onEnd = () => {
    const isAnswered = this.#exchange === undefined || this.#exchange.writableEnded
    if (isAnswered) this.#socket.end()
    else this.#socket.destroy()
  }
  readonly #onClose = () => {
    this.#front.forget(this)
    this.#exchange?.lost()
  }
  /** What breaks closes. */
  readonly #onError = () => undefined

  constructor(front: Front, socket: Socket) {
    this.#front = front
    this.#socket = socket
    this.#since = front.options.clock.now()
    socket.on('data', this.#onData)
    socket.on('end', this.#onEnd)
    socket.on('close', this.#onClose)
    socket.on('error', this.#onError)
  }

  get socket(): Socket {
    return this.#socket
  }

  get isClosing(): boolean {
    return this.#front.isClosing
  }

  closeIdle(): void {
    if (this.#exchange === undefined) this.#socket.destroy()
  }

  destroy(): void {
    this.#socket.destroy()
  }

  refuse(reason: Error): void {
    this.#exchange?.refuse(reason)
  }

  /** Whether anything takes too long. */
  look(now: number): void {
    const { receiveMs, idleMs } = this.#front.options
    const isIdle = this.#exchange === undefined && this.#hadRequest
    if (this.#isDone) {
      if (now - this.#since > LINGER_MS) this.#socket.destroy()
    } else if (isIdle) {
      if (now - this.#since > idleMs) this.#socket.destroy()
    } else if (this.#exchange?.complete !== true && now - this.#since > receiveMs) {
      this.#done(now)
      // It was answered, and nobody reads that.
      if (this.#exchange?.writableEnded === true) return
      this.#exchange?.abandon()
      refuseSocket(Object.assign(new Error('it took too long'), { code: 'ERR_HTTP_REQUEST_TIMEOUT' }), this.#socket)
    }
  }

  /** The exchange is over; `keeps`: another one may follow. */
  over(keeps: boolean): void {
    this.#exchange = undefined
    this.#since = this.#front.options.clock.now()
    const ahead = this.#ahead
    this.#ahead = undefined
    if (this.#socket.destroyed) return
    if (!keeps || this.#front.isClosing || !this.#socket.writable) {
      this.#done(this.#since)
      this.#socket.destroySoon()
      return
    }
    if (ahead !== undefined) this.#begin(ahead)
  }

  #done(now: number): void {
    this.#isDone = true
    this.#since = now
  }

  #read(bytes: Buffer): void {
    if (this.#isDone) return
    const exchange = this.#exchange
    if (exchange === undefined) this.#begin(bytes)
    else if (exchange.complete) this.#keep(bytes)
    else {
      const rest = exchange.take(bytes)
      if (rest !== undefined) this.#keep(rest)
    }
  }

  #keep(bytes: Buffer): void {
    this.#ahead = this.#ahead === undefined ? bytes : Buffer.concat([this.#ahead, bytes])
    if (this.#ahead.length > AHEAD_BYTES) this.#socket.destroy()
  }

  #begin(bytes: Buffer): void {
    const { isOurs, handle, clock } = this.#front.options
    const head = this.#heads.read(bytes)
    if (head === undefined || !isOurs(head.url)) {
      this.#leave(bytes)
      return
    }
    this.#hadRequest = true
    this.#since = clock.now()
    const exchange = new FrontExchange(this, head)
    this.#exchange = exchange
    const rest = exchange.take(head.end === bytes.length ? undefined : bytes.subarray(head.end))
    if (rest !== undefined) this.#keep(rest)
    handle(exchange, exchange)
  }

  /** From here on the connection is Node's. */
  #leave(bytes: Buffer): void {
    const socket = this.#socket
    this.#front.forget(this)
    socket.pause()
    socket.off('data', this.#onData)
    socket.off('end', this.#onEnd)
    socket.off('close', this.#onClose)
    socket.off('error', this.#onError)
    socket.unshift(bytes)
    this.#front.options.toNode(socket)
    socket.resume()
  }
}
