// An HTTP server on 127.0.0.1 that serves one file and misbehaves on command, for tests of pulling.

import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

/** Answers one request in place of the default; true: it did. */
export type Trick = (request: IncomingMessage, response: ServerResponse) => boolean

export interface WeightsServer {
  /** Ends without a slash. */
  readonly url: string
  /** `GET /path` with its Range in brackets, in order of arrival. */
  readonly requests: readonly string[]
  /** What the next requests meet, one trick each; afterwards the server behaves. */
  readonly tricks: Trick[]
  /** What is served, and the ETag that says so. */
  body: Uint8Array
  etag: string | undefined
  close(): Promise<void>
}

/** Serves `body` at every path with ranges, If-Range and an ETag. */
export async function serveWeights(body: Uint8Array): Promise<WeightsServer> {
  const requests: string[] = []
  const tricks: Trick[] = []
  const server = createServer((request, response) => {
    const range = request.headers.range
    requests.push(`${request.method} ${request.url}${range === undefined ? '' : ` [${range}]`}`)
    if (tricks.shift()?.(request, response) !== true) answer(request, response, weights)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const weights: WeightsServer = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests,
    tricks,
    body,
    etag: '"v1"',
    async close() {
      server.closeAllConnections()
      server.close()
      await once(server, 'close')
    },
  }
  return weights
}

function answer(request: IncomingMessage, response: ServerResponse, { body, etag }: WeightsServer): void {
  if (etag !== undefined) response.setHeader('etag', etag)
  const start = Number(/^bytes=(\d+)-$/.exec(request.headers.range ?? '')?.[1] ?? Number.NaN)
  const unchanged = request.headers['if-range'] === undefined || request.headers['if-range'] === etag
  if (Number.isNaN(start) || !unchanged) {
    response.writeHead(200, { 'content-length': body.length }).end(body)
    return
  }
  if (start >= body.length) {
    response.writeHead(416, { 'content-range': `bytes */${body.length}` }).end()
    return
  }
  const range = `bytes ${start}-${body.length - 1}/${body.length}`
  response.writeHead(206, { 'content-range': range, 'content-length': body.length - start }).end(body.subarray(start))
}

/** Answers with this status and nothing else. */
export function status(code: number, headers: Record<string, string> = {}): Trick {
  return (_request, response) => {
    response.writeHead(code, headers).end()
    return true
  }
}

/** Sends the head and `bytes` bytes of the body, then breaks the connection, or goes silent. */
export function stopAfter(server: WeightsServer, bytes: number, how: 'break' | 'hang' = 'break'): Trick {
  return (_request, response) => {
    const headers: Record<string, string> = { 'content-length': String(server.body.length) }
    if (server.etag !== undefined) headers['etag'] = server.etag
    response.writeHead(200, headers)
    response.write(server.body.subarray(0, bytes), () => {
      // The bytes are on their way before the connection ends.
      if (how === 'break') setTimeout(() => response.destroy(), 20)
    })
    return true
  }
}
