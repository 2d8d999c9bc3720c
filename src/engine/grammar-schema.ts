// A JSON schema as a grammar. Invariant: every text that the grammar allows is valid under the schema; what a grammar
// cannot say is refused by name. It may allow less than the schema does: properties come in the schema's order, objects
// that name properties are closed unless `additionalProperties` says otherwise, `oneOf` is read as `anyOf`.

import { JsonGrammar, type Lengths } from './grammar-json.js'
import { typesOf } from './grammar-keywords.js'
import { isObject, mergeSchemas, restrictions, type Schema, Unsatisfiable, without } from './grammar-merge.js'
import { byteClass, choice, invalidGrammar } from './grammar-text.js'
import { type Scope, writeTyped, writeValues } from './grammar-types.js'

/** A grammar to compile, and the lengths that its pseudo-tokens stand for. */
export interface WrittenGrammar {
  readonly ebnf: string
  readonly counted: readonly Lengths[]
}

const MAX_BYTES = 256 * 1024
/** Of schemas in schemas, and of JSON in the text. */
const MAX_DEPTH = 48
const MAX_JSON_DEPTH = 160
/** Schemas looked at, counted again wherever one is used or merged. */
const MAX_SCHEMAS = 20_000

/** @throws RefrainError `invalid_grammar`, with the place in the schema. */
export function schemaGrammar(schema: string): WrittenGrammar {
  const text = new JsonGrammar()
  const root = schemaExpression(text, schema)
  return { ebnf: text.toString(root), counted: text.counted }
}

/** The same as an expression, whose rules are in `text`. */
export function schemaExpression(text: JsonGrammar, schema: string): string {
  if (Buffer.byteLength(schema) > MAX_BYTES) throw invalidGrammar(`the schema is longer than ${MAX_BYTES} bytes`)
  let root: unknown
  try {
    root = JSON.parse(schema)
  } catch (error) {
    throw invalidGrammar(`the schema is not JSON: ${(error as Error).message}`)
  }
  if (isDeeper(root, MAX_JSON_DEPTH)) throw invalidGrammar(`the schema is nested deeper than ${MAX_JSON_DEPTH}`)
  try {
    return new Writer(text, root).whole()
  } catch (error) {
    if (error instanceof Unsatisfiable) throw invalidGrammar('no value satisfies the schema')
    throw error
  }
}

/** Any JSON object, as OpenAI's `json_object` promises. */
export function anyObjectGrammar(): WrittenGrammar {
  const text = new JsonGrammar()
  return { ebnf: text.toString(text.object(text.any())), counted: [] }
}

/** Bytes that no text has. */
const NOTHING = `${byteClass([[0xff, 0xff]])} ${byteClass([[0xff, 0xff]])}`

class Writer implements Scope {
  readonly text: JsonGrammar
  readonly #root: unknown
  readonly #references = new Map<string, string>()
  #schemas = 0
  #depth = 0

  constructor(text: JsonGrammar, root: unknown) {
    this.text = text
    this.#root = root
  }

  whole(): string {
    return this.#expression(this.#root, '#')
  }

  /** The expression of the values that `schema` allows. @throws Unsatisfiable when there are none. */
  #expression(schema: unknown, path: string): string {
    return this.#deeper(path, () => this.#write(this.#plain(schema, path), path))
  }

  #deeper<T>(path: string, step: () => T): T {
    if (++this.#schemas > MAX_SCHEMAS) throw invalidGrammar(`the schema has more than ${MAX_SCHEMAS} parts`)
    if (this.#depth === MAX_DEPTH) throw invalidGrammar(`schema at ${path}: nested deeper than ${MAX_DEPTH}`)
    this.#depth++
    try {
      return step()
    } finally {
      this.#depth--
    }
  }

  #write(schema: Schema, path: string): string {
    const union = 'anyOf' in schema ? 'anyOf' : 'oneOf' in schema ? 'oneOf' : undefined
    if (union !== undefined) return this.#union(schema, union, path)
    if ('$ref' in schema) return this.#reference(schema.$ref as string, path)
    if ('enum' in schema || 'const' in schema) return writeValues(this, schema, path)
    const types = typesOf(schema, path)
    if (types === undefined) return this.text.any()
    return choice(types.map((type) => writeTyped(this, type, schema, path)))
  }

  /** Only what restricts, with `allOf` and what stands beside `$ref` merged. A `$ref` that remains is alone. */
  #plain(schema: unknown, path: string): Schema {
    if (schema === true) return {}
    if (schema === false) throw new Unsatisfiable()
    if (!isObject(schema)) throw invalidGrammar(`schema at ${path}: neither an object nor a boolean`)
    const own = restrictions(schema, path)
    const rest = without(own, 'allOf')
    const keywords = Object.keys(rest).length
    const parts = ((own.allOf ?? []) as readonly unknown[]).map((part, i) =>
      this.#deeper(path, () => this.#plain(part, `${path}/allOf/${i}`)),
    )
    if (keywords > 0) parts.unshift(rest)
    const [only = {}] = parts
    if (parts.length > 1 || (keywords > 1 && '$ref' in only)) return this.#mergeAll(parts, path)
    return only
  }

  #mergeAll(parts: readonly Schema[], path: string): Schema {
    const resolved = parts.flatMap((part) =>
      '$ref' in part ? [this.#target(part, path), without(part, '$ref')] : [part],
    )
    return resolved.reduce((a, b) => mergeSchemas(a, b, path))
  }

  /** What a `$ref` names, plain and without one. */
  #target(part: Schema, path: string): Schema {
    let target: Schema = part
    for (let steps = 0; '$ref' in target; steps++) {
      if (steps === MAX_DEPTH) throw invalidGrammar(`schema at ${path}: '$ref' goes in a circle`)
      const reference = target.$ref as string
      target = this.#deeper(path, () => this.#plain(this.#resolve(reference, path), reference))
    }
    return target
  }

  #resolve(reference: string, path: string): unknown {
    if (reference !== '#' && !reference.startsWith('#/')) {
      throw invalidGrammar(`schema at ${path}: '$ref' must begin with #/, not be '${reference.slice(0, 100)}'`)
    }
    let at: unknown = this.#root
    for (const part of reference.split('/').slice(1)) {
      const key = decode(part).replaceAll('~1', '/').replaceAll('~0', '~')
      at = (isObject(at) || Array.isArray(at)) && Object.hasOwn(at, key) ? (at as Schema)[key] : undefined
    }
    if (at === undefined) throw invalidGrammar(`schema at ${path}: '$ref' names ${reference}, which is not there`)
    return at
  }

  /** A rule for what `reference` names, one for all its uses: schemas may contain themselves. */
  #reference(reference: string, path: string): string {
    const known = this.#references.get(reference)
    if (known === NOTHING) throw new Unsatisfiable()
    if (known !== undefined) return known
    const target = this.#resolve(reference, path)
    const name = this.text.open()
    this.#references.set(reference, name)
    try {
      this.text.close(name, this.#expression(target, reference))
    } catch (error) {
      if (error instanceof Unsatisfiable) {
        // Rules that were written meanwhile may name it, though nothing leads to them any more.
        this.text.close(name, NOTHING)
        this.#references.set(reference, NOTHING)
      }
      throw error
    }
    return name
  }

  #union(schema: Schema, keyword: 'anyOf' | 'oneOf', path: string): string {
    const rest = without(schema, keyword)
    const beside = Object.keys(rest).length > 0
    const options: string[] = []
    for (const [i, branch] of (schema[keyword] as readonly unknown[]).entries()) {
      const option = this.orNothing(beside ? { allOf: [branch, rest] } : branch, `${path}/${keyword}/${i}`)
      if (option !== undefined) options.push(option)
    }
    if (options.length === 0) throw new Unsatisfiable()
    return choice([...new Set(options)])
  }

  /** The expression, or undefined when nothing satisfies the schema. */
  orNothing(schema: unknown, path: string): string | undefined {
    try {
      return this.#expression(schema, path)
    } catch (error) {
      if (error instanceof Unsatisfiable) return undefined
      throw error
    }
  }
}

/** Whether `value` has lists or objects in each other to more than `depth` levels. */
function isDeeper(value: unknown, depth: number): boolean {
  let level: unknown[] = [value]
  for (let left = depth; level.length > 0; left--) {
    if (left < 0) return true
    level = level.flatMap((item) => (typeof item === 'object' && item !== null ? Object.values(item) : []))
  }
  return false
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part)
  } catch {
    // Not percent-encoded, then: the text as it is.
    return part
  }
}
