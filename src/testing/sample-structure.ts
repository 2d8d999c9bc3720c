// Texts that a Structure describes, drawn at random: what a decoder under that constraint might write. Tests read them back
// with the parser of the same form. Knows as much of JSON Schema and of regular expressions as the structures use.

import type { Structure } from '../core/request.js'
import type { Random } from './random.js'

/** Pieces of free text, chosen to be taken for something else. */
const PIECES = [
  ...['a', 'Zoë', ' ', '\n', '\n\n', '"', "'", '\\', '{', '}', '[', ']', '<', '>', '</', '😀', '0', 'true', 'None'],
  ...['</tool_call>', '<tool_call>', '</function>', '</parameter', '<parameter=a>', '</arg_value', '<|call|>'],
  ...['<｜tool▁call▁end｜>', '<|tool_call_end|>', '</｜DSML｜invoke>', '[TOOL_CALLS]', '[ARGS]', '; ', '```'],
]

/** One text of `structure`; repeats without an upper bound are short. `write` lays out JSON; absent: with any white space. */
export function sampleStructure(structure: Structure, random: Random, write?: (value: unknown) => string): string {
  const json = (value: unknown) => write?.(value) ?? spaced(value, random)
  switch (structure.kind) {
    case 'literal':
      return structure.text
    case 'json':
      return json(anyObject(random, 3))
    case 'json-schema': {
      const schema: unknown = JSON.parse(structure.schema)
      return json(sampleSchema(schema, schema as Schema, random))
    }
    case 'regex':
      return sampleRegex(structure.regex, random)
    case 'free':
      return freeText(random, structure.without)
    case 'until':
      return freeText(random, [structure.stop]) + structure.stop
    case 'sequence':
      return structure.parts.map((part) => sampleStructure(part, random, write)).join('')
    case 'choice':
      return sampleStructure(pick(structure.parts, random), random, write)
    case 'repeat': {
      const { part, min, max = min + 3, separator = '' } = structure
      const count = min + random.below(max - min + 1)
      return Array.from({ length: count }, () => sampleStructure(part, random, write)).join(separator)
    }
  }
}

function pick<T>(items: readonly T[], random: Random): T {
  return items[random.below(items.length)]!
}

/** Text in which none of `without` is, nor begins at its end. */
function freeText(random: Random, without: readonly string[]): string {
  for (;;) {
    const text = Array.from({ length: random.below(8) }, () => pick(PIECES, random)).join('')
    const begins = (tag: string) => Array.from(tag, (_, i) => tag.slice(0, i + 1)).some((start) => text.endsWith(start))
    if (without.every((tag) => !text.includes(tag) && !begins(tag))) return text
  }
}

type Schema = Readonly<Record<string, unknown>>

function sampleSchema(schema: unknown, root: Schema, random: Random): unknown {
  if (typeof schema !== 'object' || schema === null) return anyValue(random, 2)
  const own = schema as Schema
  if (typeof own.$ref === 'string') {
    const at = own.$ref.split('/').slice(1)
    const found = at.reduce<unknown>((value, key) => (value as Schema)[key], root)
    return sampleSchema(found, root, random)
  }
  if (Array.isArray(own.enum)) return pick(own.enum, random)
  if ('const' in own) return own.const
  if (Array.isArray(own.anyOf)) return sampleSchema(pick(own.anyOf, random), root, random)
  const type = Array.isArray(own.type) ? pick(own.type as string[], random) : own.type
  switch (type) {
    case 'object':
      return sampleObject(own, root, random)
    case 'array':
      return Array.from({ length: random.below(4) }, () => sampleSchema(own.items, root, random))
    case 'string':
      return freeText(random, [])
    case 'number':
      return random.below(2) === 0 ? random.below(1e9) / 64 : -random.below(1e6)
    case 'integer':
      return random.below(2e6) - 1e6
    case 'boolean':
      return random.below(2) === 0
    case 'null':
      return null
    default:
      return anyValue(random, 2)
  }
}

function sampleObject({ properties, required }: Schema, root: Schema, random: Random): unknown {
  if (properties === undefined) return anyObject(random, 2)
  const needed = (required ?? []) as readonly string[]
  const chosen = Object.entries(properties as Schema).filter(([key]) => needed.includes(key) || random.below(2) === 0)
  return Object.fromEntries(chosen.map(([key, value]) => [key, sampleSchema(value, root, random)]))
}

function anyObject(random: Random, depth: number): unknown {
  const keys = Array.from({ length: random.below(4) }, (_, i) => `${pick(PIECES, random)}${i}`)
  return Object.fromEntries(keys.map((key) => [key, anyValue(random, depth - 1)]))
}

function anyValue(random: Random, depth: number): unknown {
  const kind = random.below(depth > 0 ? 7 : 5)
  if (kind === 5) return anyObject(random, depth)
  if (kind === 6) return Array.from({ length: random.below(3) }, () => anyValue(random, depth - 1))
  return [freeText(random, []), random.below(1000), random.below(1000) / 8, random.below(2) === 0, null][kind]
}

/** Grammars of JSON leave room for white space. */
function spaced(value: unknown, random: Random): string {
  return JSON.stringify(value, undefined, pick([0, 0, 1, 2], random))
}

/** Of single characters, classes and groups with alternatives, each perhaps with `+`, `?`, `{n}` or `{m,n}` behind. */
function sampleRegex(regex: string, random: Random): string {
  const group = /^\(([^()]*)\)$/.exec(regex)
  if (group !== null) return sampleRegex(pick(group[1]!.split('|'), random), random)
  let text = ''
  for (const [, set, plain, times] of regex.matchAll(/(?:\[([^\]]+)\]|([\w ]))(\+|\?|\{\d+(?:,\d+)?\})?/g)) {
    const characters = set === undefined ? [plain!] : classOf(set)
    const [least, most = least] = times?.startsWith('{') ? times.slice(1, -1).split(',').map(Number) : [1]
    const range = times === '+' ? [1, 5] : times === '?' ? [0, 1] : [least!, most!]
    const count = range[0]! + random.below(range[1]! - range[0]! + 1)
    text += Array.from({ length: count }, () => pick(characters, random)).join('')
  }
  if (!new RegExp(`^(?:${regex})$`).test(text)) throw new Error(`no sample of the regex ${regex}`)
  return text
}

function classOf(set: string): string[] {
  return [...set.matchAll(/(.)-(.)|(.)/gs)].flatMap(([, from, to, one]) => {
    if (one !== undefined) return [one]
    const [start, end] = [from!.charCodeAt(0), to!.charCodeAt(0)]
    return Array.from({ length: end - start + 1 }, (_, i) => String.fromCharCode(start + i))
  })
}
