// Names of what a log holds. Random, so that nobody can guess another's and none says when or where it was made.

import { randomBytes } from 'node:crypto'

/** `ses_` and 32 hex digits. */
export function newSessionId(): string {
  return `ses_${randomBytes(16).toString('hex')}`
}

/** `evt_` and 32 hex digits. */
export function newEventId(): string {
  return `evt_${randomBytes(16).toString('hex')}`
}
