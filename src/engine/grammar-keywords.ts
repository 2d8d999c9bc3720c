// What the keywords of a JSON schema say, after grammar-merge.ts has looked at their shapes. Invariant: bounds
// that exclude each other make a schema that nothing satisfies, not a fault.

import type { Lengths } from './grammar-json.js'
import { isObject, type Schema, Unsatisfiable } from './grammar-merge.js'
import type { Bounds } from './grammar-number.js'
import { invalidGrammar } from './grammar-text.js'

const TYPES = ['object', 'array', 'string', 'number', 'integer', 'boolean', 'null'] as const
export type Type = (typeof TYPES)[number]

/** Keywords by the type that they restrict; one of them without `type` is read as that type. */
export const KEYWORDS: Readonly<Partial<Record<Type, readonly string[]>>> = {
  object: [
    ...['properties', 'required', 'additionalProperties', 'unevaluatedProperties', 'patternProperties'],
    ...['propertyNames', 'minProperties', 'maxProperties'],
  ],
  array: ['items', 'prefixItems', 'additionalItems', 'minItems', 'maxItems'],
  string: ['minLength', 'maxLength', 'pattern', 'format'],
  number: ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'],
}

export function typesOf(schema: Schema, path: string): readonly Type[] | undefined {
  if (!('type' in schema)) {
    const implied = TYPES.filter((type) => KEYWORDS[type]?.some((keyword) => keyword in schema))
    return implied.length === 0 ? undefined : implied
  }
  const types = Array.isArray(schema.type) ? schema.type : [schema.type]
  const unknown = types.find((type) => !TYPES.includes(type))
  if (unknown !== undefined || types.length === 0) {
    throw invalidGrammar(`schema at ${path}: '${String(unknown).slice(0, 40)}' is not a type`)
  }
  return types.filter((type) => type !== 'integer' || !types.includes('number'))
}

export function isOf(type: Type, value: unknown): boolean {
  if (type === 'integer') return Number.isInteger(value)
  if (type === 'array') return Array.isArray(value)
  if (type === 'null') return value === null
  // JSON schema's names of the other types are those of typeof.
  return type === 'object' ? isObject(value) : typeof value === type
}

export function isWithin(value: unknown, schema: Schema): boolean {
  const limit = (keyword: string, otherwise: number) => Number(schema[keyword] ?? otherwise)
  if (typeof value === 'string') {
    const { length } = [...value]
    return length >= limit('minLength', 0) && length <= limit('maxLength', Number.POSITIVE_INFINITY)
  }
  if (typeof value !== 'number') return true
  return (
    value >= limit('minimum', Number.NEGATIVE_INFINITY) &&
    value <= limit('maximum', Number.POSITIVE_INFINITY) &&
    value > limit('exclusiveMinimum', Number.NEGATIVE_INFINITY) &&
    value < limit('exclusiveMaximum', Number.POSITIVE_INFINITY)
  )
}

export function boundsOf({ minimum, maximum, exclusiveMinimum, exclusiveMaximum }: Schema): Bounds {
  return { minimum, maximum, exclusiveMinimum, exclusiveMaximum } as Bounds
}

/** minLength and maxLength, minItems and maxItems, and so on. @throws Unsatisfiable when they exclude each other. */
export function lengthsOf(schema: Schema, what: 'Length' | 'Items' | 'Properties'): Lengths {
  const min = (schema[`min${what}`] ?? 0) as number
  const max = schema[`max${what}`] as number | undefined
  if (max !== undefined && max < min) throw new Unsatisfiable()
  return { min, max }
}
