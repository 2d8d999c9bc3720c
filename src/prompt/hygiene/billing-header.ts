// Takes out the attribution that Claude Code begins its system text with: `x-anthropic-billing-header: ...; cch=36ee5;`,
// a block or a line of its own, whose last part changes with every request and would make every prefix a new one.

import Type from 'typebox'
import type { ChatMessage } from '../../core/request.js'
import type { HygieneKind } from './hygiene.js'

/** Lines of that kind at the very start, with the line breaks between and behind them. */
const ATTRIBUTION = /^(?:[ \t\r\n]*x-anthropic-[\w-]+:[^\n]*(?:\n|$))+/

export const billingHeader: HygieneKind = {
  options: Type.Object({}),
  create: () => ({ apply: withoutAttribution }),
}

function withoutAttribution(messages: readonly ChatMessage[]): readonly ChatMessage[] {
  // Blocks of the system text may have come as messages of their own.
  const end = messages.findIndex(({ role }) => role !== 'system')
  const head = end < 0 ? messages : messages.slice(0, end)
  if (!head.some(({ content }) => ATTRIBUTION.test(content))) return messages
  const kept = head.flatMap((message) => {
    const content = message.content.replace(ATTRIBUTION, '')
    if (content === message.content) return [message]
    return content.trim() === '' ? [] : [{ ...message, content }]
  })
  return [...kept, ...messages.slice(head.length)]
}
