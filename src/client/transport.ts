// Requests on their way: addresses, keys, time limits, and trying again. Invariant: what may have been done is sent again
// only where doing it twice is doing it once; what the server refused before it did anything, always.

import { RefrainError, refusal } from './error.js'

/** Of one call. */
export interface CallOptions {
  /** Ends the call; on the server its work stops too. */
  readonly signal?: AbortSignal
  /** Longest wait for the whole answer; of a stream, for its next bytes. */
  readonly timeoutMs?: number
}

export interface TransportOptions {
  readonly baseUrl: string
  readonly apiKey?: string
  readonly fetch?: typeof globalThis.fetch
  readonly headers?: Readonly<Record<string, string>>
  /** Times that a call is sent again. Default 3. */
  readonly retries?: number
  /** The first wait before that; it doubles. Default 250. */
  readonly backoffMs?: number
  /** Where the server asks for a longer wait, the caller is told instead. Default 30,000. */
  readonly longestWaitMs?: number
}

export interface Call extends CallOptions {
  readonly method: 'GET' | 'POST' | 'PUT' | 'DELETE'
  /** Below the base URL, encoded. */
  readonly path: string
  readonly query?: Readonly<Record<string, string | number | undefined>>
  readonly body?: object
  readonly headers?: Readonly<Record<string, string>>
  /** `twice`: doing it twice is doing it once. `refused`: only what was refused before anything was done is sent again. */
  readonly again: 'twice' | 'refused'
}

const RETRIES = 3
const BACKOFF_MS = 250
const LONGEST_WAIT_MS = 30_000
const TIMEOUT_MS = 60_000

export class Transport {
  readonly #base: string
  readonly #headers: Readonly<Record<string, string>>
  readonly #fetch: typeof globalThis.fetch
  readonly #options: TransportOptions

  constructor(options: TransportOptions) {
    this.#base = options.baseUrl.replace(/\/+$/, '').replace(/\/v1$/, '')
    const { apiKey, headers } = options
    this.#headers = { ...(apiKey !== undefined && { authorization: `Bearer ${apiKey}` }), ...headers }
    // Browsers refuse a fetch that is called as somebody's method.
    this.#fetch = options.fetch ?? ((...args) => globalThis.fetch(...args))
    this.#options = options
  }

  /** @throws RefrainError; the signal's reason where it was aborted. */
  async json<T>(call: Call): Promise<T> {
    return this.#tried(call, async (response) => {
      const text = await response.text()
      try {
        return JSON.parse(text) as T
      } catch (cause) {
        const message = `the answer is no JSON: ${text.slice(0, 200)}`
        throw new RefrainError({ status: response.status, code: 'not_understood', message, cause })
      }
    })
  }

  /**
   * An answer that is read piece by piece. It is asked for again only until its head is there.
   * @throws RefrainError from the call and from the loop.
   */
  async *bytes(call: Call): AsyncGenerator<Uint8Array, void> {
    const limits = new Limits(call)
    try {
      const response = await this.#tried({ ...call, signal: limits.signal }, async (each) => each, limits)
      const reader = response.body?.getReader()
      for (;;) {
        limits.alive()
        const next = await reader?.read()
        if (next === undefined || next.done) return
        yield next.value
      }
    } catch (error) {
      throw failureOf(error, call.signal, limits, 'cut_off')
    } finally {
      // Whoever leaves the loop early leaves the connection too.
      limits.end()
    }
  }

  async #tried<T>(call: Call, read: (response: Response) => Promise<T>, own?: Limits): Promise<T> {
    const { retries = RETRIES } = this.#options
    let wasCut = false
    for (let n = 0; ; n++) {
      const limits = own ?? new Limits(call)
      limits.alive()
      try {
        return await this.#once(call, limits, read)
      } catch (thrown) {
        const error = failureOf(thrown, call.signal, limits, 'unreachable')
        if (!(error instanceof RefrainError) || n >= retries || !mayRepeat(error, call, wasCut)) throw error
        wasCut ||= error.status === 0
        const wait = this.#waitOf(error, n)
        if (wait === undefined) throw error
        own?.rest()
        await sleep(wait, call.signal)
      } finally {
        if (own === undefined) limits.end()
      }
    }
  }

  async #once<T>(call: Call, { signal }: Limits, read: (response: Response) => Promise<T>): Promise<T> {
    const { method, path, query = {}, body, headers } = call
    const pairs = Object.entries(query).flatMap(([name, value]) =>
      value === undefined ? [] : [`${name}=${encodeURIComponent(value)}`],
    )
    const url = `${this.#base}${path}${pairs.length === 0 ? '' : `?${pairs.join('&')}`}`
    const response = await this.#fetch(url, {
      method,
      headers: { ...this.#headers, ...(body && { 'content-type': 'application/json' }), ...headers },
      ...(body && { body: JSON.stringify(body) }),
      signal,
    })
    if (response.ok) return read(response)
    throw refusal(response, await response.text())
  }

  /** Undefined: longer than it is waited here. */
  #waitOf({ retryAfterMs }: RefrainError, n: number): number | undefined {
    const { backoffMs = BACKOFF_MS, longestWaitMs = LONGEST_WAIT_MS } = this.#options
    // Half of it by chance, so that those who were refused together do not come again together.
    const backoff = backoffMs * 2 ** n * (0.5 + Math.random() / 2)
    const wait = Math.max(backoff, retryAfterMs ?? 0)
    return wait > longestWaitMs ? undefined : wait
  }
}

/** `wasCut`: an earlier try broke off, and what it began may still be ending. */
function mayRepeat({ status, code, isRetryable, cause }: RefrainError, { again }: Call, wasCut: boolean): boolean {
  if (isRetryable === false && !(status === 409 && wasCut && again === 'twice')) return false
  if (status === 429) return true
  if (again === 'refused') {
    const wasNeverSent = code === 'unreachable' && causeCode(cause) === 'ECONNREFUSED'
    return wasNeverSent || (status === 503 && isRetryable === true)
  }
  return code === 'unreachable' || status >= 500 || status === 409
}

function causeCode(error: unknown): unknown {
  const { code, cause } = (error ?? {}) as { code?: unknown; cause?: unknown }
  return code ?? (cause === undefined ? undefined : causeCode(cause))
}

/** What was thrown, as the caller is told of it. */
function failureOf(
  error: unknown,
  asked: AbortSignal | undefined,
  limits: Limits,
  code: 'unreachable' | 'cut_off',
): unknown {
  if (asked?.aborted) return asked.reason
  if (limits.isOver) {
    const message = `nothing came for ${limits.timeoutMs} ms`
    return new RefrainError({ status: 0, code: 'timeout', message })
  }
  if (error instanceof RefrainError) return error
  const cause = error instanceof Error ? ((error.cause as Error | undefined) ?? error) : undefined
  const what = code === 'unreachable' ? 'no answer came' : 'the stream broke off'
  return new RefrainError({ status: 0, code, message: `${what}: ${cause?.message ?? String(error)}`, cause: error })
}

/** The caller's signal and a time limit, as one signal. */
class Limits {
  readonly timeoutMs: number
  isOver = false
  readonly #stop = new AbortController()
  readonly #asked: AbortSignal | undefined
  readonly #onAbort = () => this.#stop.abort(this.#asked?.reason)
  #timer: ReturnType<typeof setTimeout> | undefined

  constructor({ signal, timeoutMs = TIMEOUT_MS }: CallOptions) {
    this.timeoutMs = timeoutMs
    this.#asked = signal
    if (signal?.aborted) this.#onAbort()
    else signal?.addEventListener('abort', this.#onAbort, { once: true })
  }

  get signal(): AbortSignal {
    return this.#stop.signal
  }

  /** The wait begins anew. */
  alive(): void {
    this.rest()
    this.#timer = setTimeout(() => {
      this.isOver = true
      this.#stop.abort(new Error('timeout'))
    }, this.timeoutMs)
  }

  /** Nothing is waited for. */
  rest(): void {
    clearTimeout(this.#timer)
  }

  end(): void {
    this.rest()
    this.#asked?.removeEventListener('abort', this.#onAbort)
    this.#stop.abort(new Error('over'))
  }
}

function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const onAbort = () => {
      clearTimeout(timer)
      reject(signal?.reason)
    }
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', onAbort)
      resolve()
    }, ms)
    if (signal?.aborted) onAbort()
    else signal?.addEventListener('abort', onAbort, { once: true })
  })
}
