// A parser of what a model says when it calls tools: visible text in, content and calls out, while it streams. One is
// made per choice and dropped with the choice. Promised: however the text is cut into pushes, the joined results are the
// same; nothing that was pushed is lost (a call that can't be parsed comes out as content, with a note).

import type { CallDelta } from '../../core/events.js'
import type { Kind } from '../../core/kind.js'
import type { Structure, ToolDefinition } from '../../core/request.js'

export interface ParsedText {
  readonly content: string
  readonly calls: readonly CallDelta[]
}

export interface ToolCallParser {
  /** Before the first push: a call of a name that may not be called is content. */
  narrow?(mayCall: (name: string) => boolean): void
  push(text: string): ParsedText
  /** The text is over: what was held back comes out. */
  end(): ParsedText
}

export interface ToolCallDeps {
  /** What may be called: forms without types in them take the arguments' types from the definitions. */
  readonly tools: readonly ToolDefinition[]
}

/** A tool that the decoder may let the model call. */
export interface CallableTool {
  readonly name: string
  /** JSON Schema of the arguments, raw; undefined: any object. */
  readonly schema: string | undefined
}

/** How many calls; `max` undefined: any number. */
export interface CallCount {
  readonly min: number
  readonly max?: number
}

export interface ToolCallFormat extends Kind<Record<string, never>, ToolCallDeps, ToolCallParser> {
  /** Special tokens that the form is written with, as the vocabulary spells them; the parser sees them as text. */
  readonly specials: readonly string[]
  /** What every text of `calls` begins with: while the model is free to talk, this begins the constrained part. */
  readonly trigger: string
  /** `min` to `max` calls of `tools`, and nothing else, in this form; a parser of the same format reads each of them. */
  calls(tools: readonly CallableTool[], count: CallCount): Structure
}
