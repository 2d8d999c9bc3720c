// Which session a request is a turn of: the one that its client names, else the one whose prompt it continues. Names are
// digests here: what clients send as a session may be anything, and is kept on disk. Invariant: nothing is changed.

import { hash } from 'node:crypto'
import type { RouteQuery } from './contract.js'
import type { SegmentMatch } from './segment-index.js'
import type { Session, SessionTable } from './session-table.js'

export interface Identity {
  /** A title, a summary: it is no turn, and leaves the session where it is. */
  readonly isSide: boolean
  readonly session: Session | undefined
  /** Of the session that is to be made where there is none; undefined: none is. */
  readonly key: string | undefined
  /** Where the session lives that this one was started from, by its member's id. */
  readonly parent: string | undefined
}

/** Where equal hashes are equal prompts: one model, one salt. */
export function scopeOf({ model, salt }: RouteQuery): string {
  return digest(`${model}\0${salt}`)
}

/** What all keys of one session begin with, whatever its model and salt. */
export function sessionPrefix(tenant: string, session: string): string {
  return `${digest(`${tenant}\0${session}`)} `
}

/** Names the head of a prompt, for all that share it; without a head, the prompt's own beginning. */
export function headOf(query: RouteQuery): string {
  const { segments, id } = query
  return `${scopeOf(query)} ${segments.hashes[Math.max(0, segments.head - 1)] ?? id}`
}

export function identify(
  query: RouteQuery,
  { sessions, match, now }: { sessions: SessionTable; match: SegmentMatch<Session>; now: number },
): Identity {
  const { tenant, session, parentSession, requestClass, segments } = query
  const isSide = requestClass === 'auxiliary' || requestClass === 'compaction'
  const keyOf = (name: string) => `${sessionPrefix(tenant, name)}${scopeOf(query)}`
  const parent = parentSession === undefined ? undefined : sessions.get(keyOf(parentSession), now)?.member
  if (session !== undefined) {
    const key = keyOf(session)
    return { isSide, session: sessions.get(key, now), key, parent }
  }
  const followed = follow(query, match, sessions)
  const tail = segments.hashes.at(-1)
  const own = isSide || tail === undefined ? undefined : `${scopeOf(query)} ${tail}`
  return { isSide, session: followed, key: followed?.key ?? own, parent }
}

/**
 * The session whose last prompt is the longest front of this one. Where the same conversations are held again, prompts of
 * before the router's start are known too, and longer: who spoke since comes first.
 */
function follow({ segments }: RouteQuery, match: SegmentMatch<Session>, sessions: SessionTable): Session | undefined {
  let longest: { readonly depth: number; readonly owner: Session } | undefined
  let recalled: Session | undefined
  for (const each of match.owners) {
    const { owner, depth } = each
    if (!sessions.has(owner)) continue
    longest ??= each
    if (segments.hashes[depth - 1] !== owner.tail) continue
    if (owner.turns > 0) return owner
    recalled ??= owner
  }
  if (recalled !== undefined || longest === undefined) return recalled
  const { owner, depth } = longest
  // Clients rewrite their last messages; somebody who goes on from far behind, or meanwhile, is another.
  const shared = segments.tokens[depth - 1] ?? 0
  const head = segments.tokens[segments.head - 1] ?? 0
  return owner.inFlight === 0 && shared - head >= (owner.tokens - head) / 2 ? owner : undefined
}

/** Of a model's scope, of a session's name: the same few come again and again. */
function digest(text: string): string {
  let known = digests.get(text)
  if (known === undefined) {
    known = hash('sha256', text, 'base64url').slice(0, 22)
    if (digests.size >= MOST_DIGESTS) digests.clear()
    if (text.length <= LONGEST_TEXT) digests.set(text, known)
  }
  return known
}

const digests = new Map<string, string>()
const MOST_DIGESTS = 10_000
const LONGEST_TEXT = 512
