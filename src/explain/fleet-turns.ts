// Explains misses of a fleet, where prompts are known by the hashes of their segments and caches by what backends count.
// It is told of turns as turn-ears.ts hears them, of one router process or of all that share a port. Invariant: what a
// backend does not count is not guessed: such a turn has no miss. Bounded by turns, sessions and tenants' sessions; no text
// of a prompt.

import { type RouteSignals, routeSignals } from '../core/signals.js'
import type { RouteQuery, SegmentChain } from '../router/contract.js'
import type { ExplainOptions, MissView, Reason, SessionView, TurnArchive, TurnView, Viewer } from './contract.js'
import { causesOf } from './costs.js'
import { sentenceOf } from './sentences.js'
import type { SentTurn, SettledTurn, TurnEars } from './turn-ears.js'

export interface FleetTurns extends TurnArchive, TurnEars {
  /** Nobody will say how this one ended: its process is no more. */
  lost(key: string): void
}

export function createFleetTurns(
  options: ExplainOptions,
  signals: Pick<RouteSignals, 'turnMissed'> = routeSignals,
): FleetTurns {
  return new Turns(options, signals)
}

interface Turn {
  readonly number: number
  readonly requestId: string
  readonly at: number
  readonly model: string
  readonly requestClass: RouteQuery['requestClass']
  /** What it is compared with: the session's last main turn when it began. Undefined once that is done. */
  before: Turn | undefined
  readonly beforeId: string | undefined
  backend: string
  status: TurnView['status']
  promptTokens: number
  completionTokens: number
  cachedTokens: number | undefined
  miss: MissView | undefined
  /** Undefined once a later turn was compared with it. */
  segments: SegmentChain | undefined
}

interface Session {
  readonly key: string
  readonly tenant: string
  readonly byContent: boolean
  readonly turns: Turn[]
  last: Turn | undefined
  count: number
  promptTokens: number
  reusedTokens: number
  missedTokens: number
  compared: number
  /** What it is accounted for. */
  bytes: number
  /** Place of a change -> how often. */
  readonly changes: Map<string, { readonly reason: Reason; readonly at: number; changed: number }>
}

/** Of a session, of one of its turns, and of a segment of its last prompt, about. */
const SESSION_BYTES = 1000
const TURN_BYTES = 800
const SEGMENT_BYTES = 40
/** Turns that are under way; of more the oldest are given up, whose end was lost on its way. */
const RUNNING = 20_000
/** Sessions without a key are found by segments; of one tenant. */
const FOLLOWED = 50_000
/** Places that are counted. */
const PLACES = 32
const TOLD_FROM = 3

class Turns implements FleetTurns {
  readonly #options: ExplainOptions
  readonly #missed: RouteSignals['turnMissed']
  /** By tenant, then key; least recently used first. */
  readonly #tenants = new Map<string, Map<string, Session>>()
  /** Of all that is kept of a tenant. */
  readonly #bytes = new Map<string, number>()
  /** Tenant, salt and segment hash -> session's key. */
  readonly #followed = new Map<string, string>()
  readonly #running = new Map<string, { readonly session: Session; readonly turn: Turn }>()

  constructor(options: ExplainOptions, { turnMissed }: Pick<RouteSignals, 'turnMissed'>) {
    this.#options = options
    this.#missed = turnMissed
  }

  // --- what the path tells ---------------------------------------------------------------------------------------------

  sent(sent: SentTurn): void {
    if (this.#options.turns === 0 || this.#options.sessions === 0) return
    const begun = this.#running.get(sent.key)
    if (begun !== undefined) {
      // Another backend is tried.
      begun.turn.backend = sent.member
      begun.turn.status = 'running'
      return
    }
    const session = this.#sessionOf(sent)
    const turn: Turn = {
      number: ++session.count,
      requestId: sent.id,
      at: sent.at,
      model: sent.model,
      requestClass: sent.requestClass,
      before: session.last,
      beforeId: session.last?.requestId,
      backend: sent.member,
      status: 'running',
      promptTokens: sent.promptTokens,
      completionTokens: 0,
      cachedTokens: undefined,
      miss: undefined,
      segments: sent.segments,
    }
    session.turns.push(turn)
    if (session.turns.length > this.#options.turns) session.turns.shift()
    if (isMain(turn)) session.last = turn
    this.#account(session)
    this.#running.set(sent.key, { session, turn })
    const [oldest] = this.#running.keys()
    if (this.#running.size > RUNNING && oldest !== undefined) this.lost(oldest)
  }

  settled({ key, promptTokens, completionTokens, cachedTokens, failed }: SettledTurn): void {
    const begun = this.#running.get(key)
    if (begun === undefined) return
    const { session, turn } = begun
    turn.status = failed ? 'failed' : 'done'
    // A request that failed may be sent again: its turn stays open, and the oldest such ones are given up.
    if (failed) this.#bound()
    else this.#running.delete(key)
    if (promptTokens === undefined) return
    turn.promptTokens = promptTokens
    turn.completionTokens = completionTokens ?? 0
    turn.cachedTokens = cachedTokens
    session.promptTokens += promptTokens
    session.reusedTokens += cachedTokens ?? 0
    if (cachedTokens !== undefined) turn.miss = this.#missOf(session, turn, cachedTokens)
    session.missedTokens += turn.miss?.missedTokens ?? 0
    for (const cause of turn.miss?.causes ?? []) this.#missed.publish(cause)
    if (turn.before !== undefined && turn.before !== session.last) turn.before.segments = undefined
    if (session.last !== turn) turn.segments = undefined
    turn.before = undefined
  }

  lost(key: string): void {
    const begun = this.#running.get(key)
    if (begun === undefined) return
    begun.turn.status = 'failed'
    this.#running.delete(key)
  }

  #bound(): void {
    for (const [id, { turn }] of this.#running) {
      if (this.#running.size <= this.#options.sessions) return
      if (turn.status === 'failed') this.#running.delete(id)
    }
  }

  #sessionOf(sent: SentTurn): Session {
    const { tenant, session: named } = sent
    // Ids of one process begin alike, and are counted at their end.
    const key = named ?? this.#follow(sent) ?? `content-${sent.id.slice(-20)}`
    const sessions = this.#tenants.get(tenant) ?? new Map<string, Session>()
    this.#tenants.set(tenant, sessions)
    const session = sessions.get(key) ?? freshSession(key, tenant, named === undefined)
    sessions.delete(key)
    sessions.set(key, session)
    if (named === undefined) this.#lead(sent, key)
    return session
  }

  /** `session` has grown; others of its tenant make room for it. */
  #account(session: Session): void {
    const { tenant } = session
    const sessions = this.#tenants.get(tenant) as Map<string, Session>
    const segments = session.last?.segments?.hashes.length ?? 0
    const bytes = SESSION_BYTES + session.turns.length * TURN_BYTES + segments * SEGMENT_BYTES
    let all = (this.#bytes.get(tenant) ?? 0) + bytes - session.bytes
    session.bytes = bytes
    for (const [key, oldest] of sessions) {
      const fits = sessions.size <= this.#options.sessions && all <= this.#options.memoryBytes
      if (fits || oldest === session) break
      sessions.delete(key)
      all -= oldest.bytes
      oldest.bytes = 0
    }
    this.#bytes.set(tenant, all)
  }

  /** The session that said the most of this before; a head alone is shared by many. */
  #follow(sent: SentTurn): string | undefined {
    const { hashes, head } = sent.segments
    for (let i = hashes.length - 1; i >= head; i--) {
      const found = this.#followed.get(placeKey(sent, hashes[i] as string))
      if (found !== undefined) return found
    }
    return undefined
  }

  #lead(sent: SentTurn, key: string): void {
    const { hashes, head } = sent.segments
    for (const hash of hashes.slice(Math.max(head, hashes.length - 3))) {
      const place = placeKey(sent, hash)
      this.#followed.delete(place)
      this.#followed.set(place, key)
    }
    for (const place of this.#followed.keys()) {
      if (this.#followed.size <= FOLLOWED) return
      this.#followed.delete(place)
    }
  }

  // --- why ---------------------------------------------------------------------------------------------------------------

  #missOf(session: Session, turn: Turn, cachedTokens: number): MissView | undefined {
    const { before, promptTokens } = turn
    const usage = { working: 0, memory: cachedTokens, disk: 0, computed: promptTokens - cachedTokens }
    if (before === undefined) {
      const missedTokens = promptTokens - cachedTokens
      if (missedTokens === 0) return undefined
      const causes = [{ reason: 'first_seen', missedTokens } as const]
      return { reason: 'first_seen', missedTokens, sentence: sentenceOf('first_seen', undefined), causes }
    }
    const [now, then] = [turn.segments, before.segments]
    if (now === undefined || then === undefined) return undefined
    session.compared++
    const change = changeBetween({ turn, before, now, then })
    const perSegmentToken = promptTokens / Math.max(1, now.tokens.at(-1) ?? promptTokens)
    const shared =
      change === undefined ? before.promptTokens : Math.floor((now.tokens[change.at - 1] ?? 0) * perSegmentToken)
    const cache: Reason = turn.backend === before.backend ? 'evicted' : 'other_backend'
    const spending = { kept: before.promptTokens, promptTokens, shared, usage }
    const causes = causesOf(spending, { prompt: change?.reason ?? cache, cache })
    const [dearest] = causes
    if (dearest === undefined) return undefined
    const { reason } = dearest
    const place = change !== undefined && reason === change.reason ? change.place : undefined
    const repeats = change && this.#repeated(session, change)
    return {
      reason,
      missedTokens: causes.reduce((sum, cause) => sum + cause.missedTokens, 0),
      sentence: sentenceOf(reason, undefined) + (place === undefined ? '' : `: ${place}`),
      comparedWith: before.number,
      causes,
      ...(repeats && { repeats }),
    }
  }

  #repeated({ changes, compared }: Session, { reason, at, place }: Change) {
    const name = `${reason} ${at}`
    const known = changes.get(name) ?? { reason, at, changed: 0 }
    known.changed++
    changes.delete(name)
    changes.set(name, known)
    const [oldest] = changes.keys()
    if (changes.size > PLACES && oldest !== undefined) changes.delete(oldest)
    if (known.changed < TOLD_FROM) return undefined
    const { changed } = known
    return { changed, compared, sentence: `${place} changed in ${changed} of ${compared} turns` }
  }

  // --- what routes ask ---------------------------------------------------------------------------------------------------

  sessions(viewer: Viewer): readonly SessionView[] {
    const all = viewer.admin ? [...this.#tenants.values()] : [this.#tenants.get(viewer.name)]
    const views = all.flatMap((sessions) => [...(sessions?.values() ?? [])]).map(sessionView)
    return views.sort((a, b) => b.at - a.at)
  }

  session(viewer: Viewer, key: string, tenant?: string): SessionView | undefined {
    const found = this.#find(viewer, key, tenant)
    return found && sessionView(found)
  }

  turns(viewer: Viewer, key: string, tenant?: string): readonly TurnView[] | undefined {
    return this.#find(viewer, key, tenant)?.turns.map(turnView)
  }

  /** What a backend holds is known to the router alone. */
  *prefixes(): ReturnType<TurnArchive['prefixes']> {}

  turn(viewer: Viewer, key: string, which: { readonly turn: number; readonly tenant?: string }) {
    const turn = this.#find(viewer, key, which.tenant)?.turns.find(({ number }) => number === which.turn)
    return turn && { turn: turnView(turn), segments: [] }
  }

  compare(tenant: string, { id, previousId }: { readonly id: string; readonly previousId: string }) {
    const all = [...(this.#tenants.get(tenant)?.values() ?? [])].flatMap(({ turns }) => turns)
    const current = all.find(({ requestId }) => requestId === id)
    if (!all.some(({ requestId }) => requestId === previousId)) return 'previous_not_found'
    if (current?.cachedTokens === undefined || current.beforeId !== previousId) return 'unknown'
    const { miss } = current
    return miss === undefined ? 'none' : { reason: miss.reason, missedTokens: miss.missedTokens }
  }

  #find(viewer: Viewer, key: string, tenant: string | undefined): Session | undefined {
    const own = this.#tenants.get(viewer.name)?.get(key)
    if (!viewer.admin) return tenant === undefined || tenant === viewer.name ? own : undefined
    if (tenant !== undefined) return this.#tenants.get(tenant)?.get(key)
    return own ?? [...this.#tenants.values()].map((sessions) => sessions.get(key)).find((each) => each !== undefined)
  }
}

function isMain({ requestClass }: Turn): boolean {
  return requestClass === 'main' || requestClass === 'subagent'
}

function placeKey({ tenant, salt }: SentTurn, hash: string): string {
  return `${tenant}\n${salt}\n${hash}`
}

function freshSession(key: string, tenant: string, byContent: boolean): Session {
  const counts = { bytes: 0, count: 0, promptTokens: 0, reusedTokens: 0, missedTokens: 0, compared: 0 }
  return { key, tenant, byContent, turns: [], last: undefined, ...counts, changes: new Map() }
}

interface Change {
  readonly reason: Reason
  /** Of the first segment that differs. */
  readonly at: number
  /** In words. */
  readonly place: string
}

interface Compared {
  readonly turn: Turn
  readonly before: Turn
  readonly now: SegmentChain
  readonly then: SegmentChain
}

/** Undefined: the prompt goes on from the one before. */
function changeBetween({ turn, before, now, then }: Compared): Change | undefined {
  if (turn.model !== before.model) return { reason: 'model_changed', at: 0, place: 'the model' }
  const most = Math.min(now.hashes.length, then.hashes.length)
  let at = 0
  while (at < most && now.hashes[at] === then.hashes[at]) at++
  if (at === then.hashes.length) return undefined
  const [parts, old] = [now.parts ?? [], then.parts ?? []]
  if (parts[at] === 'tools' || old[at] === 'tools') return { reason: 'tools_changed', at, place: 'the tools' }
  if (at < now.head || at < then.head) return { reason: 'system_changed', at, place: 'the system prompt' }
  const message = at - parts.length
  if (at === now.hashes.length) {
    const removed = then.hashes.length - at
    const place = `${removed === 1 ? 'the last message is' : `the last ${removed} messages are`} gone`
    return { reason: 'messages_changed', at, place }
  }
  return { reason: 'messages_changed', at, place: `message ${message}` }
}

function sessionView(session: Session): SessionView {
  const { key, tenant, byContent, count, promptTokens, reusedTokens, missedTokens, changes, compared } = session
  const repeats = [...changes.values()]
    .filter(({ changed }) => changed >= TOLD_FROM)
    .map(({ reason, at, changed }) => {
      return { reason, changed, sentence: `segment ${at} of the prompt changed in ${changed} of ${compared} turns` }
    })
  return {
    ...{ session: key, tenant, byContent, turns: count, promptTokens, reusedTokens, missedTokens },
    at: session.turns.at(-1)?.at ?? 0,
    repeats: repeats.sort((a, b) => b.changed - a.changed),
  }
}

function turnView(turn: Turn): TurnView {
  const { number, requestId, at, requestClass, model, backend, status, promptTokens, completionTokens } = turn
  const { cachedTokens, miss } = turn
  return {
    turn: number,
    ...{ requestId, at, requestClass, model, backend, template: '', status },
    ...{ promptTokens, completionTokens, committedTokens: 0 },
    ...(cachedTokens !== undefined && {
      cache: { working: 0, memory: cachedTokens, disk: 0, computed: promptTokens - cachedTokens },
    }),
    ...(miss && { miss }),
  }
}
