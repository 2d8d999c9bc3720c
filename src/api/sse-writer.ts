// The bytes of one event stream on their way to a socket. Invariant: the status line is sent with the first event or
// after a silence, whichever comes first; silence never lasts longer than `keepaliveMs`; a client that reads too slowly
// is reported, never waited for, so unsent bytes are bounded. Part of step 12.

import type { ServerResponse } from 'node:http'
import type { Clock } from '../core/clock.js'

export interface SseWriterOptions {
  readonly response: ServerResponse
  readonly clock: Clock
  readonly keepaliveMs: number
  /** What is said then; absent: a comment. */
  readonly keepalive?: (() => string) | undefined
  /** limits.unsentBytes */
  readonly unsentBytes: number
  /** Called once when more than `unsentBytes` wait for the client. */
  readonly onSlow: () => void
  /** Headers of the status line, beside those of every event stream. */
  readonly headers: Readonly<Record<string, string>>
}

const STREAM_HEADERS = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-cache, no-transform',
  // Proxies must not gather what is meant to come token by token.
  'x-accel-buffering': 'no',
}

/** A comment: clients skip it, the boxes in between see life. */
const KEEPALIVE = ': keepalive\n\n'

export class SseWriter {
  readonly #options: SseWriterOptions
  #lastWrite: number
  #cancelTimer: () => void
  /** What was said in this turn of the event loop: it leaves as one chunk. */
  #pending = ''
  #scheduled = false
  #largest = 0
  #slow = false

  constructor(options: SseWriterOptions) {
    this.#options = options
    this.#lastWrite = options.clock.now()
    this.#cancelTimer = options.clock.after(options.keepaliveMs, () => this.#onTimer())
  }

  /** Whether the status line is out: from then on a failure is told in-band. */
  get isOpen(): boolean {
    return this.#options.response.headersSent
  }

  /** Sends the status line, unless it is out already. */
  open(headers: Readonly<Record<string, string>> = {}): void {
    if (this.isOpen) return
    this.#options.response.writeHead(200, { ...STREAM_HEADERS, ...this.#options.headers, ...headers })
    this.#schedule()
  }

  write(text: string): void {
    if (text === '') return
    this.open()
    this.#lastWrite = this.#options.clock.now()
    this.#pending += text
    this.#schedule()
  }

  /** Sends the last text and closes. */
  end(text: string): void {
    this.open()
    this.stop()
    this.#options.response.end(this.#pending + text)
    this.#pending = ''
  }

  /** Ends the keepalives; nothing else. */
  stop(): void {
    this.#cancelTimer()
  }

  #schedule(): void {
    if (this.#scheduled) return
    this.#scheduled = true
    process.nextTick(() => {
      this.#scheduled = false
      this.#flush()
    })
  }

  #flush(): void {
    const { response, unsentBytes, onSlow } = this.#options
    if (response.writableEnded) return
    const text = this.#pending
    this.#pending = ''
    if (text === '') response.flushHeaders()
    else response.write(text)
    // One large write to a client that was up to date (an echoed prompt) is no sign of a slow reader.
    this.#largest = Math.max(this.#largest, text.length)
    if (response.writableLength > unsentBytes + this.#largest && !this.#slow) {
      this.#slow = true
      onSlow()
    }
  }

  #onTimer(): void {
    const { clock, keepaliveMs, keepalive } = this.#options
    const silence = clock.now() - this.#lastWrite
    if (silence >= keepaliveMs) this.write(keepalive?.() ?? KEEPALIVE)
    this.#cancelTimer = clock.after(keepaliveMs - (silence >= keepaliveMs ? 0 : silence), () => this.#onTimer())
  }
}
