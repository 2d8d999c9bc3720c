// The field `context_management`: which edits a client asks for, in the words of the API. Invariant: an edit that is not
// known here is named in x-refrain-ignored and changes nothing.
// https://platform.claude.com/docs/en/build-with-claude/context-editing

import type { ContextEdit } from './anthropic-context.js'
import {
  asObject,
  boolean,
  custom,
  type Field,
  type Fields,
  ignore,
  integer,
  invalid,
  kindOf,
  listOf,
  noted,
  oneOf,
  type Reading,
  readFields,
  required,
  schemaOf,
  text,
} from './fields.js'

const TRIGGER_TOKENS = 100_000
const KEPT_USES = 3
const KEPT_TURNS = 1

const TRIGGERS = { input_tokens: 'input-tokens', tool_uses: 'tool-uses' } as const

/** `{type, value}` */
function counted<const T extends string>(types: readonly T[], min: number, description: string) {
  const fields = { type: oneOf(types, 'What is counted.'), value: integer({ min }, 'How many.') }
  return custom<{ readonly type: T; readonly value: number }>(
    { ...schemaOf(fields, ['type', 'value']), description },
    (value, path, reading) => {
      const read = readFields(fields, value, path, reading)
      return { type: required(read.type, `${path}.type`) as T, value: required(read.value, `${path}.value`) }
    },
  )
}

const toolUseFields = {
  type: text('`clear_tool_uses_20250919`.'),
  trigger: counted(['input_tokens', 'tool_uses'], 1, 'From where on it clears. Default 100000 input tokens.'),
  keep: counted(['tool_uses'], 0, 'Most recent uses that stay. Default 3.'),
  clear_at_least: counted(['input_tokens'], 0, 'Nothing is cleared where it would be less.'),
  exclude_tools: listOf(text('A tool.'), 'Their uses stay.'),
  clear_tool_inputs: custom<'keep' | 'clear' | ReadonlySet<string>>(
    { anyOf: [{ type: 'boolean' }, { type: 'array', items: { type: 'string' } }] },
    (value, path, reading) => {
      if (Array.isArray(value)) return new Set(toolNames.read(value, path, reading))
      return inputs.read(value, path, reading) ? 'clear' : 'keep'
    },
  ),
}
const toolNames = listOf(text('A tool.'), 'Tools whose calls lose their input.')
const inputs = boolean('Calls lose their input as well.')

const thinkingFields = {
  type: text('`clear_thinking_20251015`.'),
  keep: custom<number | 'all'>(
    { description: '`all`, or `{type: "thinking_turns", value}`. Default: one turn.' },
    (value, path, reading) => {
      if (value === 'all' || asObject(value, path)['type'] === 'all') return 'all'
      return turns.read(value, path, reading).value
    },
  ),
}
const turns = counted(['thinking_turns'], 1, 'Most recent turns that keep their reasoning.')

const edits: Field<readonly ContextEdit[]> = custom(
  { type: 'array', items: { type: 'object' }, description: 'Applied in this order.' },
  (value, path, reading) => {
    if (!Array.isArray(value)) throw invalid(path, `must be an array, not ${kindOf(value)}`)
    if (value.length > EDITS) throw invalid(path, `must have at most ${EDITS} edits`)
    return value.flatMap((edit, i) => readEdit(edit, `${path}[${i}]`, reading))
  },
)
/** There are two kinds, and nothing to gain from doing one twice; each costs a walk over the conversation. */
const EDITS = 8

function readEdit(value: unknown, path: string, reading: Reading): ContextEdit[] {
  const { type } = asObject(value, path)
  if (typeof type !== 'string') throw invalid(`${path}.type`, `must be a string, not ${kindOf(type ?? null)}`)
  if (type === 'clear_tool_uses_20250919') {
    const read = readFields(toolUseFields, value, path, reading)
    const { trigger } = read
    return [
      {
        kind: 'tool-uses',
        trigger: { kind: TRIGGERS[trigger?.type ?? 'input_tokens'], value: trigger?.value ?? TRIGGER_TOKENS },
        keep: read.keep?.value ?? KEPT_USES,
        clearAtLeast: read.clear_at_least?.value ?? 0,
        exclude: new Set(read.exclude_tools ?? []),
        inputs: read.clear_tool_inputs ?? 'keep',
      },
    ]
  }
  if (type === 'clear_thinking_20251015') {
    return [{ kind: 'thinking', keep: readFields(thinkingFields, value, path, reading).keep ?? KEPT_TURNS }]
  }
  ignore(`${path.replace(/\[\d+\]$/, '')}[${type.slice(0, 40)}]`, reading)
  return []
}

const managementFields = { edits, type: noted('edits say what is done') } satisfies Fields

export const contextManagement: Field<readonly ContextEdit[]> = custom(
  { ...schemaOf(managementFields), description: 'What is taken out of a long conversation.' },
  (value, path, reading) => readFields(managementFields, value, path, reading).edits ?? [],
)
