// Tools for a template that knows none, in the Hermes form: definitions in the system message, calls and results as text
// in tags that tool-calls/hermes.ts reads back. Invariant: what comes out has only plain messages, so any template renders
// it, and a call that the model wrote is rendered again as it was written.

import type { ChatMessage, ToolCall } from '../core/request.js'
import { parseJson, printJson, type Value } from './jinja/index.js'
import type { Placed } from './template-system.js'

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
 * `messages` and the definitions `tools` as messages without tools. The definitions go into the message of `place`: the
 * system message, made where there is none, or the first user message where the template has no place for a system one.
 * Results that stand side by side become one message, which stands for the first of them.
 */
export function withToolsAsText(
  messages: readonly Placed[],
  tools: readonly Value[],
  place: 'system' | 'user',
): Placed[] {
  const plain = messages.flatMap(({ message, origin }, i): Placed[] => {
    if (message.role === 'tool') {
      return messages[i - 1]?.message.role === 'tool' ? [] : [{ message: results(messages, i), origin }]
    }
    return [{ message: message.toolCalls === undefined ? message : withCalls(message, message.toolCalls), origin }]
  })
  if (tools.length === 0) return plain
  const definitions = tools.map((tool) => printJson(tool))
  const block = INTRODUCTION + definitions.join('\n') + INSTRUCTION
  const at = place === 'user' ? plain.findIndex(({ message }) => message.role === 'user') : 0
  const host = plain[at]
  if (host?.message.role !== place) return [{ message: { role: place, content: block }, origin: undefined }, ...plain]
  const { content } = host.message
  const parts = place === 'user' ? [block, content] : [content, block]
  const message = { ...host.message, content: parts.filter((part) => part !== '').join('\n\n') }
  return plain.with(at, { ...host, message })
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
function results(messages: readonly Placed[], start: number): ChatMessage {
  const texts: string[] = []
  for (let i = start; messages[i]?.message.role === 'tool'; i++) {
    texts.push(`<tool_response>\n${messages[i]!.message.content}\n</tool_response>`)
  }
  return { role: 'user', content: texts.join('\n') }
}
