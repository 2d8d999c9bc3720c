// Bodies of the session routes, read into events. Invariant: a client can log what it does and sees; what the server decides
// (compactions, turns, forks, revocations) comes by routes of its own. Every complaint names the field.

import type { ToolDefinition } from '../core/request.js'
import type { BuiltIn, EventBody, EventKind, NewEvent, NewSession } from '../session/contract.js'
import {
  boolean,
  custom,
  type Field,
  integer,
  invalid,
  listOf,
  object,
  oneOf,
  type ReadOf,
  required,
  schemaOf,
  shallow,
  text,
} from './dialect/fields.js'
import { tools } from './dialect/openai-messages.js'

const KINDS = [
  ...(['head', 'user', 'assistant', 'tool_call', 'tool_result', 'note', 'memory', 'layer', 'attempt'] as const),
] as const satisfies readonly EventKind[]

const sources = listOf(text('Id of a source.'), 'What it was derived from.')

const eventFields = {
  type: oneOf(KINDS, 'What happened.'),
  key: text("The client's own name of the event: sent again, it is the one that is there."),
  sources,
  layer: text('The layer that it was read from.'),
  content: text('Of user, assistant, tool_result, note: the text.'),
  name: text('Of user: who speaks. Of tool_call: the tool.'),
  reasoning: text('Of assistant: what it thought.'),
  layer_id: text('Of layer: its id.'),
  arguments: text('Of tool_call: JSON text.'),
  call_id: text('Of tool_call: its id. Of tool_result: the call.'),
  error: boolean('Of tool_result: it is the error of a tool.'),
  tail: oneOf(
    ['ephemeral', 'kept'],
    'Of note: replaced by the next of its label, behind all else; or kept where it was said.',
  ),
  label: text('Of note, memory: its name.'),
  value: text('Of memory: what it holds; absent: it is gone.'),
  limit_tokens: integer({ min: 1 }, 'Of memory: tokens that it may hold.'),
  shared: text('Of memory: the id of a block of /v1/memory.'),
  apply: oneOf(['append', 'boundary', 'now'], 'Of head: when it is seen. Default boundary.'),
  system: text('Of head: the system text.'),
  tools,
  parent: text('Of layer: the one below.'),
  outcome: oneOf(['failed', 'retried', 'cancelled'], 'Of attempt.'),
  reason: text('Of attempt: why.'),
}

type EventRead = ReadOf<typeof eventFields>

const LABEL_CHARS = 128

const event: Field<NewEvent> = custom(
  { ...schemaOf(eventFields, ['type']), description: 'An event.' },
  (value, path, reading) => {
    const read = object(eventFields, '').read(value, path, reading)
    const body = bodyOf(read, path)
    const { key, sources: own, layer } = read
    if (key !== undefined && (key === '' || key.length > LABEL_CHARS))
      throw invalid(`${path}.key`, `must have 1 to ${LABEL_CHARS} characters`)
    return {
      body: key === undefined ? body : { ...body, key },
      ...(own !== undefined && own.length > 0 && { sources: [...new Set(own)].sort() }),
      ...(layer !== undefined && { layer }),
    }
  },
)

/** @throws RefrainError that names what is missing. */
function bodyOf(read: EventRead, path: string): EventBody {
  const at = (key: string) => `${path}.${key}`
  const kind = required(read.type, at('type'))
  const need = (key: 'content' | 'name' | 'layer_id' | 'call_id' | 'label' | 'reason') => required(read[key], at(key))
  switch (kind) {
    case 'user':
      return { kind, content: need('content'), ...(read.name !== undefined && { name: read.name }) }
    case 'assistant':
      return { kind, content: need('content'), ...(read.reasoning !== undefined && { reasoning: read.reasoning }) }
    case 'tool_call':
      return { kind, id: need('call_id'), name: need('name'), arguments: read.arguments ?? '{}' }
    case 'tool_result':
      return { kind, callId: need('call_id'), content: need('content'), ...(read.error === true && { error: true }) }
    case 'note':
      return { kind, tail: read.tail ?? 'ephemeral', label: labelOf(read, path), content: need('content') }
    case 'memory':
      return memoryOf(read, path)
    case 'layer':
      return {
        kind,
        id: need('layer_id'),
        ...(read.parent !== undefined && { parent: read.parent }),
        sources: [...new Set(read.sources ?? [])].sort(),
      }
    case 'attempt':
      return { kind, outcome: required(read.outcome, at('outcome')), reason: need('reason') }
    case 'head':
      if (read.system === undefined && read.tools === undefined) throw invalid(path, "needs 'system' or 'tools'")
      return {
        kind,
        apply: read.apply ?? 'boundary',
        ...(read.system !== undefined && { system: read.system }),
        ...(read.tools !== undefined && { tools: read.tools }),
      }
  }
}

function memoryOf(read: EventRead, path: string): EventBody {
  return {
    kind: 'memory',
    label: labelOf(read, path),
    ...(read.value !== undefined && { value: read.value }),
    ...(read.limit_tokens !== undefined && { limitTokens: read.limit_tokens }),
    ...(read.shared !== undefined && { shared: read.shared }),
  }
}

function labelOf({ label }: EventRead, path: string): string {
  const name = required(label, `${path}.label`)
  if (name !== '' && name.length <= LABEL_CHARS) return name
  throw invalid(`${path}.label`, `must have 1 to ${LABEL_CHARS} characters`)
}

const events = listOf(event, 'In their order; all of them or none.')

export const appendFields = {
  events,
  expected_position: integer({ min: 0 }, 'Where the log must stand; else it is a conflict.'),
}

const BUILT_INS: readonly BuiltIn[] = ['read_result', 'compact', 'memory']

const metadata: Field<string> = custom(
  { type: 'object', description: 'Anything; told with the session.' },
  (value, path, reading) => {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) throw invalid(path, 'must be an object')
    return shallow(reading.raw.at([path]) ?? '{}', path, reading)
  },
)

export const createFields = {
  model: text('Absent: the default model.'),
  system: text('The system text.'),
  tools,
  built_in_tools: listOf(
    oneOf(BUILT_INS, '`read_result`, `compact`, `memory`.'),
    'Tools that the server runs itself. Absent: read_result where there are tools.',
  ),
  events,
  metadata,
}

export function newSessionOf(read: ReadOf<typeof createFields>): NewSession {
  const { model = '', system, tools: sent = [], built_in_tools: chosen, events: first = [] } = read
  return {
    model,
    ...(system !== undefined && { system }),
    tools: checkedTools(sent),
    builtIns: chosen ?? (sent.length > 0 ? ['read_result'] : []),
    events: first,
    ...(read.metadata !== undefined && { metadata: read.metadata }),
  }
}

function checkedTools(sent: readonly ToolDefinition[]): readonly ToolDefinition[] {
  const seen = new Set<string>()
  for (const [i, { name }] of sent.entries()) {
    if (seen.has(name)) throw invalid(`tools[${i}].function.name`, `'${name.slice(0, 64)}' is there twice`)
    seen.add(name)
  }
  return sent
}

export const forkFields = {
  at: integer({ min: 0 }, 'Position of the last event that is shared. Absent: the last there is.'),
  n: integer({ min: 1 }, 'How many forks. Default 1.'),
}

export const compactFields = {
  strategy: text('Instead of the one of the lifecycle policy.'),
}

export const resetFields = {
  artifacts: listOf(text('A locator.'), 'Stored results that are still named.'),
}

export const layerFields = {
  id: text('Of the layer.'),
  parent: text('The one below.'),
  sources,
}

export const sourceFields = {
  state: oneOf(['granted', 'revoked'], 'Whether the tenant may see it.'),
}

export const memoryFields = {
  label: text('Its name in the prompt.'),
  value: text('What it holds.'),
  limit_tokens: integer({ min: 1 }, 'Tokens that it may hold.'),
}
