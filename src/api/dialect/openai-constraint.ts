// Structured output, in all the forms that clients say it: response_format of OpenAI, guided_* and structured_outputs of
// vLLM. Invariant: a request has one constraint or none, and a schema travels on as the raw text that was sent.

import type { Constraint } from '../../core/request.js'
import {
  asObject,
  boolean,
  custom,
  type Field,
  invalid,
  type JsonSchema,
  kindOf,
  noted,
  object,
  type Reading,
  type ReadOf,
  refused,
  shallow,
  text,
  unsupported,
  wellFormed,
} from './fields.js'

export const constraintFields = {
  guided_json: schemaField('A JSON Schema that the answer follows.'),
  guided_regex: text('A regular expression that the answer matches.'),
  guided_choice: custom<readonly string[]>(
    { type: 'array', items: { type: 'string' }, description: 'One of these is the answer.' },
    readChoices,
  ),
  structured_outputs: object(
    {
      json: schemaField('A JSON Schema.'),
      regex: text('A regular expression.'),
      choice: custom<readonly string[]>({ type: 'array', items: { type: 'string' } }, readChoices),
      json_object: boolean('Any JSON object.'),
      grammar: refused([], 'grammars are not available; json, regex and choice are'),
      structural_tag: refused([], 'structural tags are not available'),
      disable_any_whitespace: noted("whitespace is the schema compiler's choice"),
      disable_additional_properties: noted('say additionalProperties: false in the schema'),
      whitespace_pattern: refused([], 'the pattern cannot be chosen'),
    },
    'What the answer follows (the form of vLLM).',
  ),
}

/**
 * The one constraint of a request, from wherever it was said; undefined when none was.
 * @throws RefrainError when two were.
 */
export function constraintOf(
  read: ReadOf<typeof constraintFields>,
  responseFormat: Constraint | undefined,
): Constraint | undefined {
  const { structured_outputs: structured } = read
  const said: [string, Constraint | undefined][] = [
    ['response_format', responseFormat],
    ['guided_json', read.guided_json === undefined ? undefined : { kind: 'json-schema', schema: read.guided_json }],
    ['guided_regex', read.guided_regex === undefined ? undefined : { kind: 'regex', regex: read.guided_regex }],
    ['guided_choice', read.guided_choice && choiceRegex(read.guided_choice)],
    [
      'structured_outputs.json',
      structured?.json === undefined ? undefined : { kind: 'json-schema', schema: structured.json },
    ],
    [
      'structured_outputs.regex',
      structured?.regex === undefined ? undefined : { kind: 'regex', regex: structured.regex },
    ],
    ['structured_outputs.choice', structured?.choice && choiceRegex(structured.choice)],
    ['structured_outputs.json_object', structured?.json_object === true ? { kind: 'json' } : undefined],
  ]
  const constraints = said.filter(([, constraint]) => constraint !== undefined)
  if (constraints.length > 1) {
    const [first, second] = constraints as [[string, Constraint], [string, Constraint]]
    throw invalid(second[0], `cannot stand beside '${first[0]}'`)
  }
  return constraints[0]?.[1]
}

function choiceRegex(choices: readonly string[]): Constraint {
  const escaped = choices.map((choice) => choice.replace(/[\\^$.*+?()[\]{}|/-]/g, '\\$&'))
  return { kind: 'regex', regex: `(${escaped.join('|')})` }
}

/** A JSON Schema, kept as the raw text that was sent. Some clients send the text of it in a string. */
export function schemaField(description: string): Field<string> {
  return custom({ type: 'object', description }, (value, path, reading) => readSchema(value, path, reading))
}

function readSchema(value: unknown, path: string, reading: Reading): string {
  if (typeof value === 'string') {
    try {
      asObject(JSON.parse(value), path)
    } catch {
      throw invalid(path, 'must be a JSON Schema: an object, or a string of JSON that is one')
    }
    return shallow(value, path, reading)
  }
  asObject(value, path)
  return shallow(reading.raw.at(path.split('.')) ?? '{}', path, reading)
}

/** response_format of chat; Completions take it too, as vLLM does. */
export const responseFormat: Field<Constraint | undefined> = custom(
  {
    type: 'object',
    description: '`{type: "text" | "json_object" | "json_schema", json_schema?: {name, schema}}`.',
    properties: { type: { enum: ['text', 'json_object', 'json_schema'] } } satisfies JsonSchema,
    required: ['type'],
  },
  (value, path, reading) => {
    const format = asObject(value, path)
    const type = format['type']
    if (type === 'text') return undefined
    if (type === 'json_object') {
      const schema = format['schema']
      if (schema === undefined || schema === null) return { kind: 'json' }
      return { kind: 'json-schema', schema: readSchema(schema, `${path}.schema`, reading) }
    }
    if (type === 'json_schema') {
      const named = asObject(format['json_schema'] ?? {}, `${path}.json_schema`)
      const schema = named['schema']
      if (schema === undefined || schema === null) throw invalid(`${path}.json_schema.schema`, 'is required')
      return { kind: 'json-schema', schema: readSchema(schema, `${path}.json_schema.schema`, reading) }
    }
    if (typeof type !== 'string') throw invalid(`${path}.type`, `must be a string, not ${kindOf(type)}`)
    throw unsupported(`${path}.type`, `must be 'text', 'json_object' or 'json_schema', not '${type.slice(0, 40)}'`)
  },
)

function readChoices(value: unknown, path: string): readonly string[] {
  if (!Array.isArray(value) || value.length === 0) throw invalid(path, 'must be an array of at least one string')
  return value.map((each, i) => {
    if (typeof each !== 'string' || each === '') throw invalid(`${path}[${i}]`, 'must be a string that is not empty')
    return wellFormed(each)
  })
}
