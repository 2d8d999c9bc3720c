// Tools that the server runs itself: a stored result is read on, memory blocks are edited, a compaction is asked for. They
// stand in the head from a session's beginning, so that they never change its prefix. Invariant: a call gets a result
// whatever it asks for; what goes wrong is a sentence that the model can read.

import type { ToolDefinition } from '../core/request.js'
import type { BuiltIn } from './contract.js'
import type { StoredResult } from './log/contract.js'
import type { MemoryEvent, NewEvent } from './log/event.js'

interface Parameter {
  readonly type: 'string' | 'integer'
  readonly description: string
}

function definition(
  name: string,
  description: string,
  parameters: Readonly<Record<string, Parameter>>,
  required: readonly string[],
): ToolDefinition {
  const json = JSON.stringify({
    type: 'function',
    function: { name, description, parameters: { type: 'object', properties: parameters, required } },
  })
  return { name, json }
}

const READ_RESULT = definition(
  'read_result',
  'Reads on in a result that was too long to be shown whole.',
  {
    locator: { type: 'string', description: 'As the shortened result names it.' },
    offset: { type: 'integer', description: 'Character to begin with, from 0.' },
    length: { type: 'integer', description: 'Characters.' },
  },
  ['locator'],
)
const COMPACT = definition(
  'compact',
  'Shortens the conversation so far to what matters, once all calls have their results. Use it between two tasks.',
  {},
  [],
)
const MEMORY_SET = definition(
  'memory_set',
  'Writes a block of memory, which stays in view when the conversation is shortened. Replaces what it held.',
  {
    label: { type: 'string', description: 'Name of the block.' },
    value: { type: 'string', description: 'What it holds from now on.' },
  },
  ['label', 'value'],
)
const MEMORY_CLEAR = definition(
  'memory_clear',
  'Takes a block of memory away.',
  { label: { type: 'string', description: 'Name of the block.' } },
  ['label'],
)

const DEFINITIONS: Readonly<Record<BuiltIn, readonly ToolDefinition[]>> = {
  read_result: [READ_RESULT],
  compact: [COMPACT],
  memory: [MEMORY_SET, MEMORY_CLEAR],
}

export const builtIns = Object.keys(DEFINITIONS) as readonly BuiltIn[]

const definitions = new Map(
  Object.values(DEFINITIONS)
    .flat()
    .map(({ name, json }) => [name, json]),
)

/**
 * Whether it is one of these, and not a client's own of the same name. Logs have their texts: one that is worded anew must
 * still be known by its old text.
 */
export function isBuiltInTool({ name, json }: ToolDefinition): boolean {
  return definitions.get(name) === json
}

export function builtInTools(chosen: readonly BuiltIn[]): readonly ToolDefinition[] {
  return builtIns.filter((each) => chosen.includes(each)).flatMap((each) => DEFINITIONS[each])
}

export interface MemoryBlock {
  readonly value: string
  readonly limitTokens?: number
  /** Its id, where several sessions see it. */
  readonly shared?: string
}

/** What the calls of a session may touch. */
export interface BuiltInDeps {
  result(locator: string): Promise<StoredResult | undefined>
  memory(label: string): MemoryBlock | undefined
  countTokens(text: string): number
  /** Tokens of a block that says nothing of it. */
  readonly memoryTokens: number
  /** Characters that are read at once when the call does not say. */
  readonly readChars: number
}

export interface BuiltInCall {
  readonly id: string
  readonly name: string
  readonly arguments: string
}

/** The result of a call, behind what it changed. */
export async function runBuiltIn(call: BuiltInCall, deps: BuiltInDeps): Promise<readonly NewEvent[]> {
  const args = argumentsOf(call.arguments)
  if (args === undefined) return [resultOf(call, 'the arguments are no JSON object', true)]
  if (call.name === 'read_result') return readResult(call, args, deps)
  if (call.name === 'memory_set' || call.name === 'memory_clear') return editMemory(call, args, deps)
  return [resultOf(call, 'The conversation will be shortened before the next answer.', false)]
}

type Arguments = Readonly<Record<string, unknown>>

function argumentsOf(json: string): Arguments | undefined {
  try {
    const value: unknown = JSON.parse(json === '' ? '{}' : json)
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Arguments) : undefined
  } catch {
    // What a model writes is not always JSON; it is told so.
    return undefined
  }
}

async function readResult(call: BuiltInCall, args: Arguments, deps: BuiltInDeps): Promise<readonly NewEvent[]> {
  const locator = typeof args['locator'] === 'string' ? args['locator'] : ''
  const stored = await deps.result(locator)
  if (stored === undefined) return [resultOf(call, `no result is stored under '${locator.slice(0, 200)}'`, true)]
  const offset = Math.max(0, integerOf(args['offset']) ?? 0)
  const length = Math.min(deps.readChars, Math.max(1, integerOf(args['length']) ?? deps.readChars))
  const text = stored.text.slice(offset, offset + length)
  const left = stored.text.length - offset - text.length
  const more = left > 0 ? `\n[${left} characters follow; read on with offset ${offset + text.length}]` : ''
  const { body } = resultOf(call, text === '' ? `[it ends at ${stored.text.length}]` : text + more, false)
  return [{ body, sources: stored.sources }]
}

function editMemory(call: BuiltInCall, args: Arguments, deps: BuiltInDeps): readonly NewEvent[] {
  const { label, value } = args
  if (typeof label !== 'string' || label === '') return [resultOf(call, "'label' must be a name", true)]
  const known = deps.memory(label)
  const named = { kind: 'memory', label, ...(known?.shared !== undefined && { shared: known.shared }) } as const
  if (call.name === 'memory_clear') {
    if (known === undefined) return [resultOf(call, `there is no block '${label}'`, true)]
    return [{ body: named }, resultOf(call, `'${label}' is gone.`, false)]
  }
  if (typeof value !== 'string') return [resultOf(call, "'value' must be text", true)]
  const limit = known?.limitTokens ?? deps.memoryTokens
  const complaint = memoryComplaint(value, limit, deps)
  if (complaint !== undefined) return [resultOf(call, complaint, true)]
  const body: MemoryEvent = {
    ...named,
    value,
    ...(known?.limitTokens !== undefined && { limitTokens: known.limitTokens }),
  }
  return [{ body }, resultOf(call, `'${label}' is written.`, false)]
}

/** Why a value is too long for its block; undefined: it fits. */
export function memoryComplaint(
  value: string,
  limitTokens: number,
  { countTokens }: Pick<BuiltInDeps, 'countTokens'>,
): string | undefined {
  const tokens = countTokens(value)
  if (tokens <= limitTokens) return undefined
  return `the value has ${tokens} tokens and the block holds ${limitTokens}: shorten it`
}

function resultOf({ id }: BuiltInCall, content: string, isError: boolean): NewEvent {
  return { body: { kind: 'tool_result', callId: id, content, ...(isError && { error: true }) } }
}

function integerOf(value: unknown): number | undefined {
  return typeof value === 'number' && Number.isSafeInteger(value) ? value : undefined
}
