// A chat's messages and tools as the values that a template reads: dictionaries with the keys of the Chat Completions
// API, in its order. Invariant: arguments of tool calls are parsed unless the template takes only text, and every number
// in them keeps its spelling.

import { createHash } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import { RefrainError } from '../core/errors.js'
import type { ChatMessage, ToolCall, ToolDefinition } from '../core/request.js'
import { parseJson, SharedDict, type Value } from './jinja/index.js'
import { ownCopy } from './own-copy.js'

/** What a template wants to be given, found by probing it. */
export interface MessageShape {
  /** Arguments of a call: parsed, or the raw text. */
  readonly arguments: 'object' | 'text'
  /** Ids of tool calls: as they come, or nine letters and digits (Mistral's templates refuse others). */
  readonly ids: 'any' | 'nine'
  /** The key that a message's reasoning goes by. */
  readonly reasoning: 'reasoning_content' | 'reasoning' | 'thinking'
}

/** Parses a client's JSON. @throws SyntaxError */
export type JsonReader = (text: string) => Value

// About what a parsed value weighs for each character of its text, its printed form included.
const BYTES_A_CHARACTER = 14

/**
 * A reader that remembers what it read, up to `maxBytes`: an agent sends the same tools and the same old calls with every
 * request.
 */
export function createJsonReader(maxBytes: number): JsonReader {
  const known = new LRUCache<string, { readonly value: Value }>({
    maxSize: maxBytes,
    sizeCalculation: (_, text) => 100 + BYTES_A_CHARACTER * text.length,
  })
  return (text) => {
    const found = known.get(text)
    if (found !== undefined) return found.value
    const own = ownCopy(text)
    const value = parseJson(own)
    known.set(own, { value })
    return value
  }
}

/** @throws RefrainError `invalid_request` for a definition that is not JSON or is nested too deep. */
export function toolValues(tools: readonly ToolDefinition[], read: JsonReader): Value[] {
  return tools.map((tool, i) => {
    try {
      return read(tool.json)
    } catch (cause) {
      if (!(cause instanceof SyntaxError)) throw cause
      throw new RefrainError('invalid_request', `tools[${i}]: ${cause.message}`, { param: 'tools', cause })
    }
  })
}

/** `make`: what the dictionaries are made as. */
export function messageValue(
  message: ChatMessage,
  shape: MessageShape,
  { read, make = plainDict }: { readonly read: JsonReader; readonly make?: (entries: Entries) => Dict },
): Dict {
  const entries: [Value, Value][] = [
    ['role', message.role],
    ['content', message.content],
  ]
  if (message.name !== undefined) entries.push(['name', message.name])
  if (message.reasoning !== undefined) entries.push([shape.reasoning, message.reasoning])
  if (message.toolCalls !== undefined && message.toolCalls.length > 0) {
    const calls = message.toolCalls.map((call) => callValue(call, shape, { read, make }))
    entries.push(['tool_calls', make === plainDict ? calls : Object.freeze(calls)])
  }
  if (message.toolCallId !== undefined) entries.push(['tool_call_id', idFor(message.toolCallId, shape)])
  return make(entries)
}

type Entries = Iterable<readonly [Value, Value]>
type Dict = Map<Value, Value>

const plainDict = (entries: Entries): Dict => new Map(entries)
const sharedDict = (entries: Entries): Dict => new SharedDict(entries)

function callValue(
  call: ToolCall,
  shape: MessageShape,
  { read, make }: { readonly read: JsonReader; readonly make: (entries: Entries) => Dict },
): Value {
  const text = shape.arguments === 'text' ? call.arguments : parsedArguments(call.arguments, read)
  return make([
    ['id', idFor(call.id, shape)],
    ['type', 'function'],
    [
      'function',
      make([
        ['name', call.name],
        ['arguments', text],
      ]),
    ],
  ])
}

// About what a message's value and the texts that loops remember for it weigh: the content in each, some dictionaries.
const MESSAGE_BYTES = 1000
const CONTENT_WEIGHT = 6

interface KnownMessage {
  readonly message: ChatMessage
  readonly value: Dict
}

/** What messages are for one rendering, each a value of its own. */
export type MessageReader = (messages: readonly ChatMessage[]) => Value[]

/**
 * A reader that gives the very same value for a message that it read before, up to `maxBytes` of them, so that loops may
 * remember what they wrote for it. Templates cannot change such a value.
 */
export function createMessageReader(shape: MessageShape, read: JsonReader, maxBytes: number): MessageReader {
  if (maxBytes === 0) return (messages) => messages.map((message) => messageValue(message, shape, { read }))
  const known = new LRUCache<string, KnownMessage>({
    maxSize: maxBytes,
    sizeCalculation: ({ message }) => MESSAGE_BYTES + CONTENT_WEIGHT * unitsOf(message),
  })
  return (messages) => {
    const taken = new Set<Value>()
    return messages.map((message) => {
      const key = keyOf(message)
      const found = known.get(key)
      const isSame = found !== undefined && sameMessage(found.message, message)
      // A message that says the same as an earlier one still has a place of its own.
      if (isSame && taken.has(found.value)) return messageValue(message, shape, { read })
      const value = isSame ? found.value : messageValue(message, shape, { read, make: sharedDict })
      if (!isSame) known.set(key, { message, value })
      taken.add(value)
      return value
    })
  }
}

// Texts of 400 KB are compared in less time than they are hashed in, so the key has but their ends and lengths.
const KEY_UNITS = 24

function keyOf({ role, content, name, reasoning, toolCallId, toolCalls }: ChatMessage): string {
  const calls = toolCalls?.map((call) => `${call.id} ${call.arguments.length}`).join(' ') ?? ''
  const ends = content.slice(0, KEY_UNITS) + content.slice(-KEY_UNITS)
  return `${role} ${content.length} ${reasoning?.length} ${name} ${toolCallId} ${calls} ${ends}`
}

function sameMessage(a: ChatMessage, b: ChatMessage): boolean {
  return (
    a.role === b.role &&
    a.content === b.content &&
    a.reasoning === b.reasoning &&
    a.name === b.name &&
    a.toolCallId === b.toolCallId &&
    (a.toolCalls?.length ?? 0) === (b.toolCalls?.length ?? 0) &&
    (a.toolCalls ?? []).every((call, i) => {
      const other = b.toolCalls![i]!
      return call.id === other.id && call.name === other.name && call.arguments === other.arguments
    })
  )
}

function unitsOf({ content, reasoning = '', toolCalls = [] }: ChatMessage): number {
  return toolCalls.reduce((sum, call) => sum + call.arguments.length, content.length + reasoning.length)
}

/** The object that `text` holds, or `text` itself where it holds none: a model may have written broken JSON. */
function parsedArguments(text: string, read: JsonReader): Value {
  try {
    const value = read(text)
    return value instanceof Map ? value : text
  } catch (error) {
    if (error instanceof SyntaxError) return text
    throw error
  }
}

const NINE = /^[A-Za-z0-9]{9}$/

// The same id always becomes the same nine characters, or the prefix would change from turn to turn.
function idFor(id: string, shape: MessageShape): string {
  if (shape.ids === 'any' || NINE.test(id)) return id
  return createHash('sha256').update(id).digest('base64').replace(/[+/=]/g, '').slice(0, 9)
}
