// One member's part of a request: what is sent to it, and how its answer is told to the client. As it comes; from a chat in
// the client's own dialect; or as the rest of what another member began. Invariant: what is told is whole events, and the
// body that came is never changed but by what is set.

import { createHash } from 'node:crypto'
import type { BodySetting, Forward, ForwardBody, Forwarded, ForwardSink, Translation } from './api/contract.js'
import type {
  BrokenChat,
  ChatReader,
  Ending,
  ExchangeRequest,
  IncomingHeaders,
  Remote,
  RemoteKind,
  Sending,
} from './backend/remote/contract.js'
import { RefrainError } from './core/errors.js'
import type { GenerateEvent } from './core/events.js'
import { isHeaderValue } from './core/header-text.js'
import type { Aside } from './core/quick.js'
import type { AttemptSettled, RouteSignals } from './core/signals.js'
import type { MemberPlacement, RouteQuery } from './router/contract.js'

/** How a request is put to a member and its answer told. */
export interface Telling {
  readonly path: string
  /** With the query. */
  readonly url: string
  readonly body: ForwardBody
  /** Whether a stream is asked of the member. */
  readonly stream: boolean
  readonly isTranslated: boolean
  readonly settings: readonly BodySetting[]
  /** A message behind the others. */
  readonly appended?: string
  /** How its failure is told in-band, where not as the path's dialect does. */
  failure?(error: unknown): string
  events(bytes: Buffer): void
  /** Behind a stream's good end. */
  end(ending: Extract<Ending, { kind: 'stream' }>): Forwarded
}

export const CHAT_PATH = '/v1/chat/completions'

/** As it comes. */
export function passedOn({ path, url, body, stream }: Forward, sink: ForwardSink, broken?: BrokenChat): Telling {
  return {
    path,
    url,
    body,
    stream,
    isTranslated: false,
    settings: [],
    events(bytes) {
      broken?.keep(bytes)
      sink.write(bytes)
    },
    end: streamed,
  }
}

/** Asked as a chat, always as a stream; told in the client's dialect. */
export function translated(asked: Forward, sink: ForwardSink, translation: Translation, reader: ChatReader): Telling {
  const tell = (events: readonly GenerateEvent[]) => {
    const text = events.map((event) => translation.event(event)).join('')
    // The translation itself keeps what a whole answer is made of.
    if (asked.stream) sink.write(text)
  }
  return {
    path: CHAT_PATH,
    url: CHAT_PATH,
    body: translation.body,
    stream: true,
    isTranslated: true,
    settings: [],
    failure: (error) => translation.failure(error),
    events: (bytes) => tell(reader.add(bytes)),
    end(ending) {
      tell(reader.finish(ending.usage))
      const usage = ending.usage && { usage: ending.usage }
      if (asked.stream) {
        sink.write(translation.end())
        return { kind: 'stream', ...usage }
      }
      const headers = { 'content-type': 'application/json; charset=utf-8' }
      return { kind: 'whole', status: 200, headers, body: Buffer.from(translation.end()), ...usage }
    },
  }
}

/** The rest of what broke off. */
export function continued(
  { path, url, body, stream }: Forward,
  sink: ForwardSink,
  broken: BrokenChat,
  { message, tokens }: { readonly message: string; readonly tokens: number },
): Telling {
  return {
    path,
    url,
    body,
    stream,
    isTranslated: false,
    settings: roomLeft(body, tokens),
    appended: message,
    events(bytes) {
      const told = broken.continued(bytes)
      broken.keep(told)
      sink.write(told)
    },
    end: streamed,
  }
}

function streamed({ usage }: Extract<Ending, { kind: 'stream' }>): Forwarded {
  return { kind: 'stream', ...(usage && { usage }) }
}

/** A member's own fault: what another one may do better. A refusal of the request is none. */
export function isFailure(ending: Ending): boolean {
  if (ending.kind !== 'whole') return ending.kind === 'fault'
  return ending.status >= 500
}

/** Members of a body that only Refrain knows: another server would pass over them in silence. */
const OWN = ['quick', 'refrain'] as const

/** @throws RefrainError `unsupported_parameter` where `remote` is no Refrain and the body asks for what only one has. */
export function checkOwn({ body }: Forward, { id, facts }: Remote): void {
  if (facts?.kind === 'refrain') return
  for (const key of OWN) {
    if ((body.member(key) ?? 'null') === 'null') continue
    const text = `'${key}' cannot be honoured: the backend ${id} is no Refrain`
    throw new RefrainError('unsupported_parameter', text, { param: key })
  }
  // Other servers have members of that name too; an id of ours means that the history is left out.
  if (!LOGGED.test(body.member('session') ?? '')) return
  const text = `'session' cannot be honoured: sessions are logged by a Refrain alone, and the backend ${id} is none`
  throw new RefrainError('unsupported_parameter', text, { param: 'session' })
}

/** Side questions in the body go apart to what is no Refrain. @throws RefrainError where they cannot be asked. */
export function withoutBeside(asked: Forward, { facts }: Remote): Forward {
  const { beside } = asked
  return beside === undefined || facts?.kind === 'refrain' ? asked : { ...asked, body: beside.asked().body }
}

/** The id of a logged session, as JSON. */
const LOGGED = /^"ses_[0-9a-f]{32}"$/

/** That a backend refuses the key of our config is nothing that a client could mend. @throws RefrainError */
export function checkKey(status: number, { id, options }: Remote): void {
  if ((status !== 401 && status !== 403) || options.forwardAuthorization) return
  throw new RefrainError('engine_failed', `the backend ${id} refuses the key that it gets from the config`)
}

/** A refusal of a chat, in the words of the backend. @throws RefrainError */
export function refused(ending: Extract<Ending, { kind: 'whole' }>): never {
  const text = ending.body.toString('utf8', 0, 16_384)
  const said = /"(?:message|detail)"\s*:\s*"((?:[^"\\]|\\.)*)"/.exec(text)?.[1]
  const message = said === undefined ? `the backend answers ${ending.status}` : JSON.parse(`"${said}"`)
  throw new RefrainError(codeOf(ending.status, message), message)
}

function codeOf(status: number, message: string) {
  if (status === 429) return 'queue_full'
  if (status === 404) return 'model_not_found'
  return /context (length|size|window)/i.test(message) ? 'context_length_exceeded' : 'invalid_request'
}

export function wholeOf(ending: Extract<Ending, { kind: 'whole' }>): Forwarded {
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

/** What is left of the client's limits. */
function roomLeft(body: ForwardBody, tokens: number): BodySetting[] {
  return ['max_tokens', 'max_completion_tokens'].flatMap((key) => {
    const sent = Number(body.member(key))
    return Number.isSafeInteger(sent) && sent > 0 ? [{ key, json: String(Math.max(1, sent - tokens)) }] : []
  })
}

export const GENERATING: ReadonlySet<string> = new Set([CHAT_PATH, '/v1/completions', '/v1/messages', '/v1/responses'])

/** Side questions, all at once: what a Refrain takes. */
export const QUICK_PATH = '/v1/quick'

/** @throws RefrainError `unsupported_parameter` where the server cannot hold an answer to that form. */
function asideSettings(aside: Aside, kind: RemoteKind, sending: Sending): readonly BodySetting[] {
  const settings = kind.aside(aside, sending)
  if (settings !== undefined) return settings
  const text = `'${aside.path}' asks for an answer in a form that a backend of kind ${kind.kind} cannot hold it to`
  throw new RefrainError('unsupported_parameter', text, { param: aside.path })
}

export interface Outbound {
  readonly asked: Forward
  readonly remote: Remote
  readonly kind: RemoteKind
  readonly telling: Telling
  /** Whether there are tenants to be parted. */
  readonly parts: boolean
  readonly seat: readonly BodySetting[]
}

/** Of this attempt alone: who listens may add some. */
interface OpenHeaders {
  readonly out: { readonly headers: Record<string, string> }
}

/** What goes out to a member, and how what comes back is read. */
export function outbound({
  asked,
  remote,
  kind,
  telling,
  parts,
  seat,
}: Outbound): Omit<ExchangeRequest, 'onFirst' | 'onEvents' | 'clock' | 'signal'> & OpenHeaders {
  const { query, forceUsage } = asked
  const { path, url, body, stream, appended } = telling
  const { options } = remote
  const sending: Sending = {
    path,
    options,
    salt: parts ? saltOf(asked) : undefined,
    priority: query.priority,
    session: query.session,
    isTranslated: telling.isTranslated,
    member: (key) => body.member(key),
  }
  const isRead = GENERATING.has(path) || path === QUICK_PATH
  const settings: BodySetting[] = isRead ? [...kind.settings(sending)] : []
  if (asked.aside !== undefined) settings.push(...asideSettings(asked.aside, kind, sending)) // unsupported_parameter
  const setsUsage = settings.some(({ key }) => key === 'stream_options')
  const name = options.models[query.model]
  if (name !== undefined) settings.push({ key: 'model', json: JSON.stringify(name) })
  settings.push(...telling.settings, ...seat)
  if (appended !== undefined) settings.push(...(kind.continuation ?? []))
  const headers = { ...asked.headers }
  if (options.forwardAuthorization) Object.assign(headers, asked.credentials)
  if (kind.headers !== undefined) Object.assign(headers, kind.headers(sending))
  return {
    remote,
    out: { method: asked.method, path: url, headers, body: body.edited(settings, appended) },
    path,
    stream,
    isRead,
    choices: choicesOf(body),
    hidesUsage: setsUsage && !forceUsage && !telling.isTranslated,
  }
}

interface Begun {
  readonly remote: Remote
  readonly headers: Record<string, string>
  readonly reason: string
  /** Until it was placed. */
  readonly routeMs: number
  readonly signals: RouteSignals
}

/** Tells whoever listens that an attempt begins. */
export function tellBegun(
  { id, model }: Pick<RouteQuery, 'id' | 'model'>,
  placement: MemberPlacement,
  { remote, headers, reason, routeMs, signals: { attemptBegun } }: Begun,
): void {
  if (!attemptBegun.channel.hasSubscribers) return
  const { member, predictedHitTokens } = placement
  const backend = member.id
  const { url } = remote.options
  attemptBegun.publish({ id, key: placement, model, backend, url, reason, predictedHitTokens, routeMs, headers })
}

interface Over {
  readonly routeMs: number
  readonly ttftMs: number | undefined
  /** Undefined: the client left, or another member was faster. */
  readonly ending: Ending | undefined
  readonly isBeaten: boolean
  readonly signals: RouteSignals
}

/** Tells whoever listens how an attempt ended. */
export function tellSettled(id: string, placement: MemberPlacement, over: Over): void {
  const { routeMs, ttftMs, ending, isBeaten, signals } = over
  const { attemptSettled } = signals
  if (!attemptSettled.channel.hasSubscribers) return
  const { member, predictedHitTokens } = placement
  // Each member is written: what is spread first makes the runtime look up every other one (5 us).
  attemptSettled.publish({
    id,
    key: placement,
    backend: member.id,
    routeMs,
    ttftMs,
    predictedHitTokens,
    outcome: isBeaten ? 'lost' : outcomeOf(ending),
    status: ending?.kind === 'whole' ? ending.status : ending?.kind === 'stream' ? 200 : undefined,
    why: ending?.kind === 'fault' ? ending.fault.message : undefined,
    promptTokens: ending?.usage?.promptTokens,
    completionTokens: ending?.usage?.completionTokens,
    cachedTokens: ending?.usage?.cachedTokens,
  })
}

function outcomeOf(ending: Ending | undefined): AttemptSettled['outcome'] {
  if (ending === undefined) return 'left'
  if (ending.kind !== 'whole') return ending.kind === 'fault' ? 'failed' : 'answered'
  if (ending.status >= 500) return 'failed'
  return ending.status >= 400 ? 'refused' : 'answered'
}

export function choicesOf(body: ForwardBody): number {
  const n = Number(body.member('n') ?? 1)
  return Number.isSafeInteger(n) && n > 0 ? n : 1
}

/** The tenant's salt, and within it the client's own; a digest, since servers show it in their events. */
export function saltOf({ tenant, body }: Forward): string {
  const own = body.member('cache_salt') ?? ''
  return createHash('sha256').update(`${tenant.salt}\0${own}`).digest('base64url').slice(0, 22)
}

/** Headers of one connection, and those that are ours to say. */
const NOT_PASSED: ReadonlySet<string> = new Set([
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
  'x-refrain-route',
])

export function passedHeaders(headers: IncomingHeaders): Record<string, string> {
  const passed: Record<string, string> = {}
  for (const name in headers) {
    const sent = headers[name]
    if (sent === undefined || NOT_PASSED.has(name)) continue
    const value = typeof sent === 'string' ? sent : sent.join(', ')
    // What no header may have is a backend's fault, and nobody else's.
    if (isHeaderValue(value)) passed[name] = value
  }
  return passed
}
