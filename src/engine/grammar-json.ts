// The parts of JSON that every schema's grammar is made of: strings, keys, literals, any value. Invariant: one compact
// layout, ", " and ": " and no other white space, so that no model can write blanks for ever; strings hold whole
// characters and no lone surrogates, so that lengths count what JSON.parse gives.

import { INTEGER, NUMBER } from './grammar-number.js'
import { lengthsOf, parseRegex, type RegexNode, type Spelling, withoutAnchors, writeRegex } from './grammar-regex.js'
import {
  byteClass,
  choice,
  GrammarText,
  invalidGrammar,
  literal,
  oneOf,
  type Ranges,
  subtract,
  union,
} from './grammar-text.js'

/** Lengths of a string in characters (code points), both ends included. */
export interface Lengths {
  readonly min: number
  readonly max: number | undefined
}

/** Distinct lengths in one grammar at most: each is one pseudo-token, see grammar-string.ts. */
export const MAX_COUNTED = 64

/** Up to here `minLength` alone is written out, which keeps the natural tokens at a string's borders. */
const WRITTEN_MIN = 2

/** Beginnings of names that `keyExcept` tells apart. */
const MAX_PREFIXES = 1000

/** Characters that stand for themselves in a JSON string. */
const UNESCAPED: Ranges = [
  [0x20, 0x21],
  [0x23, 0x5b],
  [0x5d, 0xd7ff],
  [0xe000, 0x10ffff],
]
const UNESCAPED_ASCII: Ranges = [
  [0x20, 0x21],
  [0x23, 0x5b],
  [0x5d, 0x7f],
]
const CONTROLS: Ranges = [
  [0x01, 0x1f],
  [0x22, 0x22],
  [0x5c, 0x5c],
]
const HEX = '[0-9a-fA-F]'
/** Without surrogates. */
const ESCAPES = [
  '"\\\\" [bfnrt\\x22\\x5c\\x2f]',
  `"\\\\u" [0-9a-ce-fA-CE-F] ${HEX} ${HEX} ${HEX}`,
  `"\\\\u" [dD] [0-7] ${HEX} ${HEX}`,
]
const CHARACTER = choice([oneOf(UNESCAPED), ...ESCAPES])

/** A regular expression's characters as they stand in a JSON string. */
const SPELLED: Spelling = {
  text: (text) => literal(JSON.stringify(text).slice(1, -1)),
  set(ranges) {
    const plain = subtract(ranges, union([[0, 0]], CONTROLS))
    const options = plain.length === 0 ? [] : [oneOf(plain)]
    for (const [low, high] of CONTROLS) {
      for (let code = low; code <= high; code++) {
        if (ranges.some(([from, to]) => from <= code && code <= to))
          options.push(SPELLED.text(String.fromCodePoint(code)))
      }
    }
    return choice(options)
  },
}

export class JsonGrammar extends GrammarText {
  /** The lengths that the grammar's pseudo-tokens stand for, in their order. */
  readonly counted: Lengths[] = []
  #any: string | undefined

  /** Any JSON value. */
  any(): string {
    if (this.#any !== undefined) return this.#any
    const any = this.open()
    this.#any = any
    const array = this.rule(`"[" (${any} (", " ${any})*)? "]"`)
    this.close(any, `${this.object(any)} | ${array} | ${this.string()} | ${NUMBER} | "true" | "false" | "null"`)
    return any
  }

  integer(): string {
    return this.rule(INTEGER)
  }

  /** An object with any keys, all of whose values are `value`; `count` members. */
  object(value: string, key = this.string(), count: Lengths = { min: 0, max: undefined }): string {
    if (count.max === 0) return '"{}"'
    const member = this.rule(`${key} ": " ${value}`)
    const more = times(
      `", " ${member}`,
      Math.max(0, count.min - 1),
      count.max === undefined ? undefined : count.max - 1,
    )
    const members = `${member} ${more}`
    return this.rule(`"{" ${count.min === 0 ? `(${members})?` : members} "}"`)
  }

  /** A string of any or of bounded length. @throws RefrainError `invalid_grammar` when there are too many different bounds. */
  string({ min, max }: Lengths = { min: 0, max: undefined }): string {
    if (max === undefined && min <= WRITTEN_MIN) {
      return this.rule(`"\\"" ${`${CHARACTER} `.repeat(min)}${CHARACTER}* "\\""`)
    }
    let index = this.counted.findIndex((other) => other.min === min && other.max === max)
    if (index < 0) {
      if (this.counted.length === MAX_COUNTED) {
        throw invalidGrammar(`more than ${MAX_COUNTED} different bounds of string lengths`)
      }
      index = this.counted.push({ min, max }) - 1
    }
    // The bytes of the pseudo-token `index`, which occur in no text.
    const byte = (value: number) => byteClass([[value, value]])
    return this.rule(`"\\"" ${byte(0xff)} ${byte(0x80 + index)} "\\""`)
  }

  /** A string that `pattern` matches somewhere, as JSON schema has it. */
  matching(pattern: RegexNode): string {
    return this.rule(`"\\"" ${writeRegex(withoutAnchors(pattern, 'search'), SPELLED)} "\\""`)
  }

  /**
   * A string that is none of `names`, of characters without escapes; where it leaves the names it goes on in ASCII.
   * Undefined when the names are too long for one rule.
   */
  keyExcept(names: readonly string[]): string | undefined {
    const plain = names.filter((name) => JSON.stringify(name) === `"${name}"`)
    const next = new Map<string, Set<number>>([['', new Set()]])
    for (const name of plain) {
      let before = ''
      for (const character of name) {
        next.get(before)!.add(character.codePointAt(0)!)
        before += character
        if (!next.has(before)) next.set(before, new Set())
        if (next.size > MAX_PREFIXES) return undefined
      }
    }
    const leaves = [...next].flatMap(([prefix, following]) => {
      const others = subtract(UNESCAPED_ASCII, union([...following].map((code) => [code, code] as const)))
      return others.length === 0 ? [] : [`${literal(prefix)} ${oneOf(others)}`]
    })
    const options = [`${choice(leaves)} ${oneOf(UNESCAPED)}*`]
    const short = [...next.keys()].filter((prefix) => !plain.includes(prefix))
    if (short.length > 0) options.push(choice(short.map(literal)))
    return this.rule(`"\\"" ${choice(options)} "\\""`)
  }
}

/** `item` repeated. */
export function times(item: string, min: number, max: number | undefined): string {
  if (max === 0) return '""'
  if (max === undefined && min <= 1) return `(${item})${min === 0 ? '*' : '+'}`
  return `(${item}){${min},${max ?? ''}}`
}

/** `value` in the layout of these grammars. */
export function jsonText(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(jsonText).join(', ')}]`
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  return `{${Object.entries(value)
    .map(([key, item]) => `${JSON.stringify(key)}: ${jsonText(item)}`)
    .join(', ')}}`
}

/** Whether all matches have lengths within `lengths`. */
export function impliesLengths(pattern: RegexNode, { min, max }: Lengths): boolean {
  const [least, most] = lengthsOf(withoutAnchors(pattern, 'search'))
  return least >= min && (max === undefined || (most !== undefined && most <= max))
}

const DATE =
  '(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8])))'
const TIME = '(?:(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d))'
const OCTET = '(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)'
const LABEL = '[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?'

/** Formats that are written; each allows a part of what its RFC does. Other formats are annotations, as JSON schema has it. */
const FORMATS: Readonly<Record<string, string>> = {
  date: `^${DATE}$`,
  time: `^${TIME}$`,
  'date-time': `^${DATE}T${TIME}$`,
  duration: '^P(?:\\d{1,4}W|\\d{1,4}D(?:T\\d{1,4}H(?:\\d{1,4}M(?:\\d{1,4}S)?)?)?|T\\d{1,4}[HMS])$',
  uuid: '^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$',
  ipv4: `^${OCTET}\\.${OCTET}\\.${OCTET}\\.${OCTET}$`,
  ipv6: '^(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}$',
  hostname: `^${LABEL}(?:\\.${LABEL})*$`,
  email: `^[a-zA-Z0-9_+-]+(?:\\.[a-zA-Z0-9_+-]+)*@${LABEL}(?:\\.${LABEL})+$`,
  uri: `^[a-z][a-z0-9+-]*://${LABEL}(?:\\.${LABEL})*(?:/[a-zA-Z0-9._~-]*)*(?:\\?[a-zA-Z0-9._~=&-]*)?$`,
}

export function formatPattern(format: string): RegexNode | undefined {
  const pattern = Object.hasOwn(FORMATS, format) ? FORMATS[format] : undefined
  return pattern === undefined ? undefined : parseRegex(pattern)
}
