// Tells the text of a chat's answer apart while it streams: every token and end event gets its `split`. One splitter for
// each choice, made from the model's formats. Stands between backend and dialect, so that all dialects see the same.

import type { GenerateEvent } from '../core/events.js'
import { NamePatterns } from '../core/name-pattern.js'
import type { GenerateRequest, ToolChoice } from '../core/request.js'
import type { ModelFormats } from './contract.js'
import { OutputSplitter } from './output-splitter.js'
import type { ToolCallParser } from './tool-calls/contract.js'

/** `tail` is the end of the rendered prompt. Events come back as they are where there is nothing to tell apart. */
export function splitEvents(
  events: AsyncIterable<GenerateEvent>,
  request: GenerateRequest,
  { formats, tail }: { readonly formats: ModelFormats; readonly tail: string },
): AsyncIterable<GenerateEvent> {
  const { prompt } = request
  if (prompt.kind !== 'chat') return events
  const { reasoning, toolCalls } = formats
  const callable = prompt.tools.length > 0 && request.toolChoice?.mode !== 'none'
  const parsesCalls = callable && toolCalls !== undefined
  if (reasoning === undefined && !parsesCalls) return events
  const splitters = Array.from(
    { length: request.n },
    () =>
      new OutputSplitter({
        ...(reasoning === undefined ? {} : { reasoning: reasoning(tail) }),
        ...(parsesCalls ? { toolCalls: narrowed(toolCalls(prompt.tools), request.toolChoice) } : {}),
      }),
  )
  return split(events, splitters)
}

/** Also where no decoder could be held to it: a call that may not be made never reaches the client as one. */
function narrowed(parser: ToolCallParser, choice: ToolChoice | undefined): ToolCallParser {
  if (choice?.allowed === undefined) return parser
  const allowed = new NamePatterns(choice.allowed)
  parser.narrow?.((name) => allowed.has(name))
  return parser
}

async function* split(
  events: AsyncIterable<GenerateEvent>,
  splitters: readonly OutputSplitter[],
): AsyncGenerator<GenerateEvent, void> {
  for await (const event of events) {
    const splitter = event.type === 'token' || event.type === 'end' ? splitters[event.choice] : undefined
    if (splitter === undefined) yield event
    else if (event.type === 'token') yield { ...event, split: splitter.push(event.text) }
    else if (event.type === 'end') yield { ...event, split: splitter.end() }
  }
}
