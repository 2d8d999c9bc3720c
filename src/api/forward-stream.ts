// A stream's bytes on their way to the client. Invariant: the status line is sent with the first content or after a
// silence; silence never lasts longer than `keepaliveMs`; what is written is whole events, so a comment or an error may
// stand between any two; a client that reads too slowly is reported, never waited for. Step 12 in fleet mode.

import type { Clock } from '../core/clock.js'
import { Deadlines, type Due } from '../core/deadlines.js'
import type { Outbound } from './inbound.js'

export interface ForwardStreamOptions {
  readonly response: Outbound
  readonly clock: Clock
  readonly keepaliveMs: number
  readonly keepalive: string
  /** limits.unsentBytes */
  readonly unsentBytes: number
  readonly onSlow: () => void
}

const STREAM_HEADERS = [
  ...['content-type', 'text/event-stream; charset=utf-8'],
  ...['cache-control', 'no-cache, no-transform'],
  // Proxies must not gather what is meant to come token by token.
  ...['x-accel-buffering', 'no'],
]
const OURS = new Set(STREAM_HEADERS.filter((_, i) => i % 2 === 0))

/** Chunks up to here are put together with their frame; larger ones are not copied for it. */
const COPIED_BYTES = 16_384

export class ForwardStream implements Due {
  readonly #options: ForwardStreamOptions
  readonly #deadlines: Deadlines
  /** Of the status line, beside those of every event stream. */
  headers: Record<string, string>
  /** Whether chunks are framed here. */
  #frames = false
  /** The last event of a chat: it goes out with the end, which comes at once as a rule. */
  #last: Buffer | undefined
  #lastWrite: number
  #largest = 0
  dueAt = 0
  seat = -1

  constructor(options: ForwardStreamOptions, headers: Record<string, string>) {
    this.#options = options
    this.headers = headers
    this.#lastWrite = options.clock.now()
    this.#deadlines = Deadlines.of(options.clock)
    this.#deadlines.add(this, options.keepaliveMs)
  }

  /** Whether the status line is out: from then on a failure is told in-band. */
  get isOpen(): boolean {
    return this.#options.response.headersSent
  }

  /** Sends the status line, unless it is out already. */
  open(headers: Readonly<Record<string, string>> = {}): void {
    if (this.isOpen) return
    const { response } = this.#options
    const all: string[] = []
    for (const name in headers) {
      if (!OURS.has(name) && !(name in this.headers)) all.push(name, headers[name] as string)
    }
    for (const name in this.headers) all.push(name, this.headers[name] as string)
    response.writeHead(200, all.concat(STREAM_HEADERS))
    // Node frames a chunk by four writes; here it is one. A client of HTTP/1.0 gets none.
    this.#frames = response.chunkedEncoding
    response.chunkedEncoding = false
  }

  write(bytes: Buffer | string): void {
    const { response, clock, unsentBytes, onSlow } = this.#options
    if (bytes.length === 0 || response.writableEnded || response.destroyed) return
    if (!response.headersSent) this.open()
    this.#lastWrite = clock.now()
    if (this.#put(bytes)) return
    // One large write to a client that was up to date is no sign of a slow reader.
    this.#largest = Math.max(this.#largest, bytes.length)
    if (response.writableLength > unsentBytes + this.#largest) onSlow()
  }

  /** Ends it, with `text` behind all that was written. */
  end(text: string): void {
    this.open()
    this.stop()
    const { response } = this.#options
    if (response.writableEnded || response.destroyed) return
    if (!this.#frames) {
      response.end(text)
      return
    }
    const last = this.#last
    this.#last = undefined
    const rest = [...(last === undefined ? [] : [framed(last)]), ...(text === '' ? [] : [framed(Buffer.from(text))])]
    response.end(rest.length === 0 ? LAST_CHUNK : Buffer.concat([...rest, LAST_CHUNK]))
  }

  /** Ends the keepalives; nothing else. */
  stop(): void {
    this.#deadlines.remove(this)
  }

  onDue(): void {
    const { clock, keepaliveMs, keepalive } = this.#options
    const silence = clock.now() - this.#lastWrite
    if (silence >= keepaliveMs - EARLY_MS) {
      this.write(keepalive)
      this.#deadlines.add(this, keepaliveMs)
    } else this.#deadlines.add(this, keepaliveMs - silence)
  }

  /** The end did not come at once. */
  #release(): void {
    const last = this.#last
    const { response } = this.#options
    this.#last = undefined
    if (last !== undefined && !response.writableEnded && !response.destroyed) response.write(framed(last))
  }

  /** False: it has to wait. */
  #put(bytes: Buffer | string): boolean {
    const { response } = this.#options
    if (!this.#frames) return response.write(bytes)
    const chunk = typeof bytes === 'string' ? Buffer.from(bytes) : bytes
    this.#release()
    if (chunk.length <= COPIED_BYTES && isLast(chunk)) {
      this.#last = chunk
      setImmediate(() => this.#release())
      return true
    }
    if (chunk.length <= COPIED_BYTES) return response.write(framed(chunk))
    response.write(`${chunk.length.toString(16)}\r\n`)
    response.write(chunk)
    return response.write('\r\n')
  }
}

const DONE = Buffer.from('data: [DONE]\n\n')

function isLast(chunk: Buffer): boolean {
  const { length } = chunk
  return length >= DONE.length && chunk.compare(DONE, 0, DONE.length, length - DONE.length, length) === 0
}

/** Timers of the runtime may come one too early. */
const EARLY_MS = 2

const LAST_CHUNK = Buffer.from('0\r\n\r\n')

/** A chunk with its size in front and its end behind. */
function framed(chunk: Buffer): Buffer {
  const size = chunk.length.toString(16)
  const start = size.length + 2
  const whole = Buffer.allocUnsafe(start + chunk.length + 2)
  for (let i = 0; i < size.length; i++) whole[i] = size.charCodeAt(i)
  whole[start - 2] = 13
  whole[start - 1] = 10
  chunk.copy(whole, start)
  whole[start + chunk.length] = 13
  whole[start + chunk.length + 1] = 10
  return whole
}
