// The pieces that every form's structure is put together from: a choice of tools, and how many calls of them.

import type { Structure } from '../../core/request.js'
import type { CallableTool, CallCount } from './contract.js'

export const literal = (text: string): Structure => ({ kind: 'literal', text })

export const sequence = (...parts: readonly Structure[]): Structure => ({ kind: 'sequence', parts })

/** A tool's arguments as one JSON object. */
export function jsonArguments({ schema }: CallableTool): Structure {
  return schema === undefined ? { kind: 'json' } : { kind: 'json-schema', schema }
}

/** `count` calls of any of `tools`, each in the form of `one`. */
export function repeated(
  tools: readonly CallableTool[],
  { min, max }: CallCount,
  { one, separator }: { one(tool: CallableTool): Structure; readonly separator: string },
): Structure {
  const part: Structure = { kind: 'choice', parts: tools.map(one) }
  return { kind: 'repeat', part, min, ...(max === undefined ? {} : { max }), separator }
}
