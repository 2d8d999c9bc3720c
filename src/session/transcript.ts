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
  add(message: Said): Transcript
}

/** An empty conversation. */
export function startTranscript(scope: TranscriptScope): Transcript {
  const { tenantSalt, model, cacheSalt } = scope
  const start = digest(JSON.stringify(['refrain-transcript-1', tenantSalt, model, cacheSalt ?? null]))
  return new Place(start, undefined)
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
  #key: TranscriptKey | undefined

  constructor(before: TranscriptKey, turn: Turn | undefined) {
    this.#before = before
    this.#turn = turn
  }

  get key(): TranscriptKey {
    this.#key ??=
      this.#turn === undefined
        ? this.#before
        : digest(`${this.#before}\n${this.#turn.role}\n${joined(this.#turn.words, this.#turn.calls)}`)
    return this.#key
  }

  add({ role, content, toolCalls }: Said): Transcript {
    const said = words(content)
    const calls = (toolCalls ?? []).map(canonicalCall)
    if (said === '' && calls.length === 0 && role === 'assistant') return this
    const turn = this.#turn
    if (turn?.role !== role || role === 'tool') return new Place(this.key, { role, words: said, calls })
    return new Place(this.#before, { role, words: turn.words + said, calls: [...turn.calls, ...calls] })
  }
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
