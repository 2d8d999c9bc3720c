// A parser of what a model says when it calls tools: visible text in, content and calls out, while it streams. A dialect
// makes one per choice and drops it with the choice. Promised: however the text is cut into pushes, the joined results
// are the same; nothing that was pushed is lost (a call that can't be parsed comes out as content).

import type { Kind } from '../../core/kind.js'

export interface CallDelta {
  /** Counts the calls of one answer from 0. */
  readonly index: number
  /** In the first delta of a call, with its name. The same call text at the same index has the same id. */
  readonly id?: string
  readonly name?: string
  /** A further piece of the raw JSON text of the arguments. */
  readonly argumentsDelta?: string
}

export interface ParsedText {
  readonly content: string
  readonly calls: readonly CallDelta[]
}

export interface ToolCallParser {
  push(text: string): ParsedText
  /** The text is over: what was held back comes out. */
  end(): ParsedText
}

export type ToolCallFormat = Kind<Record<string, never>, undefined, ToolCallParser>
