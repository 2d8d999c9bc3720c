// Jinja2's filters and tests, as far as chat templates use them, with Transformers' own `tojson` (json.dumps without
// escaping for HTML). An unknown one is a fault when it is reached, so that a template is judged by what it runs.

import { attribute, item } from './access.js'
import { parseJson } from './json.js'
import { JSON_LINE, type JsonStyle, json, str } from './print.js'
import { capitalize, foldCase, percent, replace, splitLines, strip } from './text.js'
import {
  compare,
  equals,
  Float,
  isList,
  iterate,
  type Kwargs,
  lengthOf,
  numeric,
  TemplateFault,
  Tuple,
  truthy,
  typeName,
  type Value,
} from './values.js'

export type Filter = (value: Value, args: readonly Value[], kwargs: Kwargs) => Value
export type Test = (value: Value, args: readonly Value[]) => boolean

/** The filter called `name`; @throws TemplateFault for an unknown one. */
export function filterNamed(name: string): Filter {
  if (!Object.hasOwn(FILTERS, name)) throw new TemplateFault(`No filter named '${name}'.`)
  return FILTERS[name]!
}

/** The test called `name`; @throws TemplateFault for an unknown one. */
export function testNamed(name: string): Test {
  if (!Object.hasOwn(TESTS, name)) throw new TemplateFault(`No test named '${name}'.`)
  return TESTS[name]!
}

const TESTS: Readonly<Record<string, Test>> = {
  defined: (value) => value !== undefined,
  undefined: (value) => value === undefined,
  none: (value) => value === null,
  string: (value) => typeof value === 'string',
  boolean: (value) => typeof value === 'boolean',
  true: (value) => value === true,
  false: (value) => value === false,
  number: (value) => numeric(value) !== undefined,
  integer: (value) => typeof value === 'number' || typeof value === 'bigint',
  float: (value) => value instanceof Float,
  mapping: (value) => value instanceof Map,
  sequence: (value) => value === undefined || isList(value) || value instanceof Map || typeof value === 'string',
  iterable: (value) => value === undefined || isList(value) || value instanceof Map || typeof value === 'string',
  callable: (value) => typeof value === 'function',
  odd: (value) => Math.abs(Number(numeric(value))) % 2 === 1,
  even: (value) => Number(numeric(value)) % 2 === 0,
  divisibleby: (value, [by]) => Number(numeric(value)) % Number(numeric(by)) === 0,
  lower: (value) => str(value) === str(value).toLowerCase(),
  upper: (value) => str(value) === str(value).toUpperCase(),
  in: (value, [container]) => contains(container, value),
  sameas: (value, [other]) => value === other,
  eq: (value, [other]) => equals(value, other),
  equalto: (value, [other]) => equals(value, other),
  '==': (value, [other]) => equals(value, other),
  ne: (value, [other]) => !equals(value, other),
  '!=': (value, [other]) => !equals(value, other),
  gt: (value, [other]) => compare(value, other) > 0,
  greaterthan: (value, [other]) => compare(value, other) > 0,
  ge: (value, [other]) => compare(value, other) >= 0,
  lt: (value, [other]) => compare(value, other) < 0,
  lessthan: (value, [other]) => compare(value, other) < 0,
  le: (value, [other]) => compare(value, other) <= 0,
}

/** The operator `in`. */
export function contains(container: Value, value: Value): boolean {
  if (typeof container === 'string') {
    if (typeof value === 'string') return container.includes(value)
    throw new TemplateFault(`'in <string>' requires string as left operand, not ${typeName(value)}`)
  }
  if (container instanceof Map) return container.has(value)
  return iterate(container).some((other) => equals(value, other))
}

// `a.b.0` inside map(attribute=...), selectattr(...) and sort(attribute=...).
function path(value: Value, name: Value): Value {
  let found = value
  for (const part of str(name).split('.')) found = item(found, /^\d+$/.test(part) ? Number(part) : part)
  return found
}

// map, select and reject take None and other falsy values for nothing to go through.
function some(value: Value): readonly Value[] {
  return truthy(value) ? iterate(value) : []
}

function choose(keep: boolean, of: (value: Value) => Value, test: Value, args: readonly Value[]) {
  const accepts = test === undefined ? truthy : (value: Value) => testNamed(str(test))(value, args)
  return (value: Value): boolean => accepts(of(value)) === keep
}

function sorted(value: Value, args: readonly Value[], kwargs: Kwargs): Value[] {
  const reverse = args[0] ?? kwargs.get('reverse')
  const caseSensitive = args[1] ?? kwargs.get('case_sensitive')
  const by = args[2] ?? kwargs.get('attribute')
  const key = (entry: Value): Value =>
    foldCase(by === undefined || by === null ? entry : path(entry, by), caseSensitive)
  const sign = truthy(reverse) ? -1 : 1
  return [...iterate(value)].sort((a, b) => sign * compare(key(a), key(b)))
}

function dictSorted(value: Value, args: readonly Value[], kwargs: Kwargs): Value[] {
  if (!(value instanceof Map)) throw new TemplateFault(`dictsort needs a mapping, not ${typeName(value)}`)
  const at = (args[1] ?? kwargs.get('by')) === 'value' ? 1 : 0
  const caseSensitive = args[0] ?? kwargs.get('case_sensitive')
  const sign = truthy(args[2] ?? kwargs.get('reverse')) ? -1 : 1
  const key = (entry: readonly Value[]): Value => foldCase(entry[at], caseSensitive)
  return [...value].sort((a, b) => sign * compare(key(a), key(b))).map((entry) => Tuple.from(entry))
}

function extreme(sign: number): Filter {
  return (value, args, kwargs) => {
    const by = args[1] ?? kwargs.get('attribute')
    const key = (entry: Value): Value => foldCase(by === undefined ? entry : path(entry, by), args[0])
    let best: Value
    iterate(value).forEach((entry, i) => {
      if (i === 0 || sign * compare(key(entry), key(best)) > 0) best = entry
    })
    return best
  }
}

function mapped(value: Value, args: readonly Value[], kwargs: Kwargs): Value[] {
  const items = some(value)
  const name = kwargs.get('attribute')
  if (name !== undefined) return items.map((entry) => path(entry, name) ?? kwargs.get('default'))
  const filter = filterNamed(str(args[0]))
  return items.map((entry) => filter(entry, args.slice(1), kwargs))
}

function indent(value: Value, args: readonly Value[], kwargs: Kwargs): string {
  const width = args[0] ?? kwargs.get('width') ?? 4
  const margin = typeof width === 'string' ? width : ' '.repeat(Number(width))
  const first = truthy(args[1] ?? kwargs.get('first'))
  const blank = truthy(args[2] ?? kwargs.get('blank'))
  const lines = splitLines(`${str(value)}\n`)
  return lines.map((line, i) => ((i === 0 ? first : blank || line !== '') ? margin + line : line)).join('\n')
}

function toJson(value: Value, _: readonly Value[], kwargs: Kwargs): string {
  const width = kwargs.get('indent')
  const separators = kwargs.get('separators')
  const [itemSeparator, keySeparator] = isList(separators)
    ? separators.map(str)
    : [typeof width === 'number' || typeof width === 'string' ? ',' : JSON_LINE.itemSeparator, JSON_LINE.keySeparator]
  const style: JsonStyle = {
    ...(typeof width === 'number' || typeof width === 'string'
      ? { indent: typeof width === 'number' ? ' '.repeat(width) : width }
      : {}),
    itemSeparator: itemSeparator ?? JSON_LINE.itemSeparator,
    keySeparator: keySeparator ?? JSON_LINE.keySeparator,
    sortKeys: truthy(kwargs.get('sort_keys')),
    ensureAscii: truthy(kwargs.get('ensure_ascii')),
  }
  return json(value, style)
}

function toInt(value: Value, otherwise: Value): Value {
  const known = numeric(value)
  if (known !== undefined) return typeof value === 'bigint' ? value : Math.trunc(known)
  return typeof value === 'string' && /^\s*[+-]?\d+\s*$/.test(value) ? Number(value) : otherwise
}

function toFloat(value: Value, otherwise: Value): Value {
  const known = numeric(value) ?? (typeof value === 'string' && value.trim() !== '' ? Number(value) : Number.NaN)
  return Number.isNaN(known) ? otherwise : new Float(known)
}

function unique(value: Value, args: readonly Value[]): Value[] {
  const kept: Value[] = []
  const seen: Value[] = []
  for (const entry of iterate(value)) {
    const key = foldCase(entry, args[0])
    if (seen.some((other) => equals(other, key))) continue
    seen.push(key)
    kept.push(entry)
  }
  return kept
}

function rounded(value: Value, args: readonly Value[], kwargs: Kwargs): Float {
  const scale = 10 ** Number(args[0] ?? kwargs.get('precision') ?? 0)
  const method = str(args[1] ?? kwargs.get('method') ?? 'common')
  const round = method === 'ceil' ? Math.ceil : method === 'floor' ? Math.floor : roundHalfToEven
  return new Float(round(Number(numeric(value)) * scale) / scale)
}

function roundHalfToEven(value: number): number {
  const rounded = Math.round(value)
  return Math.abs(value % 1) === 0.5 && rounded % 2 !== 0 ? rounded - 1 : rounded
}

const FILTERS: Readonly<Record<string, Filter>> = {
  abs: (value) => (value instanceof Float ? new Float(Math.abs(value.value)) : Math.abs(Number(numeric(value)))),
  attr: (value, [name]) => attribute(value, str(name)),
  capitalize: (value) => capitalize(str(value)),
  count: (value) => lengthOf(value),
  d: (value, args, kwargs) => fallback(value, args, kwargs),
  default: (value, args, kwargs) => fallback(value, args, kwargs),
  dictsort: dictSorted,
  e: (value) => htmlEscaped(str(value)),
  escape: (value) => htmlEscaped(str(value)),
  first: (value) => iterate(value)[0],
  float: (value, [otherwise]) => toFloat(value, otherwise ?? new Float(0)),
  format: (value, args) => percent(str(value), args),
  from_json: (value) => parseJson(str(value)),
  indent,
  int: (value, [otherwise]) => toInt(value, otherwise ?? 0),
  items: (value) => (value === undefined ? [] : itemsOf(value)),
  join: (value, args, kwargs) => {
    const by = args[1] ?? kwargs.get('attribute')
    return iterate(value)
      .map((entry) => str(by === undefined ? entry : path(entry, by)))
      .join(str(args[0] ?? kwargs.get('d')))
  },
  last: (value) => iterate(value).at(-1),
  length: (value) => lengthOf(value),
  list: (value) => [...iterate(value)],
  lower: (value) => str(value).toLowerCase(),
  map: mapped,
  max: extreme(1),
  min: extreme(-1),
  reject: (value, [test, ...args]) => some(value).filter(choose(false, (entry) => entry, test, args)),
  rejectattr: (value, [name, test, ...args]) =>
    some(value).filter(choose(false, (entry) => path(entry, name), test, args)),
  replace: (value, [from, to, count], kwargs) =>
    replace(str(value), str(from), str(to), Number(count ?? kwargs.get('count') ?? -1)),
  reverse: (value) =>
    typeof value === 'string' ? Array.from(value).reverse().join('') : [...iterate(value)].reverse(),
  round: rounded,
  safe: (value) => value,
  select: (value, [test, ...args]) => some(value).filter(choose(true, (entry) => entry, test, args)),
  selectattr: (value, [name, test, ...args]) =>
    some(value).filter(choose(true, (entry) => path(entry, name), test, args)),
  sort: sorted,
  string: (value) => str(value),
  sum: (value, args, kwargs) => {
    const by = args[0] ?? kwargs.get('attribute')
    const numbers = iterate(value).map((entry) => Number(numeric(by === undefined ? entry : path(entry, by))))
    return numbers.reduce((sum, number) => sum + number, 0)
  },
  title: (value) => str(value).replace(/[^-\s({[<]+/g, capitalize),
  tojson: toJson,
  trim: (value, [chars]) => strip(str(value), 'both', chars),
  unique,
  upper: (value) => str(value).toUpperCase(),
  wordcount: (value) => str(value).match(/\w+/g)?.length ?? 0,
}

function fallback(value: Value, args: readonly Value[], kwargs: Kwargs): Value {
  const otherwise = args[0] ?? kwargs.get('default_value') ?? ''
  const unlessTrue = truthy(args[1] ?? kwargs.get('boolean'))
  return value === undefined || (unlessTrue && !truthy(value)) ? otherwise : value
}

function itemsOf(value: Value): Value[] {
  if (value instanceof Map) return [...value].map((entry) => Tuple.from(entry))
  throw new TemplateFault('Can only get item pairs from a mapping.')
}

const HTML: Readonly<Record<string, string>> = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&#34;', "'": '&#39;' }

function htmlEscaped(text: string): string {
  return text.replace(/[&<>"']/g, (char) => HTML[char]!)
}
