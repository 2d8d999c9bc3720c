// DeepSeek-V3.2's rule: a new user turn drops the reasoning before it, within a turn all of it stays (between the calls of
// a tool loop). Calls and results stay in any case. A tool result that a harness sends as a user message is a user turn.

import type { ChatMessage } from '../../core/request.js'
import type { Retention } from './retention.js'

export const dropAtUserTurn: Retention = {
  retain: (messages) => withoutReasoningBefore(lastUserTurn(messages), messages),
  beyondTemplate: false,
}

/** Index of the last user message; 0 where there is none. */
export function lastUserTurn(messages: readonly ChatMessage[]): number {
  return Math.max(
    0,
    messages.findLastIndex(({ role }) => role === 'user'),
  )
}

export function withoutReasoningBefore(end: number, messages: readonly ChatMessage[]): readonly ChatMessage[] {
  return messages.map((message, i) => {
    if (i >= end || message.role !== 'assistant' || message.reasoning === undefined) return message
    const { reasoning: _, ...rest } = message
    return rest
  })
}
