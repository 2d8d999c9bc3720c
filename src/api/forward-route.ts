// A request that is sent on: bytes in, bytes out, one settled-signal at the end whatever happened. It answers no framework's
// request, because what one adds would be a third of what a request costs here. Invariant: gate,
// limits, errors and keepalives are those of the other routes; a client's leaving ends the work wherever it is. Steps 1,
// 2 and 12 in fleet mode.

import { isUtf8 } from 'node:buffer'
import { randomUUID } from 'node:crypto'
import type { Clock } from '../core/clock.js'
import { ERRORS, type ErrorCode, RefrainError } from '../core/errors.js'
import type { Tenant } from '../core/request.js'
import type { RouteSignals } from '../core/signals.js'
import { Stop } from '../core/stop.js'
import type { RouteQuery } from '../router/contract.js'
import { ClientGone } from './answer.js'
import { BodyMemo } from './body-memo.js'
import { BodyScan } from './body-scan.js'
import type { ApiLimits, FleetQuick, FleetService, Forwarded, ForwardSink, ForwardUsage } from './contract.js'
import { asRefrainError } from './dialect/openai-shape.js'
import { addedTokens } from './dialect/quick-result.js'
import { reportFault, retryHeaders } from './failure.js'
import { type Asking, askedOf, GENERATING } from './forward-asked.js'
import { type FailureShape, shapeOf } from './forward-failure.js'
import { ForwardStream } from './forward-stream.js'
import type { Gate } from './gate.js'
import { type Active, tellQuick } from './generate-route.js'
import type { Inbound, Outbound } from './inbound.js'

export interface ForwardOptions {
  readonly fleet: FleetService
  /** Undefined: nothing is asked on the side. */
  readonly quick: FleetQuick | undefined
  readonly gate: Gate
  readonly limits: ApiLimits
  readonly clock: Clock
  readonly keepaliveMs: number
  readonly sessionSignals: readonly string[]
  readonly forceUsage: boolean
  /** fleet.memoBytes */
  readonly memoBytes: number
  readonly active: Active
  readonly state: { readonly draining: boolean }
  readonly draining: () => RefrainError
  readonly signals: RouteSignals
}

export type ForwardHandler = (request: Inbound, response: Outbound) => void

const CLIENT_GONE_STATUS = 499

/** Of a refusal, as much as is looked at. */
const LOOK_BYTES = 16_384

/** One request, as far as it has come; what comes of it is written here. */
class Passage implements ForwardSink, Asking {
  readonly id = nextId()
  readonly startedAt: number
  readonly path: string
  readonly request: Inbound
  readonly response: Outbound
  readonly stop = new Stop()
  readonly shape: FailureShape
  readonly headers: Record<string, string>
  readonly #clock: Clock
  bytes: Buffer = NO_BYTES
  scan: BodyScan = NOTHING
  isJson = false
  tenant: Tenant | undefined
  query: RouteQuery | undefined
  stream: ForwardStream | undefined
  firstAt: number | undefined
  endedAt: number | undefined
  first: Buffer | string | undefined
  last: Buffer | string | undefined
  /** Whether a second backend answers that it was sent to as well. */
  hedge: 'won' | 'lost' | undefined
  /** How a failure is told in-band, where not as the path's dialect does. */
  failure: ((error: unknown) => string) | undefined

  constructor(request: Inbound, response: Outbound, clock: Clock) {
    const { url } = request
    const question = url.indexOf('?')
    const sentId = request.headers['x-request-id']
    const isHarmless = typeof sentId === 'string' && /^[\w.:-]{1,128}$/.test(sentId)
    this.#clock = clock
    this.startedAt = clock.now()
    this.path = question < 0 ? url : url.slice(0, question)
    this.request = request
    this.response = response
    this.shape = shapeOf(this.path)
    this.headers = idHeaders(this.path, isHarmless ? sentId : this.id)
  }

  routed(route: string): void {
    this.headers['x-refrain-route'] = route
  }

  hedged(outcome: 'won' | 'lost'): void {
    this.hedge = outcome
  }

  begin(headers: Readonly<Record<string, string>>): void {
    this.firstAt ??= this.#clock.now()
    this.stream?.open(headers)
  }

  write(bytes: Buffer | string): void {
    this.first ??= bytes
    this.last = bytes
    this.stream?.write(bytes)
  }

  failsWith(failure: (error: unknown) => string): void {
    this.failure = failure
  }
}

const NO_BYTES = Buffer.alloc(0)
const NOTHING = new BodyScan(Buffer.from('{}'))

/** Ids are of this process, and counted within it: 32 digits. */
const FIRST_DIGITS = randomUUID().replaceAll('-', '').slice(0, 20)
let count = 0

function nextId(): string {
  return FIRST_DIGITS + (++count).toString(16).padStart(12, '0')
}

export function forwardRoute(options: ForwardOptions): ForwardHandler {
  const memo = new BodyMemo(options.memoBytes)
  return (request, response) => {
    const passage = new Passage(request, response, options.clock)
    options.active.add(passage.stop)
    if (options.signals.requestBegun.channel.hasSubscribers) tellBegun(passage, options.signals)
    response.once('close', () => {
      if (!response.writableFinished) passage.stop.abort(new ClientGone())
    })
    pass(passage, options, memo).then(
      // What became of its attempt is told first.
      (forwarded) => void setImmediate(() => settle(passage, options, { forwarded })),
      (failure) => {
        refuse(passage, failure)
        settle(passage, options, { failure })
      },
    )
  }
}

/** In order: let in, read, understood, sent on, answered. @throws whatever ends it. */
async function pass(passage: Passage, options: ForwardOptions, memo: BodyMemo): Promise<Forwarded> {
  const { request, path, stop } = passage
  passage.tenant = options.gate.admit(request.headers, 'tenant') //   unauthorized, forbidden
  if (options.state.draining) throw options.draining()
  checkHeaders(request) //                                            unsupported_media_type
  const bytes = await request.body(options.limits.bodyBytes) //         body_too_large
  passage.bytes = bytes
  passage.isJson = isJsonBody(passage)
  const kept = GENERATING.has(path) ? memo : undefined
  if (passage.isJson) passage.scan = scanned(bytes, kept) //          invalid_json
  const asked = askedOf(passage, options) //                          model_not_found, invalid_request
  passage.query = asked.query
  if (asked.stream) passage.stream = streamOf(passage, options)
  // It is on its way by then: the backend works meanwhile.
  if (passage.isJson) setImmediate(() => kept?.keep(passage.scan))
  const { beside } = asked
  const forwarded =
    beside === undefined || options.quick === undefined
      ? await options.fleet.forward(asked, passage, stop.signal)
      : await options.quick.beside({ ...asked, beside }, passage, stop.signal)
  answer(passage, forwarded)
  passage.endedAt = options.clock.now()
  return forwarded
}

function tellBegun({ id, path, request }: Passage, { requestBegun }: RouteSignals): void {
  const { traceparent, tracestate } = request.headers as Record<string, string | undefined>
  requestBegun.publish({ id, route: path, sinceMs: 0, traceparent, tracestate })
}

/** Anthropic's clients know it by another name. */
function idHeaders(path: string, id: string): Record<string, string> {
  return path.startsWith('/v1/messages') ? { 'x-request-id': id, 'request-id': id } : { 'x-request-id': id }
}

function checkHeaders({ headers, method }: Inbound): void {
  const encoding = headers['content-encoding']
  if (encoding !== undefined && encoding !== 'identity') {
    throw new RefrainError('unsupported_media_type', 'compressed bodies are not read; send it plain')
  }
  if (method === 'POST' && headers['content-type'] === undefined) {
    throw new RefrainError('unsupported_media_type', ERRORS.unsupported_media_type.sentence)
  }
}

function isJsonBody({ request, path }: Passage): boolean {
  const type = String(request.headers['content-type'] ?? '')
  if (type === 'application/json') return true
  if (/^application\/([\w.-]+\+)?json\b/i.test(type)) return true
  // Uploads (audio, files) go through on routes that are not ours to read.
  if (GENERATING.has(path)) {
    throw new RefrainError('unsupported_media_type', ERRORS.unsupported_media_type.sentence)
  }
  return false
}

function scanned(bytes: Buffer, memo: BodyMemo | undefined): BodyScan {
  if (bytes.length === 0) throw new RefrainError('invalid_json', 'the body is empty')
  const scan = new BodyScan(bytes, memo)
  // What was known was checked when it was new.
  const news = scan.knownBytes === 0 ? bytes : bytes.subarray(scan.knownBytes)
  if (isUtf8(news)) return scan
  throw new RefrainError('invalid_json', 'the body is not valid UTF-8')
}

function streamOf(passage: Passage, { clock, keepaliveMs, limits }: ForwardOptions): ForwardStream {
  const { response, shape, stop, headers } = passage
  const onSlow = () =>
    stop.abort(
      new RefrainError('slow_reader', `more than ${limits.unsentBytes} bytes waited for the client to read them`),
    )
  const { unsentBytes } = limits
  return new ForwardStream({ response, clock, keepaliveMs, keepalive: shape.keepalive, unsentBytes, onSlow }, headers)
}

function answer(passage: Passage, forwarded: Forwarded): void {
  const { stream, response, headers } = passage
  if (forwarded.kind === 'stream') {
    stream?.end('')
    return
  }
  // It came after the first keepalive: its status can no longer be told.
  if (stream?.isOpen === true) throw refusalOf(forwarded)
  stream?.stop()
  const { status, usage } = forwarded
  const body = shaped(passage, forwarded)
  if (usage?.cachedTokens !== undefined) headers['x-refrain-cache'] = cacheHeader(usage)
  if (body !== forwarded.body) headers['content-type'] = 'application/json; charset=utf-8'
  headers['content-length'] = String(body.length)
  // A list is written as it stands; of an object Node would make one.
  const all: string[] = []
  for (const name in forwarded.headers) if (!(name in headers)) all.push(name, forwarded.headers[name] as string)
  for (const name in headers) all.push(name, headers[name] as string)
  response.writeHead(status, all)
  response.end(body)
}

/** A refusal in the dialect's shape: servers have others for paths, methods and keys. */
function shaped({ shape, path, headers }: Passage, forwarded: Extract<Forwarded, { kind: 'whole' }>): Buffer {
  const { status, body } = forwarded
  if (status < 400 || !GENERATING.has(path) || shape.fits(body.toString('latin1', 0, LOOK_BYTES))) return body
  return Buffer.from(shape.body(refusalOf(forwarded), headers['x-request-id'] as string))
}

/** What a backend refused with, as an error of ours: it is told in-band. */
function refusalOf({ status, body }: Extract<Forwarded, { kind: 'whole' }>): RefrainError {
  const message = /"(?:message|detail|error)":\s*"((?:[^"\\]|\\.)*)"/.exec(body.toString('utf8', 0, LOOK_BYTES))?.[1]
  const code = status === 429 ? 'queue_full' : status >= 500 ? 'engine_failed' : 'invalid_request'
  return new RefrainError(code, message === undefined ? `the backend answers ${status}` : JSON.parse(`"${message}"`))
}

function cacheHeader({ promptTokens, cachedTokens = 0 }: ForwardUsage): string {
  return `cached=${cachedTokens}, computed=${promptTokens - cachedTokens}`
}

/** Tells a failure: with a status while no byte is out, in-band after that, not at all to a client that is gone. */
function refuse(passage: Passage, failure: unknown): void {
  const { response, request, stream, shape, headers, first, last } = passage
  const id = headers['x-request-id'] as string
  stream?.stop()
  if (failure instanceof ClientGone || response.destroyed) {
    response.destroy()
    return
  }
  const error = asRefrainError(failure)
  if (error.code === 'internal') reportFault(failure)
  if (error.code === 'slow_reader') response.destroy()
  else if (stream?.isOpen === true) stream.end(passage.failure?.(error) ?? shape.event(error, { first, last, id }))
  else {
    const body = shape.body(error, id)
    // What is left of a body that is not read would be taken for the next request.
    const all: Record<string, string | number> = { ...headers, ...retryHeaders(error) }
    if (!request.complete) all['connection'] = 'close'
    all['content-type'] = 'application/json; charset=utf-8'
    all['content-length'] = Buffer.byteLength(body)
    response.writeHead(error.status, all)
    response.end(body)
  }
}

interface Outcome {
  readonly forwarded?: Forwarded
  readonly failure?: unknown
}

function settle(passage: Passage, options: ForwardOptions, { forwarded, failure }: Outcome): void {
  const { active, signals } = options
  const { requestSettled } = signals
  active.delete(passage.stop)
  if (!requestSettled.channel.hasSubscribers) return
  const { usage, quick = NOTHING_ASKED } = forwarded ?? {}
  const { startedAt, query, tenant, path, firstAt, endedAt = options.clock.now() } = passage
  const cached = usage?.cachedTokens ?? 0
  const error = errorOf(failure)
  tellQuick(quick, tenant?.name ?? '')
  const added = addedTokens(quick)
  requestSettled.publish({
    id: passage.id,
    tenant: tenant?.name ?? '',
    route: path,
    model: query?.model ?? '',
    status: statusOf(forwarded, failure),
    ...(error !== undefined && { error }),
    promptTokens: (usage?.promptTokens ?? 0) + added.promptTokens,
    completionTokens: (usage?.completionTokens ?? 0) + added.completionTokens,
    working: 0,
    memory: cached,
    disk: 0,
    computed: (usage?.promptTokens ?? 0) - cached + added.promptTokens,
    ...(firstAt !== undefined && { ttftMs: firstAt - startedAt }),
    durationMs: endedAt - startedAt,
    ...(query?.session !== undefined && { session: query.session }),
    ...(passage.hedge !== undefined && { hedged: passage.hedge }),
  })
}

const NOTHING_ASKED: NonNullable<Forwarded['quick']> = []

function errorOf(failure: unknown): ErrorCode | 'client_gone' | undefined {
  if (failure === undefined) return undefined
  return failure instanceof ClientGone ? 'client_gone' : asRefrainError(failure).code
}

function statusOf(forwarded: Forwarded | undefined, failure: unknown): number {
  if (failure instanceof ClientGone) return CLIENT_GONE_STATUS
  if (failure !== undefined) return asRefrainError(failure).status
  return forwarded?.kind === 'whole' ? forwarded.status : 200
}
