// A parser that takes a model's reasoning out of its text while it streams. A dialect makes one per choice, in front of
// the tool-call parser. Promised: however the text is cut into pushes, the joined results are the same.

import type { Kind } from '../../core/kind.js'

export interface SplitText {
  readonly reasoning: string
  readonly content: string
}

export interface ReasoningParser {
  push(text: string): SplitText
  /** The text is over: what was held back comes out. */
  end(): SplitText
}

export interface ReasoningDeps {
  /** The end of the rendered prompt: templates that start the reasoning themselves end with its open tag. */
  readonly prompt: string
}

export type ReasoningFormat = Kind<Record<string, never>, ReasoningDeps, ReasoningParser>
