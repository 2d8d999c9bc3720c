// The one catalogue of what can go wrong for a caller. A dialect turns an entry into its own shape; docs/api.md lists
// them; a test ties the three together. A cache fault is a miss and never appears here; our own faults are crashes.

interface CatalogueEntry {
  readonly status: number
  readonly retryable: boolean
  readonly sentence: string
}

export const ERRORS = {
  invalid_json: { status: 400, retryable: false, sentence: 'The body is not valid JSON.' },
  invalid_request: { status: 400, retryable: false, sentence: 'A field has a wrong type or value.' },
  unsupported_parameter: {
    status: 400,
    retryable: false,
    sentence: 'A known parameter that this server cannot honour.',
  },
  invalid_grammar: { status: 400, retryable: false, sentence: 'The schema or regex cannot be compiled.' },
  template_failed: { status: 400, retryable: false, sentence: "The model's chat template refuses these messages." },
  reasoning_missing: {
    status: 400,
    retryable: false,
    sentence: 'The model needs the reasoning of earlier turns, which did not come back and is not kept here.',
  },
  context_length_exceeded: { status: 400, retryable: false, sentence: 'The prompt does not fit the context window.' },
  unauthorized: { status: 401, retryable: false, sentence: 'An API key is needed and was absent or wrong.' },
  forbidden: { status: 403, retryable: false, sentence: 'This key, host or origin may not do that.' },
  not_found: { status: 404, retryable: false, sentence: 'No such route or object.' },
  conflict: { status: 409, retryable: false, sentence: 'The session does not stand where the request says.' },
  erased: { status: 410, retryable: false, sentence: 'It was erased and cannot be read again.' },
  context_mismatch: {
    status: 409,
    retryable: false,
    sentence: 'What would be sent is not what the log compiles to.',
  },
  source_revoked: {
    status: 403,
    retryable: false,
    sentence: 'It rests on a source that the tenant may no longer see.',
  },
  compaction_rejected: {
    status: 422,
    retryable: false,
    sentence: 'No compaction that the policy allows made a context that passes its checks.',
  },
  memory_limit: { status: 400, retryable: false, sentence: 'The value is longer than the memory block may be.' },
  session_limit: {
    status: 400,
    retryable: false,
    sentence: 'The session has as many events or bytes as the config allows.',
  },
  storage_failed: {
    status: 503,
    retryable: true,
    sentence: 'The session log cannot be written, or is full, or cached blocks cannot be erased now.',
  },
  log_damaged: { status: 500, retryable: false, sentence: 'What the session log holds there is not what was written.' },
  model_not_found: { status: 404, retryable: false, sentence: 'No model has that name, and no alias matches it.' },
  method_not_allowed: { status: 405, retryable: false, sentence: 'The route exists, but not with this method.' },
  body_too_large: { status: 413, retryable: false, sentence: 'The body is larger than limits.bodyBytes.' },
  unsupported_media_type: { status: 415, retryable: false, sentence: 'The content type must be application/json.' },
  queue_full: { status: 429, retryable: true, sentence: 'limits.queuedRequests are waiting already.' },
  rate_limited: {
    status: 429,
    retryable: true,
    sentence: "The tenant's requests or tokens of this minute are used up.",
  },
  no_room: { status: 429, retryable: true, sentence: 'A side request found no room that it may take.' },
  out_of_memory: { status: 503, retryable: true, sentence: 'The working set cannot hold this sequence now.' },
  slow_reader: { status: 408, retryable: false, sentence: 'The client reads slower than limits.unsentBytes allows.' },
  queue_timeout: { status: 503, retryable: true, sentence: 'The request waited longer than limits.queueMs.' },
  draining: { status: 503, retryable: true, sentence: 'The server is shutting down.' },
  engine_failed: { status: 500, retryable: true, sentence: 'The engine failed; it is being restarted.' },
  internal: { status: 500, retryable: false, sentence: 'A fault of the server itself; the log has the details.' },
} as const satisfies Record<string, CatalogueEntry>

export type ErrorCode = keyof typeof ERRORS

/** Of a retryable error that does not say more. */
const RETRY_AFTER_MS = 1000

/** A caller's fault, or a state that the caller must know. `param` names the field, `retryAfterMs` goes to Retry-After. */
export class RefrainError extends Error {
  readonly code: ErrorCode
  readonly param: string | undefined
  readonly retryAfterMs: number | undefined

  constructor(code: ErrorCode, message: string, more: { param?: string; retryAfterMs?: number; cause?: unknown } = {}) {
    super(message, { cause: more.cause })
    this.name = 'RefrainError'
    this.code = code
    this.param = more.param
    // Some clients give up where they are not told when to come again.
    this.retryAfterMs = more.retryAfterMs ?? (ERRORS[code].retryable ? RETRY_AFTER_MS : undefined)
  }

  get status(): number {
    return ERRORS[this.code].status
  }
}

/** Whether a caller may try the same again. */
export function isRetryable(error: unknown): boolean {
  return error instanceof RefrainError && ERRORS[error.code].retryable
}
