// The values of one type under a JSON schema, as EBNF: enumerations, numbers, strings, arrays, objects. Invariant: what
// comes out allows only what the schema allows; parts that nothing satisfies are left out where they may be, or make the
// whole unsatisfiable. Called by grammar-schema.ts, which resolves references and unions first.

import { formatPattern, impliesLengths, type JsonGrammar, jsonText, times } from './grammar-json.js'
import { boundsOf, isOf, isWithin, KEYWORDS, lengthsOf, type Type, typesOf } from './grammar-keywords.js'
import { type Schema, Unsatisfiable } from './grammar-merge.js'
import { integerBetween, numberBetween } from './grammar-number.js'
import { parseRegex } from './grammar-regex.js'
import { choice, invalidGrammar, literal } from './grammar-text.js'

/** How parts of a schema become expressions. */
export interface Scope {
  readonly text: JsonGrammar
  /** The expression of any schema, or undefined when nothing satisfies it. `path` is for messages. */
  orNothing(schema: unknown, path: string): string | undefined
}

/** `enum` and `const`. */
export function writeValues(scope: Scope, schema: Schema, path: string): string {
  const values = (schema.enum ?? [schema.const]) as readonly unknown[]
  const types = 'type' in schema ? typesOf({ type: schema.type }, path) : undefined
  const checked = ['type', 'enum', 'const', 'format', ...KEYWORDS.number!, 'minLength', 'maxLength']
  const other = Object.keys(schema).find((keyword) => !checked.includes(keyword))
  if (other !== undefined) throw invalidGrammar(`schema at ${path}: '${other}' beside enum or const cannot be enforced`)
  const same = (value: unknown) => !('const' in schema) || jsonText(value) === jsonText(schema.const)
  const kept = values.filter(
    (value) =>
      same(value) && (types === undefined || types.some((type) => isOf(type, value))) && isWithin(value, schema),
  )
  if (kept.length === 0) throw new Unsatisfiable()
  return scope.text.rule(choice([...new Set(kept.map((value) => literal(jsonText(value))))]))
}

/** Values of `type`. @throws Unsatisfiable */
export function writeTyped(scope: Scope, type: Type, schema: Schema, path: string): string {
  switch (type) {
    case 'null':
      return '"null"'
    case 'boolean':
      return '("true" | "false")'
    case 'integer':
    case 'number': {
      const bounds = boundsOf(schema)
      const expression = type === 'integer' ? integerBetween(bounds) : numberBetween(bounds)
      if (expression === undefined) throw new Unsatisfiable()
      return scope.text.rule(expression)
    }
    case 'string':
      return writeString(scope, schema, path)
    case 'array':
      return writeArray(scope, schema, path)
    case 'object':
      return writeObject(scope, schema, path)
  }
}

function writeString(scope: Scope, schema: Schema, path: string): string {
  const lengths = lengthsOf(schema, 'Length')
  const bounded = lengths.min > 0 || lengths.max !== undefined
  if ('pattern' in schema) {
    const pattern = parseRegex(schema.pattern as string)
    if (bounded && !impliesLengths(pattern, lengths)) {
      throw invalidGrammar(`schema at ${path}: 'pattern' with lengths that it does not imply cannot be enforced`)
    }
    return scope.text.matching(pattern)
  }
  const format = 'format' in schema ? formatPattern(schema.format as string) : undefined
  // A format is an annotation; lengths are not.
  if (format !== undefined && (!bounded || impliesLengths(format, lengths))) return scope.text.matching(format)
  return scope.text.string(lengths)
}

function writeArray(scope: Scope, schema: Schema, path: string): string {
  const { min, max } = lengthsOf(schema, 'Items')
  // The older form of a tuple has its places in `items`.
  const old = Array.isArray(schema.items)
  const places = (old ? schema.items : (schema.prefixItems ?? [])) as readonly unknown[]
  const rest = old ? schema.additionalItems : schema.items
  const written = places.slice(0, max).map((place, i) => scope.orNothing(place, `${path}/prefixItems/${i}`))
  const impossible = written.indexOf(undefined)
  const count = impossible < 0 ? written.length : impossible

  // Built from the end: what may follow when all the places are filled, then when fewer are.
  let tail: string | undefined = '""'
  if (impossible >= 0) tail = count < min ? undefined : '""'
  else if (count !== max) tail = writeItems(scope, { count, min, max }, scope.orNothing(rest ?? true, `${path}/items`))
  for (let i = count - 1; i >= 0; i--) {
    const more: string | undefined = tail === undefined ? undefined : `${i === 0 ? '' : '", " '}${written[i]} ${tail}`
    if (i < min) tail = more === undefined ? undefined : scope.text.rule(more)
    else tail = more === undefined ? '""' : scope.text.rule(`${more} | ""`)
  }
  if (tail === undefined) throw new Unsatisfiable()
  return scope.text.rule(`"[" ${tail} "]"`)
}

/** What may follow `count` items of an array that has no more places: equal items, as many as are allowed. */
function writeItems(
  scope: Scope,
  { count, min, max }: { count: number; min: number; max: number | undefined },
  item: string | undefined,
): string | undefined {
  if (item === undefined) return count < min ? undefined : '""'
  const comma = `", " ${item}`
  const least = Math.max(0, min - count)
  const most = max === undefined ? undefined : max - count
  if (count > 0) return times(comma, least, most)
  const items = scope.text.rule(
    `${item} ${times(comma, Math.max(0, least - 1), most === undefined ? undefined : most - 1)}`,
  )
  return least === 0 ? `${items}?` : items
}

function writeObject(scope: Scope, schema: Schema, path: string): string {
  const properties = (schema.properties ?? {}) as Schema
  const required = (schema.required ?? []) as readonly string[]
  const names = [...new Set([...Object.keys(properties), ...required])]
  if (names.length === 0) return writeMap(scope, schema, path)
  for (const keyword of ['patternProperties', 'propertyNames']) {
    if (keyword in schema) {
      throw invalidGrammar(`schema at ${path}: '${keyword}' beside named properties cannot be enforced`)
    }
  }
  const additional = schema.additionalProperties ?? schema.unevaluatedProperties
  const members: { member: string; optional: boolean }[] = []
  for (const name of names) {
    const value = Object.hasOwn(properties, name) ? properties[name] : (additional ?? true)
    const expression = scope.orNothing(value, `${path}/properties/${name.replaceAll('~', '~0').replaceAll('/', '~1')}`)
    const optional = !required.includes(name)
    if (expression !== undefined)
      members.push({ member: `${literal(`${JSON.stringify(name)}: `)} ${expression}`, optional })
    else if (!optional) throw new Unsatisfiable()
  }
  // Closed unless it is open by its own words.
  const value = additional === undefined ? undefined : scope.orNothing(additional, `${path}/additionalProperties`)
  const key = value === undefined ? undefined : scope.text.keyExcept(names)
  const extra = key === undefined ? undefined : scope.text.rule(`${key} ": " ${value}`)
  const { min, max } = lengthsOf(schema, 'Properties')
  const least = members.filter(({ optional }) => !optional).length
  if (least < min || (max !== undefined && (extra !== undefined || members.length > max))) {
    throw invalidGrammar(
      `schema at ${path}: 'minProperties' or 'maxProperties' beside named properties cannot be enforced`,
    )
  }
  return scope.text.rule(`"{" ${writeMembers(scope, members, extra)} "}"`)
}

/** Members in their order, optional ones left out or not, separated; then any number of `extra` ones. */
function writeMembers(
  scope: Scope,
  members: readonly { member: string; optional: boolean }[],
  extra: string | undefined,
): string {
  // Built from the end: what may follow when nothing stands before, and when something does.
  let first = extra === undefined ? '""' : scope.text.rule(`(${extra} (", " ${extra})*)?`)
  let next = extra === undefined ? '""' : scope.text.rule(`(", " ${extra})*`)
  for (const { member, optional } of [...members].reverse()) {
    const [firstAfter, nextAfter] = [first, next]
    first = scope.text.rule(`${member} ${nextAfter}${optional ? ` | ${firstAfter}` : ''}`)
    next = scope.text.rule(`", " ${member} ${nextAfter}${optional ? ` | ${nextAfter}` : ''}`)
  }
  return first
}

/** An object that names no property: all its members are alike. */
function writeMap(scope: Scope, schema: Schema, path: string): string {
  const count = lengthsOf(schema, 'Properties')
  // Equal keys count once, which a grammar cannot see.
  if (count.min > 1) throw invalidGrammar(`schema at ${path}: 'minProperties' above 1 cannot be enforced`)
  const patterns = Object.entries((schema.patternProperties ?? {}) as Schema)
  let value: unknown = schema.additionalProperties ?? schema.unevaluatedProperties ?? true
  let key: string | undefined = scope.text.string()
  if (patterns.length > 1 || (patterns.length === 1 && 'propertyNames' in schema)) {
    throw invalidGrammar(`schema at ${path}: several rules for keys cannot be enforced`)
  }
  const [pattern] = patterns
  if (pattern !== undefined) {
    key = scope.text.matching(parseRegex(pattern[0]))
    value = pattern[1]
  } else if ('propertyNames' in schema) {
    key = scope.orNothing({ allOf: [schema.propertyNames, { type: 'string' }] }, `${path}/propertyNames`)
  }
  const expression = key === undefined ? undefined : scope.orNothing(value, `${path}/additionalProperties`)
  if (key !== undefined && expression !== undefined) return scope.text.object(expression, key, count)
  if (count.min > 0) throw new Unsatisfiable()
  return '"{}"'
}
