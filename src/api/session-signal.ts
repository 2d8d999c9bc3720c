// Whose turn a request is: the session's key from what clients send of their own accord, headers first, then the body.
// Invariant: a signal names a conversation, never a single request (x-client-request-id and previous_response_id are no
// signals), and it is a hint: content decides what is reused. Step 2 of a request's path.

import { createHash } from 'node:crypto'

export type RequestHeaders = Readonly<Record<string, string | string[] | undefined>>
type Body = Readonly<Record<string, unknown>>

export interface SessionSignal {
  readonly session?: string
  /** The session that a sub-agent was started from. */
  readonly parentSession?: string
}

/** Headers by name, fields of the body as `body:path.to.field`; the first that holds something counts. */
export const DEFAULT_SIGNALS: readonly string[] = [
  'x-refrain-session',
  'x-claude-code-session-id',
  'body:metadata.user_id',
  // Codex: root and sub-agents share session-id, each has a thread of its own.
  'thread-id',
  'session-id',
  'session_id',
  'x-session-affinity',
  'x-session-id',
  'x-opencode-session',
  'x-amp-thread-id',
  'x-grok-conv-id',
  'x-openwebui-chat-id',
  'x-aibrix-session-key',
  'x-smg-routing-key',
  'body:client_metadata.thread_id',
  'body:client_metadata.session_id',
  'body:metadata.sessionId',
  'body:metadata.session_id',
  'body:prompt_cache_key',
  'body:conversation',
  'body:conversation_id',
  'body:session_id',
]

/** They change from request to request: as keys they would part what belongs together. */
const NO_SIGNALS: readonly string[] = ['x-client-request-id', 'x-request-id', 'body:previous_response_id']

/** Longer keys are replaced by their digest. */
const KEY_CHARS = 200

/** @throws Error where an entry of config `sessions.signals` cannot be one. */
export function checkSignals(signals: readonly string[]): readonly string[] {
  for (const signal of signals) {
    const form = /^(body:[^\s:]+|[a-z0-9_-]+)$/
    if (!form.test(signal)) {
      throw new Error(`sessions.signals: '${signal}' is neither a header in lower case nor body:PATH`)
    }
    if (NO_SIGNALS.includes(signal)) {
      throw new Error(`sessions.signals: '${signal}' names a single request, not a session`)
    }
  }
  return signals
}

/** What headers and body say of the session; nothing where no signal is sent. */
export function sessionSignal(
  headers: RequestHeaders,
  body: Body,
  signals: readonly string[] = DEFAULT_SIGNALS,
): SessionSignal {
  for (const signal of signals) {
    const key = signal.startsWith('body:') ? fieldKey(body, signal.slice(5)) : headerKey(headers, signal)
    if (key !== undefined) return familyOf(signal, key, headers, body)
  }
  return {}
}

/** Clients name their sub-agents in three ways; here they are one: a key of their own, and the parent's. */
function familyOf(signal: string, key: string, headers: RequestHeaders, body: Body): SessionSignal {
  const named = headerKey(headers, 'x-refrain-parent-session') ?? headerKey(headers, 'x-parent-session-id')
  if (signal === 'x-claude-code-session-id' || signal === 'body:metadata.user_id') {
    const agent = headerKey(headers, 'x-claude-code-agent-id')
    if (agent === undefined) return child(key, named)
    const parent = headerKey(headers, 'x-claude-code-parent-agent-id')
    return child(short(`${key}/${agent}`), named ?? (parent === undefined ? key : short(`${key}/${parent}`)))
  }
  if (signal === 'thread-id' || signal === 'body:client_metadata.thread_id') {
    const parent =
      headerKey(headers, 'x-codex-parent-thread-id') ??
      fieldKey(body, 'client_metadata.x-codex-parent-thread-id') ??
      headerKey(headers, 'session-id') ??
      fieldKey(body, 'client_metadata.session_id')
    return child(key, named ?? parent)
  }
  return child(key, named)
}

function child(session: string, parentSession: string | undefined): SessionSignal {
  return parentSession === undefined || parentSession === session ? { session } : { session, parentSession }
}

function headerKey(headers: RequestHeaders, name: string): string | undefined {
  const value = headers[name]
  return keyOf(Array.isArray(value) ? value[0] : value)
}

function fieldKey(body: Body, path: string): string | undefined {
  let value: unknown = body
  for (const step of path.split('.')) {
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, step)) return undefined
    value = (value as Body)[step]
  }
  if (path === 'metadata.user_id') return keyOf(sessionWithin(value))
  // Responses' `conversation` is an id or an object that has one.
  if (path === 'conversation' && typeof value === 'object') return keyOf((value as Body | null)?.['id'])
  return keyOf(value)
}

/** Claude Code packs the session into the user's id: as JSON, or before that as `..._session_<uuid>`. */
function sessionWithin(userId: unknown): unknown {
  if (typeof userId !== 'string' || userId.length > 4096) return undefined
  if (!userId.startsWith('{')) return /_session_([\w-]{8,128})$/.exec(userId)?.[1]
  try {
    return (JSON.parse(userId) as Body)['session_id']
  } catch {
    // Someone else's user id that happens to begin with a brace.
    return undefined
  }
}

function keyOf(value: unknown): string | undefined {
  if (typeof value !== 'string') return undefined
  const key = value.trim()
  return key === '' ? undefined : short(key)
}

function short(key: string): string {
  return key.length <= KEY_CHARS ? key : `sha256:${createHash('sha256').update(key).digest('hex')}`
}
