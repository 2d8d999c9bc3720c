// One backend elsewhere: its connections, its key, and the questions that tell what it is. Invariant: a client's own
// credentials never go out unless the config says so; ours go to their own server alone.

import type { MemberKind } from '../../router/contract.js'
import { createClient } from './client.js'
import {
  type CallOptions,
  type Incoming,
  type IncomingHeaders,
  type Outgoing,
  type Remote,
  type RemoteFacts,
  RemoteFault,
  type RemoteKind,
  type RemoteLimits,
  type RemoteModel,
  type RemoteOptions,
} from './contract.js'
import * as kinds from './index.js'

const KINDS: readonly RemoteKind[] = Object.values(kinds)

/** Dialects that a server may lack; each is asked for with a body that it must refuse. */
const OPTIONAL_PATHS = ['/v1/messages', '/v1/responses', '/v1/completions']
const NO_ROUTE = [404, 405, 501]

/** Of an answer to a question of our own. */
const ANSWER_BYTES = 8 * 1024 * 1024

export function kindOf(kind: MemberKind): RemoteKind {
  return KINDS.find((each) => each.kind === kind) as RemoteKind
}

/** @throws Error where the URL or a file of its TLS cannot be used. */
export function openRemote(options: RemoteOptions, limits: RemoteLimits): Remote {
  const url = new URL(options.url)
  if (url.protocol !== 'http:' && url.protocol !== 'https:') throw new Error(`${options.url}: only http and https`)
  const own = ownHeaders(options, url)
  const client = createClient({ url, connectMs: limits.connectMs, ...(options.tls && { tls: options.tls }) })
  const hasOwn = Object.keys(own).length > 0
  const send = (out: Outgoing, into: Incoming) =>
    client.send(hasOwn ? { ...out, headers: { ...out.headers, ...own } } : out, into)
  let facts: RemoteFacts | undefined

  const call: Remote['call'] = (method, path, more = {}) => callOnce(send, { method, path, more, limits })

  return {
    id: options.name ?? idOf(url, options.dataParallelRank),
    options,
    get facts() {
      return facts
    },
    async ask(signal) {
      const about = { ...(signal && { signal }) }
      const { models, owner } = await askModels(call, about)
      const kind = options.kind === 'auto' ? await findKind(call, owner, about) : options.kind
      const lacks = await askPaths(call, about)
      const slots = kind === 'llama-cpp' ? await askSlots(call, about) : undefined
      facts = { kind, models, lacks, ...(slots !== undefined && { slots }) }
      return facts
    },
    async ping(signal) {
      const { status } = await call('GET', '/health', { ...(signal && { signal }) })
      // Not every server has the route; that it answers is enough then.
      if (status >= 400 && !NO_ROUTE.includes(status) && status !== 401) {
        throw new RemoteFault(`GET /health answers ${status}`, { sent: true })
      }
    },
    send,
    call,
    close: () => client.close(),
  }
}

function idOf(url: URL, rank: number | undefined): string {
  const path = url.pathname.replace(/\/$/, '')
  return `${url.protocol}//${url.host}${path}${rank === undefined ? '' : `#${rank}`}`
}

function ownHeaders({ apiKey, headers }: RemoteOptions, url: URL): Record<string, string> {
  const lower = Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]))
  const user =
    url.username === '' ? undefined : `${decodeURIComponent(url.username)}:${decodeURIComponent(url.password)}`
  const authorization =
    apiKey !== undefined
      ? `Bearer ${apiKey}`
      : user === undefined
        ? undefined
        : `Basic ${Buffer.from(user).toString('base64')}`
  return { ...(authorization !== undefined && { authorization }), ...lower }
}

type Call = Remote['call']
type About = Pick<CallOptions, 'signal'>

interface Question {
  readonly method: string
  readonly path: string
  readonly more: CallOptions
  readonly limits: RemoteLimits
}

function callOnce(send: Remote['send'], { method, path, more, limits }: Question): ReturnType<Call> {
  const { body, signal, timeoutMs = limits.askMs, asText = false } = more
  return new Promise((resolve, reject) => {
    const parts: Buffer[] = []
    let status = 0
    let bytes = 0
    const settle = (what: () => void) => {
      clearTimeout(timer)
      signal?.removeEventListener('abort', onAbort)
      what()
    }
    const stop = (fault: RemoteFault) => {
      abort()
      settle(() => reject(fault))
    }
    const onAbort = () => stop(new RemoteFault('the question was given up', { sent: true, cause: signal?.reason }))
    const timer = setTimeout(
      () => stop(new RemoteFault(`no answer to ${method} ${path} in ${timeoutMs} ms`, { sent: true })),
      timeoutMs,
    )
    const into: Incoming = {
      head: (code: number, _headers: IncomingHeaders) => {
        status = code
      },
      data(chunk) {
        bytes += chunk.length
        if (bytes > ANSWER_BYTES) stop(new RemoteFault(`the answer to ${path} is too large`, { sent: true }))
        else parts.push(chunk)
      },
      end: () => {
        const text = Buffer.concat(parts).toString('utf8')
        settle(() => resolve({ status, value: asText ? text : parsed(text) }))
      },
      fail: (fault) => settle(() => reject(fault)),
    }
    const json = body === undefined ? undefined : Buffer.from(JSON.stringify(body))
    const headers: Record<string, string> = json === undefined ? {} : { 'content-type': 'application/json' }
    const abort = send({ method, path, headers, ...(json && { body: json }) }, into)
    if (signal?.aborted) onAbort()
    else signal?.addEventListener('abort', onAbort)
  })
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    // Many answers have no body, and an error page is no JSON.
    return undefined
  }
}

async function askModels(call: Call, about: About): Promise<{ models: RemoteModel[]; owner: string | undefined }> {
  const { status, value } = await call('GET', '/v1/models', about)
  const { data } = (value ?? {}) as { data?: unknown }
  if (status !== 200 || !Array.isArray(data)) {
    throw new RemoteFault(`GET /v1/models answers ${status}${status === 200 ? ' without a list' : ''}`, { sent: true })
  }
  const entries = data.filter((each): each is Record<string, unknown> => typeof each?.id === 'string')
  const models = entries.map((entry): RemoteModel => {
    const contextLength = windowOf(entry)
    return {
      id: entry['id'] as string,
      ...(contextLength !== undefined && { contextLength }),
      // vLLM lists its adapters beside the model and names that as their parent.
      ...(typeof entry['parent'] === 'string' && entry['parent'] !== '' && { isAdapter: true }),
      json: JSON.stringify(entry),
    }
  })
  const owner = entries[0]?.['owned_by']
  return { models, owner: typeof owner === 'string' ? owner : undefined }
}

function windowOf(entry: Record<string, unknown>): number | undefined {
  const meta = entry['meta'] as Record<string, unknown> | null | undefined
  const said = entry['max_model_len'] ?? entry['context_length'] ?? entry['context_window'] ?? meta?.['n_ctx']
  return typeof said === 'number' && said > 0 ? said : undefined
}

async function findKind(call: Call, owner: string | undefined, about: About): Promise<MemberKind> {
  const owned = KINDS.find((kind) => kind.owner !== undefined && kind.owner === owner)
  if (owned !== undefined) return owned.kind
  for (const { kind, sign } of KINDS) {
    if (sign !== undefined && (await call('GET', sign, about)).status === 200) return kind
  }
  return 'openai'
}

/** Paths that it has no route for. */
async function askPaths(call: Call, about: About): Promise<string[]> {
  const statuses = await Promise.all(
    OPTIONAL_PATHS.map(async (path) => (await call('POST', path, { ...about, body: {} })).status),
  )
  return OPTIONAL_PATHS.filter((_, i) => NO_ROUTE.includes(statuses[i] as number))
}

async function askSlots(call: Call, about: About): Promise<number | undefined> {
  const { value } = await call('GET', '/props', about)
  const slots = (value as { total_slots?: unknown } | undefined)?.total_slots
  return typeof slots === 'number' ? slots : undefined
}
