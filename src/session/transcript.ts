// A conversation as names: one digest for what has been said up to each message, the same however a client spells it when
// it sends it back. Left out is what clients rewrite (wire contract 2.7): white space, reasoning, ids of calls, the spelling
// of arguments, empty parts, and how one answer is cut into messages. Invariant: whatever was said differently in words,
// names, numbers or order has another digest.
//
//   turn  = a run of messages of one role: role | contents joined, without white space | calls: name, canonical arguments
//   key   = SHA-256(key of the turns before | turn)[0..16)

import { createHash, hash } from 'node:crypto'
import type { ChatMessage, ToolCall } from '../core/request.js'

export type TranscriptKey = string

/** Whose transcripts they are: nothing is ever found across these. */
export interface TranscriptScope {
  readonly tenantSalt: string
  readonly model: string
  readonly cacheSalt?: string
}

export type Said = Pick<ChatMessage, 'role' | 'content' | 'toolCalls'>

/** A place in a conversation; messages are added behind it. Immutable. */
export interface Transcript {
  /** Of all that was said so far. */
  readonly key: TranscriptKey
  /** What the last speaker said, over all of its messages in a row; `canonical` of one where it was one. */
  readonly said: string
  /** Whether `message` goes on with what was said last. */
  continues(message: Said): boolean
  add(message: Said): Transcript
}

/** Starts of conversations, by scope; behind each, what was said there before. */
const starts = new Map<string, Place>()
/** Bytes of text that they remember, about. */
let remembered = 0
const REMEMBERED_BYTES = 64 * 1024 * 1024

/** An empty conversation. */
export function startTranscript(scope: TranscriptScope): Transcript {
  const { tenantSalt, model, cacheSalt } = scope
  const name = JSON.stringify(['refrain-transcript-1', tenantSalt, model, cacheSalt ?? null])
  const start = starts.get(name) ?? new Place(digest(name), undefined)
  starts.set(name, start)
  remember(PLACE_BYTES)
  return start
}

/** Forgets what is remembered of conversations; the next turn of each costs more. */
export function forgetTranscripts(): void {
  starts.clear()
  remembered = 0
}

function remember(bytes: number): void {
  remembered += bytes
  if (remembered > REMEMBERED_BYTES) forgetTranscripts()
}

/** The name of a call and the answer that it stands in: how an answer is found when the history before it was edited. */
export function callKey(scope: TranscriptScope, callId: string, said: string): string {
  const { tenantSalt, model, cacheSalt } = scope
  return digest(JSON.stringify(['refrain-call-1', tenantSalt, model, cacheSalt ?? null, callId, said]))
}

/** What a message says, in one spelling; empty where it says nothing. */
export function canonical(message: Pick<ChatMessage, 'content' | 'toolCalls'>): string {
  return joined(words(message.content), (message.toolCalls ?? []).map(canonicalCall))
}

interface Turn {
  readonly role: ChatMessage['role']
  readonly words: string
  readonly calls: readonly string[]
}

class Place implements Transcript {
  readonly #before: TranscriptKey
  readonly #turn: Turn | undefined
  readonly #next: Next[] = []
  readonly said: string
  #key: TranscriptKey | undefined

  constructor(before: TranscriptKey, turn: Turn | undefined) {
    this.#before = before
    this.#turn = turn
    this.said = turn === undefined ? '' : joined(turn.words, turn.calls)
  }

  get key(): TranscriptKey {
    const turn = this.#turn
    this.#key ??= turn === undefined ? this.#before : digest(`${this.#before}\n${turn.role}\n${this.said}`)
    return this.#key
  }

  continues({ role }: Said): boolean {
    return this.#turn?.role === role && role !== 'tool'
  }

  /** A turn of a conversation brings all of the turns before with it: they cost a comparison each. */
  add(message: Said): Transcript {
    const at = this.#next.findIndex((each) => isSame(each.message, message))
    if (at === 0) return (this.#next[0] as Next).place
    const [next] = at < 0 ? [{ message: sayingOf(message), place: this.#behind(message) }] : this.#next.splice(at, 1)
    this.#next.unshift(next as Next)
    if (this.#next.length > NEXT) this.#next.pop()
    if (at < 0) remember(PLACE_BYTES + 2 * (message.content.length + (next as Next).place.said.length))
    return (next as Next).place
  }

  #behind(message: Said): Place {
    const { role, content, toolCalls } = message
    const said = words(content)
    const calls = (toolCalls ?? []).map(canonicalCall)
    if (said === '' && calls.length === 0 && role === 'assistant') return this
    const turn = this.#turn
    if (turn === undefined || !this.continues(message)) return new Place(this.key, { role, words: said, calls })
    return new Place(this.#before, { role, words: turn.words + said, calls: [...turn.calls, ...calls] })
  }
}

/** What was said at a place before: the last few, the newest first. */
const NEXT = 16
const PLACE_BYTES = 400

interface Next {
  readonly message: Said
  readonly place: Place
}

function sayingOf({ role, content, toolCalls }: Said): Said {
  return { role, content, ...(toolCalls && { toolCalls }) }
}

/** Whether two messages are the same to the letter, but for the ids of calls. */
function isSame(a: Said, b: Said): boolean {
  if (a.role !== b.role || a.content !== b.content) return false
  const [calls, others] = [a.toolCalls ?? [], b.toolCalls ?? []]
  return (
    calls.length === others.length &&
    calls.every(({ name, arguments: json }, i) => name === others[i]?.name && json === others[i]?.arguments)
  )
}

function joined(said: string, calls: readonly string[]): string {
  return calls.length === 0 ? said : `${said}\n${calls.join('\n')}`
}

function canonicalCall({ name, arguments: json }: ToolCall): string {
  return `${JSON.stringify(name)}${canonicalJson(json)}`
}

/** Deeper JSON, which only a model writes, is compared as it stands. */
const MAX_DEPTH = 100

/** Keys sorted, numbers and escapes in one spelling, nothing between; text that is no JSON without white space. */
export function canonicalJson(text: string): string {
  if (text.trim() === '') return '{}'
  try {
    return printed(JSON.parse(text), 0)
  } catch (error) {
    if (error instanceof SyntaxError || error instanceof RangeError) return words(text)
    throw error
  }
}

function printed(value: unknown, depth: number): string {
  if (depth > MAX_DEPTH) throw new RangeError('nested too deep')
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  if (Array.isArray(value)) return `[${value.map((item) => printed(item, depth + 1)).join(',')}]`
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1))
  return `{${entries.map(([key, item]) => `${JSON.stringify(key)}:${printed(item, depth + 1)}`).join(',')}}`
}

/** What JavaScript's `trim` takes, wherever it stands; and what stands for halves of characters. */
const BLANK = /[\s\uFFFD\p{Surrogate}]/u
const BLANKS = /[\s\uFFFD\p{Surrogate}]+/gu

/**
 * `text` without white space. Long texts go by bytes: an expression is ten times slower on them, and every turn of a
 * conversation goes through all of it.
 */
export function words(text: string): string {
  if (!BLANK.test(text)) return text
  if (text.length < LONG_UNITS) return text.replace(BLANKS, '')
  const bytes = Buffer.from(text, 'utf8')
  let end = 0
  for (let at = 0; at < bytes.length; at++) {
    const byte = bytes[at] as number
    if (byte > 0x20 ? byte < 0xc2 || !startsWide(byte) : byte !== 0x20 && (byte < 9 || byte > 13)) bytes[end++] = byte
    else if (byte > 0x20) {
      const width = wideBlank(bytes, at)
      if (width === 0) bytes[end++] = byte
      else at += width - 1
    }
  }
  return bytes.toString('utf8', 0, end)
}

const LONG_UNITS = 256

/** First bytes of white space outside of ASCII: U+00A0, U+1680, U+2000.., U+3000, U+FEFF, and of U+FFFD. */
function startsWide(byte: number): boolean {
  return byte === 0xc2 || byte === 0xe1 || byte === 0xe2 || byte === 0xe3 || byte === 0xef
}

/** Length in bytes of the white space, or U+FFFD, that begins at `at`; 0: it is none. */
function wideBlank(bytes: Buffer, at: number): number {
  const [first, second, third] = [bytes[at], bytes[at + 1] ?? 0, bytes[at + 2] ?? 0]
  if (first === 0xc2) return second === 0xa0 ? 2 : 0
  const point = ((first as number) << 16) | (second << 8) | third
  if (point >= 0xe28080 && point <= 0xe2808a) return 3
  return WIDE_BLANKS.includes(point) ? 3 : 0
}

/** U+1680, U+2028, U+2029, U+202F, U+205F, U+3000, U+FEFF and U+FFFD, as UTF-8. */
const WIDE_BLANKS = [0xe19a80, 0xe280a8, 0xe280a9, 0xe280af, 0xe2819f, 0xe38080, 0xefbbbf, 0xefbfbd]

function digest(text: string): string {
  return hash('sha256', text, 'hex').slice(0, 32)
}

/** A digest of what was sampled behind `opening`. */
export function replyId(opening: string, ids: Int32Array): string {
  const bytes = new Uint8Array(ids.buffer, ids.byteOffset, ids.byteLength)
  return createHash('sha256').update(`${opening.length}\n${opening}`).update(bytes).digest('hex').slice(0, 32)
}
