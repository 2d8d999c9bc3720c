// Reads a log of requests once and says what hit rate its prompts allow and what breaks them. Invariant: memory does not
// grow with the log; tokens are estimated from bytes, and said to be, unless somebody counts them.

import type { Reason } from '../explain/contract.js'
import { type Break, breakOf, type Shared } from './break.js'
import { type Match, Past } from './past.js'
import { type LoggedPrompt, type PromptPiece, pieceBytes, promptOf } from './prompt-text.js'

export interface LintOptions {
  /** Of text a token. */
  readonly bytesPerToken: number
  /** Text of past prompts that is kept. */
  readonly mostBytes: number
  /** Counts tokens of a text, in place of the estimate. */
  readonly counter?: TokenCounter
}

export interface TokenCounter {
  /** Of the tokenizer, for people. */
  readonly name: string
  count(text: string): number
}

export const LINT_DEFAULTS: LintOptions = { bytesPerToken: 4, mostBytes: 64 * 1024 * 1024 }

export interface Cause {
  readonly reason: Reason
  readonly what: string
  readonly lostTokens: number
  readonly requests: number
  /** Records, counted from 1. */
  readonly first: number
  /** Least byte of its text where it differed. */
  readonly byte: number
  readonly isNumber: boolean
  readonly isBlank: boolean
  readonly mend: string
}

export interface LintReport {
  readonly requests: number
  /** Records without a prompt, or that are no JSON. */
  readonly skipped: number
  readonly promptTokens: number
  readonly tokensAreEstimated: boolean
  /** Whose tokens were counted; undefined: they are estimated. */
  readonly tokenizer?: string
  readonly hitRate64: number
  readonly hitRate16: number
  /** With every break mended, blocks of 64. */
  readonly hitRateMended: number
  readonly lostTokens: number
  readonly causes: readonly Cause[]
}

/** About what a template puts around each piece, counted; estimates have it in bytes. */
const FRAME_TOKENS = 4

/** Causes that are told apart; what comes after is counted as one. */
const MOST_CAUSES = 1000

export class Lint {
  readonly #options: LintOptions
  readonly #past: Past
  /** Of the prompts that are kept. */
  readonly #lengths = new WeakMap<LoggedPrompt, readonly number[]>()
  readonly #causes = new Map<string, Cause>()
  #records = 0
  #requests = 0
  #tokens = 0
  #hits64 = 0
  #hits16 = 0
  #lost = 0

  constructor(options: LintOptions = LINT_DEFAULTS) {
    this.#options = options
    this.#past = new Past(options.mostBytes)
  }

  /** One record of the log; undefined where it could not be parsed. */
  add(record: unknown): void {
    this.#records++
    const prompt = record === undefined ? undefined : promptOf(record)
    if (prompt === undefined) return
    this.#requests++
    const { before, shared: mine, best } = this.#past.add(prompt)
    const lengths = this.#measure(prompt, best)
    const tokens = this.#tokensOf(sum(lengths))
    this.#tokens += tokens
    const most = best === undefined ? 0 : this.#lengthOf(best.shared, lengths)
    const shared = Math.max(0, Math.min(tokens - 1, this.#tokensOf(most)))
    this.#hits64 += shared - (shared % 64)
    this.#hits16 += shared - (shared % 16)
    const found = before && breakOf(before, prompt)
    if (before === undefined || found === undefined || isAnother(before, prompt, found)) return
    // What both have, had nothing changed: other prompts may have saved some of it.
    const whole = Math.min(sum(this.#lengths.get(before) ?? []), sum(lengths))
    const lost = this.#tokensOf(whole - Math.max(this.#lengthOf(mine, lengths), most))
    if (lost > 0) this.#blame(found, lost)
  }

  report(): LintReport {
    const { counter } = this.#options
    const rate = (hits: number) => (this.#tokens === 0 ? 0 : hits / this.#tokens)
    return {
      requests: this.#requests,
      skipped: this.#records - this.#requests,
      promptTokens: this.#tokens,
      tokensAreEstimated: counter === undefined,
      ...(counter !== undefined && { tokenizer: counter.name }),
      hitRate64: rate(this.#hits64),
      hitRate16: rate(this.#hits16),
      hitRateMended: Math.min(1, rate(this.#hits64 + this.#lost)),
      lostTokens: this.#lost,
      causes: [...this.#causes.values()].sort((a, b) => b.lostTokens - a.lostTokens),
    }
  }

  #blame(found: Break, lost: number): void {
    this.#lost += lost
    const { reason, byte, isNumber, isBlank } = found
    const key = `${reason} ${found.what}`
    const what = this.#causes.has(key) || this.#causes.size < MOST_CAUSES ? found.what : 'other places'
    const known = this.#causes.get(`${reason} ${what}`)
    this.#causes.set(`${reason} ${what}`, {
      ...{ reason, what, first: known?.first ?? this.#records },
      lostTokens: (known?.lostTokens ?? 0) + lost,
      requests: (known?.requests ?? 0) + 1,
      byte: Math.min(byte, known?.byte ?? byte),
      isNumber: isNumber && (known?.isNumber ?? true),
      isBlank: isBlank && (known?.isBlank ?? true),
      mend: mendOf(found),
    })
  }

  /** Of each piece: bytes, or tokens where they are counted. What another prompt has too was measured with that. */
  #measure(prompt: LoggedPrompt, best: Match['best']): readonly number[] {
    const known = best === undefined ? [] : (this.#lengths.get(best.prompt) ?? []).slice(0, best.shared.pieces)
    const lengths = [...known, ...prompt.pieces.slice(known.length).map((piece) => this.#pieceLength(piece))]
    this.#lengths.set(prompt, lengths)
    return lengths
  }

  #pieceLength(piece: PromptPiece): number {
    const { counter } = this.#options
    if (counter === undefined) return pieceBytes(piece)
    const { text, reasoning } = piece
    return counter.count(text) + (reasoning === '' ? 0 : counter.count(reasoning)) + FRAME_TOKENS
  }

  #lengthOf({ pieces, part }: Shared, lengths: readonly number[]): number {
    const whole = sum(lengths.slice(0, pieces))
    if (part === '') return whole
    return whole + (this.#options.counter?.count(part) ?? Buffer.byteLength(part))
  }

  #tokensOf(length: number): number {
    const { counter, bytesPerToken } = this.#options
    return counter === undefined ? Math.floor(length / bytesPerToken) : length
  }
}

function sum(lengths: readonly number[]): number {
  return lengths.reduce((total, length) => total + length, 0)
}

/** Without a name, two conversations that begin with the same words look like one: a turn adds to the one before. */
function isAnother(before: LoggedPrompt, now: LoggedPrompt, { reason }: Break): boolean {
  const isHead = reason === 'tools_changed' || reason === 'system_changed'
  return now.session === undefined && !isHead && now.pieces.length <= before.pieces.length
}

const MENDS: Readonly<Partial<Record<Reason, string>>> = {
  model_changed: 'each model has a cache of its own: stay with one model in a conversation, or fork it on purpose',
  tools_changed:
    'send the same tools in the same order in every turn; forbid calls with tool_choice instead of leaving tools out',
  system_changed: 'keep what changes out of the system prompt: put it into the newest message',
  reasoning_dropped: 'send reasoning back as it came, as long as the model wants it',
  messages_changed: 'append only: leave earlier messages as they were, and put news into a new message',
  compaction: 'compact rarely and by much, and keep tools and system prompt as they are',
}

function mendOf({ reason, isNumber, isBlank }: Break): string {
  if (isBlank) return 'send texts back byte for byte: only white space differs'
  if (isNumber && reason === 'system_changed')
    return 'take the clock or counter out of the system prompt, or put it into the newest message'
  return MENDS[reason] ?? 'leave what was sent as it was'
}
