// Where a prompt stops being what another one was, and why, in the words of explain/. Invariant: bytes that are shared are
// shared from the very start, piece by piece; a place is within its piece's text.

import type { Reason } from '../explain/contract.js'
import { toolChanges } from '../explain/tool-changes.js'
import { type LoggedPrompt, type PromptPiece, pieceBytes } from './prompt-text.js'

export interface Break {
  readonly reason: Reason
  /** What breaks, as what repeats is counted by: `the system prompt`, `tool read_file`, `message 3 (assistant)`. */
  readonly what: string
  /** Within its text. */
  readonly byte: number
  /** What differs is a number on both sides. */
  readonly isNumber: boolean
  readonly isBlank: boolean
}

/** How far a prompt begins as another one did. */
export interface Shared {
  /** UTF-8 bytes, frames too. */
  readonly bytes: number
  /** Whole pieces. */
  readonly pieces: number
  /** Of the next piece: its reasoning first, then its text; '' where it has none, or parts at once. */
  readonly part: string
}

export const NOTHING_SHARED: Shared = { bytes: 0, pieces: 0, part: '' }

export function sharedStart(a: LoggedPrompt, b: LoggedPrompt): Shared {
  let bytes = 0
  const most = Math.min(a.pieces.length, b.pieces.length)
  for (let pieces = 0; pieces < most; pieces++) {
    const [old, now] = [a.pieces[pieces]!, b.pieces[pieces]!]
    if (!isSame(old, now)) {
      const part = sharedPart(old, now)
      return { bytes: bytes + Buffer.byteLength(part), pieces, part }
    }
    bytes += pieceBytes(now)
  }
  return { bytes, pieces: most, part: '' }
}

/** Undefined: the newer prompt goes on where the older one ends, with the same model. */
export function breakOf(old: LoggedPrompt, now: LoggedPrompt): Break | undefined {
  if (old.model !== now.model) {
    const whole = { byte: 0, isNumber: false, isBlank: false }
    return { reason: 'model_changed', what: `the model: ${now.model}`, ...whole }
  }
  const at = old.pieces.findIndex((piece, i) => !isSame(piece, now.pieces[i]))
  if (at < 0) return undefined
  const [before, after] = [old.pieces[at]!, now.pieces[at]]
  const place = differenceIn(before.text, after?.text ?? '')
  const told = { byte: place.byte, isNumber: place.isNumber, isBlank: place.isBlank }
  const tools = toolsChanged(old, now)
  if (before.kind === 'tool' || after?.kind === 'tool') return { reason: 'tools_changed', what: tools, ...told }
  const isHead = before.kind === 'system' && headLength(old) > at
  if (isHead || (after?.kind === 'system' && headLength(now) > at)) {
    return { reason: 'system_changed', what: 'the system prompt', ...told }
  }
  const index = at - old.pieces.findIndex(({ kind }) => kind !== 'tool')
  const what = `message ${index} (${before.name})`
  if (after !== undefined && before.text === after.text && before.name === after.name) {
    return { reason: 'reasoning_dropped', what: `reasoning of ${before.name} messages`, ...told }
  }
  if (now.pieces.length < old.pieces.length / 2) return { reason: 'compaction', what: 'the conversation', ...told }
  return { reason: 'messages_changed', what, ...told }
}

function isSame(a: PromptPiece, b: PromptPiece | undefined): boolean {
  return b !== undefined && a.name === b.name && a.text === b.text && a.reasoning === b.reasoning && a.kind === b.kind
}

/** Of two pieces that differ: reasoning stands in front of the text. */
function sharedPart(old: PromptPiece, now: PromptPiece): string {
  if (old.kind !== now.kind || old.name !== now.name) return ''
  if (old.reasoning !== now.reasoning) return now.reasoning.slice(0, sharedUnits(old.reasoning, now.reasoning))
  return now.reasoning + now.text.slice(0, sharedUnits(old.text, now.text))
}

function toolsChanged(old: LoggedPrompt, now: LoggedPrompt): string {
  const marks = ({ pieces }: LoggedPrompt) =>
    pieces.filter(({ kind }) => kind === 'tool').map(({ name, text }) => ({ name, digest: text, bytes: text.length }))
  const changes = toolChanges(marks(old), marks(now)).map(({ name, change }) => `${name} ${change}`)
  const shown = changes.slice(0, 3).join(', ')
  return `tools: ${shown}${changes.length > 3 ? ` and ${changes.length - 3} more` : ''}`
}

/** Pieces up to the first message. */
function headLength({ pieces }: LoggedPrompt): number {
  const end = pieces.findIndex(({ kind }) => kind === 'message')
  return end < 0 ? pieces.length : end
}

const WORD = /[\w:.,/+-]*/y

function differenceIn(a: string, b: string): { byte: number; isNumber: boolean; isBlank: boolean } {
  const at = sharedUnits(a, b)
  return {
    byte: bytesOf(b, at),
    isNumber: [a, b].every((text) => /\d/.test(text.slice(Math.max(0, at - 1), at + 1)) && /\d/.test(wordAt(text, at))),
    isBlank: a !== b && a.replace(/\s+/g, '') === b.replace(/\s+/g, ''),
  }
}

function wordAt(text: string, at: number): string {
  WORD.lastIndex = at
  return WORD.exec(text)?.[0] ?? ''
}

/** UTF-16 units that are the same from the start; halves the texts, because engines compare slices by memory. */
function sharedUnits(a: string, b: string): number {
  const most = Math.min(a.length, b.length)
  let at = 0
  while (at < most) {
    const step = Math.min(4096, most - at)
    if (a.slice(at, at + step) !== b.slice(at, at + step)) break
    at += step
  }
  while (at < most && a.charCodeAt(at) === b.charCodeAt(at)) at++
  return at
}

function bytesOf(text: string, units: number): number {
  return Buffer.byteLength(text.slice(0, units))
}
