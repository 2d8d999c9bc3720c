// System messages that a template has no place for, in mid-conversation or at its end: they become reminders in the user's
// voice right where they stand. Invariant: what stands in front of a message never changes because of what comes behind
// it, so a prefix stays a prefix; to lift such messages to the top would make every turn a new prompt.

import type { ChatMessage } from '../core/request.js'

/** A message on its way to a template, and the index of the given one that it stands for; undefined: it was added. */
export interface Placed {
  readonly message: ChatMessage
  readonly origin: number | undefined
}

export interface SystemPlaces {
  /** Which system messages a template renders where they are. */
  readonly system: 'all' | 'first' | 'none' | 'refused'
  /** It refuses or loses the second of two messages of a user's. */
  readonly alternates: boolean
}

/** `messages` with every system message that is not a leading one as a reminder, unless the template renders it in place. */
export function withSystemInPlace(messages: readonly ChatMessage[], { system, alternates }: SystemPlaces): Placed[] {
  const placed = messages.map((message, origin): Placed => ({ message, origin }))
  if (system === 'all') return placed
  const lead = messages.findIndex((message) => message.role !== 'system')
  const rest = lead < 0 ? messages.length : lead
  if (!messages.some((message, i) => message.role === 'system' && i >= Math.min(rest, 1))) return placed
  const out = leading(placed.slice(0, rest))
  for (let i = rest; i < placed.length; i++) {
    const { message, origin } = placed[i]!
    if (message.role !== 'system') {
      out.push(placed[i]!)
      continue
    }
    const reminder = `<system-reminder>\n${message.content}\n</system-reminder>`
    const before = alternates ? out.at(-1) : undefined
    const after = alternates ? placed[i + 1] : undefined
    if (before?.message.role === 'user' || before?.message.role === 'tool') {
      out[out.length - 1] = { ...before, message: joined(before.message, before.message.content, reminder) }
    } else if (after?.message.role === 'user') {
      placed[i + 1] = { ...after, message: joined(after.message, reminder, after.message.content) }
    } else out.push({ message: { role: 'user', content: reminder }, origin })
  }
  return out
}

/** Leading system messages as the one that there is a place for. */
function leading(placed: readonly Placed[]): Placed[] {
  const first = placed[0]
  if (first === undefined || placed.length === 1) return [...placed]
  const content = placed.map(({ message }) => message.content).filter((text) => text !== '')
  return [{ ...first, message: joined(first.message, ...content) }]
}

function joined(message: ChatMessage, ...texts: readonly string[]): ChatMessage {
  return { ...message, content: texts.join('\n\n') }
}
