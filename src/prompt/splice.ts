// Puts the tokens that were sampled where the rendered prompt has the text of an answer, so that the prompt begins with the
// very tokens whose KV is there: the same text has many tokenizations, and a template writes an answer as it would have been
// written, not as it was. Between steps 4 and 5 of a request's path.
//
//   rendered   ... <user turn> | header  text of the answer                    end  line break | <next turn> ...
//   pieces     ... <user turn>   opening | ids, as they were sampled | rest   end  line break   <next turn> ...
//
// Invariant: pieces of text are tokenized for themselves, as they were when the answer was sampled behind them; a message
// whose place in the text is not certain stays text.

import type { Reply } from '../core/reply.js'
import type { ChatMessage } from '../core/request.js'
import type { EncodeOptions, Rendered, Tokenizer } from './contract.js'
import { PieceMemo } from './piece-memo.js'

export type PromptPiece =
  /**
   * `at`: where it begins in the rendered text, less what stands in front of it for a cut token; `until`: where what it has
   * of that text ends.
   */
  | { readonly kind: 'text'; readonly text: string; readonly at: number; readonly until: number }
  | { readonly kind: 'ids'; readonly ids: Int32Array }

export interface SpliceOptions {
  /** What was rendered, and for each message the reply that it was. */
  readonly messages: readonly ChatMessage[]
  readonly replies: readonly (Reply | undefined)[]
  /** Reasoning that a message has is shown, whether the template shows it or not. */
  readonly beyondTemplate: boolean
  readonly tokenizer: Pick<Tokenizer, 'eosTokenIds' | 'spellingOf' | 'specialId' | 'decode'>
}

export function splice({ text, spans }: Pick<Rendered, 'text' | 'spans'>, options: SpliceOptions): PromptPiece[] {
  const pieces: PromptPiece[] = []
  let open = { text: '', at: 0, from: 0 }
  for (const { message, start, end } of spans) {
    const reply = options.replies[message]
    const said = options.messages[message]
    const behind = reply && said && start >= open.from ? endOf(text.slice(start, end), reply, said, options) : undefined
    if (reply === undefined || behind === undefined) continue
    pieces.push({
      kind: 'text',
      text: open.text + text.slice(open.from, start) + reply.opening,
      at: open.at,
      until: start,
    })
    pieces.push({ kind: 'ids', ids: reply.ids })
    open = { text: reply.rest, at: start + behind - reply.rest.length, from: start + behind }
  }
  const last = open.text + text.slice(open.from)
  if (last !== '' || pieces.length === 0) pieces.push({ kind: 'text', text: last, at: open.at, until: text.length })
  return pieces
}

/** Where in `span` the answer ends and what the template writes behind it begins; undefined: not known for certain. */
function endOf(span: string, reply: Reply, said: ChatMessage, options: SpliceOptions): number | undefined {
  if (!isShown(span, reply, said, options)) return undefined
  // The turn begins as it began when it was sampled, be it with the reasoning's open tag more or less.
  if (reply.opening !== '' && sharedStart(span, reply.opening) === 0) return undefined
  const { tokenizer } = options
  for (const id of tokenizer.eosTokenIds) {
    const spelling = tokenizer.spellingOf(id)
    const at = span.lastIndexOf(spelling)
    if (at > 0 && span.slice(at + spelling.length).trim() === '') return at
  }
  // A template that ends a turn otherwise, or not at all: the answer must end there as it was sampled.
  const sampled = reply.opening + tokenizer.decode(reply.ids, { special: 'keep' }) + reply.rest
  if (span.startsWith(sampled) && span.slice(sampled.length).trim() === '') return sampled.length
  const last = sampled.trimEnd().slice(-LAST_UNITS)
  const end = span.trimEnd()
  const special = /<[^<>\s]{1,40}>$/.exec(end)?.[0]
  const ends =
    special !== undefined && tokenizer.specialId(special) !== undefined ? [end, end.slice(0, -special.length)] : [end]
  return ends.find((each) => each.trimEnd().endsWith(last))?.trimEnd().length
}

/** Whether the template shows this answer here: its reasoning where the rule keeps it, its content or at least its calls. */
function isShown(span: string, { message }: Reply, said: ChatMessage, { beyondTemplate }: SpliceOptions): boolean {
  const { content, reasoning = '', toolCalls = [] } = message
  if (reasoning !== '' && (said.reasoning === undefined || (!beyondTemplate && !shows(span, reasoning)))) return false
  // Some templates leave out what is said beside calls.
  return shows(span, content) || (toolCalls.length > 0 && toolCalls.every(({ name }) => span.includes(name)))
}

/** Long enough to be no accident. */
const HEAD_UNITS = 64
const LAST_UNITS = 12

function shows(span: string, part: string): boolean {
  return span.includes(part.trim().slice(0, HEAD_UNITS))
}

function sharedStart(a: string, b: string): number {
  let at = 0
  while (at < a.length && at < b.length && a.charCodeAt(at) === b.charCodeAt(at)) at++
  return at
}

export interface EncodedPrompt {
  readonly tokens: Int32Array
  /** Tokens up to a place in the rendered text; within a token, those before it. */
  tokensBefore(at: number): number
}

const memos = new WeakMap<Tokenizer, PieceMemo>()

/** The pieces' tokens, one behind the other; those of an earlier prompt's pieces are taken over. */
export async function encodePieces(
  pieces: readonly PromptPiece[],
  { tokenizer, options }: { readonly tokenizer: Tokenizer; readonly options: EncodeOptions },
): Promise<EncodedPrompt> {
  const memo = memos.get(tokenizer) ?? new PieceMemo()
  memos.set(tokenizer, memo)
  const key = `${options.special} ${options.bos}`
  const known = memo.start(key, pieces)
  const rest = pieces.slice(known.ends.length)
  await tokenizer.prepare?.(
    rest.flatMap((piece) => (piece.kind === 'text' ? [piece.text] : [])),
    options,
  )
  const parts = rest.map((piece) => (piece.kind === 'ids' ? piece.ids : tokenizer.encode(piece.text, options)))
  const tokens = parts.length === 1 && known.ends.length === 0 ? parts[0]! : joined([known.tokens, ...parts])
  const ends = [...known.ends]
  for (const { length } of parts) ends.push((ends.at(-1) ?? 0) + length)
  memo.keep(key, pieces, { ...known, tokens, ends })
  return {
    tokens,
    tokensBefore(at) {
      const i = pieces.findIndex((piece) => piece.kind === 'text' && at <= piece.until)
      const piece = pieces[i]
      if (piece?.kind !== 'text') return tokens.length
      const start = ends[i - 1] ?? 0
      const head = tokenizer.encode(piece.text.slice(0, Math.max(0, at - piece.at)), options)
      const split = head.findIndex((id, n) => id !== tokens[start + n])
      return start + (split < 0 ? head.length : split)
    },
  }
}

function joined(parts: readonly Int32Array[]): Int32Array {
  const tokens = new Int32Array(parts.reduce((sum, part) => sum + part.length, 0))
  let at = 0
  for (const part of parts) {
    tokens.set(part, at)
    at += part.length
  }
  return tokens
}
