// Models that were trained to see all of their reasoning write worse without it, and say nothing. Where the card says so
// (formats.strictReasoning), what is missing is refused, in the words by which clients know the fault.

import { RefrainError } from '../../core/errors.js'
import type { ChatMessage } from '../../core/request.js'
import type { Retention } from './retention.js'

export interface RequiredOptions {
  readonly retention: Retention
  /** Whether the message at this index is known to have no reasoning but what it shows. */
  isKnown(index: number): boolean
}

/**
 * Of a chat with tools: every answer whose reasoning the model is shown must have it. An empty one counts: that is how
 * clients say that there was none.
 * @throws RefrainError `reasoning_missing`.
 */
export function requireReasoning(messages: readonly ChatMessage[], { retention, isKnown }: RequiredOptions): void {
  const marked = messages.map((message) => (message.role === 'assistant' ? { ...message, reasoning: 'r' } : message))
  const shown = retention.retain(marked, { tools: true })
  const lost = messages.findIndex(
    ({ role, reasoning }, i) =>
      role === 'assistant' && reasoning === undefined && shown[i]?.reasoning !== undefined && !isKnown(i),
  )
  if (lost < 0) return
  const param = 'reasoning_content'
  throw new RefrainError(
    'reasoning_missing',
    `The \`${param}\` in the thinking mode must be passed back to the API. (messages[${lost}])`,
    { param },
  )
}
