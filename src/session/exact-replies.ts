// Kept replies for messages that are known to the letter: those of a logged session are what was generated, and a reply is
// theirs only where it says just that. Invariant: no message is changed.

import type { ChatMessage } from '../core/request.js'
import type { Recalled } from './recall.js'

export function exactReplies(messages: readonly ChatMessage[], recalled: Recalled): Recalled {
  const isWhole = recalled.messages.length === messages.length
  const replies = messages.map((message, i) => {
    const reply = isWhole ? recalled.replies[i] : undefined
    return reply !== undefined && saysSame(message, reply.message) ? reply : undefined
  })
  return { ...recalled, messages, replies, places: messages.map((_, i) => i) }
}

type Said = Pick<ChatMessage, 'content' | 'reasoning' | 'toolCalls'>

function saysSame(a: Said, b: Said): boolean {
  const [calls, others] = [a.toolCalls ?? [], b.toolCalls ?? []]
  return (
    a.content === b.content &&
    (a.reasoning ?? '') === (b.reasoning ?? '') &&
    calls.length === others.length &&
    calls.every((call, i) => call.name === others[i]?.name && call.arguments === others[i]?.arguments)
  )
}
