// Arguments of forms without types in them: which kinds of value a tool's schema allows for a parameter, and the JSON text
// of a value that the model wrote as plain text. Invariant: every text becomes some JSON value; what fits no type that is
// asked for stays the string that it is.

import type { ToolDefinition } from '../../core/request.js'
import { jsonOfPython } from './python-literal.js'

type JsonType = 'string' | 'number' | 'integer' | 'boolean' | 'null' | 'array' | 'object'

export type Schema = Readonly<Record<string, unknown>>

/** What a value may be. */
export interface ValueKinds {
  /** Undefined: anything. */
  readonly types: ReadonlySet<JsonType> | undefined
  /** Strings that are listed by name. */
  readonly listed: ReadonlySet<string>
  /** Whether a string may be another one than those. */
  readonly freeString: boolean
}

const ANYTHING: ValueKinds = { types: undefined, listed: new Set(), freeString: true }

/** Types of all tools' parameters, read from the definitions when a tool is first called. */
export class ArgumentTypes {
  readonly #tools: readonly ToolDefinition[]
  readonly #schemas = new Map<string, Schema | undefined>()

  constructor(tools: readonly ToolDefinition[]) {
    this.#tools = tools
  }

  kindsOf(tool: string, parameter: string): ValueKinds {
    if (!this.#schemas.has(tool)) {
      this.#schemas.set(tool, parametersOf(this.#tools.find(({ name }) => name === tool)?.json))
    }
    const schema = this.#schemas.get(tool)
    return schema === undefined ? ANYTHING : kindsOf(propertiesOf(schema)?.[parameter], schema)
  }

  /** Whether a parameter's values are never strings, so that a model writes them as JSON. */
  areJson(tool: string | undefined, parameter: string | undefined): boolean {
    if (tool === undefined || parameter === undefined) return false
    const { types, listed, freeString } = this.kindsOf(tool.trim(), parameter.trim())
    return types !== undefined && !freeString && listed.size === 0
  }

  /** JSON text of the object of `pairs`, in their order. */
  object(tool: string, pairs: readonly (readonly [name: string, text: string])[]): string {
    const members = pairs.map(([name, text]) => `${JSON.stringify(name)}: ${valueText(text, this.kindsOf(tool, name))}`)
    return `{${members.join(', ')}}`
  }
}

/** JSON text of what the model wrote as `text`. */
export function valueText(text: string, { types, listed, freeString }: ValueKinds): string {
  if (listed.has(text)) return JSON.stringify(text)
  const own = text.trim()
  const mayBeText = freeString || listed.size > 0
  // Where no type is named, or a string would do, a list as Python prints it is as good a text as any.
  const reads = jsonTypeOf(own) !== undefined || types === undefined || (mayBeText && /^[[{]/.test(own))
  const json = reads ? own : jsonOfPython(own)
  const type = jsonTypeOf(json)
  // A string in quotes is that string only where no plain string is asked for.
  if (type === undefined || type === 'string') {
    return type !== undefined && json === own && !mayBeText ? json : JSON.stringify(text)
  }
  const fits = types === undefined || types.has(type) || (type === 'integer' && types.has('number'))
  // A model may write 3.0 for an integer; the client's schema is to say what it thinks of that.
  const nearly = type === 'number' && types?.has('integer') === true && !mayBeText
  return fits || nearly ? json : JSON.stringify(text)
}

/** The type of a JSON text, undefined where it is none. */
function jsonTypeOf(text: string): JsonType | undefined {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch (error) {
    if (error instanceof SyntaxError) return undefined
    throw error
  }
  return typeOf(value)
}

function typeOf(value: unknown): JsonType {
  if (value === null) return 'null'
  if (Array.isArray(value)) return 'array'
  if (typeof value === 'number') return Number.isInteger(value) ? 'integer' : 'number'
  return typeof value as 'string' | 'boolean' | 'object'
}

const MAX_REFERENCES = 32

/** What `schema`, a part of `root`, allows. */
export function kindsOf(schema: unknown, root: Schema, depth = 0): ValueKinds {
  if (!isSchema(schema) || depth > MAX_REFERENCES) return ANYTHING
  if (typeof schema.$ref === 'string') return kindsOf(referenced(schema.$ref, root), root, depth + 1)
  const values = Array.isArray(schema.enum) ? schema.enum : 'const' in schema ? [schema.const] : undefined
  if (values !== undefined) {
    const listed = new Set(values.filter((value): value is string => typeof value === 'string'))
    return { types: new Set(values.map(typeOf)), listed, freeString: false }
  }
  const named = typeof schema.type === 'string' ? [schema.type] : schema.type
  if (Array.isArray(named)) return ofTypes(named as JsonType[])
  const parts = schema.anyOf ?? schema.oneOf ?? schema.allOf
  if (Array.isArray(parts))
    return joined(
      parts.map((part) => kindsOf(part, root, depth + 1)),
      'allOf' in schema,
    )
  return 'properties' in schema ? ofTypes(['object']) : ANYTHING
}

function ofTypes(types: readonly JsonType[]): ValueKinds {
  return { types: new Set(types), listed: new Set(), freeString: types.includes('string') }
}

// Of alternatives any may hold; of parts that hold together the first that says a type does.
function joined(kinds: readonly ValueKinds[], together: boolean): ValueKinds {
  if (together) return kinds.find(({ types }) => types !== undefined) ?? ANYTHING
  if (kinds.some(({ types }) => types === undefined)) return ANYTHING
  return {
    types: new Set(kinds.flatMap(({ types }) => [...types!])),
    listed: new Set(kinds.flatMap(({ listed }) => [...listed])),
    freeString: kinds.some(({ freeString }) => freeString),
  }
}

function referenced(reference: string, root: Schema): unknown {
  if (!reference.startsWith('#')) return undefined
  const steps = reference.slice(1).split('/').slice(1)
  const names = steps.map((step) => step.replaceAll('~1', '/').replaceAll('~0', '~'))
  return names.reduce<unknown>((at, name) => (isSchema(at) && Object.hasOwn(at, name) ? at[name] : undefined), root)
}

/** The object of a schema's properties. */
export function propertiesOf(schema: Schema): Schema | undefined {
  return isSchema(schema.properties) ? schema.properties : undefined
}

/** The arguments' schema in a definition of any of the APIs' shapes. */
function parametersOf(json: string | undefined): Schema | undefined {
  const definition = json === undefined ? undefined : schemaOf(json)
  const body = definition !== undefined && isSchema(definition.function) ? definition.function : definition
  const parameters = body?.parameters ?? body?.input_schema
  return isSchema(parameters) ? parameters : undefined
}

/** The JSON object in `json`, undefined where it is none. */
export function schemaOf(json: string): Schema | undefined {
  try {
    const value: unknown = JSON.parse(json)
    return isSchema(value) ? value : undefined
  } catch (error) {
    if (error instanceof SyntaxError) return undefined
    throw error
  }
}

function isSchema(value: unknown): value is Schema {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
