// Tools of the Messages API as the functions that a chat template knows, and which of them may be called. Invariant: name,
// description and schema keep the client's own text (order, spacing, numbers); what wraps them is the form of Chat
// Completions, so that equal tools are equal prompts whichever API they came by.
// https://platform.claude.com/docs/en/agents-and-tools/tool-use/implement-tool-use

import type { ToolChoice, ToolDefinition } from '../../core/request.js'
import { memberRanges } from '../json-ranges.js'
import { type CacheMarks, cacheControl } from './anthropic-cache-marks.js'
import {
  accepted,
  asObject,
  boolean,
  custom,
  type Field,
  ignore,
  invalid,
  type JsonSchema,
  kindOf,
  noted,
  oneOf,
  type Reading,
  readFields,
  required,
  schemaOf,
  shallow,
  text,
  unsupported,
} from './fields.js'
import { type SentChoice, toolChoiceOf } from './tool-choice.js'

const toolFields = {
  type: text('`custom`; tools that another server runs or knows the schema of are left out.'),
  name: text('The name to call it by.'),
  description: text('What it does.'),
  input_schema: custom<undefined>({ type: 'object', description: 'JSON Schema of the input.' }, (value, path) => {
    asObject(value, path)
    return undefined
  }),
  strict: boolean('The input always follows the schema.'),
  cache_control: cacheControl,
  input_examples: noted('templates have no place for them'),
  defer_loading: noted('every tool is shown'),
  eager_input_streaming: accepted('input streams as the model writes it'),
  allowed_callers: accepted('the model calls'),
}

export const toolsSchema: JsonSchema = {
  type: 'array',
  items: schemaOf(toolFields, ['name', 'input_schema']),
  description: 'What the model may call.',
}

/** `bash_20250124`, `web_search_20260318`: tools without a schema of their own. */
const VERSIONED = /_\d{8}$/

/** The definitions in `value`; marks on them are added to `marks`. @throws RefrainError that names the tool. */
export function readTools(value: unknown, marks: CacheMarks, reading: Reading): readonly ToolDefinition[] {
  if (value === undefined || value === null) return []
  if (!Array.isArray(value)) throw invalid('tools', `must be an array, not ${kindOf(value)}`)
  return value.flatMap((each, i) => {
    const path = `tools[${i}]`
    const type = asObject(each, path)['type'] ?? 'custom'
    if (typeof type !== 'string') throw invalid(`${path}.type`, `must be a string, not ${kindOf(type)}`)
    if (type !== 'custom') {
      if (!VERSIONED.test(type) && type !== 'mcp_toolset') {
        throw unsupported(`${path}.type`, `must be 'custom': there are no tools of '${type.slice(0, 40)}'`)
      }
      ignore(`tools[${type.slice(0, 40)}]`, reading)
      return []
    }
    const read = readFields(toolFields, each, path, reading)
    marks.add('head', read.cache_control)
    const name = required(read.name, `${path}.name`)
    return [{ name, json: functionJson(shallow(reading.raw.at(['tools', i]) ?? '{}', path, reading)) }]
  })
}

const MEMBERS = [
  ['name', 'name'],
  ['description', 'description'],
  ['input_schema', 'parameters'],
  ['strict', 'strict'],
] as const

/** The tool whose text is `raw`, in the form of Chat Completions. */
function functionJson(raw: string): string {
  const ranges = memberRanges(raw, 0)
  const members = MEMBERS.flatMap(([from, to]) => {
    const range = ranges?.get(from)
    const member = range && raw.slice(range.start, range.end)
    return member === undefined || member === 'null' ? [] : [`"${to}":${member}`]
  })
  return `{"type":"function","function":{${members.join(',')}}}`
}

const CHOICES = ['auto', 'any', 'tool', 'none'] as const
const MODES = { auto: 'auto', any: 'required', tool: 'required', none: 'none' } as const

const choiceFields = {
  type: oneOf(CHOICES, '`any`: some tool; `tool`: the one of that name.'),
  name: text('The tool.'),
  disable_parallel_tool_use: boolean('True: one call at most.'),
}

export interface AnthropicChoice {
  readonly choice: SentChoice
  readonly parallel: boolean
}

export const anthropicToolChoice: Field<AnthropicChoice> = custom(
  { ...schemaOf(choiceFields, ['type']), description: 'What may be called.' },
  (value, path, reading) => {
    const read = readFields(choiceFields, typeof value === 'string' ? { type: value } : value, path, reading)
    const type = required(read.type, `${path}.type`)
    const parallel = read.disable_parallel_tool_use !== true
    if (type !== 'tool') return { choice: { mode: MODES[type] }, parallel }
    const name = required(read.name, `${path}.name`)
    return { choice: { mode: 'required', allowed: [{ name, path: `${path}.name` }] }, parallel }
  },
)

/** See `toolChoiceOf`; `allowed` is `refrain.allowed_tools`. */
export function choiceOf(
  sent: AnthropicChoice | undefined,
  allowed: readonly string[] | undefined,
  tools: readonly ToolDefinition[] | undefined,
): ToolChoice | undefined {
  // What may not be called need not be there.
  const choice = sent?.choice.mode === 'auto' ? undefined : sent?.choice
  return toolChoiceOf({ choice, parallel: sent?.parallel === false ? false : undefined, allowed }, tools)
}
