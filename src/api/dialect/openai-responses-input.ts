// The items of the Responses API, read into the core's messages. Invariant: what the assistant said in one answer
// (reasoning, text, calls) is one message, as its template wrote it; ids of items never reach the prompt; text and
// arguments are taken as they were sent. An item with content that cannot be shown to the model is refused by its path.

import type { ChatMessage, ToolCall } from '../../core/request.js'
import {
  accepted,
  asObject,
  custom,
  type Field,
  type Fields,
  ignore,
  invalid,
  type JsonSchema,
  kindOf,
  oneOf,
  type Reading,
  readFields,
  required,
  shallow,
  text,
  unsupported,
  wellFormed,
} from './fields.js'
import { openReasoning } from './openai-responses-shape.js'
import { argumentsOfInput, type ResponsesTools } from './openai-responses-tools.js'
import { isLogged } from './session-field.js'

/** What any item may carry beside its content. */
const around = {
  type: text('Names the item; absent: `message`.'),
  id: accepted('ids are not part of the prompt'),
  status: accepted('a part of what the server sent'),
  phase: accepted('a part of what the server sent'),
  created_by: accepted('a part of what the server sent'),
  caller: accepted('the model calls'),
  internal_chat_message_metadata_passthrough: accepted('not part of the prompt'),
}

const content: Field<string> = custom({ description: 'A string, or an array of text parts.' }, readContent)

const messageFields = {
  ...around,
  role: oneOf(['user', 'assistant', 'system', 'developer'], 'Who speaks; `developer` means `system`.'),
  content,
  name: accepted('not a part of this API'),
}

const callFields = {
  ...around,
  call_id: text('Names the call; its output refers to it.'),
  name: text('The function.'),
  namespace: text('The namespace of the function.'),
  arguments: custom<string>({ type: 'string', description: 'JSON text, kept as sent.' }, (value, path, reading) => {
    if (typeof value === 'string') return shallow(wellFormed(value), path, reading)
    if (typeof value === 'object') return shallow(reading.raw.at(stepsOf(path)) ?? '{}', path, reading)
    throw invalid(path, `must be a string of JSON, not ${kindOf(value)}`)
  }),
  input: text('Of a custom tool: the text it was given.'),
  parsed_arguments: accepted('a part of what a client library made of the answer'),
}

const outputFields = {
  ...around,
  call_id: text('The call that this is the output of.'),
  output: content,
  name: accepted('the call has it'),
  namespace: accepted('the call has it'),
  success: accepted('the output says so'),
}

const reasoningFields = {
  ...around,
  content: custom<string>({ type: 'array', description: 'Parts of the type `reasoning_text`.' }, readReasoning),
  summary: custom<string>({ type: 'array', description: 'Parts of the type `summary_text`.' }, readReasoning),
  encrypted_content: text('The reasoning as this server sent it; what another server sent is skipped.'),
}

/** Items of tools that only the server could have run, without anything that the model would read. */
const SILENT = ['web_search_call', 'file_search_call', 'image_generation_call', 'mcp_list_tools', 'additional_tools']

/** One item of the answer that the model gave, or what was said to it. */
type Item =
  | { readonly kind: 'message'; readonly message: ChatMessage }
  | { readonly kind: 'reasoning'; readonly text: string }
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'call'; readonly call: ToolCall }

export const inputSchema: JsonSchema = {
  anyOf: [{ type: 'string' }, { type: 'array', items: { type: 'object' } }],
  description: 'The conversation: text of the user, or items.',
}

/** The messages of `instructions` and `input`. @throws RefrainError that names the item. */
export function readInput(
  input: unknown,
  instructions: string | undefined,
  tools: ResponsesTools,
  reading: Reading,
): ChatMessage[] {
  const head: ChatMessage[] = instructions === undefined ? [] : [{ role: 'system', content: instructions }]
  if (typeof input === 'string') return [...head, { role: 'user', content: wellFormed(input) }]
  if (!Array.isArray(input)) throw invalid('input', `must be a string or an array of items, not ${kindOf(input)}`)
  const items = withoutKnownReferences(input, reading)
  const messages = joined(items.flatMap(([item, i]) => readItem(item, `input[${i}]`, tools, reading)))
  if (messages.length + head.length === 0 && !isLogged(reading)) throw invalid('input', 'must not be empty')
  return [...head, ...messages]
}

/** Items with their places, but for references to items that are there themselves. */
function withoutKnownReferences(input: readonly unknown[], reading: Reading): (readonly [item: unknown, at: number])[] {
  const referenceOf = (item: unknown) => {
    const { type, id, role } = (item ?? {}) as { type?: unknown; id?: unknown; role?: unknown }
    return typeof id === 'string' && (type === 'item_reference' || (type == null && role === undefined))
      ? id
      : undefined
  }
  const indexed = input.map((item, i) => [item, i] as const)
  if (!input.some((item) => referenceOf(item) !== undefined)) return indexed
  const whole = input.filter((item) => referenceOf(item) === undefined)
  const ids = new Set(whole.map((item) => ((item ?? {}) as { id?: unknown }).id))
  return indexed.filter(([item]) => {
    const reference = referenceOf(item)
    if (reference === undefined || !ids.has(reference)) return true
    ignore('input[item_reference]', reading)
    return false
  })
}

function readItem(value: unknown, path: string, tools: ResponsesTools, reading: Reading): Item[] {
  const item = asObject(value, path)
  const type = item['type'] ?? (item['role'] === undefined && item['id'] !== undefined ? 'item_reference' : 'message')
  switch (type) {
    case 'message':
      return [readMessage(item, path, reading)]
    case 'reasoning':
      return readReasoningItem(item, path, reading)
    case 'function_call':
    case 'custom_tool_call':
      return [readCall(item, path, tools, reading)]
    case 'function_call_output':
    case 'custom_tool_call_output': {
      const read = readFields(outputFields, item, path, reading)
      const toolCallId = required(read.call_id, `${path}.call_id`)
      const output = required(read.output, `${path}.output`)
      return [{ kind: 'message', message: { role: 'tool', content: output, toolCallId } }]
    }
    case 'item_reference':
      return refuseReference(item, path, reading)
  }
  if (typeof type !== 'string') throw invalid(`${path}.type`, `must be a string, not ${kindOf(type)}`)
  if (SILENT.includes(type)) {
    ignore(`input[${type}]`, reading)
    return []
  }
  throw unsupported(`${path}.type`, `'${type.slice(0, 40)}' cannot be honoured: the model is not shown such items`)
}

/** Nothing is stored, so only what the model may do without can be left out: reasoning. */
function refuseReference(item: Readonly<Record<string, unknown>>, path: string, reading: Reading): Item[] {
  const id = item['id']
  if (typeof id === 'string' && id.startsWith('rs_')) {
    ignore('input[item_reference]', reading)
    return []
  }
  throw unsupported(`${path}.id`, 'cannot be honoured: nothing is stored; send the item itself')
}

function readMessage(item: Readonly<Record<string, unknown>>, path: string, reading: Reading): Item {
  const read = readFields(messageFields, item, path, reading)
  const role = required(read.role, `${path}.role`)
  if (role === 'assistant') return { kind: 'text', text: read.content ?? '' }
  const said = required(read.content, `${path}.content`)
  return { kind: 'message', message: { role: role === 'user' ? 'user' : 'system', content: said } }
}

function readCall(
  item: Readonly<Record<string, unknown>>,
  path: string,
  tools: ResponsesTools,
  reading: Reading,
): Item {
  const read = readFields(callFields, item, path, reading)
  const name = required(read.name, `${path}.name`)
  const isCustom = item['type'] === 'custom_tool_call'
  return {
    kind: 'call',
    call: {
      id: required(read.call_id, `${path}.call_id`),
      name: tools.modelName(name, read.namespace),
      arguments: isCustom ? argumentsOfInput(read.input ?? '') : (read.arguments ?? ''),
    },
  }
}

function readReasoningItem(item: Readonly<Record<string, unknown>>, path: string, reading: Reading): Item[] {
  const read = readFields(reasoningFields, item, path, reading)
  const sealed = read.encrypted_content === undefined ? undefined : openReasoning(read.encrypted_content)
  const said = read.content || sealed || read.summary
  if (said) return [{ kind: 'reasoning', text: said }]
  if (read.encrypted_content) ignore('input[].encrypted_content', reading)
  return []
}

/** An answer of the assistant while items are added to it. */
interface Answer {
  readonly reasoning?: string
  content: string
  readonly toolCalls: ToolCall[]
}

/**
 * Items as messages. Reasoning that no text and no call follows belongs to an answer that broke off: it is left out, so
 * that the next try has the prefix of the first (Codex appends what it got of each try).
 */
function joined(items: readonly Item[]): ChatMessage[] {
  const told: (ChatMessage | Answer)[] = []
  let reasoning: string | undefined
  /** The last one while it can still grow. */
  let answer: Answer | undefined
  const begin = (): Answer => {
    const begun: Answer = { content: '', toolCalls: [], ...(reasoning === undefined ? {} : { reasoning }) }
    told.push(begun)
    reasoning = undefined
    return begun
  }
  for (const item of items) {
    if (item.kind === 'message') {
      answer = undefined
      reasoning = undefined
      told.push(item.message)
    } else if (item.kind === 'reasoning') {
      answer = undefined
      reasoning = item.text
    } else if (item.kind === 'text') {
      // Text behind calls is of the same answer; text behind text is another message.
      if (answer === undefined || answer.toolCalls.length === 0) answer = begin()
      answer.content += item.text
    } else {
      answer ??= begin()
      answer.toolCalls.push(item.call)
    }
  }
  return told.map((each) => ('role' in each ? each : messageOf(each)))
}

function messageOf({ reasoning, content, toolCalls }: Answer): ChatMessage {
  return {
    role: 'assistant',
    content,
    ...(reasoning === undefined ? {} : { reasoning }),
    ...(toolCalls.length === 0 ? {} : { toolCalls }),
  }
}

// --- content ---------------------------------------------------------------------------------------------------------

const partFields = {
  type: text('`input_text`, `output_text` or `refusal`.'),
  text: text('The text.'),
  refusal: text('The text of a refusal.'),
  annotations: accepted('a part of what the server sent'),
  logprobs: accepted('a part of what the server sent'),
  parsed: accepted('a part of what a client library made of the answer'),
  cache_control: accepted('every prefix is cached'),
  prompt_cache_breakpoint: accepted('every prefix is cached'),
} satisfies Fields

function readContent(value: unknown, path: string, reading: Reading): string {
  if (typeof value === 'string') return wellFormed(value)
  if (!Array.isArray(value)) throw invalid(path, `must be a string or an array of parts, not ${kindOf(value)}`)
  return value.map((part, i) => readPart(part, `${path}[${i}]`, reading)).join('\n')
}

function readPart(value: unknown, path: string, reading: Reading): string {
  if (typeof value === 'string') return wellFormed(value)
  const { type } = asObject(value, path)
  if (typeof type !== 'string') throw invalid(`${path}.type`, `must be a string, not ${kindOf(type ?? null)}`)
  if (type === 'refusal') return required(readFields(partFields, value, path, reading).refusal, `${path}.refusal`)
  if (['input_text', 'output_text', 'text', 'reasoning_text', 'summary_text'].includes(type)) {
    return required(readFields(partFields, value, path, reading).text, `${path}.text`)
  }
  throw unsupported(`${path}.type`, `'${type.slice(0, 40)}' cannot be honoured: this model reads text only`)
}

function readReasoning(value: unknown, path: string, reading: Reading): string {
  if (!Array.isArray(value)) throw invalid(path, `must be an array of parts, not ${kindOf(value)}`)
  return value.map((part, i) => readPart(part, `${path}[${i}]`, reading)).join('\n')
}

/** `input[0].b` as the steps to it. */
function stepsOf(path: string): (string | number)[] {
  return path.split(/[.[]/).map((step) => (step.endsWith(']') ? Number(step.slice(0, -1)) : step))
}
