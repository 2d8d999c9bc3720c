// One request of a connection of front.ts, and its answer. Invariant: head and first bytes of an answer leave in one write,
// no header carries a line's end, and an answer to a request that did not come in full is the connection's last. Whoever
// writes an answer whose length he does not tell frames its chunks (forward-stream.ts).

import { STATUS_CODES } from 'node:http'
import { isHeaderValue } from '../core/header-text.js'
import { ClientGone } from './answer.js'
import type { FrontConnection } from './front.js'
import type { Head } from './front-head.js'
import { bodyTooLarge, type Inbound, type Outbound } from './inbound.js'

/** How long a connection may idle: between two requests of an agent a tool runs. */
export const IDLE_MS = 72_000
const KEPT = `connection: keep-alive\r\nkeep-alive: timeout=${IDLE_MS / 1000}\r\n`
const CLOSES = 'connection: close\r\n'

/** Bodies up to here get all of their room at once. */
const AT_ONCE_BYTES = 4 * 1024 * 1024
/** Up to here a head and what follows it are put together; more is not copied for it. */
const COPIED_BYTES = 65_536
const NONE = Buffer.alloc(0)

export class FrontExchange implements Inbound, Outbound {
  readonly method = 'POST'
  readonly url: string
  readonly headers: Inbound['headers']
  complete = false
  headersSent = false
  writableEnded = false
  chunkedEncoding = false
  readonly #connection: FrontConnection
  readonly #length: number
  #keeps: boolean
  /** Of the body, what came; all of it once it is complete. */
  #bytes: Buffer = NONE
  #parts: Buffer[] | undefined
  #came = 0
  #onBody: ((bytes: Buffer) => void) | undefined
  #onLost: ((reason: unknown) => void) | undefined
  #onClose: (() => void) | undefined
  /** The head of the answer, until there is something to send it with. */
  #head = ''
  #hasBody = true
  #isAbandoned = false

  constructor(connection: FrontConnection, { url, headers, length, closes }: Head) {
    this.#connection = connection
    this.url = url
    this.headers = headers
    this.#length = length
    this.#keeps = !closes
  }

  // --- the request ---------------------------------------------------------------------------------------------------

  body(limit: number): Buffer | Promise<Buffer> {
    if (this.#length > limit) throw bodyTooLarge(limit)
    if (this.complete) return this.#bytes
    if (this.destroyed) throw new ClientGone()
    return new Promise((resolve, reject) => {
      this.#onBody = resolve
      this.#onLost = reject
    })
  }

  /** Takes what came of the body; gives what stands behind it. */
  take(bytes: Buffer | undefined): Buffer | undefined {
    // Of a request that was refused, the rest is read by nobody.
    if (this.writableEnded || this.#isAbandoned) return undefined
    const missing = this.#length - this.#came
    const came = bytes === undefined ? 0 : bytes.length
    if (bytes !== undefined && came > 0) this.#put(came > missing ? bytes.subarray(0, missing) : bytes)
    if (this.#came < this.#length) return undefined
    if (this.#parts !== undefined) {
      this.#bytes = Buffer.concat(this.#parts)
      this.#parts = undefined
    }
    this.complete = true
    this.#onLost = undefined
    this.#onBody?.(this.#bytes)
    return bytes !== undefined && came > missing ? bytes.subarray(missing) : undefined
  }

  #put(bytes: Buffer): void {
    if (bytes.length === this.#length) this.#bytes = bytes
    else if (this.#length > AT_ONCE_BYTES) {
      // A length that was only said is given no room.
      this.#parts ??= []
      this.#parts.push(bytes)
    } else {
      if (this.#came === 0) this.#bytes = Buffer.allocUnsafeSlow(this.#length)
      bytes.copy(this.#bytes, this.#came)
    }
    this.#came += bytes.length
  }

  /** The rest of the request will not come. */
  abandon(): void {
    this.#isAbandoned = true
    this.refuse(new ClientGone())
  }

  /** The rest of the request is not waited for; whoever waits for its body hears why. */
  refuse(reason: Error): void {
    this.#onLost?.(reason)
    this.#onLost = undefined
  }

  /** Its connection is closed. */
  lost(): void {
    this.refuse(new ClientGone())
    this.#onClose?.()
  }

  // --- the answer ----------------------------------------------------------------------------------------------------

  get destroyed(): boolean {
    return this.#connection.socket.destroyed
  }

  get writableLength(): number {
    return this.#connection.socket.writableLength
  }

  get writableFinished(): boolean {
    return this.writableEnded
  }

  once(_event: 'close', listener: () => void): void {
    this.#onClose = listener
  }

  writeHead(status: number, headers: string[] | Record<string, string | number>): void {
    if (this.headersSent) throw new Error('the head is written already')
    let isFramed = false
    let saysClose = false
    let head = `HTTP/1.1 ${status} ${STATUS_CODES[status] ?? 'Unknown'}\r\n`
    const list = Array.isArray(headers) ? headers : Object.entries(headers).flat()
    for (let i = 0; i < list.length; i += 2) {
      const name = list[i] as string
      const value = String(list[i + 1])
      if (!isHeaderValue(value))
        throw new TypeError(`the value of the header ${name} has characters that none may have`)
      if (name === 'content-length') isFramed = true
      if (name === 'connection') saysClose ||= value === 'close'
      else head += `${name}: ${value}\r\n`
    }
    this.#hasBody = status !== 204 && status !== 304
    this.chunkedEncoding = !isFramed && this.#hasBody
    if (saysClose || !this.complete || this.#connection.isClosing) this.#keeps = false
    if (this.chunkedEncoding) head += 'transfer-encoding: chunked\r\n'
    this.#head = `${head}date: ${date()}\r\n${this.#keeps ? KEPT : CLOSES}\r\n`
    this.headersSent = true
  }

  write(bytes: Buffer | string): boolean {
    if (!this.headersSent) this.writeHead(200, [])
    if (this.writableEnded || bytes.length === 0 || !this.#hasBody) return true
    return this.#send(bytes)
  }

  end(bytes: Buffer | string = ''): void {
    if (this.writableEnded) return
    if (!this.headersSent) this.writeHead(200, ['content-length', String(Buffer.byteLength(bytes))])
    this.write(bytes)
    if (this.#head !== '') this.#send('')
    this.writableEnded = true
    this.#onClose = undefined
    if (!this.complete) {
      this.#bytes = NONE
      this.#parts = undefined
    }
    const { socket } = this.#connection
    const over = () => this.#connection.over(this.#keeps && this.complete)
    // A client that does not read gets no other answer to read.
    if (socket.writableLength === 0 || socket.destroyed) over()
    else socket.write('', over)
  }

  destroy(): void {
    // What was said of a request that did not come leaves before.
    if (this.#isAbandoned) this.#connection.socket.destroySoon()
    else this.#connection.socket.destroy()
  }

  #send(bytes: Buffer | string): boolean {
    const { socket } = this.#connection
    const head = this.#head
    if (head === '') return socket.write(bytes)
    this.#head = ''
    const body = typeof bytes === 'string' ? Buffer.from(bytes) : bytes
    if (body.length > COPIED_BYTES) {
      socket.write(head, 'latin1')
      return socket.write(body)
    }
    const whole = Buffer.allocUnsafe(head.length + body.length)
    whole.write(head, 0, 'latin1')
    body.copy(whole, head.length)
    return socket.write(whole)
  }
}

let dateSecond = 0
let dateText = ''

/** Of now, as headers say it. */
function date(): string {
  const second = Math.floor(Date.now() / 1000)
  if (second !== dateSecond) {
    dateSecond = second
    dateText = new Date(second * 1000).toUTCString()
  }
  return dateText
}
