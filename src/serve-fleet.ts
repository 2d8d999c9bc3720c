// The path of a request in fleet mode, top to bottom: a query and a body's bytes in, a backend's bytes out. Invariant:
// another backend may be tried until the first content came, and after that only to go on where it stopped; a 4xx is an
// answer and never tried again; every attempt is told to the router once, when it is sent and when it is over.

import type {
  BodySetting,
  FleetService,
  Forward,
  ForwardChat,
  Forwarded,
  ForwardSink,
  ForwardUsage,
} from './api/contract.js'
import type {
  BrokenChat,
  ChatReader,
  Ending,
  ExchangeRequest,
  IncomingHeaders,
  Remote,
  RemoteKind,
} from './backend/remote/contract.js'
import type { Clock } from './core/clock.js'
import { RefrainError } from './core/errors.js'
import type { RouteSignals } from './core/signals.js'
import type { FleetRouter, MemberPlacement, PromptBlocks, RouteQuery, SegmentChain } from './router/contract.js'
import { modelsOf, resolveModel } from './router/fleet-models.js'
import type { TenantLimits } from './router/tenant-limits.js'
import { TokenRatios } from './router/token-ratios.js'
import type { WaitingRoom } from './router/waiting-room.js'
import { answers, Beaten, type Hedging, type Lane } from './serve-hedge.js'
import {
  CHAT_PATH,
  checkKey,
  checkOwn,
  choicesOf,
  continued,
  GENERATING,
  isFailure,
  outbound,
  passedHeaders,
  passedOn,
  refused,
  saltOf,
  type Telling,
  tellBegun,
  tellSettled,
  translated,
  wholeOf,
  withoutBeside,
} from './serve-member.js'

export interface FleetParts {
  readonly router: FleetRouter
  /** Where requests wait while every backend has all that it may get. */
  readonly room: WaitingRoom
  /** What tenants may ask for in a minute; absent: as much as comes. */
  readonly quotas?: TenantLimits | undefined
  /** Those that can be asked, in the order of the config. */
  remotes(): readonly Remote[]
  kindOf(remote: Remote): RemoteKind
  exchange(request: ExchangeRequest): Promise<Ending>
  /** Reads a chat for another dialect; `promptTokens` until the server tells them. */
  chatReader(promptTokens: number): ChatReader
  /** Keeps an answer, to continue it elsewhere; absent: broken streams stay broken. */
  readonly brokenChat?: (() => BrokenChat) | undefined
  /** Patterns over the names that clients send -> a model's name. */
  readonly aliases: Readonly<Record<string, string>>
  /** Names of the tenants; empty: there is one, without a key. */
  readonly tenants: readonly string[]
  /** fleet.attempts */
  readonly attempts: number
  /** Sends what is late to a second member; absent: nothing is. */
  readonly hedging?: Hedging | undefined
  /** What else a member needs to be set for a request, and is told when it is over: slots of llama-server. */
  readonly seats?: Seats
  /** A request that was told to be sent has the seat that it waited for. */
  seated?(query: RouteQuery, member: string): void
  /** Tokens of prompts, for backends that tell what their caches hold; undefined: there are none. */
  readonly tokens?: PromptTokenizer | undefined
  readonly signals: RouteSignals
  readonly clock: Clock
}

export interface PromptTokenizer {
  /** Undefined: not known. */
  blocksOf(prompt: {
    readonly model: string
    readonly chat: ForwardChat
    readonly segments: SegmentChain
    readonly salt: string | undefined
  }): MaybePromise<{ readonly blocks: readonly PromptBlocks[]; readonly promptTokens: number | undefined } | undefined>
  /** How many a backend counted where `expected` were. */
  counted(prompt: { readonly model: string; readonly chat: ForwardChat }, expected: number, promptTokens: number): void
}

type MaybePromise<T> = T | Promise<T>

/** Who sits where in a server that holds one session a slot. */
export interface Seats {
  /** Undefined: this member has none. */
  take(member: string, query: RouteQuery, signal: AbortSignal): Promise<Seat> | undefined
}

export interface Seat {
  readonly settings: readonly BodySetting[]
  /** The request is over; `usage` where the member told it. */
  leave(usage: ForwardUsage | undefined): void
}

export function createFleetService(parts: FleetParts): FleetService {
  const ratios = new TokenRatios()
  return {
    models: () => modelsOf(parts.remotes()),
    resolve: (name) => resolveModel(parts.remotes(), parts.aliases, name),
    tokensPerByte: (model) => ratios.of(model),
    place: (query) => parts.router.place({ ...query, excluded: barred(parts, { query }) }),
    forward(sent, sink, signal) {
      const pass = (asked: Forward) => new Passing(parts, ratios, { asked, sink, signal }).run()
      const found = blocksOf(sent, parts)
      if (found instanceof Promise) return found.then((blocks) => pass(withBlocks(sent, blocks)))
      return pass(withBlocks(sent, found))
    },
  }
}

/** Keys of its blocks and how many tokens it has, where that is known in time. */
function blocksOf(asked: Forward, { tokens, tenants }: FleetParts): ReturnType<PromptTokenizer['blocksOf']> {
  const { chat, query } = asked
  if (chat === undefined || tokens === undefined) return undefined
  const salt = tenants.length > 0 ? saltOf(asked) : saltIn(asked.body.member('cache_salt'))
  return tokens.blocksOf({ model: query.model, chat, segments: query.segments, salt })
}

function withBlocks(asked: Forward, found: Awaited<ReturnType<PromptTokenizer['blocksOf']>>): Forward {
  if (found === undefined) return asked
  const { blocks, promptTokens } = found
  const counted = promptTokens === undefined ? {} : { promptTokens, estimated: false }
  return { ...asked, query: { blocks, ...asked.query, ...counted } }
}

/** What the client itself set. */
function saltIn(json: string | undefined): string | undefined {
  try {
    const value: unknown = json === undefined ? undefined : JSON.parse(json)
    return typeof value === 'string' && value !== '' ? value : undefined
  } catch {
    // The backend refuses it.
    return undefined
  }
}

interface Request {
  readonly asked: Forward
  readonly sink: ForwardSink
  readonly signal: AbortSignal
}

/** One request, from backend to backend until one of them answers. */
class Passing {
  readonly #parts: FleetParts
  readonly #ratios: TokenRatios
  readonly #request: Request
  /** Members that may not or could not answer it. */
  #excluded: readonly string[]
  readonly #broken: BrokenChat | undefined
  /** What was said before the stream broke. */
  #soFar: ReturnType<BrokenChat['soFar']>
  #tried = 0
  /** Since when it looks for a backend. */
  #lookedAt = 0
  #again: MemberPlacement | undefined
  #failure: Failure | undefined
  /** Where it is late it goes to a second member as well. */
  #mayHedge: boolean

  constructor(parts: FleetParts, ratios: TokenRatios, request: Request) {
    this.#parts = parts
    this.#ratios = ratios
    this.#request = request
    this.#excluded = barred(parts, request.asked)
    if (parts.brokenChat !== undefined && isContinuable(request.asked)) this.#broken = parts.brokenChat()
    this.#mayHedge = parts.hedging?.admits(request.asked) === true
  }

  async run(): Promise<Forwarded> {
    const { asked, signal } = this.#request
    this.#parts.quotas?.take(asked.query.tenant, asked.query.promptTokens) // rate_limited
    for (;;) {
      signal.throwIfAborted()
      this.#lookedAt = this.#parts.clock.now()
      const placement = this.#again ?? (await this.#place()) //  model_not_found, engine_failed, queue_full, queue_timeout
      if (placement === undefined) return this.#last() //        engine_failed
      this.#again = undefined
      const remote = remoteOf(this.#parts, placement)
      const telling = this.#telling(remote) //                   invalid_request, unsupported_parameter
      const taken = this.#parts.seats?.take(placement.member.id, asked.query, signal)
      const seat = taken === undefined ? undefined : await this.#seated(placement, taken)
      const first = { placement, remote, telling, seat }
      const raced = this.#mayHedge && this.#soFar === undefined ? await this.#raced(first) : undefined
      const { by, ending } = raced ?? { by: first, ending: await this.#attempt(first) } // the signal's reason
      if (ending.kind === 'stream') return by.telling.end(ending)
      const answer = this.#judge(ending, by) //                  engine_failed
      if (answer !== undefined) return answer
    }
  }

  /** Undefined: all that there are have failed. */
  async #place(): Promise<MemberPlacement | undefined> {
    const { asked, signal } = this.#request
    try {
      const { query } = asked
      const excluded = this.#excluded
      return await this.#parts.room.place(excluded.length === 0 ? query : { ...query, excluded }, signal)
    } catch (error) {
      // That nobody is left says less than why the last one failed.
      if (this.#failure !== undefined && !signal.aborted) return undefined
      throw error
    }
  }

  /** What the last one that was tried said. */
  #last(): Forwarded {
    const { ending } = this.#failure as Failure
    if (ending.kind === 'whole' && this.#soFar === undefined) return wholeOf(ending)
    throw errorOf(this.#failure as Failure)
  }

  #telling(remote: Remote): Telling {
    const { sink } = this.#request
    const asked = withoutBeside(this.#request.asked, remote) // invalid_request
    if (GENERATING.has(asked.path)) checkOwn(asked, remote)
    if (this.#soFar !== undefined && this.#broken !== undefined) {
      return continued(asked, sink, this.#broken, this.#soFar)
    }
    const lacks = GENERATING.has(asked.path) && remote.facts?.lacks.includes(asked.path) === true
    if (!lacks || asked.translate === undefined) return passedOn(asked, sink, this.#broken)
    return translated(asked, sink, asked.translate(), this.#parts.chatReader(asked.query.promptTokens))
  }

  /** Who waits for a seat is under way at its member. @throws RefrainError `queue_timeout`; the signal's reason. */
  async #seated(placement: MemberPlacement, taken: Promise<Seat>): Promise<Seat> {
    const { query } = this.#request.asked
    const { router, room } = this.#parts
    const { id: member } = placement.member
    router.sent(query, placement)
    try {
      const seat = await taken
      this.#parts.seated?.(query, member)
      return seat
    } catch (error) {
      router.settled({ query, member, predictedHitTokens: placement.predictedHitTokens, failed: false })
      room.look()
      throw error
    }
  }

  /** At the first member, and beside it at a second one where that is late. */
  #raced(first: Attempted): Promise<Raced> {
    const { asked, sink, signal } = this.#request
    const at = (by: Attempted) => async (lane: Lane) => ({ by, ending: await this.#attempt(by, lane) })
    return (this.#parts.hedging as Hedging).race<Raced>({
      placement: first.placement,
      signal,
      query: () => ({ ...asked.query, excluded: this.#excluded }),
      first: at(first),
      second: (placement) => {
        const remote = remoteOf(this.#parts, placement)
        const beside = first.placement.member.id
        const second = { placement, remote, telling: this.#telling(remote), seat: undefined, beside }
        this.#mayHedge = false
        sink.hedged?.('lost')
        return at(second)
      },
      failed: ({ by, ending }) => this.#gaveUp(ending as Failure['ending'], by.placement.member.id),
    })
  }

  /** `lane`: where the request may be sent to two. */
  async #attempt({ placement, remote, telling, seat, beside }: Attempted, lane?: Lane): Promise<Ending> {
    const { asked, sink } = this.#request
    const { router, exchange, kindOf, tenants, clock, signals } = this.#parts
    const { member } = placement
    const signal = lane === undefined ? this.#request.signal : lane.signal
    const reason = beside === undefined ? placement.reason : 'hedge'
    const startedAt = clock.now()
    const routeMs = beside === undefined ? startedAt - this.#lookedAt : 0
    let ttftMs: number | undefined
    const show = () => {
      sink.routed(routeHeader(placement, reason, lane?.hedged), member.id)
      if (telling.failure !== undefined) sink.failsWith(telling.failure)
      if (beside !== undefined) sink.hedged?.('won')
    }
    const onFirst = (headers: IncomingHeaders) => {
      if (lane !== undefined && !lane.claim()) return
      if (lane !== undefined) show()
      ttftMs = clock.now() - startedAt
      // Behind the write of what came.
      queueMicrotask(() => router.started(asked.query, member.id))
      if (asked.stream) sink.begin(passedHeaders(headers))
    }
    const onEvents = (bytes: Buffer) => telling.events(bytes)
    let ending: Ending | undefined
    try {
      const out = {
        asked,
        remote,
        kind: kindOf(remote),
        telling,
        parts: tenants.length > 0,
        seat: seat?.settings ?? NO_SETTINGS,
      }
      const sent = outbound(out) //                              unsupported_parameter
      tellBegun(asked.query, placement, { remote, headers: sent.out.headers, reason, routeMs, signals })
      const answered = exchange(Object.assign(sent, { onFirst, onEvents, clock, signal }))
      // The books are kept while the backend works.
      if (beside === undefined) show()
      if (beside !== undefined) router.hedged(asked.query, placement, beside)
      else if (seat === undefined) router.sent(asked.query, placement)
      const came = await answered
      if (lane !== undefined && answers(came, lane)) {
        if (!lane.claim()) throw new Beaten()
        show()
      }
      ending = came
      return ending
    } finally {
      const over = () => this.#over(placement, { routeMs, ttftMs, ending, seat, lane })
      // And while the client reads, unless another attempt may follow.
      if (ending === undefined || isFailure(ending)) over()
      else setImmediate(over)
    }
  }

  /** Tells whoever has to know that an attempt is over. */
  #over(placement: MemberPlacement, { routeMs, ttftMs, ending, seat, lane }: Over): void {
    const { query } = this.#request.asked
    const { router, room, quotas, signals } = this.#parts
    const { usage } = ending ?? {}
    const isBeaten = lane?.isBeaten === true
    tellSettled(query.id, placement, { routeMs, ttftMs, ending, isBeaten, signals })
    seat?.leave(usage)
    if (usage !== undefined) this.#counted(usage.promptTokens)
    router.settled({
      query,
      member: placement.member.id,
      predictedHitTokens: placement.predictedHitTokens,
      ...(usage?.cachedTokens !== undefined && { cachedTokens: usage.cachedTokens }),
      ...(usage !== undefined && { promptTokens: usage.promptTokens, completionTokens: usage.completionTokens }),
      ...(ttftMs !== undefined && { ttftMs }),
      // A client that left is no fault of the member's; of two members one has the answer.
      failed: (ending !== undefined && isFailure(ending)) || lane?.isOut === true,
    })
    room.look()
    if (usage !== undefined)
      quotas?.settle(query.tenant, usage.promptTokens - query.promptTokens + usage.completionTokens)
  }

  /** What the backend counted teaches how long prompts are. */
  #counted(promptTokens: number): void {
    const { query, chat } = this.#request.asked
    const { model, estimated, segments } = query
    this.#ratios.learn(model, segments.tokens.at(-1) ?? query.promptTokens, promptTokens)
    if (!estimated && chat !== undefined) this.#parts.tokens?.counted({ model, chat }, query.promptTokens, promptTokens)
  }

  /** The answer, or undefined where another attempt is due. @throws RefrainError where there is none. */
  #judge(ending: Failure['ending'], { placement, remote, telling }: Attempted): Forwarded | undefined {
    const { id } = placement.member
    const isAnswer = ending.kind === 'whole' && !isFailure(ending)
    if (isAnswer && this.#soFar === undefined) {
      checkKey(ending.status, remote) // engine_failed
      return telling.isTranslated ? refused(ending) : wholeOf(ending)
    }
    this.#failure = { ending, member: id }
    if (ending.kind === 'fault' && ending.stale && this.#tried === 0) {
      // The server closed an idle connection just then: it is not down, and its cache is worth another try.
      this.#again = placement
      this.#tried = 1
      return undefined
    }
    // What was gathered for a whole answer was seen by nobody.
    if (ending.kind === 'fault' && ending.begun && this.#request.asked.stream) this.#continue()
    this.#gaveUp(ending, id)
    return this.#tried < this.#parts.attempts ? undefined : this.#last()
  }

  #gaveUp(ending: Failure['ending'], member: string): void {
    this.#failure = { ending, member }
    this.#excluded = [...this.#excluded, member]
    if (ending.kind === 'whole' || ending.fault.sent) this.#tried++
  }

  /** Content is out: from here on only who can go on with an answer may. @throws RefrainError */
  #continue(): void {
    const soFar = this.#broken?.soFar()
    if (soFar === undefined) throw errorOf(this.#failure as Failure)
    this.#soFar = soFar
    for (const remote of this.#parts.remotes()) {
      if (this.#parts.kindOf(remote).continuation === undefined) this.#excluded = [...this.#excluded, remote.id]
    }
  }
}

const NO_SETTINGS: readonly BodySetting[] = []

interface Over {
  readonly routeMs: number
  readonly ttftMs: number | undefined
  /** Undefined: the client left, or another member was faster. */
  readonly ending: Ending | undefined
  readonly seat: Seat | undefined
  /** Where the request may be sent to a second member. */
  readonly lane: Lane | undefined
}

/** Which attempt has an ending. */
interface Raced {
  readonly by: Attempted
  readonly ending: Ending
}

interface Attempted {
  readonly placement: MemberPlacement
  readonly remote: Remote
  readonly telling: Telling
  readonly seat: Seat | undefined
  /** The member that has the request already. */
  readonly beside?: string
}

interface Failure {
  readonly ending: Exclude<Ending, { kind: 'stream' }>
  readonly member: string
}

function isContinuable({ path, stream, body }: Forward): boolean {
  return stream && path === CHAT_PATH && choicesOf(body) === 1
}

function errorOf({ ending, member }: Failure): RefrainError {
  const what = ending.kind === 'fault' ? ending.fault.message : `it answers ${ending.status}`
  return new RefrainError('engine_failed', `the backend ${member} failed: ${what}`, { retryAfterMs: 1000 })
}

const NOBODY: readonly string[] = []

/** Members that may not serve this request: another tenant's, where they cannot part their caches. */
function barred({ remotes, kindOf, tenants }: FleetParts, { query }: Pick<Forward, 'query'>): readonly string[] {
  const { excluded = NOBODY } = query
  if (tenants.length < 2) return excluded
  const others = remotes()
    .filter((remote) => {
      const { shared, tenant = tenants[0] } = remote.options
      return !kindOf(remote).salted && !shared && tenant !== query.tenant
    })
    .map(({ id }) => id)
  return [...excluded, ...others]
}

function remoteOf({ remotes }: FleetParts, { member }: MemberPlacement): Remote {
  for (const remote of remotes()) if (remote.id === member.id) return remote
  throw new Error(`the router chose ${member.id}, which is not there`)
}

/** `up0; reason="overlap"; hit=1024; of=4`, and `; hedged="won"` of two members' answers. */
function routeHeader(placement: MemberPlacement, reason: string, hedged?: string): string {
  const { member, predictedHitTokens, of = placement.scores.length } = placement
  const said = `${member.id}; reason="${reason}"; hit=${Math.round(predictedHitTokens)}; of=${of}`
  return hedged === undefined ? said : `${said}; hedged="${hedged}"`
}
