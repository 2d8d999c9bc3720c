// What a client asked, as it is sent on: query, body, and of its headers those that mean something to a backend.
// Invariant: a client's credentials stand apart and go no further unless a backend's config says so. Step 2 in fleet mode.

import type { Tenant } from '../core/request.js'
import type { RouteQuery } from '../router/contract.js'
import { edited } from './body-edit.js'
import { type BodyScan, ROLES } from './body-scan.js'
import type {
  ApiLimits,
  BodySetting,
  FleetService,
  Forward,
  ForwardBody,
  ForwardChat,
  Translation,
} from './contract.js'
import type { Envelope } from './dialect/contract.js'
import { asksBeside, besideOf } from './forward-beside.js'
import { ignoredHeader } from './generate-route.js'
import type { Inbound } from './inbound.js'
import { queryOf } from './route-query.js'
import { translatable, translate } from './translate.js'

export interface Asking {
  readonly id: string
  readonly tenant: Tenant | undefined
  readonly request: Pick<Inbound, 'headers'> & Partial<Pick<Inbound, 'method' | 'url'>>
  /** Without the query. */
  readonly path: string
  /** Of the answer: the request's id is among them. */
  readonly headers: Record<string, string>
  readonly bytes: Buffer
  readonly scan: BodyScan
  /** False: an upload, which is sent on unread. */
  readonly isJson: boolean
}

export interface AskingOptions {
  readonly fleet: FleetService
  readonly limits: ApiLimits
  readonly sessionSignals: readonly string[]
  readonly forceUsage: boolean
}

/** Paths whose bodies have the conversation that routing goes by, and whose answers are read. */
export const GENERATING: ReadonlySet<string> = new Set([
  '/v1/chat/completions',
  '/v1/completions',
  '/v1/messages',
  '/v1/responses',
])

const CHAT_PATH = '/v1/chat/completions'

const PASSED = [
  'content-type',
  'accept',
  'user-agent',
  'traceparent',
  'tracestate',
  'anthropic-version',
  'anthropic-beta',
  'openai-organization',
  'openai-project',
]

/** @throws RefrainError `model_not_found`, `invalid_request`. */
export function askedOf(asking: Asking, options: AskingOptions): Forward {
  const { request, path, id, scan, isJson, bytes } = asking
  const tenant = asking.tenant as Tenant
  const { fleet, sessionSignals, forceUsage } = options
  const arrived = { id, tenant, headers: request.headers, scan }
  const sent = queryOf(arrived, { sessionSignals, tokensPerByte: (model) => fleet.tokensPerByte(model) })
  const model = fleet.resolve(sent.model || undefined)
  const query = model === sent.model ? sent : { ...sent, model }
  const isGenerating = GENERATING.has(path)
  const name = model === sent.model ? undefined : model
  const asked: Forward = {
    query,
    tenant,
    method: request.method ?? 'POST',
    path,
    url: request.url ?? path,
    headers: headersOf(request, PASSED, { 'x-request-id': asking.headers['x-request-id'] as string }),
    credentials: headersOf(request, ['authorization', 'x-api-key'], {}),
    body: isJson ? new ScannedBody(scan, name) : upload(bytes),
    stream: isGenerating && scan.value('stream') === true,
    forceUsage,
    ...(isGenerating && translating(asking, query, options)),
    ...(path === CHAT_PATH && isJson && { chat: new ScannedChat(scan) }),
  }
  if (!isGenerating || !asksBeside(path, scan)) return asked
  const envelope = envelopeOf(asking, query, options)
  const body = (edited: BodyScan) => new ScannedBody(edited, name)
  return { ...asked, beside: besideOf(asked, { scan, envelope, forceUsage, body, headers: asking.headers }) }
}

/** Nothing of it is read before it is asked for. */
class ScannedChat implements ForwardChat {
  readonly #scan: BodyScan

  constructor(scan: BodyScan) {
    this.#scan = scan
  }

  get count(): number {
    return this.#scan.list?.key === 'messages' ? this.#scan.elements.starts.length : 0
  }

  message(i: number): string {
    const { bytes, elements } = this.#scan
    return bytes.toString('utf8', elements.starts[i], elements.ends[i])
  }

  role(i: number): string {
    return ROLES[this.#scan.elements.roles[i] as number] as string
  }

  get tools(): string | undefined {
    return this.#scan.raw('tools')
  }

  get values(): string | undefined {
    return this.#scan.raw('chat_template_kwargs')
  }
}

function headersOf({ headers }: Pick<Inbound, 'headers'>, names: readonly string[], more: Record<string, string>) {
  for (const name of names) {
    const value = headers[name]
    if (typeof value === 'string') more[name] = value
  }
  return more
}

/** `model`: the name that it has at its members, where the client calls it otherwise. */
class ScannedBody implements ForwardBody {
  readonly #scan: BodyScan
  readonly #model: string | undefined

  constructor(scan: BodyScan, model: string | undefined) {
    this.#scan = scan
    this.#model = model
  }

  member(key: string): string | undefined {
    return this.#scan.raw(key)
  }

  edited(settings: readonly BodySetting[], appended?: string): Buffer {
    if (this.#model === undefined) return edited(this.#scan, settings, appended)
    return edited(this.#scan, [{ key: 'model', json: JSON.stringify(this.#model) }, ...settings], appended)
  }
}

function upload(bytes: Buffer): ForwardBody {
  return { member: () => undefined, edited: () => bytes }
}

function envelopeOf({ id, tenant }: Asking, query: RouteQuery, { limits }: AskingOptions): Envelope {
  const { session, parentSession, requestClass, priority } = query
  const family = parentSession === undefined ? {} : { parentSession }
  return { id, tenant: tenant as Tenant, session, ...family, requestClass, priority, limits }
}

function translating(asking: Asking, query: RouteQuery, options: AskingOptions) {
  const { forceUsage } = options
  const dialect = translatable(asking.path)
  if (dialect === undefined) return {}
  const { bytes } = asking
  const { model } = query
  return {
    translate: (): Translation => {
      const envelope = envelopeOf(asking, query, options)
      const translation = translate({ dialect, bytes, envelope, model, about: { model, forceUsage } })
      const names = ignoredHeader(translation.ignored)
      if (names !== '') asking.headers['x-refrain-ignored'] = names
      return translation
    },
  }
}
