// One attempt at one backend, from the request's last byte to the answer's. Invariant: it ends exactly once, in an answer
// that is complete or in a fault that says whether content had begun; its connection is ended with it.

import { Deadlines, type Due } from '../../core/deadlines.js'
import {
  type Ending,
  type ExchangeRequest,
  type ExchangeWatch,
  type Incoming,
  type IncomingHeaders,
  LOST,
  RemoteFault,
} from './contract.js'
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

/** Rejects with the reason of its signal alone. */
export function exchange(request: ExchangeRequest, limits: ExchangeLimits, watch?: ExchangeWatch): Promise<Ending> {
  return new Promise((resolve, reject) => new Attempt({ request, limits, watch }, resolve, reject).start())
}

interface AttemptOptions {
  readonly request: ExchangeRequest
  readonly limits: ExchangeLimits
  readonly watch: ExchangeWatch | undefined
}

class Attempt implements Incoming, Due {
  readonly #request: ExchangeRequest
  readonly #limits: ExchangeLimits
  readonly #watcher: ExchangeWatch | undefined
  readonly #deadlines: Deadlines
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
  dueAt = 0
  seat = -1
  readonly #onAbort = () => {
    if (this.#close()) this.#reject(this.#request.signal.reason)
  }

  constructor(
    { request, limits, watch }: AttemptOptions,
    resolve: (ending: Ending) => void,
    reject: (reason: unknown) => void,
  ) {
    this.#request = request
    this.#limits = limits
    this.#watcher = watch
    this.#deadlines = Deadlines.of(request.clock)
    this.#resolve = resolve
    this.#reject = reject
    this.#lastAt = request.clock.now()
  }

  start(): void {
    const { remote, out, signal } = this.#request
    if (signal.aborted) {
      this.#onAbort()
      return
    }
    signal.addEventListener('abort', this.#onAbort)
    this.#watcher?.losable((why) => this.fail(new RemoteFault(why, { sent: true, code: LOST })))
    this.#deadlines.add(this, this.#limits.firstTokenMs)
    this.#end = remote.send(out, this)
    if (this.#over) this.#end()
  }

  // --- what comes ----------------------------------------------------------------------------------------------------

  head(status: number, headers: IncomingHeaders): void {
    this.#answered = true
    this.#status = status
    this.#headers = headers
    const { stream, path, choices, hidesUsage } = this.#request
    if (!stream || status >= 300 || !isEventStream(headers)) return
    this.#watch = new StreamWatch({
      wire: wireOf(path),
      choices,
      hidesUsage,
      heldBytes: this.#limits.wholeBytes,
      onEvents: this.#request.onEvents,
      onFirst: () => {
        this.#lastAt = this.#request.clock.now()
        this.#deadlines.add(this, this.#limits.idleMs)
        this.#watcher?.begun()
        this.#request.onFirst(headers)
      },
    })
  }

  data(bytes: Buffer): void {
    if (this.#over) return
    if (this.#watch === undefined) {
      this.#bytes += bytes.length
      if (this.#bytes > this.#limits.wholeBytes) {
        this.fail(new RemoteFault('the answer is larger than fleet.wholeBytes', { sent: true }))
      } else this.#parts.push(bytes)
      return
    }
    try {
      this.#watch.add(bytes)
    } catch (error) {
      this.#broke(error)
      return
    }
    if (this.#watch.begun) this.#lastAt = this.#request.clock.now()
  }

  end(): void {
    if (this.#over) return
    let ending: Ending
    try {
      ending = this.#ending()
    } catch (error) {
      this.#broke(error)
      return
    }
    if (this.#close()) this.#resolve(ending)
  }

  fail(fault: RemoteFault): void {
    const { begun = false, usage } = this.#watch ?? {}
    const stale = !this.#answered && CLOSED.has(fault.code ?? '')
    if (this.#close()) this.#resolve({ kind: 'fault', fault, begun, stale, ...(usage && { usage }) })
  }

  /** @throws RemoteFault */
  #ending(): Ending {
    const watch = this.#watch
    if (watch === undefined) return this.#whole()
    watch.end()
    const { usage } = watch
    return usage === undefined ? { kind: 'stream' } : { kind: 'stream', usage }
  }

  /** @throws RemoteFault where a success is none. */
  #whole(): Ending {
    const status = this.#status
    const headers = this.#headers
    const sent = this.#parts.length === 1 ? (this.#parts[0] as Buffer) : Buffer.concat(this.#parts)
    if (status >= 300 || !this.#request.isRead) return { kind: 'whole', status, headers, body: sent }
    if (this.#request.stream) throw new RemoteFault('a stream was asked for and none came', { sent: true })
    const text = sent.toString('latin1')
    if (!isObject(text)) throw new RemoteFault('the answer is no JSON object', { sent: true })
    const usage = usageInText(text)
    const complete = usage === undefined ? text : completeUsage(text, usage)
    const body = complete === text ? sent : Buffer.from(complete, 'latin1')
    return { kind: 'whole', status, headers, body, ...(usage && { usage }) }
  }

  /** @throws whatever is no fault of the server's. */
  #broke(error: unknown): void {
    if (!(error instanceof RemoteFault)) throw error
    this.fail(error)
  }

  /** True: it was not over before. */
  #close(): boolean {
    if (this.#over) return false
    this.#over = true
    this.#deadlines.remove(this)
    this.#request.signal.removeEventListener('abort', this.#onAbort)
    this.#end()
    return true
  }

  /** Looks whether there was life meanwhile. */
  onDue(): void {
    const begun = this.#watch?.begun === true
    const limit = begun ? this.#limits.idleMs : this.#limits.firstTokenMs
    const left = limit - (this.#request.clock.now() - this.#lastAt)
    if (left > EARLY_MS) {
      this.#deadlines.add(this, left)
      return
    }
    const what = begun
      ? `for ${limit} ms (fleet.idleMs)`
      : `before its first content in ${limit} ms (fleet.firstTokenMs)`
    this.fail(new RemoteFault(`the backend was silent ${what}`, { sent: true }))
  }
}

/** Less than this is left: timers may come that much too early. */
const EARLY_MS = 2

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
