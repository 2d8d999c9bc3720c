// Prompts of many pieces, text and sampled ids in turns, that were encoded: a conversation's next turn encodes the pieces
// that are new. Invariant: pieces are tokenized each for itself, so equal pieces have equal ids; what is taken over is a run
// of pieces from the start that were compared, text with text and ids with ids.

import type { PromptPiece } from './splice.js'

/** How a prompt begins: its first pieces' ids, and where each of those pieces ends in them. */
export interface KnownPieces {
  readonly tokens: Int32Array
  readonly ends: readonly number[]
  /** What is kept in place of this: the same conversation, earlier. */
  readonly replaces?: object
}

interface Entry extends KnownPieces {
  readonly key: string
  readonly pieces: readonly PromptPiece[]
  readonly bytes: number
}

const NOTHING: KnownPieces = { tokens: new Int32Array(0), ends: [] }
const MAX_BYTES = 32 * 1024 * 1024
/** Prompts of fewer tokens are encoded as quickly. */
const LEAST_TOKENS = 16_384
/** A prompt that shares all but so many pieces of an older one takes its place: it is the same conversation, later. */
const SUPERSEDED_PIECES = 4

export class PieceMemo {
  /** Least recently used first. */
  #entries: Entry[] = []

  /** The longest run of pieces from the start that is known; ids depend on `key`, too. */
  start(key: string, pieces: readonly PromptPiece[]): KnownPieces {
    let best: Entry | undefined
    let shared = 0
    for (const entry of this.#entries) {
      if (entry.key !== key || !isSame(entry.pieces[shared], pieces[shared])) continue
      let count = 0
      while (isSame(entry.pieces[count], pieces[count])) count++
      if (count > shared) [best, shared] = [entry, count]
    }
    if (best === undefined) return NOTHING
    const isLater = shared >= best.pieces.length - SUPERSEDED_PIECES
    this.#entries = [...this.#entries.filter((entry) => entry !== best), best]
    const ends = best.ends.slice(0, shared)
    return { tokens: best.tokens.subarray(0, ends.at(-1) ?? 0), ends, ...(isLater && { replaces: best }) }
  }

  /** Remembers a prompt, in place of what `replaces` says; nobody may change `tokens` or the pieces. */
  keep(key: string, pieces: readonly PromptPiece[], { tokens, ends, replaces }: KnownPieces): void {
    if (tokens.length < LEAST_TOKENS) return
    const units = pieces.reduce((sum, piece) => sum + (piece.kind === 'text' ? piece.text : piece.ids).length, 0)
    const bytes = 2 * units + 4 * tokens.length + 100 * pieces.length
    const others = this.#entries.filter((entry) => entry !== replaces)
    this.#entries = [...others, { key, pieces, tokens, ends, bytes }]
    let total = this.#entries.reduce((sum, entry) => sum + entry.bytes, 0)
    while (total > MAX_BYTES) total -= this.#entries.shift()!.bytes
  }
}

function isSame(a: PromptPiece | undefined, b: PromptPiece | undefined): boolean {
  if (a === undefined || b === undefined) return false
  if (a.kind === 'text') return b.kind === 'text' && a.text === b.text
  return b.kind === 'ids' && (a.ids === b.ids || isSameIds(a.ids, b.ids))
}

function isSameIds(a: Int32Array, b: Int32Array): boolean {
  return a.length === b.length && a.every((id, i) => id === b[i])
}
