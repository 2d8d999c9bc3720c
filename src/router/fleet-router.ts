// Where a request goes in fleet mode: filter -> score -> pick, over what is known of each member's cache and load. All of
// the state is here and small: sessions, learned fronts, a ledger for each member. Invariant: a decision changes nothing,
// never waits and never sees text; what is lost or wrong costs hits. Step 7 of a request's path.

import type { Clock } from '../core/clock.js'
import { RefrainError } from '../core/errors.js'
import { kindNamed } from '../core/kind.js'
import type {
  CacheAwareRouter,
  Member,
  MemberPlacement,
  MemberView,
  RouteOutcome,
  RouteQuery,
  Score,
} from './contract.js'
import { Expectations, type Expected, type Known } from './expectation.js'
import { HeadTable } from './head-table.js'
import { headOf, type Identity, identify, scopeOf, sessionPrefix } from './identity.js'
import { MemberBook, type MemberState } from './member-book.js'
import type { RouterOptions } from './options.js'
import { type Candidate, type Candidates, pick } from './pick.js'
import type { PreciseIndex } from './precise-index.js'
import { learnCache, learnRecalled, type Predicted } from './predictions.js'
import * as scorers from './scorer/index.js'
import type { Prospect, Scorer } from './scorer/scorer.js'
import { SegmentIndex } from './segment-index.js'
import type { SessionRecord, SessionStore } from './session-store.js'
import { type Session, SessionTable } from './session-table.js'

export interface FleetRouterParts {
  members(): readonly Member[]
  readonly clock: Clock
  /** Where sessions outlive this process; undefined: they do not. */
  readonly store?: SessionStore
  /** What members say of their caches; undefined: none is followed. */
  readonly precise?: Pick<PreciseIndex, 'state' | 'lookup'>
}

/** @throws Error where `options.weights` names a scorer that there is not. */
export function createFleetRouter(options: RouterOptions, parts: FleetRouterParts): CacheAwareRouter {
  return new Router(options, parts)
}

interface Placed extends MemberPlacement {
  readonly identity: Identity
  readonly expected: Expected
}

interface Sent {
  readonly predicted: Predicted
  readonly expectedTokens: number
  readonly newTokens: number
  readonly session: Session | undefined
  readonly sentAt: number
  readonly computedBefore: number
  readonly tailAge: number | undefined
  readonly headAge: number | undefined
  /** Segments that the member held before it was sent. */
  readonly depth: number
  started: boolean
}

class Router implements CacheAwareRouter {
  readonly #options: RouterOptions
  readonly #parts: FleetRouterParts
  readonly #scorers: readonly { readonly name: string; readonly weight: number; readonly scorer: Scorer }[]
  readonly #book = new MemberBook()
  readonly #expectations: Expectations
  readonly #sessions: SessionTable
  readonly #segments: SegmentIndex<Session>
  readonly #heads: HeadTable
  readonly #sent = new Map<string, Sent>()

  constructor(options: RouterOptions, parts: FleetRouterParts) {
    this.#options = options
    this.#parts = parts
    this.#scorers = Object.entries(options.weights).map(([name, weight]) => ({
      name,
      weight,
      scorer: kindNamed<Scorer>(scorers, name, 'router.weights'),
    }))
    this.#expectations = new Expectations(this.#book, parts.precise)
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
    const match = this.#segments.match(scopeOf(query), query.segments, now, (index) => this.#book.memory(index))
    const identity = identify(query, { sessions: this.#sessions, match, now })
    const known: Known = { match, session: identity.session, precise: this.#expectations.lookup(query) }
    const expected = members.map((member) => this.#expectations.of(query, member, known))
    const home = homeOf(query, identity.session?.member, { members, expected })
    const parent = home === undefined ? identity.parent : undefined
    this.#sessions.sweep(now)
    const states = members.map(({ id }) => this.#book.state(id))
    const rates = ratesOf(members, states)
    const candidates = members.map((member, i) =>
      this.#score(query, {
        member,
        state: states[i]!,
        expected: expected[i]!,
        rate: rates[i]!,
        home: home ?? parent,
        hadHead: (match.recalled.get(states[i]!.memory.index) ?? 0) > 0,
        now,
      }),
    )
    const situation = { isSide: identity.isSide, home, parent, head: headOf(query) }
    const { candidate, reason } = pick(candidates as unknown as Candidates, situation, this.#options)
    const chosen = expected[members.indexOf(candidate.member)]!
    const placed: Placed = {
      member: candidate.member,
      scores: candidates.map(scoreOf),
      reason,
      predictedHitTokens: chosen.tokens,
      identity,
      expected: chosen,
    }
    return placed
  }

  /** Members that may take it. @throws RefrainError where there are none. */
  #able({ model, excluded }: RouteQuery): Member[] {
    const all = this.#parts.members()
    const able = all.filter(({ models }) => models.includes(model))
    if (able.length === 0 && all.some(({ models }) => models.length > 0)) {
      throw new RefrainError('model_not_found', `no backend has the model '${model}'`)
    }
    const up = able.filter(({ id, state, weight }) => state === 'up' && weight > 0 && excluded?.includes(id) !== true)
    if (up.length === 0) throw noneUp(able, excluded)
    const { maxInFlight } = this.#options
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

  #score(
    query: RouteQuery,
    more: {
      member: Member
      state: MemberState
      expected: Expected
      rate: number
      home: string | undefined
      hadHead: boolean
      now: number
    },
  ): Candidate {
    const { member, expected, rate, home, now } = more
    const { ledger } = more.state
    const residents = this.#sessions.residents(member.id)
    const prospect: Prospect = {
      member: member.id,
      request: query.id,
      promptTokens: query.promptTokens,
      held: expected.held,
      restoreCost: member.rates.restoreCost,
      rate,
      waitTokens: ledger.waitTokens(now, rate),
      reportedQueue: member.load.reportedQueue,
      inFlight: ledger.inFlight,
      residentTokens: residents.demand,
      isHome: home === undefined ? undefined : home === member.id,
    }
    const parts: Record<string, number> = {}
    let total = 0
    for (const { name, weight, scorer } of this.#scorers) {
      const ms = scorer.score(prospect, this.#options)
      parts[name] = ms
      total += weight * ms
    }
    return {
      member,
      overlapTokens: expected.tokens,
      parts,
      ttftMs: (parts['prefill'] ?? 0) + (parts['queue'] ?? 0) + (parts['streams'] ?? 0),
      total,
      inFlight: ledger.inFlight,
      residents: residents.sessions,
      residentHeads: residents.heads.size,
      heads: this.#heads.countAt(member.id),
      hadHead: more.hadHead,
    }
  }

  // --- being told ----------------------------------------------------------------------------------------------------

  sent(query: RouteQuery, placement: MemberPlacement): void {
    const now = this.#parts.clock.now()
    const placed = isPlaced(placement) ? placement : (this.place(query) as Placed)
    const { id } = placement.member
    const state = this.#book.state(id)
    const { identity, expected } = placed
    const scope = scopeOf(query)
    const { hashes, tokens, head } = query.segments
    const newTokens = Math.max(1, query.promptTokens - expected.tokens)
    const age = (count: number) =>
      count < 1 ? undefined : this.#segments.distance(scope, hashes[count - 1] as string, state.memory)
    const depth = tokens.findLastIndex((count) => count <= expected.predicted.learned) + 1
    const tailAge = age(depth)
    const headAge = age(Math.min(head, depth))
    const session = this.#turn(query, { identity, member: id, now })
    this.#sent.set(sentKey(query, id), {
      predicted: expected.predicted,
      expectedTokens: expected.tokens,
      newTokens,
      session,
      sentAt: now,
      computedBefore: state.memory.computed,
      tailAge,
      headAge,
      depth,
      started: false,
    })
    const computedBefore = state.memory.computed
    state.memory.computed += newTokens
    state.ledger.sent(query.id, { tokens: newTokens, now, computedBefore })
    this.#segments.hold(scope, query.segments, state.memory, { now, owner: session })
    if (head > 0 && !identity.isSide) this.#heads.use(headOf(query), id, now)
  }

  #turn(
    query: RouteQuery,
    { identity, member, now }: { identity: Identity; member: string; now: number },
  ): Session | undefined {
    if (identity.isSide) return undefined
    const { promptTokens: tokens } = query
    const tail = query.segments.hashes.at(-1) ?? ''
    const scope = scopeOf(query)
    const head = headOf(query)
    let { session } = identity
    if (session === undefined || !this.#sessions.has(session)) {
      const key = identity.key ?? session?.key
      if (key === undefined) return undefined
      session = this.#sessions.add({ key, member, scope, head, tail, tokens, usedAt: now })
    }
    this.#sessions.turn(session, member, { now, tail, tokens, head })
    return session
  }

  started(query: RouteQuery, member: string): void {
    const now = this.#parts.clock.now()
    const sent = this.#sent.get(sentKey(query, member))
    if (sent === undefined || sent.started) return
    sent.started = true
    this.#book.state(member).ledger.started(query.id, now)
    if (sent.session !== undefined) sent.session.waitedMs ??= now - sent.sentAt
  }

  settled(outcome: RouteOutcome): void {
    const { query, member, failed } = outcome
    const now = this.#parts.clock.now()
    const key = sentKey(query, member)
    const sent = this.#sent.get(key)
    if (sent === undefined) return
    this.#sent.delete(key)
    const state = this.#book.state(member)
    state.ledger.settled(query.id)
    if (sent.session !== undefined) {
      this.#sessions.over(sent.session, now)
      sent.session.waitedMs ??= now - sent.sentAt
      if (!failed) this.#remember(query, sent.session)
    }
    // It failed, or its client left: nobody knows how far it came.
    if (!sent.started && (failed || outcome.promptTokens === undefined)) {
      this.#segments.drop(scopeOf(query), query.segments, state.memory, sent.depth)
      return
    }
    this.#learn(outcome, sent, state)
  }

  #learn({ query, cachedTokens, promptTokens, completionTokens }: RouteOutcome, sent: Sent, state: MemberState): void {
    // Counts of the member in the unit of the request's own estimate.
    const unit = promptTokens !== undefined && promptTokens > 0 ? query.promptTokens / promptTokens : 1
    state.memory.computed += (completionTokens ?? 0) * unit
    if (cachedTokens === undefined) return
    const cached = cachedTokens * unit
    state.memory.computed += Math.max(0, sent.expectedTokens - cached)
    const { predicted, tailAge, headAge, computedBefore } = sent
    state.predictions.learn(predicted, { cached, prompt: query.promptTokens })
    const ages = { tail: tailAge, head: headAge, sentAt: computedBefore }
    learnRecalled(state.memory, { recalled: predicted.recalled, cached })
    learnCache(state.memory, ages, { predicted: predicted.learned, cached, prompt: query.promptTokens })
  }

  release(tenant: string, session: string): boolean {
    const prefix = sessionPrefix(tenant, session)
    let known = false
    for (const { key } of this.#sessions.all()) if (key.startsWith(prefix)) known = this.#sessions.remove(key) || known
    return known
  }

  view({ id, knowledge, rates }: Pick<Member, 'id' | 'knowledge' | 'rates'>): MemberView {
    const { ledger, predictions, memory } = this.#book.state(id)
    const now = this.#parts.clock.now()
    const rate = ledger.rate ?? rates.prefillTokensPerSecond
    const level = this.#expectations.level({ id, knowledge })
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

  #remember(query: RouteQuery, { key, member, tail, tokens }: Session): void {
    const { store } = this.#parts
    if (store === undefined) return
    const { hashes, tokens: counts, head } = query.segments
    const record: SessionRecord = {
      key,
      member,
      scope: scopeOf(query),
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

/**
 * Where the session lives, by its key or its prompt; another member where only that one has what the prompt goes on from:
 * several conversations may have one key.
 */
function homeOf(
  { segments, promptTokens }: RouteQuery,
  home: string | undefined,
  { members, expected }: { members: readonly Member[]; expected: readonly Expected[] },
): string | undefined {
  if (home === undefined) return undefined
  const head = segments.tokens[segments.head - 1] ?? 0
  const own = (i: number) => Math.max(0, expected[i]!.tokens - head)
  const at = members.findIndex(({ id }) => id === home)
  if (at >= 0 && own(at) > 0) return home
  const most = members.reduce((best, _, i) => (own(i) > own(best) ? i : best), 0)
  return own(most) >= (promptTokens - head) / 2 ? members[most]!.id : home
}

/**
 * Tokens a second of each. Of one that was not observed it is what the others do, in proportion to what they are
 * configured to do: to compare an observed rate with an assumed one would send everything one way.
 */
function ratesOf(members: readonly Member[], states: readonly MemberState[]): number[] {
  let factors = 0
  let observed = 0
  for (const [i, { ledger }] of states.entries()) {
    if (ledger.rate === undefined) continue
    factors += ledger.rate / members[i]!.rates.prefillTokensPerSecond
    observed++
  }
  const factor = observed === 0 ? 1 : factors / observed
  return members.map(({ rates }, i) => states[i]!.ledger.rate ?? factor * rates.prefillTokensPerSecond)
}

function scoreOf({ member, ttftMs, overlapTokens, parts }: Candidate): Score {
  return { member: member.id, ttftMs, overlapTokens, parts }
}

function isPlaced(placement: MemberPlacement): placement is Placed {
  return 'identity' in placement
}

function sentKey({ id }: RouteQuery, member: string): string {
  return `${id}\0${member}`
}

function noneUp(able: readonly Member[], excluded: readonly string[] | undefined): RefrainError {
  const states = able.map(({ id, state }) => `${id} ${excluded?.includes(id) ? 'was tried' : `is ${state}`}`)
  const why = states.length === 0 ? 'none is known yet' : states.join(', ')
  return new RefrainError('engine_failed', `no backend is up: ${why}`, { retryAfterMs: 1000 })
}
