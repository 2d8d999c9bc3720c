// Some clients put the reasoning of an answer into its content when they send it back, tags and all. Here it becomes
// reasoning again, so that it is retained by the model's rule and the answer is known for what it was. In front of the
// search for kept replies, step 3. Invariant: only an answer that begins with whole reasoning in the model's own form.

import type { ChatMessage } from '../core/request.js'
import type { ModelFormats } from './contract.js'

/** The very same list where there is nothing to take apart. */
export function reasoningApart(messages: readonly ChatMessage[], formats: ModelFormats): readonly ChatMessage[] {
  const { reasoning, reasoningStart, reasoningEnd } = formats
  if (reasoning === undefined || reasoningStart === undefined || reasoningEnd === undefined) return messages
  const isInline = ({ role, content, reasoning: own = '' }: ChatMessage) =>
    role === 'assistant' &&
    own === '' &&
    content.trimStart().startsWith(reasoningStart) &&
    content.includes(reasoningEnd)
  if (!messages.some(isInline)) return messages
  return messages.map((message) => {
    if (!isInline(message)) return message
    const parser = reasoning('')
    const [whole, held] = [parser.push(message.content), parser.end()]
    const thought = whole.reasoning + held.reasoning
    const content = whole.content + held.content
    return { ...message, content, ...(thought !== '' && { reasoning: thought }) }
  })
}
