// The members of a body that make it a turn of a logged session, the same in every dialect. Invariant: with them a body
// brings only what is new, so there may be no messages at all.

import type { LoggedAsk } from '../../core/request.js'
import type { RawBody } from './contract.js'
import { custom, integer, invalid, kindOf, oneOf, type Reading, readFields, readingOf } from './fields.js'

const ID = /^ses_[0-9a-f]{32}$/

export const sessionFields = {
  session: custom<string>(
    {
      type: 'string',
      pattern: ID.source,
      description: 'A session of /v1/sessions: the body brings only what is new, and the answer is logged there.',
    },
    (value, path) => {
      if (typeof value === 'string' && ID.test(value)) return value
      const shown = typeof value === 'string' ? `'${value.slice(0, 48)}'` : kindOf(value)
      throw invalid(path, `must be the id of a session, 'ses_' and 32 hex digits, not ${shown}`)
    },
  ),
  expected_position: integer({ min: 0 }, "Where the session's log must stand; else it is a conflict."),
  apply: oneOf(
    ['append', 'boundary', 'now'],
    "What becomes of tools and system text that are not the session's: told behind the history, kept for the next boundary, or at once. Absent: they are refused.",
  ),
}

/** Whether the body that is read is a turn of a logged session. */
export function isLogged({ raw }: Reading): boolean {
  const sent = raw.at(['session'])
  return sent !== undefined && sent !== 'null'
}

const KEY_CHARS = 200

/** Undefined: no session is named. `key`: an Idempotency-Key header. @throws RefrainError that names the field. */
export function loggedIn(
  { value, text }: RawBody,
  key: string | string[] | undefined,
): { readonly session: string; readonly logged: LoggedAsk } | undefined {
  const { session = null, expected_position = null, apply = null } = value
  if (session === null) return undefined
  const read = readFields(sessionFields, { session, expected_position, apply }, '', readingOf(text, 1))
  if (read.session === undefined) return undefined
  if (typeof key === 'string' && key.length > KEY_CHARS) {
    throw invalid('idempotency-key', `must have at most ${KEY_CHARS} characters`)
  }
  return {
    session: read.session,
    logged: {
      ...(read.expected_position !== undefined && { expected: read.expected_position }),
      ...(read.apply !== undefined && { apply: read.apply }),
      ...(typeof key === 'string' && key !== '' && { key }),
    },
  }
}
