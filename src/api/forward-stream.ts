// A stream's bytes on their way to the client. Invariant: the status line is sent with the first content or after a
// silence; silence never lasts longer than `keepaliveMs`; what is written is whole events, so a comment or an error may
// stand between any two; a client that reads too slowly is reported, never waited for. Step 12 in fleet mode.

import type { ServerResponse } from 'node:http'
import type { Clock } from '../core/clock.js'

export interface ForwardStreamOptions {
  readonly response: ServerResponse
  readonly clock: Clock
  readonly keepaliveMs: number
  readonly keepalive: string
  /** limits.unsentBytes */
  readonly unsentBytes: number
  readonly onSlow: () => void
}

const STREAM_HEADERS = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-cache, no-transform',
  // Proxies must not gather what is meant to come token by token.
  'x-accel-buffering': 'no',
}

export class ForwardStream {
  readonly #options: ForwardStreamOptions
  /** Of the status line, beside those of every event stream. */
  headers: Record<string, string>
  #lastWrite: number
  #cancelTimer: () => void
  #largest = 0

  constructor(options: ForwardStreamOptions, headers: Record<string, string>) {
    this.#options = options
    this.headers = headers
    this.#lastWrite = options.clock.now()
    this.#cancelTimer = options.clock.after(options.keepaliveMs, () => this.#onTimer())
  }

  /** Whether the status line is out: from then on a failure is told in-band. */
  get isOpen(): boolean {
    return this.#options.response.headersSent
  }

  /** Sends the status line, unless it is out already. */
  open(headers: Readonly<Record<string, string>> = {}): void {
    if (!this.isOpen) this.#options.response.writeHead(200, { ...headers, ...this.headers, ...STREAM_HEADERS })
  }

  write(bytes: Buffer | string): void {
    const { response, clock, unsentBytes, onSlow } = this.#options
    if (bytes.length === 0 || response.writableEnded || response.destroyed) return
    if (!response.headersSent) this.open()
    this.#lastWrite = clock.now()
    if (response.write(bytes)) return
    // One large write to a client that was up to date is no sign of a slow reader.
    this.#largest = Math.max(this.#largest, bytes.length)
    if (response.writableLength > unsentBytes + this.#largest) onSlow()
  }

  end(text: string): void {
    this.open()
    this.stop()
    this.#options.response.end(text)
  }

  /** Ends the keepalives; nothing else. */
  stop(): void {
    this.#cancelTimer()
  }

  #onTimer(): void {
    const { clock, keepaliveMs, keepalive } = this.#options
    const silence = clock.now() - this.#lastWrite
    if (silence >= keepaliveMs) this.write(keepalive)
    this.#cancelTimer = clock.after(keepaliveMs - (silence >= keepaliveMs ? 0 : silence), () => this.#onTimer())
  }
}
