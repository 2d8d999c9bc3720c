// One attempt at one backend, from the request's last byte to the answer's. Invariant: it ends exactly once, in an answer
// that is complete or in a fault that says whether content had begun; its connection is ended with it.

import { type Ending, type ExchangeRequest, type IncomingHeaders, LOST, RemoteFault } from './contract.js'
import { StreamWatch } from './stream-watch.js'
import { completeUsage, usageInText } from './usage.js'
import { wireOf } from './wires.js'

export interface ExchangeLimits {
  /** fleet.firstTokenMs */
  readonly firstTokenMs: number
  /** fleet.idleMs */
  readonly idleMs: number
  /** fleet.wholeBytes */
  readonly wholeBytes: number
}

interface ExchangeOptions extends ExchangeRequest {
  readonly limits: ExchangeLimits
}

/** Rejects with the reason of `signal` alone. */
export function exchange(options: ExchangeOptions): Promise<Ending> {
  return new Promise((resolve, reject) => new Attempt(options, resolve, reject).start())
}

class Attempt {
  readonly #options: ExchangeOptions
  readonly #resolve: (ending: Ending) => void
  readonly #reject: (reason: unknown) => void
  #status = 0
  #headers: IncomingHeaders = {}
  #watch: StreamWatch | undefined
  readonly #parts: Buffer[] = []
  #bytes = 0
  #lastAt: number
  #over = false
  #answered = false
  #end: () => void = () => undefined
  #cancelTimer: () => void = () => undefined
  readonly #onAbort = () => this.#settle(() => this.#reject(this.#options.signal.reason))

  constructor(options: ExchangeOptions, resolve: (ending: Ending) => void, reject: (reason: unknown) => void) {
    this.#options = options
    this.#resolve = resolve
    this.#reject = reject
    this.#lastAt = options.clock.now()
  }

  start(): void {
    const { remote, out, signal, limits } = this.#options
    if (signal.aborted) {
      this.#onAbort()
      return
    }
    signal.addEventListener('abort', this.#onAbort)
    this.#options.onLosable?.((why) => this.#fault(new RemoteFault(why, { sent: true, code: LOST })))
    this.#arm(limits.firstTokenMs)
    this.#end = remote.send(out, {
      head: (status, headers) => this.#head(status, headers),
      data: (bytes) => this.#guard(() => this.#data(bytes)),
      end: () => this.#guard(() => this.#ended()),
      fail: (fault) => this.#fault(fault),
    })
    if (this.#over) this.#end()
  }

  #head(status: number, headers: IncomingHeaders): void {
    this.#answered = true
    this.#status = status
    this.#headers = headers
    const { stream, path, choices, hidesUsage, limits, onEvents, onFirst } = this.#options
    if (!stream || status >= 300 || !isEventStream(headers)) return
    this.#watch = new StreamWatch({
      wire: wireOf(path),
      choices,
      hidesUsage,
      heldBytes: limits.wholeBytes,
      onEvents,
      onFirst: () => {
        this.#lastAt = this.#options.clock.now()
        this.#arm(limits.idleMs)
        onFirst(headers)
      },
    })
  }

  #data(bytes: Buffer): void {
    if (this.#watch === undefined) {
      this.#bytes += bytes.length
      if (this.#bytes > this.#options.limits.wholeBytes) {
        throw new RemoteFault('the answer is larger than fleet.wholeBytes', { sent: true })
      }
      this.#parts.push(bytes)
      return
    }
    this.#watch.add(bytes)
    if (this.#watch.begun) this.#lastAt = this.#options.clock.now()
  }

  #ended(): void {
    const watch = this.#watch
    if (watch === undefined) {
      const ending = this.#whole()
      this.#settle(() => this.#resolve(ending))
      return
    }
    watch.end()
    this.#settle(() => this.#resolve({ kind: 'stream', ...(watch.usage && { usage: watch.usage }) }))
  }

  /** @throws RemoteFault where a success is none. */
  #whole(): Ending {
    const status = this.#status
    const headers = this.#headers
    const sent = this.#parts.length === 1 ? (this.#parts[0] as Buffer) : Buffer.concat(this.#parts)
    if (status >= 300 || !this.#options.isRead) return { kind: 'whole', status, headers, body: sent }
    if (this.#options.stream) throw new RemoteFault('a stream was asked for and none came', { sent: true })
    const text = sent.toString('latin1')
    if (!isObject(text)) throw new RemoteFault('the answer is no JSON object', { sent: true })
    const usage = usageInText(text)
    const complete = usage === undefined ? text : completeUsage(text, usage)
    const body = complete === text ? sent : Buffer.from(complete, 'latin1')
    return { kind: 'whole', status, headers, body, ...(usage && { usage }) }
  }

  #guard(work: () => void): void {
    try {
      work()
    } catch (error) {
      if (!(error instanceof RemoteFault)) throw error
      this.#fault(error)
    }
  }

  #fault(fault: RemoteFault): void {
    const { begun = false, usage } = this.#watch ?? {}
    const stale = !this.#answered && CLOSED.has(fault.code ?? '')
    this.#settle(() => this.#resolve({ kind: 'fault', fault, begun, stale, ...(usage && { usage }) }))
  }

  #settle(tell: () => void): void {
    if (this.#over) return
    this.#over = true
    this.#cancelTimer()
    this.#options.signal.removeEventListener('abort', this.#onAbort)
    this.#end()
    tell()
  }

  /** One timer that looks when it is due whether there was life meanwhile. */
  #arm(ms: number): void {
    const { clock, limits } = this.#options
    this.#cancelTimer()
    this.#cancelTimer = clock.after(ms, () => {
      const begun = this.#watch?.begun === true
      const limit = begun ? limits.idleMs : limits.firstTokenMs
      const left = limit - (clock.now() - this.#lastAt)
      if (left > 0) {
        this.#arm(left)
        return
      }
      const what = begun
        ? `for ${limit} ms (fleet.idleMs)`
        : `before its first content in ${limit} ms (fleet.firstTokenMs)`
      this.#fault(new RemoteFault(`the backend was silent ${what}`, { sent: true }))
    })
  }
}

/** A connection that the server closed while nothing went over it, seen when the request was under way. */
const CLOSED = new Set(['CLOSED', 'UND_ERR_SOCKET', 'ECONNRESET', 'EPIPE'])

function isEventStream(headers: IncomingHeaders): boolean {
  const type = headers['content-type']
  return typeof type === 'string' && type.startsWith('text/event-stream')
}

function isObject(text: string): boolean {
  let start = 0
  let end = text.length
  while (text.charCodeAt(start) <= 32) start++
  while (end > start && text.charCodeAt(end - 1) <= 32) end--
  return text[start] === '{' && text[end - 1] === '}'
}
