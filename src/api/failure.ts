// Errors on their way to a client that has got no byte yet: the status, Retry-After and x-should-retry of the catalogue,
// the body of OpenAI's shape or of the API's own whose path or client it is. Invariant: whatever fastify or the parser of
// HTTP itself refuses looks the same.

import type { Socket } from 'node:net'
import type { FastifyError, FastifyReply, FastifyRequest } from 'fastify'
import { ERRORS, isRetryable, RefrainError } from '../core/errors.js'
import { note } from '../core/signals.js'
import type { Dialect } from './dialect/contract.js'
import * as dialects from './dialect/index.js'
import { asRefrainError, errorBody } from './dialect/openai-shape.js'

export function sendFailure(error: unknown, reply: FastifyReply): void {
  const known = asRefrainError(error)
  reply.code(known.status).headers(retryHeaders(known))
  const own = dialectOf(reply.request)?.errors
  const body = own === undefined ? errorBody(known) : own.body(known, String(reply.getHeader('x-request-id') ?? ''))
  reply.type('application/json; charset=utf-8').send(body)
}

/** Whose request it is: by its path, which may go on (`/v1/messages/count_tokens`), or by what its client sends. */
function dialectOf({ url, headers }: FastifyRequest): Dialect | undefined {
  const all = Object.values(dialects) as Dialect[]
  const path = url.split('?')[0] ?? ''
  return (
    all.find((dialect) => path === dialect.path || path.startsWith(`${dialect.path}/`)) ??
    all.find(({ errors }) => errors !== undefined && headers[errors.header] !== undefined)
  )
}

/** What clients' retry loops look at. https://github.com/openai/openai-node (x-should-retry, retry-after-ms) */
export function retryHeaders(error: RefrainError): Record<string, string> {
  const { retryAfterMs } = error
  return {
    'x-should-retry': String(isRetryable(error)),
    ...(retryAfterMs === undefined
      ? {}
      : { 'retry-after': String(Math.ceil(retryAfterMs / 1000)), 'retry-after-ms': String(Math.ceil(retryAfterMs)) }),
  }
}

/** A RefrainError in place of what fastify throws; anything else that is no caller's fault is said to the log. */
export function translate(error: unknown, bodyBytes: number): RefrainError {
  if (error instanceof RefrainError) return error
  const { code, statusCode, message } = error as Partial<FastifyError>
  if (code === 'FST_ERR_CTP_BODY_TOO_LARGE') {
    return new RefrainError('body_too_large', `the body is larger than ${bodyBytes} bytes (limits.bodyBytes)`)
  }
  if (code === 'FST_ERR_CTP_INVALID_MEDIA_TYPE') {
    return new RefrainError('unsupported_media_type', ERRORS.unsupported_media_type.sentence)
  }
  if (statusCode !== undefined && statusCode >= 400 && statusCode < 500) {
    return new RefrainError('invalid_request', message ?? 'the request is malformed')
  }
  return reportFault(error)
}

/** Says a fault of our own to the log, and gives what the client is told. */
export function reportFault(error: unknown): RefrainError {
  const stack = error instanceof Error ? error.stack : String(error)
  note.publish({ level: 'error', text: 'a request failed by a fault of the server', detail: { stack } })
  return asRefrainError(error)
}

/** Answers what is no HTTP at all, too large a head, or a body that does not arrive in time; then closes. */
export function refuseSocket(error: Error & { code?: string }, socket: Socket): void {
  if (error.code === 'ECONNRESET' || !socket.writable) {
    socket.destroy()
    return
  }
  const [status, message] =
    error.code === 'HPE_HEADER_OVERFLOW'
      ? ['431 Request Header Fields Too Large', 'the headers are larger than 16 KiB']
      : error.code === 'ERR_HTTP_REQUEST_TIMEOUT'
        ? ['408 Request Timeout', 'the request did not arrive within limits.receiveMs']
        : ['400 Bad Request', 'this is no valid HTTP request']
  const body = errorBody(new RefrainError('invalid_request', message))
  socket.end(
    `HTTP/1.1 ${status}\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`,
  )
}
