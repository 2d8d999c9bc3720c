// Tools for a template that knows none, in the Hermes form: definitions in the system message, calls and results as text
// in tags that tool-calls/hermes.ts reads back. Invariant: what comes out has only plain messages, so any template renders
// it, and a call that the model wrote is rendered again as it was written.

import type { ChatMessage, ToolCall } from '../core/request.js'
import { parseJson, printJson, type Value } from './jinja/index.js'

const INTRODUCTION = `# Tools

You can call functions. Their signatures stand between <tools> and </tools>, one JSON object on each line:
<tools>
`
const INSTRUCTION = `
</tools>

To call a function, answer with a JSON object of its name and its arguments between <tool_call> and </tool_call>:
<tool_call>
{"name": "function name", "arguments": {"argument": "value"}}
</tool_call>`

/**
 * `messages` and the definitions `tools` as messages without tools. The definitions go into the message of `place`: the system message,
 * made where there is none, or the first user message where the template has no place for a system message.
 */
export function withToolsAsText(
  messages: readonly ChatMessage[],
  tools: readonly Value[],
  place: 'system' | 'user',
): ChatMessage[] {
  const plain = messages.flatMap((message, i) => {
    if (message.role === 'tool') return messages[i - 1]?.role === 'tool' ? [] : [results(messages, i)]
    return message.toolCalls === undefined ? [message] : [withCalls(message, message.toolCalls)]
  })
  if (tools.length === 0) return plain
  const definitions = tools.map((tool) => printJson(tool))
  const block = INTRODUCTION + definitions.join('\n') + INSTRUCTION
  const at = place === 'user' ? plain.findIndex((message) => message.role === 'user') : 0
  const host = plain[at]
  if (host?.role !== place) return [{ role: place, content: block }, ...plain]
  const parts = place === 'user' ? [block, host.content] : [host.content, block]
  return plain.with(at, { ...host, content: parts.filter((part) => part !== '').join('\n\n') })
}

function withCalls(message: ChatMessage, calls: readonly ToolCall[]): ChatMessage {
  const { toolCalls: _, ...plain } = message
  const text = calls.map(callText)
  return { ...plain, content: [...(message.content === '' ? [] : [message.content]), ...text].join('\n') }
}

function callText(call: ToolCall): string {
  const argumentsText = isJson(call.arguments) ? call.arguments : JSON.stringify(call.arguments)
  return `<tool_call>\n{"name": ${JSON.stringify(call.name)}, "arguments": ${argumentsText}}\n</tool_call>`
}

function isJson(text: string): boolean {
  try {
    parseJson(text)
    return true
  } catch (error) {
    if (error instanceof SyntaxError) return false
    throw error
  }
}

// All results of one step are one user turn.
function results(messages: readonly ChatMessage[], start: number): ChatMessage {
  const rest = messages.slice(start)
  const end = rest.findIndex((message) => message.role !== 'tool')
  const group = end < 0 ? rest : rest.slice(0, end)
  const content = group.map((message) => `<tool_response>\n${message.content}\n</tool_response>`).join('\n')
  return { role: 'user', content }
}
