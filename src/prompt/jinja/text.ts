// Python's string methods that chat templates call, on JavaScript strings. White space is Python's set, lengths are code
// points, and every optional argument means what Python says.

import { str } from './print.js'
import { isList, iterate, type Kwargs, TemplateFault, truthy, typeName, type Value } from './values.js'

const SPACE = '\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000'
const LEADING = new RegExp(`^[${SPACE}]+`)
const WORDS = new RegExp(`[^${SPACE}]+`, 'g')
const ALL_SPACE = new RegExp(`^[${SPACE}]+$`)
const SPACE_UNIT = new RegExp(`[${SPACE}]`)

type Side = 'both' | 'left' | 'right'

/** strip(), lstrip() and rstrip(); `chars` undefined or None: white space. */
export function strip(text: string, side: Side, chars?: Value): string {
  if (typeof chars === 'string') return stripSet(text, side, new Set(chars))
  let end = text.length
  if (side !== 'left') while (end > 0 && SPACE_UNIT.test(text[end - 1]!)) end--
  const kept = text.slice(0, end)
  return side === 'right' ? kept : kept.replace(LEADING, '')
}

function stripSet(text: string, side: Side, chars: ReadonlySet<string>): string {
  const units = Array.from(text)
  let start = 0
  let end = units.length
  if (side !== 'right') while (start < end && chars.has(units[start]!)) start++
  if (side !== 'left') while (end > start && chars.has(units[end - 1]!)) end--
  return units.slice(start, end).join('')
}

/** split(sep, maxsplit); `sep` undefined or None: runs of white space. */
export function split(text: string, sep: Value, maxSplit = -1): string[] {
  if (sep === undefined || sep === null) return splitSpace(text, maxSplit)
  const separator = textOf(sep, 'separator')
  if (separator === '') throw new TemplateFault('empty separator')
  const parts = text.split(separator)
  if (maxSplit < 0 || parts.length <= maxSplit + 1) return parts
  return [...parts.slice(0, maxSplit), parts.slice(maxSplit).join(separator)]
}

function splitSpace(text: string, maxSplit: number): string[] {
  const parts: string[] = []
  for (const word of text.matchAll(WORDS)) {
    if (maxSplit >= 0 && parts.length === maxSplit) {
      parts.push(text.slice(word.index))
      break
    }
    parts.push(word[0])
  }
  return parts
}

function rsplit(text: string, sep: Value, maxSplit: number): string[] {
  const parts = split(text, sep)
  if (maxSplit < 0 || parts.length <= maxSplit + 1) return parts
  const separator = textOf(sep, 'separator')
  const cut = parts.length - maxSplit
  return [parts.slice(0, cut).join(separator), ...parts.slice(cut)]
}

/** replace(old, new, count); a negative count replaces all. */
export function replace(text: string, from: string, to: string, count = -1): string {
  if (count < 0) return text.replaceAll(from, () => to)
  let left = count
  return text.replaceAll(from, (found) => (left-- > 0 ? to : found))
}

/** Lines without their ends. */
export function splitLines(text: string): string[] {
  const lines = text.split(/\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/)
  if (lines.at(-1) === '') lines.pop()
  return lines
}

export function capitalize(text: string): string {
  const [first = ''] = text
  return first.toUpperCase() + text.slice(first.length).toLowerCase()
}

/** str.format() with `{}`, `{0}` and `{name}`; no format specifications. */
export function format(text: string, args: readonly Value[], kwargs: Kwargs): string {
  let next = 0
  return text.replace(/\{\{|\}\}|\{([^{}]*)\}/g, (found, field: string | undefined) => {
    if (found === '{{') return '{'
    if (found === '}}') return '}'
    const name = field ?? ''
    if (name === '') return str(args[next++])
    if (/^\d+$/.test(name)) return str(args[Number(name)])
    if (!kwargs.has(name)) throw new TemplateFault(`format() has no argument '${name}'`)
    return str(kwargs.get(name))
  })
}

/** The `%` operator of strings, and the filter `format`: %s, %d, %r, %f and %%. */
export function percent(text: string, args: readonly Value[]): string {
  let next = 0
  return text.replace(/%(?:\.(\d+))?([sdrf%])/g, (_, digits: string | undefined, kind: string) => {
    if (kind === '%') return '%'
    const value = args[next++]
    return kind === 'f' ? Number(str(value)).toFixed(Number(digits ?? 6)) : str(value)
  })
}

function startsOrEnds(text: string, which: 'startsWith' | 'endsWith', what: Value): boolean {
  const options = isList(what) ? what : [what]
  return options.some((option) => text[which](textOf(option, 'prefix')))
}

function textOf(value: Value, what: string): string {
  if (typeof value !== 'string') throw new TemplateFault(`${what} must be str, not ${typeName(value)}`)
  return value
}

const intOf = (value: Value, otherwise: number): number => (typeof value === 'number' ? value : otherwise)
const cased = (text: string): boolean => text.toLowerCase() !== text.toUpperCase()

type Method = (text: string, args: readonly Value[], kwargs: Kwargs) => Value

/** Methods of str by name. */
export const STRING_METHODS: Readonly<Record<string, Method>> = {
  strip: (text, [chars]) => strip(text, 'both', chars),
  lstrip: (text, [chars]) => strip(text, 'left', chars),
  rstrip: (text, [chars]) => strip(text, 'right', chars),
  split: (text, [sep, max], kwargs) => split(text, sep ?? kwargs.get('sep'), intOf(max ?? kwargs.get('maxsplit'), -1)),
  rsplit: (text, [sep, max], kwargs) =>
    rsplit(text, sep ?? kwargs.get('sep'), intOf(max ?? kwargs.get('maxsplit'), -1)),
  splitlines: (text) => splitLines(text),
  partition(text, [sep]) {
    const [head, tail] = split(text, sep, 1)
    return tail === undefined ? [text, '', ''] : [head, sep, tail]
  },
  rpartition(text, [sep]) {
    const parts = rsplit(text, sep, 1)
    return parts.length < 2 ? ['', '', text] : [parts[0], sep, parts[1]]
  },
  startswith: (text, [what]) => startsOrEnds(text, 'startsWith', what),
  endswith: (text, [what]) => startsOrEnds(text, 'endsWith', what),
  removeprefix: (text, [what]) => (text.startsWith(textOf(what, 'prefix')) ? text.slice(str(what).length) : text),
  removesuffix: (text, [what]) =>
    text.endsWith(textOf(what, 'suffix')) ? text.slice(0, text.length - str(what).length) : text,
  replace: (text, [from, to, count], kwargs) =>
    replace(
      text,
      textOf(from, 'replace() argument'),
      textOf(to, 'replace() argument'),
      intOf(count ?? kwargs.get('count'), -1),
    ),
  upper: (text) => text.toUpperCase(),
  lower: (text) => text.toLowerCase(),
  capitalize: (text) => capitalize(text),
  title: (text) => text.replace(/\p{L}+/gu, (word) => capitalize(word)),
  format: (text, args, kwargs) => format(text, args, kwargs),
  join: (text, [items]) =>
    iterate(items)
      .map((item) => textOf(item, 'joined item'))
      .join(text),
  find: (text, [what]) => codePoints(text, text.indexOf(textOf(what, 'argument'))),
  rfind: (text, [what]) => codePoints(text, text.lastIndexOf(textOf(what, 'argument'))),
  count: (text, [what]) => text.split(textOf(what, 'argument')).length - 1,
  isdigit: (text) => /^\p{Nd}+$/u.test(text),
  isalpha: (text) => /^\p{L}+$/u.test(text),
  isalnum: (text) => /^[\p{L}\p{N}]+$/u.test(text),
  isspace: (text) => ALL_SPACE.test(text),
  isupper: (text) => cased(text) && text === text.toUpperCase(),
  islower: (text) => cased(text) && text === text.toLowerCase(),
  zfill: (text, [width]) => text.padStart(intOf(width, 0), '0'),
}

function codePoints(text: string, index: number): number {
  return index < 0 ? -1 : Array.from(text.slice(0, index)).length
}

/** Order of two values of `sort`; strings without regard to case unless `caseSensitive`. */
export function foldCase(value: Value, caseSensitive: Value): Value {
  return typeof value === 'string' && !truthy(caseSensitive) ? value.toLowerCase() : value
}
