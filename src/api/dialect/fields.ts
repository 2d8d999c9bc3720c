// How bodies are read: a table of fields, each of which knows its JSON Schema and how it is checked, so that the decoder
// and /openapi.json cannot disagree. Invariant: every complaint names the field's path; null means absent; what no table
// knows is noted, never an error.

import { RefrainError } from '../../core/errors.js'
import { depthOf, RawIndex } from '../json-ranges.js'

export type JsonSchema = Readonly<Record<string, unknown>>

export interface Field<T> {
  readonly schema: JsonSchema
  /** @throws RefrainError `invalid_request` or `unsupported_parameter` with `path` as its param. */
  read(value: unknown, path: string, reading: Reading): T
}

/** What is noted beside while a body is read. */
export interface Reading {
  /** The body as it was sent, for values that travel on as raw text. */
  readonly raw: RawIndex
  /** limits.jsonDepth: how deep such values may be nested. */
  readonly jsonDepth: number
  /** Paths that have no effect; indices are left out of them so that there are few. */
  readonly ignored: Set<string>
}

export function readingOf(text: string, jsonDepth: number): Reading {
  return { raw: new RawIndex(text), jsonDepth, ignored: new Set() }
}

export type Fields = Readonly<Record<string, Field<unknown>>>

export type ReadOf<F extends Fields> = { readonly [K in keyof F]?: F[K] extends Field<infer T> ? T : never }

/** Distinct ignored paths that are kept. */
const IGNORED_PATHS = 64

/** Reads the object `value` by `fields`; `path` is '' for a body. */
export function readFields<F extends Fields>(fields: F, value: unknown, path: string, reading: Reading): ReadOf<F> {
  const object = asObject(value, path)
  const read: Record<string, unknown> = {}
  for (const [key, member] of Object.entries(object)) {
    if (member === null) continue
    const at = path === '' ? key : `${path}.${key}`
    const field = Object.hasOwn(fields, key) ? fields[key] : undefined
    if (field === undefined) ignore(at, reading)
    else read[key] = field.read(member, at, reading)
  }
  return read as ReadOf<F>
}

export function schemaOf(fields: Fields, required: readonly string[] = []): JsonSchema {
  const properties = Object.fromEntries(Object.entries(fields).map(([key, field]) => [key, field.schema]))
  return { type: 'object', properties, ...(required.length > 0 ? { required } : {}) }
}

export function ignore(path: string, reading: Reading): void {
  if (reading.ignored.size < IGNORED_PATHS) reading.ignored.add(path.replace(/\[\d+\]/g, '[]'))
}

export function invalid(path: string, what: string): RefrainError {
  if (path === '') return new RefrainError('invalid_request', `the body ${what}`)
  return new RefrainError('invalid_request', `'${path}' ${what}`, { param: path })
}

export function unsupported(path: string, why: string): RefrainError {
  return new RefrainError('unsupported_parameter', `'${path}' ${why}`, { param: path })
}

export function required<T>(value: T | undefined, path: string): T {
  if (value === undefined) throw invalid(path, 'is required')
  return value
}

/** What a value is, for complaints. */
export function kindOf(value: unknown): string {
  if (value === null) return 'null'
  if (Array.isArray(value)) return 'an array'
  if (typeof value === 'object') return 'an object'
  return typeof value === 'string' ? 'a string' : `${typeof value} ${String(value).slice(0, 40)}`
}

export function asObject(value: unknown, path: string): Readonly<Record<string, unknown>> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw invalid(path, `must be an object, not ${kindOf(value)}`)
  }
  return value as Readonly<Record<string, unknown>>
}

/** `raw`, JSON text that travels on as it is; @throws RefrainError when it is nested deeper than limits.jsonDepth. */
export function shallow(raw: string, path: string, reading: Reading): string {
  if (depthOf(raw, reading.jsonDepth) <= reading.jsonDepth) return raw
  throw invalid(path, `is nested deeper than ${reading.jsonDepth} levels (limits.jsonDepth)`)
}

interface Bounds {
  readonly min?: number
  readonly max?: number
}

export function number(bounds: Bounds, description: string): Field<number> {
  return numeric('number', bounds, description)
}

export function integer(bounds: Bounds, description: string): Field<number> {
  return numeric('integer', bounds, description)
}

function numeric(type: 'number' | 'integer', { min, max }: Bounds, description: string): Field<number> {
  const range = min === undefined ? '' : max === undefined ? ` from ${min}` : ` from ${min} to ${max}`
  const fits = (value: unknown): value is number =>
    (type === 'integer' ? Number.isSafeInteger(value) : Number.isFinite(value)) &&
    (value as number) >= (min ?? -Infinity) &&
    (value as number) <= (max ?? Infinity)
  return {
    schema: {
      type,
      ...(min === undefined ? {} : { minimum: min }),
      ...(max === undefined ? {} : { maximum: max }),
      description,
    },
    read(value, path) {
      if (fits(value)) return value
      throw invalid(path, `must be ${type === 'integer' ? 'an integer' : 'a number'}${range}, not ${kindOf(value)}`)
    },
  }
}

export function boolean(description: string): Field<boolean> {
  return {
    schema: { type: 'boolean', description },
    read(value, path) {
      if (typeof value === 'boolean') return value
      throw invalid(path, `must be a boolean, not ${kindOf(value)}`)
    },
  }
}

/** Text; lone surrogates become U+FFFD, so that what follows is always UTF-8. */
export function text(description: string): Field<string> {
  return {
    schema: { type: 'string', description },
    read(value, path) {
      if (typeof value === 'string') return wellFormed(value)
      throw invalid(path, `must be a string, not ${kindOf(value)}`)
    },
  }
}

export function wellFormed(value: string): string {
  // Node 20 has it; the library types of ES2023 do not name it yet.
  return (value as string & { toWellFormed(): string }).toWellFormed()
}

export function oneOf<const T extends string>(values: readonly T[], description: string): Field<T> {
  return {
    schema: { enum: values, description },
    read(value, path) {
      if (values.includes(value as T)) return value as T
      const shown = typeof value === 'string' ? `'${value.slice(0, 40)}'` : kindOf(value)
      throw invalid(path, `must be one of ${values.map((known) => `'${known}'`).join(', ')}, not ${shown}`)
    },
  }
}

/** An array whose elements are fields; `max` elements where a limit of that name holds. */
export function listOf<T>(item: Field<T>, description: string): Field<readonly T[]> {
  return {
    schema: { type: 'array', items: item.schema, description },
    read(value, path, reading) {
      if (!Array.isArray(value)) throw invalid(path, `must be an array, not ${kindOf(value)}`)
      return value.map((element, i) => item.read(element, `${path}[${i}]`, reading))
    },
  }
}

/** An object with a table of its own. */
export function object<F extends Fields>(
  fields: F,
  description: string,
  needed: readonly string[] = [],
): Field<ReadOf<F>> {
  return {
    schema: { ...schemaOf(fields, needed), description },
    read(value, path, reading) {
      const read = readFields(fields, value, path, reading)
      for (const key of needed) required(read[key], `${path}.${key}`)
      return read
    },
  }
}

/** Read by `read` alone; `schema` says so to people. */
export function custom<T>(schema: JsonSchema, read: Field<T>['read']): Field<T> {
  return { schema, read }
}

/** Known, and without effect on the output by its nature: taken silently. */
export function accepted(description: string): Field<undefined> {
  return { schema: { description: `Accepted, without effect: ${description}` }, read: () => undefined }
}

/** Known, could have an effect elsewhere, has none here: taken, and named in x-refrain-ignored. */
export function noted(description: string): Field<undefined> {
  return {
    schema: { description: `Accepted, without effect: ${description}` },
    read(_, path, reading) {
      ignore(path, reading)
      return undefined
    },
  }
}

/** Known and not to be had here: refused unless it says what happens anyway. */
export function refused(neutral: readonly unknown[], why: string): Field<undefined> {
  const isNeutral = (value: unknown) =>
    neutral.includes(value) ||
    (Array.isArray(value) && value.length === 0) ||
    (typeof value === 'object' && value !== null && Object.keys(value).length === 0)
  return {
    schema: { description: `Refused unless neutral: ${why}` },
    read(value, path) {
      if (isNeutral(value)) return undefined
      throw unsupported(path, `cannot be honoured: ${why}`)
    },
  }
}
