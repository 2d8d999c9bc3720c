// The path of a request in fleet mode, top to bottom: a query and a body's bytes in, a backend's bytes out. Invariant:
// another backend may be tried until the first content came, and no longer; a 4xx is an answer and never tried again;
// every attempt is told to the router once, when it is sent and when it is over.

import { createHash } from 'node:crypto'
import type {
  BodySetting,
  FleetModel,
  FleetService,
  Forward,
  Forwarded,
  ForwardSink,
  ForwardUsage,
} from './api/contract.js'
import type {
  Ending,
  ExchangeRequest,
  IncomingHeaders,
  Remote,
  RemoteKind,
  Sending,
} from './backend/remote/contract.js'
import type { Clock } from './core/clock.js'
import { RefrainError } from './core/errors.js'
import type { FleetRouter, MemberPlacement, RouteQuery } from './router/contract.js'
import { modelNamed } from './router/model-names.js'

export interface FleetParts {
  readonly router: FleetRouter
  /** Those that can be asked, in the order of the config. */
  remotes(): readonly Remote[]
  kindOf(remote: Remote): RemoteKind
  exchange(request: ExchangeRequest): Promise<Ending>
  /** Patterns over the names that clients send -> a model's name. */
  readonly aliases: Readonly<Record<string, string>>
  /** Names of the tenants; empty: there is one, without a key. */
  readonly tenants: readonly string[]
  /** fleet.attempts */
  readonly attempts: number
  /** What else a member needs to be set for a request, and is told when it is over: slots of llama-server. */
  readonly seats?: Seats
  readonly clock: Clock
}

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
    resolve: (name) => resolve(parts, name),
    tokensPerByte: (model) => ratios.of(model),
    place: (query) => parts.router.place({ ...query, excluded: barred(parts, { query }) }),
    forward: (asked, sink, signal) => new Passing(parts, ratios, { asked, sink, signal }).run(),
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
  readonly #excluded: string[]
  #tried = 0
  #again: MemberPlacement | undefined
  #failure: Failure | undefined

  constructor(parts: FleetParts, ratios: TokenRatios, request: Request) {
    this.#parts = parts
    this.#ratios = ratios
    this.#request = request
    this.#excluded = barred(parts, request.asked)
  }

  async run(): Promise<Forwarded> {
    const { asked, signal } = this.#request
    for (;;) {
      signal.throwIfAborted()
      const placement = this.#again ?? this.#place() //         model_not_found, engine_failed, queue_full
      if (placement === undefined) return this.#last() //       engine_failed
      this.#again = undefined
      const remote = remoteOf(this.#parts, placement)
      const seat = await this.#parts.seats?.take(placement.member.id, asked.query, signal)
      const ending = await this.#attempt(remote, placement, seat) // the signal's reason
      const answer = this.#judge(ending, placement)
      if (answer !== undefined) return answer
    }
  }

  /** Undefined: all that there are have failed. */
  #place(): MemberPlacement | undefined {
    const { asked } = this.#request
    try {
      return this.#parts.router.place({ ...asked.query, excluded: this.#excluded })
    } catch (error) {
      // That nobody is left says less than why the last one failed.
      if (this.#failure !== undefined) return undefined
      throw error
    }
  }

  /** What the last one that was tried said. */
  #last(): Forwarded {
    const { ending } = this.#failure as Failure
    if (ending.kind === 'whole') return wholeOf(ending)
    throw errorOf(this.#failure as Failure)
  }

  async #attempt(remote: Remote, placement: MemberPlacement, seat: Seat | undefined): Promise<Ending> {
    const { asked, sink, signal } = this.#request
    const { router, exchange, clock } = this.#parts
    const { member } = placement
    sink.routed(routeHeader(placement))
    router.sent(asked.query, placement)
    const startedAt = clock.now()
    let ttftMs: number | undefined
    const onFirst = (headers: IncomingHeaders) => {
      ttftMs = clock.now() - startedAt
      router.started(asked.query, member.id)
      sink.begin(passedHeaders(headers))
    }
    let ending: Ending | undefined
    try {
      ending = await exchange({
        ...sendingOf(this.#parts, asked, remote, seat),
        onFirst,
        onEvents: (bytes) => sink.write(bytes),
        clock,
        signal,
      })
      return ending
    } finally {
      const { usage } = ending ?? {}
      seat?.leave(usage)
      if (usage !== undefined) this.#ratios.learn(asked.query, usage)
      router.settled({
        query: asked.query,
        member: member.id,
        predictedHitTokens: placement.predictedHitTokens,
        ...(usage?.cachedTokens !== undefined && { cachedTokens: usage.cachedTokens }),
        ...(usage !== undefined && { promptTokens: usage.promptTokens, completionTokens: usage.completionTokens }),
        ...(ttftMs !== undefined && { ttftMs }),
        // A client that left is no fault of the member's.
        failed: ending !== undefined && isFailure(ending),
      })
    }
  }

  /** The answer, or undefined where another attempt is due. @throws RefrainError where there is none. */
  #judge(ending: Ending, placement: MemberPlacement): Forwarded | undefined {
    const { id } = placement.member
    if (ending.kind === 'stream') return { kind: 'stream', ...(ending.usage && { usage: ending.usage }) }
    if (ending.kind === 'whole' && !isFailure(ending)) return wholeOf(ending)
    this.#failure = { ending, member: id }
    if (ending.kind === 'fault') {
      if (ending.begun) throw errorOf(this.#failure)
      if (ending.stale && this.#tried === 0) {
        // The server closed an idle connection just then: it is not down, and its cache is worth another try.
        this.#again = placement
        this.#tried = 1
        return undefined
      }
    }
    this.#excluded.push(id)
    const counts = ending.kind === 'whole' || ending.fault.sent
    if (counts) this.#tried++
    return this.#tried < this.#parts.attempts ? undefined : this.#last()
  }
}

interface Failure {
  readonly ending: Exclude<Ending, { kind: 'stream' }>
  readonly member: string
}

/** A member's own fault: what another one may do better. A refusal of the request is none. */
function isFailure(ending: Ending): boolean {
  if (ending.kind !== 'whole') return ending.kind === 'fault'
  return ending.status >= 500
}

function errorOf({ ending, member }: Failure): RefrainError {
  const what = ending.kind === 'fault' ? ending.fault.message : `it answers ${ending.status}`
  return new RefrainError('engine_failed', `the backend ${member} failed: ${what}`, { retryAfterMs: 1000 })
}

function wholeOf(ending: Extract<Ending, { kind: 'whole' }>): Forwarded {
  const { status, headers, body, usage } = ending
  const passed = passedHeaders(headers)
  const mustWait = (status === 429 || status === 503) && passed['retry-after'] === undefined
  return {
    kind: 'whole',
    status,
    headers: mustWait ? { ...passed, 'retry-after': '1' } : passed,
    body,
    ...(usage && { usage }),
  }
}

/** Members that may not serve this request: another tenant's, where they cannot part their caches. */
function barred({ remotes, kindOf, tenants }: FleetParts, { query }: Pick<Forward, 'query'>): string[] {
  if (tenants.length < 2) return []
  return remotes()
    .filter((remote) => {
      const { shared, tenant = tenants[0] } = remote.options
      return !kindOf(remote).salted && !shared && tenant !== query.tenant
    })
    .map(({ id }) => id)
}

function remoteOf({ remotes }: FleetParts, { member }: MemberPlacement): Remote {
  const remote = remotes().find(({ id }) => id === member.id)
  if (remote === undefined) throw new Error(`the router chose ${member.id}, which is not there`)
  return remote
}

/** What goes out to a member, and how what comes back is read. */
function sendingOf(parts: FleetParts, asked: Forward, remote: Remote, seat: Seat | undefined) {
  const { query, path, body, stream, forceUsage } = asked
  const { options } = remote
  const kind = parts.kindOf(remote)
  const sending: Sending = {
    path,
    options,
    salt: parts.tenants.length === 0 ? undefined : saltOf(asked),
    priority: query.priority,
    session: query.session,
    member: (key) => body.member(key),
  }
  const isRead = GENERATING.has(path)
  const settings: BodySetting[] = isRead ? [...kind.settings(sending)] : []
  const hidesUsage = !forceUsage && settings.some(({ key }) => key === 'stream_options')
  const name = options.models[query.model]
  if (name !== undefined) settings.push({ key: 'model', json: JSON.stringify(name) })
  if (seat !== undefined) settings.push(...seat.settings)
  const headers = { ...asked.headers }
  if (options.forwardAuthorization) Object.assign(headers, asked.credentials)
  if (kind.headers !== undefined) Object.assign(headers, kind.headers(sending))
  const out = { method: asked.method, path: asked.url, headers, body: body.edited(settings) }
  return { remote, out, path, stream, isRead, choices: choicesOf(asked), hidesUsage }
}

const GENERATING = new Set(['/v1/chat/completions', '/v1/completions', '/v1/messages', '/v1/responses'])

function choicesOf({ body }: Forward): number {
  const n = Number(body.member('n') ?? 1)
  return Number.isSafeInteger(n) && n > 0 ? n : 1
}

/** The tenant's salt, and within it the client's own; a digest, since servers show it in their events. */
function saltOf({ tenant, body }: Forward): string {
  const own = body.member('cache_salt') ?? ''
  return createHash('sha256').update(`${tenant.salt}\0${own}`).digest('base64url').slice(0, 22)
}

/** Headers of one connection, and those that are ours to say. */
const NOT_PASSED = new Set([
  'connection',
  'keep-alive',
  'proxy-connection',
  'transfer-encoding',
  'content-length',
  'trailer',
  'upgrade',
  'date',
  'server',
  'set-cookie',
  'x-request-id',
])

function passedHeaders(headers: IncomingHeaders): Record<string, string> {
  const passed: Record<string, string> = {}
  for (const name in headers) {
    const value = headers[name]
    if (value === undefined || NOT_PASSED.has(name)) continue
    passed[name] = typeof value === 'string' ? value : value.join(', ')
  }
  return passed
}

/** `up0; reason="overlap"; hit=1024; of=4` */
function routeHeader({ member, reason, predictedHitTokens, scores }: MemberPlacement): string {
  return `${member.id}; reason="${reason}"; hit=${Math.round(predictedHitTokens)}; of=${scores.length}`
}

// --- models ----------------------------------------------------------------------------------------------------------

/** The union of what all have, under the names that clients send. */
function modelsOf(remotes: readonly Remote[]): FleetModel[] {
  const models = new Map<string, FleetModel>()
  for (const { facts, options } of remotes) {
    for (const { id, json, contextLength } of facts?.models ?? []) {
      const names = [id, ...Object.keys(options.models).filter((name) => options.models[name] === id)]
      for (const name of names) {
        if (models.has(name)) continue
        models.set(name, { name, json, ...(contextLength !== undefined && { contextLength }) })
      }
    }
  }
  return [...models.values()]
}

function resolve({ remotes, aliases }: FleetParts, name: string | undefined): string {
  const all = remotes()
  if (name !== undefined && all.some((remote) => hasModel(remote, name))) return name
  const [first, ...rest] = modelsOf(all)
  if (first === undefined)
    throw new RefrainError('engine_failed', 'no backend has answered yet', { retryAfterMs: 1000 })
  return modelNamed([first, ...rest], aliases)(name).name
}

function hasModel({ facts, options }: Remote, name: string): boolean {
  return Object.hasOwn(options.models, name) || facts?.models.some(({ id }) => id === name) === true
}

// --- tokens ----------------------------------------------------------------------------------------------------------

/** Tokens of a byte before anything was observed. */
const RATIO = 0.25
/** How much one more answer counts. */
const WEIGHT = 0.1

/** How many tokens a byte of a model's prompts is: it differs by language and tokenizer, and backends tell it. */
class TokenRatios {
  readonly #ratios = new Map<string, number>()

  of(model: string): number {
    return this.#ratios.get(model) ?? RATIO
  }

  learn({ model, promptTokens }: RouteQuery, usage: ForwardUsage): void {
    if (promptTokens < 256) return
    const now = this.of(model)
    const seen = (usage.promptTokens / promptTokens) * now
    this.#ratios.set(model, now + WEIGHT * (Math.min(1, Math.max(0.02, seen)) - now))
  }
}
