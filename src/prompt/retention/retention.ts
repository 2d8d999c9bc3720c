// Which reasoning of earlier turns a model is shown: pure functions from messages to messages, chosen by the model's card
// (formats.retention). Stands in front of the template. Invariant: nothing but `reasoning` of assistant messages is ever
// dropped, and the same messages always give the same result, so that a prefix stays put for as long as its policy lets it.

import type { ChatMessage } from '../../core/request.js'

export interface RetentionOptions {
  /** Whether the chat works with tools: some are defined, or calls or results stand in it. */
  readonly tools: boolean
}

export interface Retention {
  /** The messages as the model is shown them. */
  retain(messages: readonly ChatMessage[], options: RetentionOptions): readonly ChatMessage[]
  /**
   * True: reasoning that is retained is shown as it was generated, even where the template would leave it out. False: the
   * template has the last word.
   */
  readonly beyondTemplate: boolean
}
