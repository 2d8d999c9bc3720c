// Structures (core/request.ts) as grammars: how tool calls, and reasoning before an answer, become what the decoder may
// say. Invariant: a text is allowed exactly when the structure says so, with the layout of JSON that grammar-json.ts has;
// only a `lenient` schema that cannot be written gives way, to any JSON.

import { RefrainError } from '../core/errors.js'
import type { Structure } from '../core/request.js'
import { freeText, freeTextBefore, textUntil } from './grammar-free.js'
import { JsonGrammar, times } from './grammar-json.js'
import { PLAIN, parseRegex, withoutAnchors, writeRegex } from './grammar-regex.js'
import { schemaExpression, type WrittenGrammar } from './grammar-schema.js'
import { bare, choice, invalidGrammar, literal } from './grammar-text.js'

const MAX_REGEX_LENGTH = 64 * 1024
const EMPTY = '""'

/** @throws RefrainError `invalid_grammar` naming the schema's or regex's field. */
export function structureGrammar(structure: Structure): WrittenGrammar {
  return write(structure, 'kept')
}

/** The grammar without what is lenient, for when all of it is too much; undefined: nothing is. */
export function relaxedGrammar(structure: Structure): WrittenGrammar | undefined {
  return schemasIn(structure).some(({ lenient }) => lenient === true) ? write(structure, 'dropped') : undefined
}

/** The field that a complaint about the whole structure names; undefined: its schemas are not all of one field. */
export function fieldOf(structure: Structure): string | undefined {
  const [field, ...others] = new Set(schemasIn(structure).map(({ param }) => param))
  return others.length === 0 ? field : undefined
}

function schemasIn(structure: Structure): readonly Of<'json-schema'>[] {
  if (structure.kind === 'json-schema') return [structure]
  if (structure.kind === 'repeat') return schemasIn(structure.part)
  return structure.kind === 'sequence' || structure.kind === 'choice' ? structure.parts.flatMap(schemasIn) : []
}

function write(structure: Structure, lenient: StructureWriter['lenient']): WrittenGrammar {
  const writer = new StructureWriter(lenient)
  const root = writer.expression(structure, undefined)
  return { ebnf: writer.text.toString(root), counted: writer.text.counted }
}

type Of<K extends Structure['kind']> = Extract<Structure, { kind: K }>

class StructureWriter {
  readonly text = new JsonGrammar()
  /** Whether lenient schemas are written. */
  readonly lenient: 'kept' | 'dropped'

  constructor(lenient: 'kept' | 'dropped') {
    this.lenient = lenient
  }

  /** `behind` is what stands next, where that is known. */
  expression(structure: Structure, behind: Structure | undefined): string {
    switch (structure.kind) {
      case 'literal':
        return this.#literal(structure.text)
      case 'json':
        return this.#object()
      case 'json-schema':
        return this.#schema(structure)
      case 'regex':
        return regexExpression(structure.regex)
      case 'free':
        return this.#free(structure, behind)
      case 'until':
        if (structure.stop === '') return EMPTY
        return textUntil(this.text, wellFormed(structure.stop))
      case 'sequence':
        return this.#sequence(structure)
      case 'choice':
        if (structure.parts.length === 0) throw invalidGrammar('a choice of nothing')
        return choice([...new Set(structure.parts.map((part) => this.expression(part, undefined)))])
      case 'repeat':
        return this.#repeat(structure)
    }
  }

  #literal(text: string): string {
    if (text.includes('\0')) throw invalidGrammar('a text with NUL in it cannot be written')
    return literal(wellFormed(text))
  }

  #object(): string {
    return this.text.object(this.text.any())
  }

  #schema({ schema, lenient, param }: Of<'json-schema'>): string {
    if (lenient === true && (this.lenient === 'dropped' || !isWritable(schema))) return this.#anyFor(schema)
    try {
      return schemaExpression(this.text, schema)
    } catch (error) {
      throw param !== undefined && isInvalid(error) ? invalidGrammar(error.message, param) : error
    }
  }

  /** Arguments stay an object, which is what parsers of calls look for. */
  #anyFor(schema: string): string {
    return isObjectSchema(schema) ? this.#object() : this.text.any()
  }

  #free({ without }: Of<'free'>, behind: Structure | undefined): string {
    const strings = without.map(wellFormed)
    if (strings.includes('')) throw invalidGrammar('no text is without the empty text')
    const begun = behind !== undefined && strings.length > 0 && strings.every((string) => mayBegin(behind, string))
    return begun ? freeTextBefore(this.text, strings) : freeText(this.text, strings)
  }

  #sequence({ parts }: Of<'sequence'>): string {
    const written = parts.map((part, i) => this.expression(part, parts[i + 1]))
    const said = written.filter((part) => part !== EMPTY)
    return said.length === 0 ? EMPTY : said.length === 1 ? said[0]! : `(${said.join(' ')})`
  }

  #repeat({ part, min, max, separator = '' }: Of<'repeat'>): string {
    if (max === 0) return EMPTY
    const written = this.expression(part, undefined)
    if (min === 1 && max === 1) return written
    if (min === 0 && max === 1) return `(${bare(written)})?`
    const item = this.text.rule(bare(written))
    if (separator === '') return times(item, min, max)
    const more = times(`${this.#literal(separator)} ${item}`, Math.max(0, min - 1), max === undefined ? max : max - 1)
    return min === 0 ? `(${item} ${more})?` : `(${item} ${more})`
  }
}

/** The expression that matches all of a text. @throws RefrainError `invalid_grammar` */
function regexExpression(regex: string): string {
  if (regex.length > MAX_REGEX_LENGTH) throw invalidGrammar(`the regex is longer than ${MAX_REGEX_LENGTH} characters`)
  return writeRegex(withoutAnchors(parseRegex(regex), 'whole'), PLAIN)
}

/** Whether some text of `structure` surely begins with `text`. */
function mayBegin(structure: Structure, text: string): boolean {
  switch (structure.kind) {
    case 'literal':
      return structure.text.startsWith(text)
    case 'sequence':
      return structure.parts[0] !== undefined && mayBegin(structure.parts[0], text)
    case 'choice':
      return structure.parts.some((part) => mayBegin(part, text))
    case 'repeat':
      return structure.max !== 0 && mayBegin(structure.part, text)
    default:
      return false
  }
}

/** Tried in a grammar of its own, because what fails half-way leaves rules behind that name each other. */
function isWritable(schema: string): boolean {
  try {
    schemaExpression(new JsonGrammar(), schema)
    return true
  } catch (error) {
    if (isInvalid(error)) return false
    throw error
  }
}

function isObjectSchema(schema: string): boolean {
  try {
    const value: unknown = JSON.parse(schema)
    return (
      typeof value === 'object' &&
      value !== null &&
      ('properties' in value || (value as { type?: unknown }).type === 'object')
    )
  } catch (error) {
    if (error instanceof SyntaxError) return false
    throw error
  }
}

export function isInvalid(error: unknown): error is RefrainError {
  return error instanceof RefrainError && error.code === 'invalid_grammar'
}

function wellFormed(text: string): string {
  // Node 20 has it; the library types of ES2023 do not name it yet.
  return (text as string & { toWellFormed(): string }).toWellFormed()
}
