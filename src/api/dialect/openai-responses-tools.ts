// Tools of the Responses API as the functions that a chat template knows, and back: which name the model sees for what a
// client defined. Invariant: a definition keeps the client's own text (order, spacing, numbers); only what wraps it is
// rewritten. A namespace's functions go by their own names, with the namespace in front where names would collide.

import { isPattern } from '../../core/name-pattern.js'
import type { ToolChoice, ToolDefinition } from '../../core/request.js'
import { memberRanges, withoutMember } from '../json-ranges.js'
import {
  accepted,
  asObject,
  custom,
  type Field,
  ignore,
  invalid,
  kindOf,
  type Reading,
  readFields,
  required,
  shallow,
  text,
  unsupported,
  wellFormed,
} from './fields.js'

/** What the client calls a function that the model sees as a name. */
export interface ClientTool {
  readonly kind: 'function' | 'custom'
  readonly name: string
  readonly namespace?: string
}

export interface ResponsesTools {
  readonly definitions: readonly ToolDefinition[]
  /** By the name that the model sees. */
  readonly byModelName: ReadonlyMap<string, ClientTool>
  /** Of a call in the history: the name that the model sees for it. */
  modelName(name: string, namespace: string | undefined): string
}

/** Parts of a definition that say nothing to the model and have no place in a chat's tool. */
const DROPPED = ['type', 'cache_control', 'defer_loading', 'allowed_callers', 'output_schema']

const functionFields = {
  type: text('`function`, `custom` or `namespace`; tools that the server would run itself are left out.'),
  name: text('The name to call it by.'),
  description: text('What it does.'),
  parameters: custom<undefined>({ type: 'object', description: 'JSON Schema of the arguments.' }, (value, path) => {
    asObject(value, path)
    return undefined
  }),
  strict: accepted('the tool choice decides what is constrained'),
  format: custom<undefined>({ type: 'object', description: 'Of a `custom` tool.' }, readFormat),
  function: custom<Readonly<Record<string, unknown>>>(
    { type: 'object', description: 'The same in the form of Chat Completions.' },
    asObject,
  ),
  tools: custom<readonly unknown[]>(
    { type: 'array', description: 'Of a `namespace`: its functions.' },
    (value, path) => {
      if (!Array.isArray(value)) throw invalid(path, `must be an array, not ${kindOf(value)}`)
      return value
    },
  ),
  cache_control: accepted('every prefix is cached'),
  defer_loading: accepted('every tool is shown'),
  allowed_callers: accepted('the model calls'),
  output_schema: accepted('results are taken as they come'),
}

interface Found {
  readonly tool: ClientTool
  /** The definition's members, as the text of an object. */
  readonly json: string
}

/** The field `tools`. */
export const responsesTools: Field<ResponsesTools> = custom(
  {
    type: 'array',
    items: { type: 'object' },
    description: 'What the model may call: functions, alone or by namespace.',
  },
  (value, path, reading) => {
    if (!Array.isArray(value)) throw invalid(path, `must be an array, not ${kindOf(value)}`)
    return named(value.flatMap((tool, i) => readTool(tool, [path, i], undefined, reading)))
  },
)

export const NO_TOOLS: ResponsesTools = named([])

type Steps = readonly (string | number)[]

function readTool(value: unknown, steps: Steps, namespace: string | undefined, reading: Reading): Found[] {
  const path = pathOf(steps)
  const type = asObject(value, path)['type']
  if (typeof type !== 'string') throw invalid(`${path}.type`, `must be a string, not ${kindOf(type)}`)
  if (type === 'namespace' && namespace === undefined) {
    const read = readFields(functionFields, value, path, reading)
    const name = required(read.name, `${path}.name`)
    const tools = required(read.tools, `${path}.tools`)
    return tools.flatMap((tool, i) => readTool(tool, [...steps, 'tools', i], name, reading))
  }
  if (type !== 'function' && type !== 'custom') {
    // Codex offers a web search with every request: the model does without what only the server could run.
    ignore(`${steps[0]}[${type.slice(0, 40)}]`, reading)
    return []
  }
  const read = readFields(functionFields, value, path, reading)
  const isWrapped = type === 'function' && read.name === undefined && read.function !== undefined
  const name = isWrapped ? read.function?.['name'] : read.name
  const at = isWrapped ? `${path}.function.name` : `${path}.name`
  if (typeof name !== 'string') throw invalid(at, `must be a string, not ${kindOf(name ?? null)}`)
  const raw = shallow(reading.raw.at(isWrapped ? [...steps, 'function'] : steps) ?? '{}', path, reading)
  const json = type === 'custom' ? customJson(name, read.description) : DROPPED.reduce(withoutMember, raw)
  return [{ tool: { kind: type, name: wellFormed(name), ...(namespace === undefined ? {} : { namespace }) }, json }]
}

function named(found: readonly Found[]): ResponsesTools {
  const counts = new Map<string, number>()
  for (const { tool } of found) counts.set(tool.name, (counts.get(tool.name) ?? 0) + 1)
  const modelName = ({ name, namespace }: ClientTool) =>
    namespace !== undefined && (counts.get(name) ?? 0) > 1 ? `${namespace}__${name}` : name
  const byModelName = new Map(found.map(({ tool }) => [modelName(tool), tool]))
  // Reversed, so that of several the first counts; a function of a namespace may be named without it.
  const names = new Map([...found].reverse().map(({ tool }) => [keyOf(tool.name, undefined), modelName(tool)]))
  for (const { tool } of found) names.set(keyOf(tool.name, tool.namespace), modelName(tool))
  const definitions = found.map(({ tool, json }) => {
    const name = modelName(tool)
    return { name, json: `{"type":"function","function":${name === tool.name ? json : renamed(json, name)}}` }
  })
  return {
    definitions,
    byModelName,
    modelName: (name, namespace) => names.get(keyOf(name, namespace)) ?? name,
  }
}

function keyOf(name: string, namespace: string | undefined): string {
  return JSON.stringify([namespace ?? null, name])
}

function renamed(json: string, name: string): string {
  const range = memberRanges(json, 0)?.get('name')
  if (range === undefined) return json
  return json.slice(0, range.start) + JSON.stringify(name) + json.slice(range.end)
}

// --- custom tools ----------------------------------------------------------------------------------------------------

/** A tool that takes plain text is a function with one string to the model. */
function customJson(name: string, description: string | undefined): string {
  return JSON.stringify({
    name,
    ...(description === undefined ? {} : { description }),
    parameters: {
      type: 'object',
      properties: { input: { type: 'string' } },
      required: ['input'],
      additionalProperties: false,
    },
  })
}

function readFormat(value: unknown, path: string, reading: Reading): undefined {
  const { type } = asObject(value, path)
  if (type === 'grammar') ignore(path, reading)
  return undefined
}

/** The arguments that stand for a custom tool's input. */
export function argumentsOfInput(input: string): string {
  return `{"input": ${JSON.stringify(input)}}`
}

/** The input that a model's arguments mean; what is not of that form is taken as it is. */
export function inputOfArguments(text: string): string {
  try {
    const value: unknown = JSON.parse(text)
    const input = typeof value === 'object' && value !== null ? (value as { input?: unknown }).input : undefined
    return typeof input === 'string' ? input : text
  } catch (error) {
    if (error instanceof SyntaxError) return text
    throw error
  }
}

// --- tool choice -----------------------------------------------------------------------------------------------------

/**
 * `tool_choice` and `parallel_tool_calls` in this API's words, by the names that the model sees; undefined: nothing was
 * said that differs from auto. Unlike tool-choice.ts it knows custom tools, namespaces and tools that are left out.
 * https://platform.openai.com/docs/api-reference/responses/create#responses-create-tool_choice
 */
export function responsesToolChoice(
  value: unknown,
  parallel: boolean | undefined,
  tools: ResponsesTools,
  reading: Reading,
): ToolChoice | undefined {
  const choice = readChoice(value, tools, reading)
  if (parallel !== false) return choice
  return { ...(choice ?? { mode: 'auto' }), parallel: false }
}

const CHOICE = 'tool_choice'

function readChoice(value: unknown, tools: ResponsesTools, reading: Reading): ToolChoice | undefined {
  if (value === undefined || value === null) return undefined
  if (value === 'auto' || value === 'none' || value === 'required') return checked({ mode: value }, tools)
  if (typeof value !== 'object') {
    throw invalid(CHOICE, `must be 'auto', 'none', 'required' or an object, not ${kindOf(value)}`)
  }
  const choice = asObject(value, CHOICE)
  const { type } = choice
  if (type === 'function' || type === 'custom') {
    return { mode: 'required', allowed: [nameOf(choice, CHOICE, tools)] }
  }
  if (type === 'allowed_tools') return checked(readAllowed(choice, tools, reading), tools)
  if (type === 'auto' || type === 'none' || type === 'required') return checked({ mode: type }, tools)
  if (typeof type !== 'string') throw invalid(`${CHOICE}.type`, `must be a string, not ${kindOf(type ?? null)}`)
  throw unsupported(`${CHOICE}.type`, `cannot be honoured: there is no tool of the type '${type.slice(0, 40)}' here`)
}

function readAllowed(choice: Readonly<Record<string, unknown>>, tools: ResponsesTools, reading: Reading): ToolChoice {
  const mode = choice['mode'] ?? 'auto'
  if (mode !== 'auto' && mode !== 'required') {
    throw invalid(`${CHOICE}.mode`, `must be 'auto' or 'required', not ${kindOf(mode)}`)
  }
  const list = choice['tools']
  if (!Array.isArray(list)) throw invalid(`${CHOICE}.tools`, `must be an array, not ${kindOf(list ?? null)}`)
  const allowed = list.flatMap((each, i) => {
    const path = `${CHOICE}.tools[${i}]`
    const tool = asObject(each, path)
    const { type } = tool
    if (type === 'function' || type === 'custom') return [nameOf(tool, path, tools)]
    if (typeof type !== 'string') throw invalid(`${path}.type`, `must be a string, not ${kindOf(type ?? null)}`)
    ignore(`${CHOICE}.tools[${type.slice(0, 40)}]`, reading)
    return []
  })
  if (allowed.length > 0) return { mode, allowed }
  if (mode === 'required') throw unsupported(`${CHOICE}.tools`, 'cannot be honoured: it has no function in it')
  return { mode: 'none' }
}

/** The model's name for the function that a choice names. */
function nameOf(choice: Readonly<Record<string, unknown>>, path: string, tools: ResponsesTools): string {
  const wrapped = choice['function']
  const name = choice['name'] ?? (wrapped === undefined ? undefined : asObject(wrapped, `${path}.function`)['name'])
  if (typeof name !== 'string') throw invalid(`${path}.name`, `must be a string, not ${kindOf(name ?? null)}`)
  const namespace = choice['namespace']
  if (isPattern(name) && path !== CHOICE) return name
  const own = tools.modelName(name, typeof namespace === 'string' ? namespace : undefined)
  if (tools.byModelName.has(own)) return own
  throw invalid(`${path}.name`, `must be the name of one of 'tools', not '${name.slice(0, 64)}'`)
}

function checked(choice: ToolChoice, tools: ResponsesTools): ToolChoice {
  if (choice.mode === 'required' && tools.definitions.length === 0) throw invalid(CHOICE, "needs functions in 'tools'")
  return choice
}

function pathOf(steps: Steps): string {
  return steps.map((step, i) => (typeof step === 'number' ? `[${step}]` : i === 0 ? step : `.${step}`)).join('')
}
