// A body as bytes: where its top-level members and its messages stand, found in one pass and without building objects for
// any of them. Invariant: what it gets past is one JSON object by its brackets and strings; what stands inside of values
// is for whoever answers. Where a key is repeated the last one counts, as it does for JSON.parse. Step 2 in fleet mode.

import { RefrainError } from '../core/errors.js'
import type { BodyMemo, KeptBody, Told } from './body-memo.js'
import { type Digest, digestOf } from './segment-hash.js'

/** Half-open ranges of bytes: the key with its quotes begins at `keyStart`, the value is `[start, end)`. */
export interface BodyMember {
  readonly key: string
  readonly keyStart: number
  readonly start: number
  readonly end: number
}

/** Who speaks in a message; `other`: items of Responses that are no messages, and what has no role. */
export const ROLES = ['other', 'user', 'assistant', 'system', 'developer', 'tool'] as const
export type Role = (typeof ROLES)[number]

/** Elements of `messages` or `input`, side by side. */
export interface Elements {
  readonly starts: readonly number[]
  readonly ends: readonly number[]
  /** Index into ROLES. */
  readonly roles: readonly number[]
  /** Of each element alone. */
  readonly digests: readonly Digest[]
}

/** A chain over elements: behind what it begins, and what stands for everything up to each. */
export interface Links {
  readonly behind: Digest
  readonly chain: readonly Digest[]
  readonly names: readonly string[]
}

export interface LinksBox {
  links: Links | undefined
}

/** The keys whose arrays are the conversation. */
const LISTS = new Set(['messages', 'input'])
/** Values that are looked up in the last body of the session, since they are large and stay as they are. */
const LARGE_BYTES = 512

const QUOTE = 34
const COMMA = 44
const COLON = 58
const OPEN_LIST = 91
const BACKSLASH = 92
const CLOSE_LIST = 93
const OPEN = 123
const CLOSE = 125

export class BodyScan {
  readonly bytes: Buffer
  readonly members: BodyMember[] = []
  /** Of the list that counts. */
  elements: Elements = NO_ELEMENTS
  /** Where the earlier body is kept, and whether this one goes on from all of it. */
  readonly resumed: { readonly slot: number; readonly body: KeptBody; readonly isWhole: boolean } | undefined
  /** Elements that were known from it, byte for byte. */
  known: number
  /** Where the closing brace stands. */
  readonly close: number
  /** An earlier body of the same conversation, while this one is read. */
  #earlier: KeptBody | undefined
  /** Digests of large members by key, `tools` and `system` among them. */
  readonly digests = new Map<string, Digest>()
  /** The chain over the elements, as route-query.ts makes it; the earlier body's until then. */
  readonly links: LinksBox
  /** Whether all members but the list are, byte for byte, those of the earlier body. */
  #isSame = false
  /** What route-query.ts found out about it; the earlier body's where nothing but the list has grown, until then. */
  readonly told: { told: Told | undefined }

  /** @throws RefrainError `invalid_json`. */
  constructor(bytes: Buffer, memo?: BodyMemo) {
    this.bytes = bytes
    const found = memo?.find(bytes)
    const { slot, body } = found ?? {}
    const isWhole = found?.count === body?.elements.ends.length
    this.resumed = slot === undefined || body === undefined ? undefined : { slot, body, isWhole }
    this.#earlier = found?.body
    this.known = found?.count ?? 0
    this.links = { links: found?.body.links.links }
    this.close = this.#scan()
    this.told = { told: this.#isSame ? found?.body.told.told : undefined }
    this.#earlier = undefined
  }

  /** Bytes in front that were known. */
  get knownBytes(): number {
    return this.known === 0 ? 0 : (this.elements.ends[this.known - 1] as number)
  }

  /** The last member called `key`. */
  member(key: string): BodyMember | undefined {
    for (let i = this.members.length - 1; i >= 0; i--) {
      const member = this.members[i] as BodyMember
      if (member.key === key) return member
    }
    return undefined
  }

  /** The raw text of a member's value. */
  raw(key: string): string | undefined {
    const member = this.member(key)
    return member && this.bytes.toString('utf8', member.start, member.end)
  }

  /** A member's value, parsed where it is at most `maxBytes` long. */
  value(key: string, maxBytes = 16_384): unknown {
    const member = this.member(key)
    if (member === undefined || member.end - member.start > maxBytes) return undefined
    return parsed(this.bytes.toString('utf8', member.start, member.end))
  }

  /** The digest of a member's value; undefined where it is absent or null. */
  digest(key: string): Digest | undefined {
    const member = this.member(key)
    if (member === undefined || member.end - member.start < 5) return undefined
    const known = this.digests.get(key)
    if (known !== undefined) return known
    const digest = digestOf(this.bytes, member.start, member.end)
    this.digests.set(key, digest)
    return digest
  }

  /** The member that the elements belong to: the last list that stands in the body. */
  get list(): BodyMember | undefined {
    return listIn(this)
  }

  #scan(): number {
    const { bytes } = this
    const earlier = this.#earlier
    let at: number
    if (earlier === undefined) {
      // Some shells put a byte order mark in front of what they send.
      at = skipSpace(bytes, bytes[0] === 0xef && bytes[1] === 0xbb && bytes[2] === 0xbf ? 3 : 0)
      if (bytes[at] !== OPEN) throw malformed('the body is no JSON object')
      at = skipSpace(bytes, at + 1)
      if (bytes[at] === CLOSE) return this.#end(at)
      at = this.#member(at)
    } else {
      at = this.#resume(earlier)
    }
    for (;;) {
      if (bytes[at] === CLOSE) return this.#end(at)
      if (bytes[at] !== COMMA) throw malformed(`a comma or brace is missing at byte ${at}`)
      at = this.#member(skipSpace(bytes, at + 1))
    }
  }

  /** Everything up to the last known element is as it was; goes on behind it. */
  #resume(earlier: KeptBody): number {
    const list = listIn(earlier) as BodyMember
    for (const member of earlier.members) {
      if (member.keyStart >= list.keyStart) break
      this.members.push(member)
      const digest = earlier.digests.get(member.key)
      if (digest !== undefined) this.digests.set(member.key, digest)
    }
    const at = earlier.elements.ends[this.known - 1] as number
    const end = this.#restOfList(skipSpace(this.bytes, at), earlier.elements)
    const { key, keyStart, start } = list
    this.members.push({ key, keyStart, start, end })
    return this.#sameRest(earlier, list, end) ?? this.#behind(end)
  }

  /** Where everything behind the list, which ends at `end`, is as it was: where the closing brace stands. */
  #sameRest(earlier: KeptBody, list: BodyMember, end: number): number | undefined {
    const { bytes, members, digests, close } = earlier
    const rest = bytes.length - list.end
    if (this.bytes.length - end !== rest) return undefined
    if (this.bytes.compare(bytes, list.end, bytes.length, end, this.bytes.length) !== 0) return undefined
    const shift = end - list.end
    for (const member of members) {
      if (member.keyStart <= list.keyStart) continue
      const { key, keyStart, start } = member
      this.members.push({ key, keyStart: keyStart + shift, start: start + shift, end: member.end + shift })
      const digest = digests.get(key)
      if (digest !== undefined) this.digests.set(key, digest)
    }
    this.#isSame = true
    return close + shift
  }

  /** Reads the member whose key begins at `at`; gives where the comma or brace behind it stands. */
  #member(at: number): number {
    const { bytes } = this
    if (bytes[at] !== QUOTE) throw malformed(`a key is missing at byte ${at}`)
    const keyEnd = skipString(bytes, at)
    const colon = skipSpace(bytes, keyEnd)
    if (bytes[colon] !== COLON) throw malformed(`a colon is missing at byte ${colon}`)
    const start = skipSpace(bytes, colon + 1)
    const key = keyOf(bytes, at, keyEnd)
    const isList = LISTS.has(key) && bytes[start] === OPEN_LIST
    const end = isList ? this.#list(start) : (this.#sameValue(key, start) ?? skipValue(bytes, start))
    if (end === start) throw malformed(`a value is missing at byte ${start}`)
    this.members.push({ key, keyStart: at, start, end })
    return this.#behind(end)
  }

  #behind(end: number): number {
    const at = skipSpace(this.bytes, end)
    if (at >= this.bytes.length) throw malformed('the body ends too soon')
    return at
  }

  /** The end of a value that is, byte for byte, the one that the earlier body had under this key. */
  #sameValue(key: string, start: number): number | undefined {
    const before = this.#earlier?.members.findLast((member) => member.key === key)
    if (before === undefined || this.#earlier === undefined) return undefined
    const length = before.end - before.start
    const end = start + length
    if (length < LARGE_BYTES || end >= this.bytes.length) return undefined
    if (this.bytes.compare(this.#earlier.bytes, before.start, before.end, start, end) !== 0) return undefined
    const digest = this.#earlier.digests.get(key)
    if (digest !== undefined) this.digests.set(key, digest)
    return end
  }

  #list(start: number): number {
    // A repeated key: the last list counts, of which nothing is known.
    this.elements = NO_ELEMENTS
    this.known = 0
    const at = skipSpace(this.bytes, start + 1)
    return this.bytes[at] === CLOSE_LIST ? at + 1 : this.#elementsFrom(at)
  }

  /** `at` is behind an element, the last known one of `earlier`. */
  #restOfList(at: number, earlier: Elements): number {
    const isEnd = this.bytes[at] === CLOSE_LIST
    if (!isEnd && this.bytes[at] !== COMMA) throw malformed(`a comma or bracket is missing at byte ${at}`)
    if (!isEnd) return this.#elementsFrom(skipSpace(this.bytes, at + 1), earlier)
    this.elements = joined(earlier, this.known, NO_ELEMENTS)
    return at + 1
  }

  /** `earlier`: what is known of the elements in front of them. */
  #elementsFrom(first: number, earlier?: Elements): number {
    const { bytes } = this
    const starts: number[] = []
    const ends: number[] = []
    const roles: number[] = []
    const digests: Digest[] = []
    for (let start = first; ; ) {
      const end = skipValue(bytes, start)
      if (end === start) throw malformed(`a value is missing at byte ${start}`)
      starts.push(start)
      ends.push(end)
      roles.push(roleAt(bytes, start, end))
      digests.push(digestOf(bytes, start, end))
      const at = skipSpace(bytes, end)
      if (bytes[at] === CLOSE_LIST) {
        const found = { starts, ends, roles, digests }
        this.elements = earlier === undefined ? found : joined(earlier, this.known, found)
        return at + 1
      }
      if (bytes[at] !== COMMA) throw malformed(`a comma or bracket is missing at byte ${at}`)
      start = skipSpace(bytes, at + 1)
    }
  }

  #end(close: number): number {
    if (skipSpace(this.bytes, close + 1) < this.bytes.length) throw malformed('something stands behind the object')
    return close
  }
}

const NO_ELEMENTS: Elements = { starts: [], ends: [], roles: [], digests: [] }

/** The first `count` of `known`, and `more`. */
function joined(known: Elements, count: number, more: Elements): Elements {
  return {
    starts: front(known.starts, count).concat(more.starts),
    ends: front(known.ends, count).concat(more.ends),
    roles: front(known.roles, count).concat(more.roles),
    digests: front(known.digests, count).concat(more.digests),
  }
}

/** `list` itself where that is all of it: to be read only. Lists that grow by `push` take half as much again. */
export function front<T>(list: readonly T[], count: number): readonly T[] {
  return list.length === count ? list : list.slice(0, count)
}

function listIn({ members, bytes }: Pick<KeptBody, 'members' | 'bytes'>): BodyMember | undefined {
  for (let i = members.length - 1; i >= 0; i--) {
    const member = members[i] as BodyMember
    if (LISTS.has(member.key) && bytes[member.start] === OPEN_LIST) return member
  }
  return undefined
}

/** The members of the object in `[start, end)`, by key; empty where it is none. */
export function membersIn(bytes: Buffer, start: number, end: number): BodyMember[] {
  const members: BodyMember[] = []
  if (bytes[start] !== OPEN) return members
  let at = skipSpace(bytes, start + 1)
  while (at < end && bytes[at] === QUOTE) {
    const keyEnd = skipString(bytes, at)
    const colon = skipSpace(bytes, keyEnd)
    const from = skipSpace(bytes, colon + 1)
    const to = skipValue(bytes, from)
    if (bytes[colon] !== COLON || to === from) return members
    members.push({ key: keyOf(bytes, at, keyEnd), keyStart: at, start: from, end: to })
    at = skipSpace(bytes, to)
    if (bytes[at] !== COMMA) return members
    at = skipSpace(bytes, at + 1)
  }
  return members
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    // Whoever answers the request refuses it.
    return undefined
  }
}

function malformed(what: string): RefrainError {
  return new RefrainError('invalid_json', `the body is not valid JSON: ${what}`)
}

function keyOf(bytes: Buffer, start: number, end: number): string {
  const key = bytes.toString('utf8', start + 1, end - 1)
  if (!key.includes('\\')) return key
  const plain = parsed(`"${key}"`)
  return typeof plain === 'string' ? plain : key
}

/** `"role":` right behind the brace is what nearly every client writes. */
function roleAt(bytes: Buffer, start: number, end: number): number {
  if (bytes[start] !== OPEN) return 0
  const first = skipSpace(bytes, start + 1)
  if (bytes[first + 1] === 114 && bytes[first + 2] === 111 && bytes[first + 5] === QUOTE) {
    const colon = skipSpace(bytes, first + 6)
    if (bytes[colon] === COLON) return roleOf(bytes, skipSpace(bytes, colon + 1))
  }
  const role = membersIn(bytes, start, end).findLast(({ key }) => key === 'role')
  return role === undefined ? 0 : roleOf(bytes, role.start)
}

/** By the letter behind the quote. */
function roleOf(bytes: Buffer, quote: number): number {
  switch (bytes[quote + 1]) {
    case 117:
      return 1
    case 97:
      return 2
    case 115:
      return 3
    case 100:
      return 4
    case 116:
    case 102:
      return 5
    default:
      return 0
  }
}

function skipSpace(bytes: Buffer, at: number): number {
  let i = at
  for (;;) {
    const c = bytes[i]
    if (c !== 32 && c !== 10 && c !== 13 && c !== 9) return i
    i++
  }
}

/** Bytes of a string that are looked at one by one; behind them the search is left to the runtime. */
const SHORT = 24

/** The end of the string whose quote stands at `at`. @throws RefrainError where it has none. */
function skipString(bytes: Buffer, at: number): number {
  const near = Math.min(bytes.length, at + SHORT)
  let i = at + 1
  while (i < near) {
    const c = bytes[i]
    if (c === QUOTE) return i + 1
    i += c === BACKSLASH ? 2 : 1
  }
  for (;;) {
    const quote = bytes.indexOf(QUOTE, i)
    if (quote < 0) throw malformed('a string is not closed')
    let before = quote - 1
    while (before >= i && bytes[before] === BACKSLASH) before--
    if ((quote - before) % 2 === 1) return quote + 1
    i = quote + 1
  }
}

/** The end of the value at `at`; `at` itself where none begins. */
function skipValue(bytes: Buffer, at: number): number {
  const first = bytes[at]
  if (first === QUOTE) return skipString(bytes, at)
  const { length } = bytes
  let i = at
  if (first !== OPEN && first !== OPEN_LIST) {
    for (; i < length; i++) {
      const c = bytes[i] as number
      if (c === COMMA || c === CLOSE || c === CLOSE_LIST || c <= 32 || c === COLON || c === QUOTE) break
    }
    return i
  }
  let depth = 0
  while (i < length) {
    const c = bytes[i]
    if (c === QUOTE) {
      i = skipString(bytes, i)
      continue
    }
    if (c === OPEN || c === OPEN_LIST) depth++
    else if (c === CLOSE || c === CLOSE_LIST) {
      if (--depth === 0) return i + 1
    }
    i++
  }
  throw malformed('a bracket is not closed')
}
