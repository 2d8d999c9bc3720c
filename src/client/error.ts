// What goes wrong, as one class: what the server says by its catalogue (docs/api.md), and what happens on the way to it.
// Invariant: whoever catches it sees whether anything was done, where it went wrong, and when to come again.

/** Codes of the client's own, beside those of the server's catalogue. */
export type ClientCode =
  /** No connection, or it broke before an answer was there. */
  | 'unreachable'
  /** No answer, or nothing more of a stream, within the time that was given. */
  | 'timeout'
  /** A stream ended before its end. What was said is in the session's log, or its turn is there as an attempt. */
  | 'cut_off'
  /** What came is no answer of a Refrain. */
  | 'not_understood'

export interface Failure {
  /** Of HTTP; 0 where there is none: the way was at fault, or it was told within a stream. */
  readonly status: number
  readonly code: string
  readonly message: string
  /** The field that is wrong. */
  readonly param?: string
  readonly retryAfterMs?: number
  /** The server says that the same may be asked again, or not; undefined: it does not say. */
  readonly isRetryable?: boolean
  /** Of a conflict: where the session's log stands now. */
  readonly position?: number
  readonly requestId?: string
  readonly cause?: unknown
}

/** Every failure but an abort, which is thrown as the signal's own reason. */
export class RefrainError extends Error {
  readonly status: number
  /** A code of the server's catalogue, or a `ClientCode`. */
  readonly code: string
  readonly param: string | undefined
  readonly retryAfterMs: number | undefined
  readonly isRetryable: boolean | undefined
  readonly position: number | undefined
  readonly requestId: string | undefined

  constructor({ message, cause, ...failure }: Failure) {
    super(message, { cause })
    this.name = 'RefrainError'
    this.status = failure.status
    this.code = failure.code
    this.param = failure.param
    this.retryAfterMs = failure.retryAfterMs
    this.isRetryable = failure.isRetryable
    this.position = failure.position
    this.requestId = failure.requestId
  }
}

/** An answer that is no 2xx. */
export function refusal(response: Response, text: string): RefrainError {
  const { status, headers } = response
  const said = errorIn(text)
  const shouldRetry = headers.get('x-should-retry')
  const retryAfterMs = retryAfterOf(headers)
  const requestId = headers.get('x-request-id')
  return new RefrainError({
    status,
    code: said?.code ?? 'not_understood',
    message: said?.message ?? `status ${status}: ${text.slice(0, 200)}`,
    ...(said?.param && { param: said.param }),
    ...(retryAfterMs !== undefined && { retryAfterMs }),
    ...(shouldRetry !== null && { isRetryable: shouldRetry === 'true' }),
    ...(requestId !== null && { requestId }),
  })
}

interface Said {
  readonly code?: string
  readonly message: string
  readonly param?: string | null
}

/** `{error: {...}}`; undefined: it is not there. */
function errorIn(text: string): Said | undefined {
  try {
    return saidIn(JSON.parse(text))
  } catch {
    // A proxy's page, or half of an answer: the status says what there is to say.
    return undefined
  }
}

export function saidIn(value: unknown): Said | undefined {
  const { error } = (value ?? {}) as { error?: unknown }
  return typeof error === 'object' && error !== null ? (error as Said) : undefined
}

/** Milliseconds, seconds, or a date. https://www.rfc-editor.org/rfc/rfc9110#field.retry-after */
function retryAfterOf(headers: Headers): number | undefined {
  const ms = Number(headers.get('retry-after-ms') ?? Number.NaN)
  if (ms >= 0) return ms
  const after = headers.get('retry-after')
  if (after === null) return undefined
  const seconds = Number(after)
  const wait = Number.isNaN(seconds) ? Date.parse(after) - Date.now() : seconds * 1000
  return Number.isNaN(wait) ? undefined : Math.max(0, wait)
}
