// Where a request goes in fleet mode: filter -> score -> pick, over what is known of each member's cache and load. All of
// the state is here and small: sessions, learned fronts, a ledger for each member. Invariant: a decision changes nothing,
// never waits and never sees text; what is lost or wrong costs hits. Step 7 of a request's path.

import type { Clock } from '../core/clock.js'
import { RefrainError } from '../core/errors.js'
import { kindNamed } from '../core/kind.js'
import type { CacheAwareRouter, Member, MemberPlacement, MemberView, RouteOutcome, RouteQuery } from './contract.js'
import {
  AFFINITY,
  depthOf,
  factorOf,
  homeOf,
  noneAble,
  Placed,
  PREFILL,
  PRESSURE,
  QUEUE,
  type ScoredCandidate,
  SLOTS,
  type SlottedScorer,
  STREAMS,
} from './decision.js'
import { Expectations, type Expected, type Known } from './expectation.js'
import { HeadTable } from './head-table.js'
import { headOf, identify, scopeOf, sessionPrefix } from './identity.js'
import { MemberBook, type MemberState } from './member-book.js'
import type { RouterOptions } from './options.js'
import { type Candidates, pick } from './pick.js'
import type { PreciseIndex } from './precise-index.js'
import { learnCache, learnRecalled } from './predictions.js'
import * as scorers from './scorer/index.js'
import type { Prospect, Scorer } from './scorer/scorer.js'
import { SegmentIndex } from './segment-index.js'
import type { SessionRecord, SessionStore } from './session-store.js'
import { type Session, SessionTable } from './session-table.js'
import type { RouterPeers, SharedBooks, Turn, TurnEnd } from './turn.js'

export interface FleetRouterParts {
  members(): readonly Member[]
  readonly clock: Clock
  /** Where sessions outlive this process; undefined: they do not. */
  readonly store?: SessionStore | undefined
  /** What members say of their caches; undefined: none is followed. */
  readonly precise?: Pick<PreciseIndex, 'state' | 'lookup'> | undefined
  /** Routers that share their books with this one; undefined: it is alone. */
  readonly peers?: RouterPeers | undefined
}

/** A router whose books others may write into. */
export interface SharedRouter extends CacheAwareRouter {
  /** A request that was sent, and waited since then for a seat in a slot of `member`'s, has it. */
  seated(query: RouteQuery, member: string): void
  readonly books: SharedBooks
}

/** @throws Error where `options.weights` names a scorer that there is not. */
export function createFleetRouter(options: RouterOptions, parts: FleetRouterParts): SharedRouter {
  return new Router(options, parts)
}

/** What a candidate is made of. */
interface Scored {
  readonly member: Member
  readonly state: MemberState
  readonly expected: Expected
  readonly rate: number
  readonly isHome: boolean | undefined
  readonly hadHead: boolean
  readonly now: number
}

interface Sent {
  readonly turn: Turn
  readonly session: Session | undefined
  readonly sentAt: number
  readonly computedBefore: number
  readonly tailAge: number | undefined
  readonly headAge: number | undefined
  started: boolean
}

class Router implements SharedRouter {
  readonly #options: RouterOptions
  readonly #parts: FleetRouterParts
  readonly #scorers: readonly SlottedScorer[]
  readonly #book = new MemberBook()
  readonly #expectations: Expectations
  readonly #sessions: SessionTable
  readonly #segments: SegmentIndex<Session>
  readonly #heads: HeadTable
  readonly #sent = new Map<string, Sent>()
  /** What scorers are shown, of one member after the other: they keep nothing. */
  readonly #prospect: { -readonly [K in keyof Prospect]: Prospect[K] } = {
    ...{ member: '', request: '', promptTokens: 0, savedTokens: 0, rate: 0 },
    ...{ waitTokens: 0, reportedQueue: 0, inFlight: 0, residentTokens: 0, isHome: undefined },
  }
  readonly books: SharedBooks = {
    sent: (turn) => void this.#take(turn, this.#parts.clock.now()),
    seated: (id) => void this.#seat(id),
    started: (id) => void this.#start(id),
    ended: (id, end) => void this.#end(id, end),
    has: (id) => this.#sent.has(id),
    released: (prefix) => void this.#releaseAll(prefix),
    emptied: (member) => this.emptied(member),
    recall: (record) => {
      if (this.#sessions.get(record.key, this.#parts.clock.now()) === undefined) this.#recall(record)
    },
  }

  constructor(options: RouterOptions, parts: FleetRouterParts) {
    this.#options = options
    this.#parts = parts
    const named = Object.entries(options.weights).map(([name, weight]) => ({
      slot: (SLOTS as readonly string[]).indexOf(name),
      weight,
      scorer: kindNamed<Scorer>(scorers, name, 'router.weights'),
    }))
    // The others are looked at one by one, whatever they weigh.
    this.#scorers = named.filter(({ slot, weight }) => slot <= AFFINITY || weight !== 0)
    this.#expectations = new Expectations(parts.precise)
    const { sessions: max, sessionTtlMs: ttlMs, activeMs, segments, segmentTtlMs } = options
    this.#sessions = new SessionTable({ max, ttlMs, activeMs }, ({ key }) => parts.store?.remove(key))
    this.#segments = new SegmentIndex({ segments, ttlMs: segmentTtlMs })
    this.#heads = new HeadTable({ max: 4096, ttlMs: segmentTtlMs })
    for (const record of parts.store?.records() ?? []) this.#recall(record)
  }

  // --- deciding ------------------------------------------------------------------------------------------------------

  place(query: RouteQuery): MemberPlacement {
    const now = this.#parts.clock.now()
    const members = this.#able(query) //                               model_not_found, engine_failed, queue_full
    const match = this.#segments.match(scopeOf(query), query.segments, now, this.#book)
    const identity = identify(query, { sessions: this.#sessions, match, now })
    const known: Known = { match, session: identity.session, precise: this.#expectations.lookup(query) }
    this.#sessions.sweep(now)
    const states: MemberState[] = []
    const expected: Expected[] = []
    for (const member of members) {
      const state = this.#book.state(member.id)
      states.push(state)
      expected.push(this.#expectations.of(query, member, known, state))
    }
    const home = homeOf(query, identity.session?.member, { members, expected })
    const parent = home === undefined ? identity.parent : undefined
    const near = home ?? parent
    const factor = factorOf(members, states)
    const candidates: ScoredCandidate[] = []
    for (let i = 0; i < members.length; i++) {
      const member = members[i] as Member
      const state = states[i] as MemberState
      const rate = state.ledger.rate ?? factor * member.rates.prefillTokensPerSecond
      const hadHead = (match.recalled.get(state.memory.index) ?? 0) > 0
      const isHome = near === undefined ? undefined : near === member.id
      candidates.push(
        this.#score(query, { member, state, expected: expected[i] as Expected, rate, isHome, hadHead, now }),
      )
    }
    const situation = { isSide: identity.isSide, home, parent, head: headOf(query) }
    const { candidate, reason } = pick(candidates as unknown as Candidates, situation, this.#options)
    const chosen = expected[members.indexOf(candidate.member)] as Expected
    return new Placed({ candidate, candidates, reason, identity, expected: chosen })
  }

  /** Members that may take it. @throws RefrainError where there are none. */
  #able({ model, excluded }: RouteQuery): readonly Member[] {
    const all = this.#parts.members()
    const { maxInFlight } = this.#options
    const up: Member[] = []
    let isSlow = false
    for (const member of all) {
      if (member.state !== 'up' || !member.models.includes(model) || excluded?.includes(member.id)) continue
      const { weight } = member
      if (weight <= 0) continue
      isSlow ||= weight < 1
      up.push(member)
    }
    if (up.length === 0) throw noneAble(all, model, excluded)
    if (maxInFlight === 0 && !isSlow) return up
    const inFlight = ({ id }: Member) => this.#book.state(id).ledger.inFlight
    const roomy = maxInFlight === 0 ? up : up.filter((member) => inFlight(member) < maxInFlight)
    if (roomy.length === 0) {
      throw new RefrainError('queue_full', `every backend has ${maxInFlight} requests already`, { retryAfterMs: 1000 })
    }
    // One that came back gets its share by and by; alone it gets all.
    const mean = roomy.reduce((sum, member) => sum + inFlight(member), 0) / roomy.length
    const warm = roomy.filter((member) => member.weight >= 1 || inFlight(member) < Math.max(1, member.weight * mean))
    return warm.length > 0 ? warm : roomy
  }

  #score(query: RouteQuery, { member, state, expected, rate, isHome, hadHead, now }: Scored): ScoredCandidate {
    const { ledger } = state
    const residents = this.#sessions.residents(member.id)
    const prospect = this.#prospect
    prospect.member = member.id
    prospect.request = query.id
    prospect.promptTokens = query.promptTokens
    prospect.savedTokens = expected.saved
    prospect.rate = rate
    prospect.waitTokens = ledger.waitTokens(now, rate)
    prospect.reportedQueue = member.load.reportedQueue
    prospect.inFlight = ledger.inFlight
    prospect.residentTokens = residents.demand
    prospect.isHome = isHome
    const ms = [0, 0, 0, 0, 0, 0]
    let total = 0
    for (const { slot, weight, scorer } of this.#scorers) {
      const cost = scorer.score(prospect, this.#options)
      ms[slot] = cost
      total += weight * cost
    }
    const prefillMs = ms[PREFILL] as number
    return {
      member,
      overlapTokens: expected.tokens,
      ms,
      prefillMs,
      pressureMs: ms[PRESSURE] as number,
      affinityMs: ms[AFFINITY] as number,
      ttftMs: prefillMs + (ms[QUEUE] as number) + (ms[STREAMS] as number),
      total,
      inFlight: ledger.inFlight,
      residents: residents.sessions,
      residentHeads: residents.heads.size,
      heads: this.#heads.countAt(member.id),
      hadHead,
    }
  }

  // --- being told ----------------------------------------------------------------------------------------------------

  sent(query: RouteQuery, placement: MemberPlacement): void {
    this.#send(query, placement)
  }

  hedged(query: RouteQuery, placement: MemberPlacement, first: string): void {
    this.#send(query, placement, this.#sent.get(sentKey(query, first)))
  }

  /** `first`: the same request at another member. */
  #send(query: RouteQuery, placement: MemberPlacement, first?: Sent): void {
    const now = this.#parts.clock.now()
    const placed = isPlaced(placement) ? placement : (this.place(query) as Placed)
    const { id: member } = placement.member
    const { identity, expected } = placed
    const { hashes, tokens } = query.segments
    const session = first === undefined ? identity.session : first.session
    const turn: Turn = {
      id: sentKey(query, member),
      member,
      scope: scopeOf(query),
      chain: query.segments,
      depth: depthOf(tokens, expected.predicted.learned),
      head: headOf(query),
      tail: hashes.at(-1) ?? '',
      promptTokens: query.promptTokens,
      newTokens: Math.max(1, query.promptTokens - expected.tokens),
      expectedTokens: expected.tokens,
      predicted: expected.predicted,
      isSide: identity.isSide,
      session: identity.isSide ? undefined : (session?.key ?? identity.key),
      ...(first !== undefined && { isHedge: true }),
    }
    this.#take(turn, now, session)
    this.#parts.peers?.sent(turn)
  }

  #take(turn: Turn, now: number, known?: Session): void {
    const { id, member, scope, chain, depth, newTokens } = turn
    const state = this.#book.state(member)
    const age = (count: number) =>
      count < 1 ? undefined : this.#segments.distance(scope, chain.hashes[count - 1] as string, state.memory)
    const tailAge = age(depth)
    const headAge = age(Math.min(chain.head, depth))
    const session = turn.isHedge === true ? this.#beside(turn, now, known) : this.#turn(turn, now, known)
    const computedBefore = state.memory.computed
    this.#sent.set(id, { turn, session, sentAt: now, computedBefore, tailAge, headAge, started: false })
    state.memory.computed += newTokens
    state.ledger.sent(id, { tokens: newTokens, now, computedBefore })
    this.#segments.hold(scope, chain, state.memory, { now, owner: session })
    if (turn.isHedge !== true) this.#useHead(turn, now)
  }

  #useHead({ chain, isSide, head, member }: Turn, now: number): void {
    if (chain.head > 0 && !isSide) this.#heads.use(head, member, now)
  }

  /** `known`: the session as it was found. */
  #turn(turn: Turn, now: number, known: Session | undefined): Session | undefined {
    const { session: key, member, scope, head, tail, promptTokens: tokens } = turn
    if (key === undefined) return undefined
    const isThere = known !== undefined && this.#sessions.has(known)
    const session =
      (isThere ? known : this.#sessions.get(key, now)) ??
      this.#sessions.add({ key, member, scope, head, tail, tokens, usedAt: now })
    this.#sessions.turn(session, member, { now, tail, tokens, head })
    return session
  }

  #beside({ session: key }: Turn, now: number, known: Session | undefined): Session | undefined {
    const session = known ?? (key === undefined ? undefined : this.#sessions.get(key, now))
    if (session !== undefined) this.#sessions.beside(session)
    return session
  }

  /** Of two members the second one answers: the session lives there, unless it has gone on meanwhile. */
  #move({ turn, session }: Sent, now: number): void {
    this.#useHead(turn, now)
    if (session === undefined || session.tail !== turn.tail || !this.#sessions.has(session)) return
    session.waitedMs ??= now - session.sentAt
    this.#sessions.moved(session, turn.member)
  }

  seated(query: RouteQuery, member: string): void {
    const sent = this.#seat(sentKey(query, member))
    if (sent !== undefined) this.#parts.peers?.seated(sent.turn)
  }

  #seat(id: string): Sent | undefined {
    const sent = this.#sent.get(id)
    if (sent !== undefined) this.#book.state(sent.turn.member).ledger.seated(id, this.#parts.clock.now())
    return sent
  }

  started(query: RouteQuery, member: string): void {
    const sent = this.#start(sentKey(query, member))
    if (sent !== undefined) this.#parts.peers?.started(sent.turn)
  }

  #start(id: string): Sent | undefined {
    const now = this.#parts.clock.now()
    const sent = this.#sent.get(id)
    if (sent === undefined || sent.started) return undefined
    sent.started = true
    this.#book.state(sent.turn.member).ledger.started(id, now)
    if (sent.turn.isHedge === true) this.#move(sent, now)
    else if (sent.session !== undefined) sent.session.waitedMs ??= now - sent.sentAt
    return sent
  }

  settled(outcome: RouteOutcome): void {
    const sent = this.#end(sentKey(outcome.query, outcome.member), outcome)
    if (sent === undefined) return
    this.#parts.peers?.ended(sent.turn, outcome)
    if (sent.session !== undefined && !outcome.failed) this.#remember(sent.turn, sent.session)
  }

  #end(id: string, end: TurnEnd): Sent | undefined {
    const sent = this.#sent.get(id)
    if (sent === undefined) return undefined
    const now = this.#parts.clock.now()
    this.#sent.delete(id)
    const { turn, session } = sent
    const state = this.#book.state(turn.member)
    state.ledger.settled(id)
    if (turn.isHedge === true && !sent.started && !end.failed) this.#move(sent, now)
    if (session !== undefined) {
      this.#sessions.over(session, now)
      if (turn.isHedge !== true) session.waitedMs ??= now - sent.sentAt
    }
    // It failed, or its client left: nobody knows how far it came.
    const isLost = !sent.started && (end.failed || end.promptTokens === undefined)
    if (isLost) this.#segments.drop(turn.scope, turn.chain, state.memory, turn.depth)
    else this.#learn(end, sent, state)
    return sent
  }

  #learn({ cachedTokens, promptTokens, completionTokens }: TurnEnd, sent: Sent, state: MemberState): void {
    const { turn, tailAge, headAge, computedBefore } = sent
    const { predicted, promptTokens: prompt } = turn
    // Counts of the member in the unit of the request's own estimate.
    const unit = promptTokens !== undefined && promptTokens > 0 ? prompt / promptTokens : 1
    state.memory.computed += (completionTokens ?? 0) * unit
    if (cachedTokens === undefined) return
    const cached = cachedTokens * unit
    state.memory.computed += Math.max(0, turn.expectedTokens - cached)
    state.predictions.learn(predicted, { cached, prompt })
    const ages = { tail: tailAge, head: headAge, sentAt: computedBefore }
    learnRecalled(state.memory, { recalled: predicted.recalled, cached })
    learnCache(state.memory, ages, { predicted: predicted.learned, cached, prompt })
  }

  release(tenant: string, session: string): boolean {
    const prefix = sessionPrefix(tenant, session)
    const keys = this.#releaseAll(prefix)
    this.#parts.peers?.released(prefix, keys)
    return keys.length > 0
  }

  #releaseAll(prefix: string): string[] {
    const keys = [...this.#sessions.all()].filter(({ key }) => key.startsWith(prefix)).map(({ key }) => key)
    for (const key of keys) this.#sessions.remove(key)
    return keys
  }

  view({ id, knowledge, rates }: Pick<Member, 'id' | 'knowledge' | 'rates'>): MemberView {
    const { ledger, predictions, memory } = this.#book.state(id)
    const now = this.#parts.clock.now()
    const rate = ledger.rate ?? rates.prefillTokensPerSecond
    const level = this.#expectations.level({ id, knowledge }, this.#book.state(id))
    const error = predictions.error(level)
    return {
      load: {
        inFlight: ledger.inFlight,
        queuedPrefillTokens: Math.round(ledger.waitTokens(now, rate)),
        decoding: ledger.decoding,
      },
      prefillTokensPerSecond: rate,
      knowledge: level,
      ...(error !== undefined && { predictionError: error }),
      sessions: this.#sessions.residents(id).sessions,
      ...(Number.isFinite(memory.capacity) && { capacityTokens: Math.round(memory.capacity) }),
    }
  }

  emptied(member: string): void {
    const { memory } = this.#book.state(member)
    memory.clearedBelow = memory.computed + 1
    memory.computed = memory.clearedBelow
  }

  // --- outliving the process -----------------------------------------------------------------------------------------

  #remember({ scope, chain }: Turn, { key, member, tail, tokens }: Session): void {
    const { store } = this.#parts
    if (store === undefined) return
    const { hashes, tokens: counts, head } = chain
    const record: SessionRecord = {
      key,
      member,
      scope,
      tail,
      tokens,
      ...(head > 0 && { head: hashes[head - 1]!, headTokens: counts[head - 1]! }),
    }
    store.put(record)
  }

  #recall({ key, member, scope, tail, tokens, head, headTokens }: SessionRecord): void {
    const now = this.#parts.clock.now()
    const session = this.#sessions.add({
      key,
      member,
      scope,
      head: `${scope} ${head ?? tail}`,
      tail,
      tokens,
      usedAt: now,
    })
    const { memory } = this.#book.state(member)
    if (head !== undefined && headTokens !== undefined) {
      const chain = { hashes: [head], tokens: [headTokens], head: 1 }
      this.#segments.hold(scope, chain, memory, { now, owner: undefined })
    }
    const chain = { hashes: [tail], tokens: [tokens], head: 0 }
    this.#segments.hold(scope, chain, memory, { now, owner: session })
  }
}

function isPlaced(placement: MemberPlacement): placement is Placed {
  return 'identity' in placement
}

function sentKey({ id, part }: RouteQuery, member: string): string {
  return part === undefined ? `${id}\0${member}` : `${id}\0${member}\0${part}`
}
