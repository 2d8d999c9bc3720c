// A request that is sent on and its answer, whoever reads the one off its connection and writes the other to it: Node's
// server, or front.ts. Invariant: a body is told once, whole, and never longer than the limit that it is asked with.

import type { IncomingMessage } from 'node:http'
import { RefrainError } from '../core/errors.js'
import { ClientGone } from './answer.js'
import type { RequestHeaders } from './session-signal.js'

/** A request whose head came. */
export interface Inbound {
  readonly method: string
  /** With the query. */
  readonly url: string
  readonly headers: RequestHeaders
  /** Whether all of it came. */
  readonly complete: boolean
  /** @throws RefrainError `body_too_large`; ClientGone. */
  body(limit: number): Buffer | Promise<Buffer>
}

/** Its answer: of Node's ServerResponse, what is used. */
export interface Outbound {
  readonly headersSent: boolean
  readonly destroyed: boolean
  readonly writableEnded: boolean
  readonly writableFinished: boolean
  /** Bytes that wait for the client to read. */
  readonly writableLength: number
  /** Set to false by who frames chunks himself. */
  chunkedEncoding: boolean
  /** A list has names and values in turns. */
  writeHead(status: number, headers: string[] | Record<string, string | number>): unknown
  /** False: it has to wait. */
  write(bytes: Buffer | string): boolean
  end(bytes?: Buffer | string): unknown
  destroy(): unknown
  once(event: 'close', listener: () => void): unknown
}

/** A request that Node's server reads. */
export function inboundOf(request: IncomingMessage): Inbound {
  return {
    method: request.method ?? 'GET',
    url: request.url ?? '/',
    headers: request.headers,
    get complete() {
      return request.complete
    },
    body: (limit) => bodyOf(request, limit),
  }
}

export function bodyTooLarge(limit: number): RefrainError {
  return new RefrainError('body_too_large', `the body is larger than ${limit} bytes (limits.bodyBytes)`)
}

function bodyOf(request: IncomingMessage, limit: number): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const length = Number(request.headers['content-length'])
    if (length > limit) return reject(bodyTooLarge(limit))
    const parts: Buffer[] = []
    let bytes = 0
    request.on('data', (chunk: Buffer) => {
      bytes += chunk.length
      if (bytes > limit) {
        reject(bodyTooLarge(limit))
        request.removeAllListeners('data').resume()
        return
      }
      parts.push(chunk)
    })
    request.once('end', () => resolve(parts.length === 1 ? (parts[0] as Buffer) : Buffer.concat(parts)))
    request.once('error', () => reject(new ClientGone()))
  })
}
