// Faults of a caller that every store finds in its own way, in the same words.

import { RefrainError } from '../../core/errors.js'

export function forksStand(session: string, forks: readonly string[]): RefrainError {
  const some = forks.slice(0, 3).join(', ')
  return new RefrainError('conflict', `session '${session}' has forks that rest on it (${some}); erase them first`)
}

export function noSuchPlace(session: string, position: number, at: number): RefrainError {
  return new RefrainError('invalid_request', `session '${session}' ends at position ${position}, before ${at}`, {
    param: 'at',
  })
}

/** Of a tenant's erased sessions, those that are told apart from sessions that never were: the latest. */
export const TOMBS = 10_000

export function wasErased(session: string): RefrainError {
  return new RefrainError('erased', `session '${session}' was erased`)
}
