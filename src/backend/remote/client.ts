// The connections to one server: plain HTTP over our own (connections.ts), TLS over undici's. The only file that imports
// undici. Invariant: an exchange that is aborted says nothing more, and its connection is closed, so that the server sees
// the client leave.

import { readFileSync } from 'node:fs'
import { type Dispatcher, Pool } from 'undici'
import { Connections, IDLE_MS } from './connections.js'
import { type Client, type ClientOptions, type Incoming, RemoteFault, type RemoteTls } from './contract.js'

/** Faults of a connection that came before the request could be read. */
const UNSENT = new Set([
  'ECONNREFUSED',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'UND_ERR_CONNECT_TIMEOUT',
])

/** @throws Error where a file of `tls` cannot be read. */
export function createClient(options: ClientOptions): Client {
  return options.url.protocol === 'http:' ? new Connections(options) : secureClient(options)
}

function secureClient({ url, connectMs, tls }: ClientOptions): Client {
  const pool = new Pool(url.origin, {
    connections: null,
    pipelining: 1,
    // Prefills and answers take as long as they take; whoever asks sets the limit.
    headersTimeout: 0,
    bodyTimeout: 0,
    keepAliveTimeout: IDLE_MS,
    keepAliveMaxTimeout: IDLE_MS,
    connect: { timeout: connectMs, ...tlsOptions(tls) },
  })
  const prefix = url.pathname.replace(/\/$/, '')
  return {
    send(out, into) {
      const exchange = new Exchange(into)
      const { method, headers, body } = out
      pool.dispatch({ path: prefix + out.path, method, headers, body: body ?? null }, exchange)
      return () => exchange.abort()
    },
    close: () => pool.destroy(),
  }
}

class Exchange implements Dispatcher.DispatchHandler {
  readonly #into: Incoming
  #controller: Dispatcher.DispatchController | undefined
  #done = false

  constructor(into: Incoming) {
    this.#into = into
  }

  abort(): void {
    if (this.#done) return
    this.#done = true
    this.#controller?.abort(ABORTED)
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller
    // It waited for a connection while the client left.
    if (this.#done) controller.abort(ABORTED)
  }

  onResponseStart(
    _controller: Dispatcher.DispatchController,
    status: number,
    headers: Record<string, string | string[] | undefined>,
  ): void {
    if (!this.#done && status >= 200) this.#into.head(status, headers)
  }

  onResponseData(_controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (!this.#done) this.#into.data(chunk)
  }

  onResponseEnd(): void {
    if (this.#done) return
    this.#done = true
    this.#into.end()
  }

  onResponseError(_controller: Dispatcher.DispatchController, error: Error): void {
    if (this.#done) return
    this.#done = true
    this.#into.fail(faultOf(error))
  }
}

const ABORTED = new Error('the exchange was ended')

function faultOf(error: Error): RemoteFault {
  const code = codeOf(error)
  return new RemoteFault(error.message || code || 'the connection failed', {
    sent: !UNSENT.has(code ?? ''),
    code,
    cause: error,
  })
}

/** Node tries every address of a name and gathers what each said. */
function codeOf(error: Error): string | undefined {
  const { code, errors } = error as { code?: string; errors?: readonly { code?: string }[] }
  return errors?.[0]?.code ?? code
}

function tlsOptions(tls: RemoteTls | undefined) {
  if (tls === undefined) return {}
  const { ca, cert, key, serverName, verify } = tls
  return {
    ...(ca !== undefined && { ca: readFileSync(ca) }),
    ...(cert !== undefined && { cert: readFileSync(cert) }),
    ...(key !== undefined && { key: readFileSync(key) }),
    ...(serverName !== undefined && { servername: serverName }),
    ...(verify !== undefined && { rejectUnauthorized: verify }),
  }
}
