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
  const text = `${model}\0${salt}`
  let scope = scopes.get(text)
  if (scope === undefined) {
    if (scopes.size >= MAX_SCOPES) scopes.clear()
    scope = digest(text)
    scopes.set(text, scope)
  }
  return scope
}

const scopes = new Map<string, string>()
const MAX_SCOPES = 10_000

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
  const live = match.owners.filter(({ owner }) => sessions.has(owner))
  const exact = live.filter(({ owner, depth }) => segments.hashes[depth - 1] === owner.tail)
  const found = exact.find(({ owner }) => owner.turns > 0) ?? exact[0]
  if (found !== undefined) return found.owner
  const [longest] = live
  if (longest === undefined) return undefined
  const { owner, depth } = longest
  // Clients rewrite their last messages; somebody who goes on from far behind, or meanwhile, is another.
  const shared = segments.tokens[depth - 1] ?? 0
  const head = segments.tokens[segments.head - 1] ?? 0
  return owner.inFlight === 0 && shared - head >= (owner.tokens - head) / 2 ? owner : undefined
}

function digest(text: string): string {
  return hash('sha256', text, 'base64url').slice(0, 22)
}
