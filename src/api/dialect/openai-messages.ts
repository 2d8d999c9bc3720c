// The messages and tools of OpenAI's chat API, read into the core's own. Invariant: text is taken as it is (parts are
// joined by a line break), tool definitions and calls' arguments as the raw JSON text that was sent, order is kept:
// whatever is changed here would change the prompt's prefix.

import type { ChatMessage, ToolCall, ToolDefinition } from '../../core/request.js'
import { withoutMember } from '../json-ranges.js'
import {
  accepted,
  asObject,
  boolean,
  custom,
  type Field,
  invalid,
  kindOf,
  listOf,
  object,
  oneOf,
  type Reading,
  type ReadOf,
  readFields,
  refused,
  required,
  schemaOf,
  shallow,
  text,
  unsupported,
  wellFormed,
} from './fields.js'
import { isLogged } from './session-field.js'

const ROLES = ['system', 'developer', 'user', 'assistant', 'tool'] as const

const callFields = {
  id: text('Names the call; its result refers to it.'),
  type: oneOf(['function'], 'Only functions.'),
  index: accepted('left over from a stream'),
  function: object(
    {
      name: text('The function.'),
      arguments: custom<string>({ type: 'string', description: 'JSON text, kept as sent.' }, (value, path, reading) => {
        if (typeof value === 'string') return shallow(wellFormed(value), path, reading)
        // Some clients send the object itself; its own text is what they would have put into the string.
        if (typeof value === 'object') return shallow(reading.raw.at(stepsOf(path)) ?? '{}', path, reading)
        throw invalid(path, `must be a string of JSON, not ${kindOf(value)}`)
      }),
    },
    'What is called.',
    ['name'],
  ),
}

const messageFields = {
  role: oneOf(ROLES, 'Who speaks; `developer` means `system`.'),
  content: custom<string>(
    { description: 'A string, or an array of text parts.', anyOf: [{ type: 'string' }, { type: 'array' }] },
    readContent,
  ),
  name: text('A name of the speaker.'),
  tool_calls: listOf(object(callFields, 'A call.', ['id', 'function']), 'Calls of the assistant.'),
  tool_call_id: text('The call that this is the result of.'),
  reasoning_content: text('What the assistant thought; also `reasoning` or `reasoning_text`.'),
  reasoning: text('The same as `reasoning_content`.'),
  reasoning_text: text('The same as `reasoning_content`.'),
  reasoning_details: accepted('`reasoning_content` is read'),
  refusal: text('What the assistant refused with; read as its text where it has no other.'),
  function_call: refused([], 'legacy function calls; use tool_calls'),
  audio: refused([], 'this model reads text only'),
  task: text('A quick instruction: on the last message, the call answers it. quick-field.ts reads it.'),
  prefix: boolean('True on the last message, of the assistant: the answer continues it.'),
  partial: boolean('The same as `prefix`.'),
  cache_control: accepted('every prefix is cached'),
  prompt_cache_breakpoint: accepted('every prefix is cached'),
  annotations: accepted('a part of what the server sent'),
  parsed: accepted('a part of what a client library made of the answer'),
}

/** The field `messages`. */
export const messages: Field<readonly ChatMessage[]> = custom(
  { type: 'array', minItems: 1, items: schemaOf(messageFields, ['role']), description: 'The conversation.' },
  (value, path, reading) => {
    if (!Array.isArray(value)) throw invalid(path, `must be an array, not ${kindOf(value)}`)
    if (value.length === 0 && !isLogged(reading)) throw invalid(path, 'must not be empty')
    return value.map((message, i) => {
      const at = `${path}[${i}]`
      const read = readFields(messageFields, message, at, reading)
      const mark = read.prefix === true ? 'prefix' : read.partial === true ? 'partial' : undefined
      const sent = messageOf(read, at)
      if (mark !== undefined) checkContinued(sent, { path: `${at}.${mark}`, isLast: i === value.length - 1 })
      return sent
    })
  },
)

/** Whether the last message of a body is marked to be continued; `messages` has checked that it can be. */
export function isContinued(sent: unknown): boolean {
  const last: unknown = Array.isArray(sent) ? sent.at(-1) : undefined
  if (typeof last !== 'object' || last === null) return false
  const { prefix, partial } = last as { prefix?: unknown; partial?: unknown }
  return prefix === true || partial === true
}

/** @throws RefrainError `invalid_request` at `path` where the message cannot be continued. */
export function checkContinued(
  message: ChatMessage | undefined,
  { path, isLast = true }: { readonly path: string; readonly isLast?: boolean },
): void {
  if (!isLast || message?.role !== 'assistant')
    throw invalid(path, 'needs the last message to be of the role assistant')
  if (message.toolCalls !== undefined) throw invalid(path, 'cannot continue a message with tool_calls')
}

function messageOf(read: ReadOf<typeof messageFields>, path: string): ChatMessage {
  const sentRole = required(read.role, `${path}.role`)
  const role = sentRole === 'developer' ? 'system' : sentRole
  const toolCalls = read.tool_calls?.map(
    (call, i): ToolCall => ({
      id: required(call.id, `${path}.tool_calls[${i}].id`),
      name: required(call.function?.name, `${path}.tool_calls[${i}].function.name`),
      arguments: call.function?.arguments ?? '',
    }),
  )
  if (role !== 'assistant' && toolCalls !== undefined && toolCalls.length > 0) {
    throw invalid(`${path}.tool_calls`, 'belongs to messages of the role assistant')
  }
  if (role !== 'assistant') required(read.content, `${path}.content`)
  if (role === 'tool') required(read.tool_call_id, `${path}.tool_call_id`)
  const reasoning = read.reasoning_content ?? read.reasoning ?? read.reasoning_text
  return {
    role,
    content: read.content ?? read.refusal ?? '',
    ...(read.name === undefined ? {} : { name: read.name }),
    ...(toolCalls === undefined || toolCalls.length === 0 ? {} : { toolCalls }),
    ...(role === 'tool' && read.tool_call_id !== undefined ? { toolCallId: read.tool_call_id } : {}),
    ...(role === 'assistant' && reasoning !== undefined && reasoning !== '' ? { reasoning } : {}),
  }
}

function readContent(value: unknown, path: string, reading: Reading): string {
  if (typeof value === 'string') return wellFormed(value)
  if (!Array.isArray(value)) throw invalid(path, `must be a string or an array of parts, not ${kindOf(value)}`)
  return value.map((part, i) => readPart(part, `${path}[${i}]`, reading)).join('\n')
}

const partFields = {
  type: text('`text`.'),
  text: text('The text.'),
  refusal: text('The text of a refusal.'),
  cache_control: accepted('every prefix is cached'),
  prompt_cache_breakpoint: accepted('every prefix is cached'),
  annotations: accepted('a part of what the server sent'),
}

function readPart(value: unknown, path: string, reading: Reading): string {
  if (typeof value === 'string') return wellFormed(value)
  const type = asObject(value, path)['type']
  if (type === 'text' || type === 'input_text' || type === 'output_text') {
    return required(readFields(partFields, value, path, reading).text, `${path}.text`)
  }
  if (type === 'refusal') return required(readFields(partFields, value, path, reading).refusal, `${path}.refusal`)
  if (typeof type !== 'string') throw invalid(`${path}.type`, `must be a string, not ${kindOf(type)}`)
  throw unsupported(`${path}.type`, `'${type.slice(0, 40)}' cannot be honoured: this model reads text only`)
}

const toolFields = {
  type: oneOf(['function'], 'Only functions.'),
  function: object(
    {
      name: text('The name to call it by.'),
      description: text('What it does.'),
      parameters: custom<undefined>({ type: 'object', description: 'JSON Schema of the arguments.' }, (value, path) => {
        asObject(value, path)
        return undefined
      }),
      strict: boolean('Arguments always follow the schema.'),
      cache_control: accepted('every prefix is cached'),
    },
    'The function.',
    ['name'],
  ),
  cache_control: accepted('every prefix is cached'),
}

/** The field `tools`. Definitions are handed on as sent, but without cache marks: those move from call to call. */
export const tools: Field<readonly ToolDefinition[]> = custom(
  { type: 'array', items: schemaOf(toolFields, ['type', 'function']), description: 'What the model may call.' },
  (value, path, reading) => {
    if (!Array.isArray(value)) throw invalid(path, `must be an array, not ${kindOf(value)}`)
    return value.map((tool, i): ToolDefinition => {
      const read = readFields(toolFields, tool, `${path}[${i}]`, reading)
      required(read.type, `${path}[${i}].type`)
      const name = required(read.function?.name, `${path}[${i}].function.name`)
      const raw = shallow(reading.raw.at([...stepsOf(path), i]) ?? '{}', `${path}[${i}]`, reading)
      return { name, json: withoutMember(raw, 'cache_control') }
    })
  },
)

/** `a[0].b` as the steps to it. */
function stepsOf(path: string): (string | number)[] {
  return path.split(/[.[]/).map((step) => (step.endsWith(']') ? Number(step.slice(0, -1)) : step))
}
