// What the router is asked: a body and its headers as a RouteQuery, without rendering anything. Invariant: it carries
// hashes and counts, never text. Step 2 in fleet mode; also what the dry run of /v1/route is made of.

import type { Priority, Tenant } from '../core/request.js'
import type { RouteQuery, SegmentChain } from '../router/contract.js'
import type { Told } from './body-memo.js'
import { type BodyMember, type BodyScan, front, type Links, ROLES } from './body-scan.js'
import { invalid } from './dialect/fields.js'
import { lightBody } from './light-body.js'
import { classify } from './request-class.js'
import { CHAIN_START, chained, type Digest, digestOf, nameOf } from './segment-hash.js'
import { type RequestHeaders, type SessionSignal, sessionSignal } from './session-signal.js'

export interface Arrived {
  readonly id: string
  readonly tenant: Tenant
  readonly headers: RequestHeaders
  readonly scan: BodyScan
}

export interface QueryOptions {
  /** Where a session's key is looked for; see session-signal.ts. */
  readonly sessionSignals: readonly string[]
  /** Tokens of a byte of a prompt for the model: observed, a quarter until then. */
  tokensPerByte(model: string): number
}

const NO_SIGNAL: SessionSignal = {}

const PRIORITIES: readonly string[] = ['interactive', 'auxiliary', 'background'] satisfies Priority[]
/** Of a prompt that is one text (Completions), a segment. */
const PIECE_BYTES = 1024

/** @throws RefrainError `invalid_request` naming the header. */
export function queryOf({ id, tenant, headers, scan }: Arrived, options: QueryOptions): RouteQuery {
  const told = toldOf(scan, headers, options.sessionSignals)
  const { model, cacheSalt: salt, session, parentSession, requestClass } = told
  const isSide = requestClass === 'auxiliary' || requestClass === 'compaction'
  const priority = headers['x-refrain-priority'] ?? (isSide ? 'auxiliary' : 'interactive')
  if (typeof priority !== 'string' || !PRIORITIES.includes(priority)) {
    throw invalid('x-refrain-priority', `must be one of ${PRIORITIES.join(', ')}`)
  }
  const segments = segmentsOf(scan, options.tokensPerByte(model))
  return {
    id,
    model,
    tenant: tenant.name,
    salt: typeof salt === 'string' && salt !== '' ? `${tenant.salt}/${salt}` : tenant.salt,
    ...(session !== undefined && { session }),
    ...(parentSession !== undefined && { parentSession }),
    requestClass,
    priority: priority as Priority,
    segments,
    promptTokens: segments.tokens.at(-1) ?? 0,
    estimated: true,
  }
}

const USER = ROLES.indexOf('user')

/** Where a conversation with tools has only grown behind its last message of a user, what was known of it. */
function toldOf(scan: BodyScan, headers: RequestHeaders, signals: readonly string[]): Told {
  const before = scan.told.told
  const counted = countedHeaders(headers, signals)
  const lastUser = scan.elements.roles.lastIndexOf(USER)
  const isKnown = lastUser >= 0 && lastUser < scan.known
  if (
    before !== undefined &&
    isKnown &&
    before.lastUser === lastUser &&
    before.headers === counted &&
    before.signals === signals
  ) {
    return before
  }
  const body = lightBody(scan)
  const { session, parentSession } = hasSignal(headers, body, signals)
    ? sessionSignal(headers, body, signals)
    : NO_SIGNAL
  const { requestClass = 'main' } = classify(headers, body)
  const model = typeof body['model'] === 'string' ? body['model'] : ''
  const cacheSalt = body['cache_salt']
  const told = { headers: counted, signals, lastUser, model, cacheSalt, session, parentSession, requestClass }
  // Without tools it counts how many there are of what.
  scan.told.told = body['tools'] === undefined ? undefined : told
  return told
}

/** The headers that say whose turn it is, or what it is for, as a text. */
function countedHeaders(headers: RequestHeaders, signals: readonly string[]): string {
  let counting = COUNTING.get(signals)
  if (counting === undefined) {
    counting = new Set(signals)
    COUNTING.set(signals, counting)
  }
  let text = ''
  for (const name in headers) {
    if (name.startsWith('x-') || counting.has(name)) {
      if (!PASSING.has(name)) text += `${name}\0${String(headers[name])}\0`
    }
  }
  return text
}
const COUNTING = new WeakMap<readonly string[], ReadonlySet<string>>()
/** They change from request to request, and say nothing of the conversation. */
const PASSING = new Set(['x-request-id', 'x-client-request-id', 'x-stainless-retry-count', 'x-refrain-priority'])

/** Whether any is there at all: most requests of most clients have none. */
function hasSignal(headers: RequestHeaders, body: Readonly<Record<string, unknown>>, signals: readonly string[]) {
  let fields = FIELDS.get(signals)
  if (fields === undefined) {
    fields = signals.map((signal) => (signal.startsWith('body:') ? signal.slice(5).split('.')[0] : undefined))
    FIELDS.set(signals, fields)
  }
  for (let i = 0; i < signals.length; i++) {
    const field = fields[i]
    if ((field === undefined ? headers[signals[i] as string] : body[field]) !== undefined) return true
  }
  return false
}
/** Of each list of signals, the first step into the body. */
const FIELDS = new WeakMap<readonly string[], readonly (string | undefined)[]>()

/** Tools, system, then each message; of a plain prompt pieces of equal length. */
export function segmentsOf(scan: BodyScan, tokensPerByte: number): SegmentChain {
  const { starts, ends, roles } = scan.elements
  let hashes: readonly string[]
  const heads: string[] = []
  const tokens: number[] = []
  const parts: string[] = []
  let chain: Digest = CHAIN_START
  let bytes = 0
  const add = (digest: Digest, length: number) => {
    chain = chained(chain, digest)
    heads.push(nameOf(chain))
    bytes += length
    tokens.push(Math.ceil(bytes * tokensPerByte))
  }
  for (const key of HEAD_KEYS) {
    const digest = scan.digest(key)
    if (digest === undefined) continue
    const { start, end } = scan.member(key) as BodyMember
    add(digest, end - start)
    parts.push(key)
  }
  const own = heads.length
  let head = own
  while (head - own < roles.length && isSystem(roles[head - own] as number)) head++
  if (starts.length === 0) {
    addPieces(scan, add)
    hashes = heads
  } else {
    hashes = heads.concat(linksOf(scan, chain).names)
    for (let i = 0; i < starts.length; i++) {
      bytes += (ends[i] as number) - (starts[i] as number)
      tokens.push(Math.ceil(bytes * tokensPerByte))
    }
  }
  return { hashes, tokens, head, parts }
}

const HEAD_KEYS = ['tools', 'system', 'instructions'] as const

/** The chain over the elements; of those that were known, the earlier one where its beginning is the same. */
function linksOf(scan: BodyScan, behind: Digest): Links {
  const { digests } = scan.elements
  const before = scan.links.links
  const isSame = before?.behind.high === behind.high && before.behind.low === behind.low
  const known = isSame ? Math.min(scan.known, before.chain.length) : 0
  const chain: Digest[] = []
  const names: string[] = []
  let link = known > 0 ? (before?.chain[known - 1] as Digest) : behind
  for (let i = known; i < digests.length; i++) {
    link = chained(link, digests[i] as Digest)
    chain.push(link)
    names.push(nameOf(link))
  }
  const links =
    known === 0 || before === undefined
      ? { behind, chain, names }
      : { behind, chain: front(before.chain, known).concat(chain), names: front(before.names, known).concat(names) }
  scan.links.links = links
  return links
}

function isSystem(role: number): boolean {
  return ROLES[role] === 'system' || ROLES[role] === 'developer'
}

function addPieces(scan: BodyScan, add: (digest: Digest, length: number) => void): void {
  const text = scan.member('prompt') ?? scan.member('input')
  if (text === undefined) return
  for (let start = text.start; start < text.end; start += PIECE_BYTES) {
    const end = Math.min(text.end, start + PIECE_BYTES)
    add(digestOf(scan.bytes, start, end), end - start)
  }
}
