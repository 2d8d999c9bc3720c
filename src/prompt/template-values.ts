// A chat's messages and tools as the values that a template reads: dictionaries with the keys of the Chat Completions
// API, in its order. Invariant: arguments of tool calls are parsed unless the template takes only text, and every number
// in them keeps its spelling.

import { createHash } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import { RefrainError } from '../core/errors.js'
import type { ChatMessage, ToolCall, ToolDefinition } from '../core/request.js'
import { parseJson, type Value } from './jinja/index.js'
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

export function messageValue(message: ChatMessage, shape: MessageShape, read: JsonReader): Value {
  const value = new Map<Value, Value>([
    ['role', message.role],
    ['content', message.content],
  ])
  if (message.name !== undefined) value.set('name', message.name)
  if (message.reasoning !== undefined) value.set(shape.reasoning, message.reasoning)
  if (message.toolCalls !== undefined && message.toolCalls.length > 0) {
    value.set(
      'tool_calls',
      message.toolCalls.map((call) => callValue(call, shape, read)),
    )
  }
  if (message.toolCallId !== undefined) value.set('tool_call_id', idFor(message.toolCallId, shape))
  return value
}

function callValue(call: ToolCall, shape: MessageShape, read: JsonReader): Value {
  return new Map<Value, Value>([
    ['id', idFor(call.id, shape)],
    ['type', 'function'],
    [
      'function',
      new Map<Value, Value>([
        ['name', call.name],
        ['arguments', shape.arguments === 'text' ? call.arguments : parsedArguments(call.arguments, read)],
      ]),
    ],
  ])
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
