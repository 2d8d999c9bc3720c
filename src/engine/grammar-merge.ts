// JSON schemas as data: which keywords say what, and what satisfies two schemas at once (allOf, keywords beside $ref or
// anyOf). Invariant: a keyword that restricts a value is merged exactly or refused by name; annotations are left out.

import { invalidGrammar } from './grammar-text.js'

export type Schema = Readonly<Record<string, unknown>>

/** No value satisfies a schema. An optional part is left out then; otherwise the whole is refused. */
export class Unsatisfiable extends Error {}

/** Keywords that restrict values and are written. */
const WRITTEN = [
  ...['$ref', 'allOf', 'anyOf', 'oneOf', 'type', 'enum', 'const'],
  ...['properties', 'required', 'additionalProperties', 'unevaluatedProperties', 'patternProperties', 'propertyNames'],
  ...['minProperties', 'maxProperties', 'items', 'prefixItems', 'additionalItems', 'minItems', 'maxItems'],
  ...['minLength', 'maxLength', 'pattern', 'format', 'minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'],
] as const

/** Keywords that restrict values and cannot be written as a grammar. */
const REFUSED = [
  ...['not', 'if', 'dependentRequired', 'dependentSchemas', 'dependencies', 'contains', 'minContains', 'maxContains'],
  ...['uniqueItems', 'multipleOf', 'unevaluatedItems', '$dynamicRef', '$recursiveRef'],
]

const RESTRICTING = new Set<string>([...WRITTEN, ...REFUSED])

const isCount = (value: unknown) => Number.isSafeInteger(value) && (value as number) >= 0
const isText = (value: unknown) => typeof value === 'string'

/** Keywords whose values are looked at before they are used as schemas. */
const SHAPES: Readonly<Record<string, (value: unknown) => boolean>> = {
  $ref: isText,
  ...{
    allOf: Array.isArray,
    anyOf: Array.isArray,
    oneOf: Array.isArray,
    enum: Array.isArray,
    prefixItems: Array.isArray,
  },
  required: (value) => Array.isArray(value) && value.every(isText),
  ...{ properties: isObject, patternProperties: isObject },
  ...{ minLength: isCount, maxLength: isCount, minItems: isCount, maxItems: isCount },
  ...{ minProperties: isCount, maxProperties: isCount, pattern: isText, format: isText },
  ...{ minimum: Number.isFinite, maximum: Number.isFinite },
  ...{ exclusiveMinimum: Number.isFinite, exclusiveMaximum: Number.isFinite },
}

export function isObject(value: unknown): value is Schema {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** The keywords that restrict values. @throws RefrainError `invalid_grammar` for one that is misshapen or cannot be written. */
export function restrictions(schema: Schema, path: string): Schema {
  const misshapen = Object.keys(SHAPES).find((keyword) => keyword in schema && !SHAPES[keyword]!(schema[keyword]))
  if (misshapen !== undefined) throw invalidGrammar(`schema at ${path}: '${misshapen}' has a wrong value`)
  const refused = REFUSED.find((keyword) => keyword in schema && schema[keyword] !== false)
  if (refused !== undefined && !(refused === 'multipleOf' && schema[refused] === 1)) {
    throw invalidGrammar(`schema at ${path}: '${refused}' cannot be enforced while generating`)
  }
  const kept = Object.entries(schema).filter(([keyword]) => RESTRICTING.has(keyword) && keyword !== refused)
  const rest = Object.fromEntries(kept)
  // Steps of 1 are what makes an integer.
  return refused === undefined
    ? rest
    : mergeSchemas({ type: ['integer', 'string', 'boolean', 'null', 'array', 'object'] }, rest, path)
}

/** `schema` without `keyword`. */
export function without(schema: Schema, keyword: string): Schema {
  const { [keyword]: _, ...rest } = schema
  return rest
}

/** Combinations of two unions that are written out at most. */
const MAX_PAIRS = 256

const LOWER = ['minLength', 'minItems', 'minProperties', 'minimum', 'exclusiveMinimum']
const UPPER = ['maxLength', 'maxItems', 'maxProperties', 'maximum', 'exclusiveMaximum']

/**
 * What satisfies both. Neither has `$ref` or `allOf` at its top.
 * @throws Unsatisfiable when nothing can; RefrainError `invalid_grammar` when it cannot be expressed.
 */
export function mergeSchemas(a: Schema, b: Schema, path: string): Schema {
  const merged: Record<string, unknown> = { ...a, ...b }
  for (const keyword of Object.keys(a)) {
    if (!(keyword in b)) continue
    const [x, y] = [a[keyword], b[keyword]]
    if (LOWER.includes(keyword)) merged[keyword] = Math.max(Number(x), Number(y))
    else if (UPPER.includes(keyword)) merged[keyword] = Math.min(Number(x), Number(y))
    else merged[keyword] = mergeKeyword(keyword, x, y, path)
  }
  return 'properties' in merged || 'additionalProperties' in merged ? { ...merged, ...mergeMembers(a, b) } : merged
}

function mergeKeyword(keyword: string, x: unknown, y: unknown, path: string): unknown {
  switch (keyword) {
    case 'type':
      return mergeTypes(listOf(x), listOf(y))
    case 'enum':
      return common(x as unknown[], y as unknown[])
    case 'required':
      return [...new Set([...(x as string[]), ...(y as string[])])]
    case 'anyOf':
    case 'oneOf':
      return allPairs(x as unknown[], y as unknown[], path)
    case 'properties':
    case 'additionalProperties':
      return undefined
    case 'items':
    case 'propertyNames':
    case 'unevaluatedProperties':
      if (!Array.isArray(x) && !Array.isArray(y)) return both(x, y)
  }
  if (JSON.stringify(x) === JSON.stringify(y)) return x
  if (keyword === 'const') throw new Unsatisfiable()
  throw invalidGrammar(`schema at ${path}: '${keyword}' is restricted in two ways at once, which cannot be enforced`)
}

/** Properties of both, each also under the other's `additionalProperties` where the other does not name it. */
function mergeMembers(a: Schema, b: Schema): Schema {
  const [left, right] = [membersOf(a), membersOf(b)]
  const names = new Set([...Object.keys(left.properties), ...Object.keys(right.properties)])
  const properties = Object.fromEntries(
    [...names].map((name) => [name, both(memberOf(left, name), memberOf(right, name))] as const),
  )
  const additionalProperties = both(left.additional, right.additional)
  return { properties, ...(additionalProperties === undefined ? {} : { additionalProperties }) }
}

interface Members {
  readonly properties: Schema
  readonly additional: unknown
}

function membersOf(schema: Schema): Members {
  return { properties: isObject(schema.properties) ? schema.properties : {}, additional: schema.additionalProperties }
}

function memberOf({ properties, additional }: Members, name: string): unknown {
  return Object.hasOwn(properties, name) ? properties[name] : additional
}

function both(x: unknown, y: unknown): unknown {
  if (x === undefined || x === true) return y === undefined ? x : y
  if (y === undefined || y === true) return x
  return x === false || y === false ? false : { allOf: [x, y] }
}

function allPairs(x: readonly unknown[], y: readonly unknown[], path: string): Schema[] {
  if (x.length * y.length > MAX_PAIRS) {
    throw invalidGrammar(`schema at ${path}: unions of ${x.length} and ${y.length} parts at once are too many`)
  }
  return x.flatMap((one) => y.map((other) => ({ allOf: [one, other] })))
}

function listOf(type: unknown): string[] {
  return (Array.isArray(type) ? type : [type]) as string[]
}

function mergeTypes(x: readonly string[], y: readonly string[]): string[] {
  const has = (types: readonly string[], type: string) =>
    types.includes(type) || (type === 'integer' && types.includes('number'))
  const types = [...new Set([...x, ...y])].filter((type) => has(x, type) && has(y, type))
  if (types.length === 0) throw new Unsatisfiable()
  return types
}

function common(x: readonly unknown[], y: readonly unknown[]): unknown[] {
  const texts = new Set(y.map((value) => JSON.stringify(value)))
  const found = x.filter((value) => texts.has(JSON.stringify(value)))
  if (found.length === 0) throw new Unsatisfiable()
  return found
}
