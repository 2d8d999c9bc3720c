// Regular expressions in ECMAScript's syntax, read into a tree and written as EBNF. Invariant: what cannot be expressed
// (looking around, back references, word borders, Unicode properties, flags) is refused by name, never ignored.

import { ANY, bare, choice, invalidGrammar, literal, oneOf, type Ranges, subtract, union } from './grammar-text.js'

export type RegexNode =
  /** One character of the set. */
  | { readonly kind: 'set'; readonly ranges: Ranges }
  | { readonly kind: 'sequence'; readonly items: readonly RegexNode[] }
  | { readonly kind: 'choice'; readonly items: readonly RegexNode[] }
  | { readonly kind: 'repeat'; readonly item: RegexNode; readonly min: number; readonly max: number | undefined }
  | { readonly kind: 'anchor'; readonly at: 'start' | 'end' }

/** Characters that an expression may stand for when every repetition is written out. */
const MAX_WEIGHT = 5000
const MAX_DEPTH = 64

const NEWLINES: Ranges = [
  [0x0a, 0x0a],
  [0x0d, 0x0d],
  [0x2028, 0x2029],
]
const DIGITS: Ranges = [[0x30, 0x39]]
const WORD: Ranges = [
  [0x30, 0x39],
  [0x41, 0x5a],
  [0x5f, 0x5f],
  [0x61, 0x7a],
]
const SPACES: Ranges = [
  [0x09, 0x0d],
  [0x20, 0x20],
  [0xa0, 0xa0],
  [0x1680, 0x1680],
  [0x2000, 0x200a],
  [0x2028, 0x2029],
  [0x202f, 0x202f],
  [0x205f, 0x205f],
  [0x3000, 0x3000],
  [0xfeff, 0xfeff],
]
const CLASSES: Readonly<Record<string, Ranges>> = {
  d: DIGITS,
  D: subtract(ANY, DIGITS),
  w: WORD,
  W: subtract(ANY, WORD),
  s: SPACES,
  S: subtract(ANY, SPACES),
}
const CONTROLS: Readonly<Record<string, number>> = { t: 9, n: 10, v: 11, f: 12, r: 13, '0': 0 }

class Reader {
  readonly #characters: readonly string[]
  readonly #param: string | undefined
  #at = 0
  #depth = 0

  constructor(pattern: string, param: string | undefined) {
    this.#characters = [...pattern]
    this.#param = param
  }

  whole(): RegexNode {
    const node = this.#alternatives()
    if (this.#at < this.#characters.length) throw this.#refusal('a parenthesis closes nothing')
    return node
  }

  #refusal(what: string): Error {
    return invalidGrammar(`regex, character ${this.#at}: ${what}`, this.#param)
  }

  #peek(text: string): boolean {
    return [...text].every((character, i) => this.#characters[this.#at + i] === character)
  }

  #eat(text: string): boolean {
    if (!this.#peek(text)) return false
    this.#at += [...text].length
    return true
  }

  #alternatives(): RegexNode {
    if (++this.#depth > MAX_DEPTH) throw this.#refusal(`groups are nested deeper than ${MAX_DEPTH}`)
    const items = [this.#sequence()]
    while (this.#eat('|')) items.push(this.#sequence())
    this.#depth--
    return items.length === 1 ? items[0]! : { kind: 'choice', items }
  }

  #sequence(): RegexNode {
    const items: RegexNode[] = []
    while (this.#at < this.#characters.length && !this.#peek('|') && !this.#peek(')')) {
      const item = this.#atom()
      items.push(this.#quantified(item))
    }
    return items.length === 1 ? items[0]! : { kind: 'sequence', items }
  }

  #quantified(item: RegexNode): RegexNode {
    const bounds = this.#bounds()
    if (bounds === undefined) return item
    if (item.kind === 'anchor') throw this.#refusal('an anchor cannot be repeated')
    // Lazy or not makes no difference to what matches.
    this.#eat('?')
    if (this.#peek('*') || this.#peek('+') || this.#peek('?')) throw this.#refusal('nothing to repeat')
    const [min, max] = bounds
    if (max !== undefined && max < min) throw this.#refusal(`{${min},${max}} is out of order`)
    // (a*)* is a*: what can be split in many ways makes the matcher slow.
    const isStar = max === undefined && min <= 1
    if (isStar && item.kind === 'repeat' && item.max === undefined && item.min <= 1) {
      return { ...item, min: Math.min(min, item.min) }
    }
    return { kind: 'repeat', item, min, max }
  }

  #bounds(): readonly [number, number | undefined] | undefined {
    if (this.#eat('*')) return [0, undefined]
    if (this.#eat('+')) return [1, undefined]
    if (this.#eat('?')) return [0, 1]
    if (!this.#peek('{')) return undefined
    const found = /^\{(\d{1,7})(?:(,)(\d{1,7})?)?\}/.exec(this.#characters.slice(this.#at, this.#at + 20).join(''))
    // As in JavaScript, a brace that bounds nothing is a brace.
    if (found === null) return undefined
    this.#at += found[0].length
    const min = Number(found[1])
    if (found[2] === undefined) return [min, min]
    return [min, found[3] === undefined ? undefined : Number(found[3])]
  }

  #atom(): RegexNode {
    if (this.#eat('^')) return { kind: 'anchor', at: 'start' }
    if (this.#eat('$')) return { kind: 'anchor', at: 'end' }
    if (this.#eat('.')) return { kind: 'set', ranges: subtract(ANY, NEWLINES) }
    if (this.#eat('(')) return this.#group()
    if (this.#eat('[')) return { kind: 'set', ranges: this.#set() }
    if (this.#eat('\\')) return { kind: 'set', ranges: this.#escape() }
    if (this.#peek('*') || this.#peek('+') || this.#peek('?')) throw this.#refusal('nothing to repeat')
    return { kind: 'set', ranges: single(this.#characters[this.#at++]!.codePointAt(0)!) }
  }

  #group(): RegexNode {
    if (this.#eat('?')) {
      if (this.#peek('=') || this.#peek('!')) throw this.#refusal('looking ahead is not supported')
      if (this.#peek('<=') || this.#peek('<!')) throw this.#refusal('looking behind is not supported')
      if (this.#eat('<')) {
        while (this.#at < this.#characters.length && !this.#eat('>')) this.#at++
      } else if (!this.#eat(':')) throw this.#refusal('flags are not supported')
    }
    const node = this.#alternatives()
    if (!this.#eat(')')) throw this.#refusal('a parenthesis is not closed')
    return node
  }

  #set(): Ranges {
    const negative = this.#eat('^')
    let found: Ranges = []
    while (!this.#eat(']')) {
      if (this.#at >= this.#characters.length) throw this.#refusal('a bracket is not closed')
      const low = this.#member()
      if (this.#peek('-') && !this.#peek('-]')) {
        this.#at++
        const high = this.#member()
        const [from, to] = [low[0]?.[0], high[0]?.[0]]
        if (low !== undefined && isSingle(low) && isSingle(high) && from !== undefined && to !== undefined) {
          if (to < from) throw this.#refusal('a range is out of order')
          found = union(found, [[from, to]])
        } else found = union(found, low, single(0x2d), high)
      } else found = union(found, low)
    }
    return negative ? subtract(ANY, found) : found
  }

  #member(): Ranges {
    if (this.#at >= this.#characters.length) throw this.#refusal('a bracket is not closed')
    if (!this.#eat('\\')) return single(this.#characters[this.#at++]!.codePointAt(0)!)
    return this.#eat('b') ? single(8) : this.#escape()
  }

  #escape(): Ranges {
    const character = this.#characters[this.#at++]
    if (character === undefined) throw this.#refusal('a backslash ends it')
    const known = CLASSES[character]
    if (known !== undefined) return known
    if (CONTROLS[character] !== undefined) return single(CONTROLS[character])
    if (character === 'x') return single(this.#hex(2))
    if (character === 'u') return single(this.#unicode())
    if (character === 'c') return single((this.#characters[this.#at++]?.codePointAt(0) ?? 0) & 31)
    if (character === 'b' || character === 'B') throw this.#refusal('word borders are not supported')
    if (character === 'p' || character === 'P') throw this.#refusal('Unicode properties are not supported')
    if (character === 'k' || /[1-9]/.test(character)) throw this.#refusal('back references are not supported')
    if (/[A-Za-z]/.test(character)) throw this.#refusal(`\\${character} is unknown`)
    return single(character.codePointAt(0)!)
  }

  #unicode(): number {
    if (this.#eat('{')) {
      const end = this.#characters.indexOf('}', this.#at)
      const code = this.#hex(end - this.#at)
      this.#at++
      if (code > 0x10ffff) throw this.#refusal('there is no such code point')
      return code
    }
    const first = this.#hex(4)
    const isPair = first >= 0xd800 && first <= 0xdbff && this.#peek('\\u')
    if (!isPair) return first
    this.#at += 2
    return 0x10000 + ((first - 0xd800) << 10) + (this.#hex(4) - 0xdc00)
  }

  #hex(digits: number): number {
    const text = digits > 0 ? this.#characters.slice(this.#at, this.#at + digits).join('') : ''
    if (text.length !== digits || !/^[0-9a-fA-F]+$/.test(text)) throw this.#refusal('hexadecimal digits are missing')
    this.#at += digits
    return Number.parseInt(text, 16)
  }
}

function single(code: number): Ranges {
  return [[code, code]]
}

function isSingle(ranges: Ranges): boolean {
  return ranges.length === 1 && ranges[0]![0] === ranges[0]![1]
}

/** @throws RefrainError `invalid_grammar`, naming `param`, the place and what is not supported. */
export function parseRegex(pattern: string, param?: string): RegexNode {
  const node = new Reader(pattern, param).whole()
  if (weight(node) > MAX_WEIGHT) {
    throw invalidGrammar(`regex: its repetitions stand for more than ${MAX_WEIGHT} characters`, param)
  }
  return node
}

function weight(node: RegexNode): number {
  if (node.kind === 'set') return 1
  if (node.kind === 'anchor') return 0
  if (node.kind === 'repeat') return Math.max(1, node.max ?? node.min) * weight(node.item)
  return node.items.reduce((sum, item) => sum + weight(item), 0)
}

/** How characters of a match are spelled: as they are, or as in a JSON string. */
export interface Spelling {
  set(ranges: Ranges): string
  text(text: string): string
}

export const PLAIN: Spelling = { set: oneOf, text: literal }

/** The expression that matches what `node` matches. @throws RefrainError `invalid_grammar` for an anchor that is not at an end. */
export function writeRegex(node: RegexNode, spelling: Spelling): string {
  switch (node.kind) {
    case 'set':
      if (node.ranges.length === 0) throw invalidGrammar('regex: a class has no character')
      return isSingle(node.ranges) ? spelling.text(String.fromCodePoint(node.ranges[0]![0])) : spelling.set(node.ranges)
    case 'choice':
      return choice(node.items.map((item) => writeRegex(item, spelling)))
    case 'repeat': {
      const item = `(${bare(writeRegex(node.item, spelling))})`
      if (node.max === 0) return '""'
      if (node.max === undefined && node.min <= 1) return item + (node.min === 0 ? '*' : '+')
      return `${item}{${node.min},${node.max ?? ''}}`
    }
    case 'sequence':
      return writeSequence(node.items, spelling)
    case 'anchor':
      throw invalidGrammar('regex: ^ and $ are supported at the ends of an alternative only')
  }
}

function writeSequence(items: readonly RegexNode[], spelling: Spelling): string {
  const parts: string[] = []
  let run = ''
  const flush = () => {
    if (run !== '') parts.push(spelling.text(run))
    run = ''
  }
  for (const item of flat(items)) {
    if (item.kind === 'set' && isSingle(item.ranges)) run += String.fromCodePoint(item.ranges[0]![0])
    else {
      flush()
      parts.push(writeRegex(item, spelling))
    }
  }
  flush()
  return parts.length === 0 ? '""' : `(${parts.join(' ')})`
}

/** Sequences in the sequence are part of it. */
function flat(items: readonly RegexNode[]): readonly RegexNode[] {
  return items.flatMap((item) => (item.kind === 'sequence' ? flat(item.items) : [item]))
}

const EVERYTHING: RegexNode = { kind: 'repeat', item: { kind: 'set', ranges: ANY }, min: 0, max: undefined }

/**
 * The same expression without anchors at its ends. `whole`: it must match all of a text, anchored or not. `search`: as
 * JSON schema has it, it may match anywhere, unless anchored.
 */
export function withoutAnchors(node: RegexNode, mode: 'whole' | 'search'): RegexNode {
  if (node.kind === 'choice') return { kind: 'choice', items: node.items.map((item) => withoutAnchors(item, mode)) }
  const items = node.kind === 'sequence' ? [...node.items] : [node]
  const starts = isAnchor(items[0], 'start')
  if (starts) items.shift()
  const ends = isAnchor(items.at(-1), 'end')
  if (ends) items.pop()
  if (mode === 'search') {
    if (!starts) items.unshift(EVERYTHING)
    if (!ends) items.push(EVERYTHING)
  }
  return { kind: 'sequence', items }
}

function isAnchor(node: RegexNode | undefined, at: 'start' | 'end'): boolean {
  return node?.kind === 'anchor' && node.at === at
}

/** How many characters a match has at least and at most (undefined: without bound). */
export function lengthsOf(node: RegexNode): readonly [number, number | undefined] {
  switch (node.kind) {
    case 'set':
      return [1, 1]
    case 'anchor':
      return [0, 0]
    case 'repeat': {
      const [min, max] = lengthsOf(node.item)
      const top =
        node.max === 0 || max === 0 ? 0 : node.max === undefined || max === undefined ? undefined : max * node.max
      return [min * node.min, top]
    }
    default: {
      const all = node.items.map(lengthsOf)
      const sum = (values: readonly (number | undefined)[]) =>
        values.some((value) => value === undefined) ? undefined : values.reduce<number>((a, b) => a + b!, 0)
      const mins = all.map(([min]) => min)
      const maxes = all.map(([, max]) => max)
      if (node.kind === 'sequence') return [sum(mins)!, sum(maxes)]
      return [Math.min(...mins), maxes.includes(undefined) ? undefined : Math.max(...(maxes as number[]))]
    }
  }
}
