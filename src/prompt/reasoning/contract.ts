// A parser that takes a model's reasoning out of its text while it streams. One is made per choice, in front of the
// tool-call parser. Promised: however the text is cut into pushes, the joined results are the same.

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

export interface ReasoningFormat extends Kind<Record<string, never>, ReasoningDeps, ReasoningParser> {
  /** Special tokens that the form is written with, as the vocabulary spells them; the parser sees them as text. */
  readonly specials: readonly string[]
  /** What a model begins to reason with where the prompt has not; undefined: it does not. */
  readonly opening?: string
  /** What ends the reasoning; undefined: there is none. */
  readonly ending: string | undefined
  /** What stands between that and a plain answer. */
  readonly answerStart?: string
  /**
   * Where an answer to `prompt` begins: in the reasoning; before it, where a model may or may not reason; or behind it,
   * because the template closed it.
   */
  begins(prompt: string): 'inside' | 'before' | 'behind'
}
