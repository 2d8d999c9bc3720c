// Messages that events become. Invariant: what is equal is the same object for as long as its events are, so that whoever
// remembers something of a message (templates do) finds it again; and a message's digest is taken once.

import { hash } from 'node:crypto'
import type { ChatMessage } from '../../../core/request.js'
import type {
  AssistantEvent,
  NoteEvent,
  SessionEvent,
  ToolCallEvent,
  ToolResultEvent,
  UserEvent,
} from '../../log/event.js'
import { FAILED, lateText } from './words.js'

/** An event whose body is of one kind. */
export type Of<Body> = SessionEvent & { readonly body: Body }

interface Made {
  /** What it was made from beside its first event. */
  readonly parts: readonly unknown[]
  readonly message: ChatMessage
}

const made = new WeakMap<SessionEvent, Made>()

/** The message of `event` and `parts`, made anew only where one of the parts is another. */
function once(event: SessionEvent, parts: readonly unknown[], make: () => ChatMessage): ChatMessage {
  const known = made.get(event)
  if (known?.parts.length === parts.length && known.parts.every((part, i) => part === parts[i])) return known.message
  const message = make()
  made.set(event, { parts, message })
  return message
}

export function userMessage(event: Of<UserEvent>): ChatMessage {
  const { content, name } = event.body
  return once(event, [], () => ({ role: 'user', content, ...(name !== undefined && { name }) }))
}

export function noteMessage(event: Of<NoteEvent>): ChatMessage {
  return once(event, [], () => ({ role: 'system', content: event.body.content }))
}

/** An answer with those of its calls that are shown; at least one of the two is there. */
export function answerMessage(
  answer: Of<AssistantEvent> | undefined,
  calls: readonly Of<ToolCallEvent>[],
): ChatMessage {
  return once((answer ?? calls[0]) as SessionEvent, calls, () => ({
    role: 'assistant',
    content: answer?.body.content ?? '',
    ...(answer?.body.reasoning !== undefined && { reasoning: answer.body.reasoning }),
    ...(calls.length > 0 && {
      toolCalls: calls.map(({ body }) => ({ id: body.id, name: body.name, arguments: body.arguments })),
    }),
  }))
}

/** `instead` undefined: the result as it came. */
export function resultMessage(event: Of<ToolResultEvent>, instead: string | undefined): ChatMessage {
  const { callId } = event.body
  const content = instead ?? contentOf(event)
  return once(event, [instead], () => ({ role: 'tool', content, toolCallId: callId }))
}

/** As a user's message: a `tool` message without its call right before it is none, and a system's would be obeyed. */
export function lateMessage(event: Of<ToolResultEvent>, call: Of<ToolCallEvent>): ChatMessage {
  return once(event, [call], () => ({ role: 'user', content: lateText(call.body, contentOf(event)) }))
}

function contentOf({ body: { content, error } }: Of<ToolResultEvent>): string {
  return content === '' && error === true ? FAILED : content
}

const digests = new WeakMap<ChatMessage, string>()

/** SHA-256 in hex over the one serialization that a message has. */
export function messageDigest(message: ChatMessage): string {
  const known = digests.get(message)
  if (known !== undefined) return known
  const { role, content, name, reasoning, toolCallId, toolCalls } = message
  const calls = (toolCalls ?? []).map((call) => [call.id, call.name, call.arguments])
  const digest = hash(
    'sha256',
    JSON.stringify([role, content, name ?? null, reasoning ?? null, toolCallId ?? null, calls]),
  )
  digests.set(message, digest)
  return digest
}

/** UTF-16 units of content and calls. */
export function messageChars({ content, toolCalls }: ChatMessage): number {
  let chars = content.length
  for (const call of toolCalls ?? []) chars += call.name.length + call.arguments.length
  return chars
}
