// What the decoder may write for the arguments of forms that put each parameter between tags: the parameters of a tool's
// schema in its order, the optional ones or not. Strings are any text up to the closing tag, other values JSON by their
// own schema. Constraints on the text of strings (length, pattern) are not held in these forms.

import type { Structure } from '../../core/request.js'
import { kindsOf, propertiesOf, type Schema, schemaOf, type ValueKinds } from './argument-types.js'

export interface TaggedParameter {
  /** What stands before a value; a JSON value and a plain string may be announced differently. */
  open(name: string, value: 'text' | 'json'): string
  /** The same around a name that is not known. */
  readonly openAny: readonly [before: string, after: string]
  readonly close: string
  /** What stands between a JSON value and the closing tag, and behind that tag. */
  readonly pad: string
  readonly after: string
}

/** Parts of a sequence: the arguments by the raw JSON Schema `schema`; undefined: any parameters. */
export function argumentParts(schema: string | undefined, form: TaggedParameter): readonly Structure[] {
  const root = schema === undefined ? undefined : schemaOf(schema)
  const properties = root === undefined ? undefined : propertiesOf(root)
  if (root === undefined || properties === undefined) return [anyParameters(form)]
  const required = Array.isArray(root.required) ? (root.required as unknown[]) : []
  return Object.entries(properties).map(([name, property]) => {
    const part = parameter(name, property, root, form)
    return required.includes(name) ? part : { kind: 'repeat', part, min: 0, max: 1 }
  })
}

function anyParameters({ openAny: [before, after], close, after: behind }: TaggedParameter): Structure {
  const parts: Structure[] = [literal(before), { kind: 'regex', regex: '[A-Za-z0-9_.-]+' }, literal(after)]
  return { kind: 'repeat', part: sequence([...parts, { kind: 'until', stop: close }, literal(behind)]), min: 0 }
}

function parameter(name: string, property: unknown, root: Schema, form: TaggedParameter): Structure {
  const kinds = kindsOf(property, root)
  const choices: Structure[] = []
  if (mayBeText(kinds)) choices.push(sequence([literal(form.open(name, 'text')), ...textValue(kinds, form)]))
  // Where a value may be a string, plain text covers the rest, unless it has to be announced.
  if (choices.length === 0 || (form.open(name, 'json') !== form.open(name, 'text') && mayBeJson(kinds))) {
    const schema = JSON.stringify(withDefinitions(property, root, kinds))
    const value: Structure = { kind: 'json-schema', schema }
    choices.push(sequence([literal(form.open(name, 'json')), value, literal(form.pad + form.close + form.after)]))
  }
  return choices.length === 1 ? choices[0]! : { kind: 'choice', parts: choices }
}

const mayBeText = ({ freeString, listed }: ValueKinds) => freeString || listed.size > 0

const mayBeJson = ({ types }: ValueKinds) => types === undefined || [...types].some((type) => type !== 'string')

function textValue({ types, listed, freeString }: ValueKinds, form: TaggedParameter): Structure[] {
  const { close, after } = form
  const onlyListed = !freeString && types !== undefined && [...types].every((type) => type === 'string')
  if (!onlyListed) return [{ kind: 'until', stop: close }, literal(after)]
  return [{ kind: 'choice', parts: [...listed].map(literal) }, literal(form.pad + close + after)]
}

// References lead to the definitions of the whole schema; a JSON value that may be a string too is one that isn't.
function withDefinitions(property: unknown, root: Schema, { types }: ValueKinds): unknown {
  const own = types?.has('string') ? { type: [...types].filter((type) => type !== 'string') } : property
  const { $defs, definitions } = root
  if (typeof own !== 'object' || own === null) return own
  return { ...own, ...($defs !== undefined && { $defs }), ...(definitions !== undefined && { definitions }) }
}

const literal = (text: string): Structure => ({ kind: 'literal', text })
const sequence = (parts: readonly Structure[]): Structure => ({ kind: 'sequence', parts })
