// Grammars as EBNF text, the way that xgrammar reads it, built rule by rule. Invariant: a rule matches whole characters
// in their one UTF-8 form, because classes are spelled out as bytes (xgrammar 0.1.27 cuts a code point in a class to 8 bits
// and so reads a class as one of bytes; its own converters from JSON schema and regex inherit that).
//
//   [а-я]  ->  ([\xd0] [\xb0-\xbf] | [\xd1] [\x80-\x8f])

import { RefrainError } from '../core/errors.js'

/** Longest grammar that is given to the compiler, in characters. */
const MAX_LENGTH = 512 * 1024

/** Inclusive ranges of code points (or bytes), ascending, apart from each other. */
export type Ranges = readonly (readonly [number, number])[]

/** All that text can hold but NUL. */
export const ANY: Ranges = [
  [1, 0xd7ff],
  [0xe000, 0x10ffff],
]

export class GrammarText {
  readonly #names = new Map<string, string>()
  readonly #lines: string[] = []
  #count = 0
  #length = 0

  /** The name of a rule with this body; equal bodies share one, so that what is compiled stays small. */
  rule(body: string): string {
    const known = this.#names.get(body)
    if (known !== undefined) return known
    const name = this.open()
    this.#names.set(body, name)
    this.close(name, body)
    return name
  }

  /** A name to use before the body is known: how rules refer to themselves. */
  open(): string {
    return `r${this.#count++}`
  }

  /** @throws RefrainError `invalid_grammar` when the grammar has become too long. */
  close(name: string, body: string): void {
    const line = `${name} ::= ${bare(body)}`
    this.#length += line.length + 1
    if (this.#length > MAX_LENGTH) throw invalidGrammar(`the grammar is longer than ${MAX_LENGTH} characters`)
    this.#lines.push(line)
  }

  /** The whole grammar; `root` is an expression. */
  toString(root: string): string {
    return [...this.#lines, `root ::= ${root}`].join('\n')
  }
}

export function invalidGrammar(message: string, param = 'response_format'): RefrainError {
  return new RefrainError('invalid_grammar', message, { param })
}

/**
 * Alternatives as one expression; an empty list has no expression. Alternatives of alternatives become flat: xgrammar
 * makes a rule of each that is nested, and at the borders of rules it tries tokens one by one (50 ms a mask, not 0.1).
 */
export function choice(options: readonly string[]): string {
  if (options.length === 0) throw new Error('a choice of nothing')
  return options.length === 1 ? options[0]! : `(${options.map(bare).join(' | ')})`
}

/** `expression` without parentheses that enclose all of it. */
export function bare(expression: string): string {
  if (!expression.startsWith('(') || !expression.endsWith(')')) return expression
  let depth = 0
  let quote = ''
  for (let i = 0; i < expression.length; i++) {
    const character = expression[i]!
    if (character === '\\') i++
    else if (quote !== '') quote = character === quote ? '' : quote
    else if (character === '"') quote = '"'
    else if (character === '[') quote = ']'
    else if (character === '(') depth++
    else if (character === ')' && --depth === 0 && i < expression.length - 1) return expression
  }
  return bare(expression.slice(1, -1))
}

/** Exactly `text`. */
export function literal(text: string): string {
  let body = ''
  for (const character of text) {
    const code = character.codePointAt(0)!
    if (character === '"' || character === '\\') body += `\\${character}`
    // Not \\x, which takes all the hexadecimal digits that follow.
    else body += code < 0x20 || code === 0x7f ? `\\u00${hex(code)}` : character
  }
  return `"${body}"`
}

/** One character of `ranges`. NUL and surrogates are in no text and left out. */
export function oneOf(ranges: Ranges): string {
  const options: string[] = []
  const ascii: (readonly [number, number])[] = []
  for (const [low, high] of ranges) {
    if (low < 0x80) ascii.push([Math.max(low, 1), Math.min(high, 0x7f)])
    if (high >= 0x80) for (const part of utf8Parts(Math.max(low, 0x80), high)) options.push(part)
  }
  const present = ascii.filter(([low, high]) => low <= high)
  return choice(present.length === 0 ? options : [byteClass(present), ...options])
}

/** One byte of `ranges`. Also for the pseudo-tokens of grammar-string.ts. */
export function byteClass(ranges: Ranges): string {
  const spell = (byte: number) => `\\x${hex(byte)}`
  const members = ranges.map(([low, high]) => (low === high ? spell(low) : `${spell(low)}-${spell(high)}`))
  // A class of a single member is read as a literal, that is as a code point: said twice it stays a class.
  return `[${members.join('')}${ranges.length === 1 && ranges[0]![0] === ranges[0]![1] ? members[0] : ''}]`
}

function hex(byte: number): string {
  return byte.toString(16).padStart(2, '0')
}

/** The last code point of each UTF-8 length, with the surrogates as a gap. */
const BORDERS = [0x7ff, 0xd7ff, 0xdfff, 0xffff, 0x10ffff]

/** Sequences of byte classes that together are the UTF-8 forms of `[low, high]`, all above ASCII. */
function utf8Parts(low: number, high: number): string[] {
  const parts: string[] = []
  let from = low
  for (const border of BORDERS) {
    if (from > border) continue
    const to = Math.min(high, border)
    if (border !== 0xdfff && from <= to) parts.push(...sameLength(encode(from), encode(to)))
    from = border + 1
    if (from > high) break
  }
  return parts
}

/** Splits a range of forms of one length until every byte but the first that differs is the full range. */
function sameLength(low: readonly number[], high: readonly number[]): string[] {
  const [a, ...lowRest] = low as [number, ...number[]]
  const [b, ...highRest] = high as [number, ...number[]]
  if (lowRest.length === 0) return [byteClass([[a, b]])]
  const behind = (first: number, last: number, tails: string[]) =>
    tails.map((tail) => `${byteClass([[first, last]])} ${tail}`)
  if (a === b) return behind(a, a, sameLength(lowRest, highRest))
  const parts: string[] = []
  const lowFull = lowRest.every((byte) => byte === 0x80)
  const highFull = highRest.every((byte) => byte === 0xbf)
  const bottom = lowRest.map(() => 0x80)
  const top = lowRest.map(() => 0xbf)
  if (!lowFull) parts.push(...behind(a, a, sameLength(lowRest, top)))
  const first = lowFull ? a : a + 1
  const last = highFull ? b : b - 1
  if (first <= last) parts.push(...behind(first, last, sameLength(bottom, top)))
  if (!highFull) parts.push(...behind(b, b, sameLength(bottom, highRest)))
  return parts
}

function encode(code: number): number[] {
  return [...Buffer.from(String.fromCodePoint(code))]
}

/** The union, in order and without overlaps. */
export function union(...sets: readonly Ranges[]): Ranges {
  const sorted = sets.flat().sort((a, b) => a[0] - b[0])
  const merged: [number, number][] = []
  for (const [low, high] of sorted) {
    const last = merged.at(-1)
    if (last !== undefined && low <= last[1] + 1) last[1] = Math.max(last[1], high)
    else merged.push([low, high])
  }
  return merged
}

/** What of `ranges` is not in `removed`. */
export function subtract(ranges: Ranges, removed: Ranges): Ranges {
  let rest: (readonly [number, number])[] = [...ranges]
  for (const [low, high] of removed) {
    rest = rest.flatMap(([from, to]) => {
      if (high < from || low > to) return [[from, to] as const]
      const parts = [[from, low - 1] as const, [high + 1, to] as const]
      return parts.filter(([first, last]) => first <= last)
    })
  }
  return rest
}
