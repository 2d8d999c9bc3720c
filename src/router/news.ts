// What routers that share their books say to each other, as text: a JSON array of small arrays, the first member of each
// its kind. Invariant: reading never throws; what makes no sense is left out and counted, the rest of a batch is taken.
// Names of sessions, tenants and scopes are digests; members' names are the operator's own.
//
//   ["1", origin, [item, ...]]   one batch of one router, in order

import type { SessionRecord } from './session-store.js'
import type { Turn, TurnEnd } from './turn.js'

/** A request that is under way, as a beat says it: sequence number, member, tokens, whether it has begun. */
export type UnderWay = readonly [seq: number, member: string, newTokens: number, started: 0 | 1]
/** What is left of a tenant's buckets: its digest, requests, tokens; null: no limit. */
export type Level = readonly [tenant: string, requests: number | null, tokens: number | null]

export type NewsItem =
  /** A request left for a member; its id is the sequence number. */
  | { readonly kind: 'sent'; readonly seq: number; readonly turn: Omit<Turn, 'id'> }
  | { readonly kind: 'seated'; readonly seq: number }
  | { readonly kind: 'started'; readonly seq: number }
  | { readonly kind: 'ended'; readonly seq: number; readonly end: TurnEnd }
  /** All sessions whose keys begin so are forgotten; `keys` are those that the teller knew. */
  | { readonly kind: 'released'; readonly prefix: string; readonly keys: readonly string[] }
  /** A member's process was gone, and its cache with it. */
  | { readonly kind: 'emptied'; readonly member: string }
  /** A tenant took this of its buckets; negative: gave back. */
  | { readonly kind: 'took'; readonly tenant: string; readonly requests: number; readonly tokens: number }
  /** A session to be kept for whoever comes later. */
  | { readonly kind: 'kept'; readonly record: SessionRecord }
  /** All that the teller has under way. */
  | { readonly kind: 'beat'; readonly underWay: readonly UnderWay[] }
  | { readonly kind: 'levels'; readonly levels: readonly Level[] }
  /** The teller has just come, and knows nothing of what is under way. */
  | { readonly kind: 'hello' }
  /** The circuit of a member opened, the `nth` time since it closed last; 0: it closed. */
  | { readonly kind: 'circuit'; readonly member: string; readonly nth: number }
  /** The teller, or the one that is named, is no more. */
  | { readonly kind: 'gone'; readonly origin: string | undefined }

export interface News {
  readonly origin: string
  readonly items: readonly NewsItem[]
  /** Items that made no sense. */
  readonly bad: number
}

const VERSION = '1'
/** No batch of ours comes near it. */
const MAX_TEXT = 16 * 1024 * 1024

export function newsText(origin: string, items: readonly string[]): string {
  return `["${VERSION}",${JSON.stringify(origin)},[${items.join(',')}]]`
}

/** Undefined: it is no batch of ours. */
export function readNews(text: string): News | undefined {
  if (text.length > MAX_TEXT) return undefined
  const value = parsed(text)
  if (!Array.isArray(value) || value[0] !== VERSION || !isName(value[1]) || !Array.isArray(value[2])) return undefined
  const read = value[2].map(readItem)
  const items = read.filter((item) => item !== undefined)
  return { origin: value[1], items, bad: read.length - items.length }
}

/** What of a batch is to be kept by whoever keeps sessions; most have none, which is seen without reading them. */
export function keptIn(text: string): {
  readonly records: readonly SessionRecord[]
  readonly released: readonly string[]
} {
  if (!text.includes('["k",') && !text.includes('["r",')) return NOTHING_KEPT
  const items = readNews(text)?.items ?? []
  return {
    records: items.flatMap((item) => (item.kind === 'kept' ? [item.record] : [])),
    released: items.flatMap((item) => (item.kind === 'released' ? item.keys : [])),
  }
}

const NOTHING_KEPT = { records: [], released: [] }

// --- writing ---------------------------------------------------------------------------------------------------------

export function itemText(item: Exclude<NewsItem, { kind: 'sent' }>): string {
  return JSON.stringify(fieldsOf(item))
}

function fieldsOf(item: Exclude<NewsItem, { kind: 'sent' }>): unknown[] {
  switch (item.kind) {
    case 'seated':
      return ['w', item.seq]
    case 'started':
      return ['f', item.seq]
    case 'ended': {
      const { failed, promptTokens, completionTokens, cachedTokens } = item.end
      return ['e', item.seq, failed ? 1 : 0, promptTokens ?? null, completionTokens ?? null, cachedTokens ?? null]
    }
    case 'released':
      return ['r', item.prefix, item.keys]
    case 'emptied':
      return ['x', item.member]
    case 'took':
      return ['t', item.tenant, item.requests, item.tokens]
    case 'kept':
      return ['k', ...recordFields(item.record)]
    case 'beat':
      return ['b', item.underWay]
    case 'levels':
      return ['l', item.levels]
    case 'hello':
      return ['h']
    case 'circuit':
      return ['o', item.member, item.nth]
    case 'gone':
      return item.origin === undefined ? ['g'] : ['g', item.origin]
  }
}

export function recordFields({ key, member, scope, tail, tokens, head, headTokens }: SessionRecord): unknown[] {
  return [key, member, scope, tail, tokens, ...(head === undefined ? [] : [head, headTokens])]
}

/**
 * Of the chain goes along what the member did not hold, and two segments of what it did: its end, and the end of the head.
 * Whoever hears of every turn of a session knows the rest.
 */
export function sentText(seq: number, turn: Omit<Turn, 'id'>): string {
  const { chain, depth, predicted } = turn
  const { hashes, tokens, head } = chain
  const from = Math.max(0, depth - 1)
  const front = head > 0 && head - 1 < from ? [head - 1] : []
  const pick = <T>(list: readonly T[]) => [...front.map((i) => list[i] as T), ...list.slice(from)]
  return JSON.stringify([
    's',
    seq,
    turn.member,
    turn.scope,
    pick(hashes),
    pick(tokens),
    front.length + Math.max(0, head - from),
    front.length + (depth - from),
    turn.head,
    turn.promptTokens,
    turn.newTokens,
    turn.expectedTokens,
    [predicted.precise ?? null, predicted.learned, predicted.sticky, predicted.recalled],
    turn.isSide ? 1 : 0,
    turn.session ?? null,
    ...(turn.isHedge === true ? [1] : []),
  ])
}

// --- reading ---------------------------------------------------------------------------------------------------------

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

const MAX_NAME = 4096
/** A circuit is open for half a minute long before. */
const MAX_TRIPS = 1000
const isName = (value: unknown): value is string => typeof value === 'string' && value.length <= MAX_NAME
const isCount = (value: unknown): value is number => typeof value === 'number' && Number.isFinite(value) && value >= 0
const isNumber = (value: unknown): value is number => typeof value === 'number' && Number.isFinite(value)
const isNames = (value: unknown): value is string[] => Array.isArray(value) && value.every(isName)
const isCounts = (value: unknown): value is number[] => Array.isArray(value) && value.every(isCount)
const isTrips = (value: unknown): value is number => Number.isInteger(value) && isCount(value) && value <= MAX_TRIPS
const isCountOrNull = (value: unknown) => value === null || isCount(value)
const orUndefined = (value: unknown) => (value === null ? undefined : (value as number))

function readItem(value: unknown): NewsItem | undefined {
  if (!Array.isArray(value)) return undefined
  const [kind, a, b, c] = value as unknown[]
  switch (kind) {
    case 's':
      return readSent(value)
    case 'w':
      return isCount(a) ? { kind: 'seated', seq: a } : undefined
    case 'f':
      return isCount(a) ? { kind: 'started', seq: a } : undefined
    case 'e':
      return readEnd(value)
    case 'r':
      return isName(a) && a !== '' && isNames(b) ? { kind: 'released', prefix: a, keys: b } : undefined
    case 'x':
      return isName(a) ? { kind: 'emptied', member: a } : undefined
    case 't':
      return isName(a) && isNumber(b) && isNumber(c) ? { kind: 'took', tenant: a, requests: b, tokens: c } : undefined
    case 'k': {
      const record = readRecord(value.slice(1))
      return record && { kind: 'kept', record }
    }
    case 'b':
      return Array.isArray(a) && a.every(isUnderWay) ? { kind: 'beat', underWay: a } : undefined
    case 'l':
      return Array.isArray(a) && a.every(isLevel) ? { kind: 'levels', levels: a } : undefined
    case 'h':
      return { kind: 'hello' }
    case 'o':
      return isName(a) && isTrips(b) ? { kind: 'circuit', member: a, nth: b } : undefined
    case 'g':
      return a === undefined || isName(a) ? { kind: 'gone', origin: a } : undefined
    default:
      return undefined
  }
}

function isUnderWay(value: unknown): value is UnderWay {
  if (!Array.isArray(value)) return false
  const [seq, member, tokens, started] = value as unknown[]
  return isCount(seq) && isName(member) && isCount(tokens) && (started === 0 || started === 1)
}

function isLevel(value: unknown): value is Level {
  if (!Array.isArray(value)) return false
  const [tenant, requests, tokens] = value as unknown[]
  return isName(tenant) && [requests, tokens].every((each) => each === null || isNumber(each))
}

function readEnd(value: readonly unknown[]): NewsItem | undefined {
  const [, seq, failed, promptTokens, completionTokens, cachedTokens] = value
  if (!isCount(seq) || (failed !== 0 && failed !== 1)) return undefined
  if (![promptTokens, completionTokens, cachedTokens].every(isCountOrNull)) return undefined
  const counts = {
    promptTokens: orUndefined(promptTokens),
    completionTokens: orUndefined(completionTokens),
    cachedTokens: orUndefined(cachedTokens),
  }
  return { kind: 'ended', seq, end: { failed: failed === 1, ...counts } }
}

function readSent(value: readonly unknown[]): NewsItem | undefined {
  const [, seq, member, scope, hashes, tokens, head, depth, front, promptTokens, newTokens, expectedTokens] = value
  const [predicted, side, session, hedge] = value.slice(12)
  if (!isCount(seq) || !isName(member) || !isName(scope) || !isNames(hashes) || !isCounts(tokens)) return undefined
  if (!isCount(head) || !isCount(depth) || !isName(front)) return undefined
  const count = hashes.length
  if (tokens.length !== count || head > count || depth > count) return undefined
  if (!isCount(promptTokens) || !isCount(newTokens) || !isCount(expectedTokens)) return undefined
  if (!Array.isArray(predicted) || predicted.length !== 4 || !predicted.every(isCountOrNull)) return undefined
  if ((side !== 0 && side !== 1) || (session !== null && !isName(session))) return undefined
  const [precise, learned, sticky, recalled] = predicted as (number | null)[]
  return {
    kind: 'sent',
    seq,
    turn: {
      member,
      scope,
      chain: { hashes, tokens, head },
      depth,
      head: front,
      tail: hashes.at(-1) ?? '',
      promptTokens,
      newTokens,
      expectedTokens,
      predicted: {
        precise: precise ?? undefined,
        learned: learned ?? 0,
        sticky: sticky ?? 0,
        recalled: recalled ?? 0,
      },
      isSide: side === 1,
      session: session ?? undefined,
      ...(hedge === 1 && { isHedge: true }),
    },
  }
}

/** Undefined: it is none. */
export function readRecord(fields: unknown): SessionRecord | undefined {
  if (!Array.isArray(fields)) return undefined
  const [key, member, scope, tail, tokens, head, headTokens] = fields as unknown[]
  if (!isName(key) || key === '' || !isName(member) || !isName(scope) || !isName(tail) || !isCount(tokens))
    return undefined
  const hasHead = isName(head) && isCount(headTokens)
  return { key, member, scope, tail, tokens, ...(hasHead && { head, headTokens }) }
}
