// Finds out what a chat template can do by rendering small chats with marked words and looking for the words. Done once
// per template, at boot. Invariant: nothing here decides on a template's name or source text, only on what it renders.

import type { ChatMessage } from '../core/request.js'
import { parseJson, TemplateFault, type Value } from './jinja/index.js'
import { type MessageShape, messageValue } from './template-values.js'

export interface TemplateTraits extends MessageShape {
  /** What `tools` is when there are none: None, or what the template can go through instead. */
  readonly noTools: null | readonly []
  /** Definitions, calls and results each appear in the text. */
  readonly knows: { readonly definitions: boolean; readonly calls: boolean; readonly results: boolean }
  /** Which system messages appear in the text; `refused`: the template raises on any. */
  readonly system: 'all' | 'first' | 'none' | 'refused'
}

const TOOL = 'refrain_probe_tool'
const KEY = 'refrain_probe_key'
const ARGUMENT = 'refrain_probe_argument'
const RESULT = 'refrain_probe_result'
const REASON = 'refrain_probe_reason'
const [FIRST, SECOND] = ['refrain_probe_first', 'refrain_probe_second']

const SHAPES: readonly MessageShape[] = (['object', 'text'] as const).flatMap((form) =>
  (['any', 'nine'] as const).map((ids) => ({ arguments: form, ids, reasoning: 'reasoning_content' as const })),
)

// Transformers gives None; templates made for tools only go through the list without asking.
const NO_TOOLS = [null, []] as const

/** Renders values as they are; what `createTemplate` gives the probe. */
export type RenderValues = (messages: readonly Value[], tools: Value) => string

export function probeTemplate(render: RenderValues): TemplateTraits {
  const tries = (chat: readonly ChatMessage[], tools: Value, shape = SHAPES[0]!): string | undefined => {
    try {
      return render(
        chat.map((message) => messageValue(message, shape, parseJson)),
        tools,
      )
    } catch (error) {
      if (error instanceof TemplateFault) return undefined
      throw error
    }
  }
  const noTools = NO_TOOLS[NO_TOOLS.findIndex((none) => tries([user('hello')], none) !== undefined)] ?? null
  const shape = bestShape(tries)
  const loop = tries(toolLoop, [tool()], shape) ?? ''
  return {
    ...shape,
    reasoning: reasoningKey(tries, shape),
    noTools,
    knows: {
      definitions: tries([user('hello')], [tool()])?.includes(TOOL) === true,
      calls: showsCall(loop),
      results: loop.includes(RESULT),
    },
    system: systemSupport(tries, noTools),
  }
}

type Try = (chat: readonly ChatMessage[], tools: Value, shape?: MessageShape) => string | undefined

// The parsed form goes first: a template that takes it prints it in the form that its model was trained on.
function bestShape(tries: Try): MessageShape {
  const texts = SHAPES.map((shape) => ({ shape, text: tries(toolLoop, [tool()], shape) }))
  const good = texts.find(({ text }) => text !== undefined && showsCall(text) && text.includes(RESULT))
  const rendering = texts.find(({ text }) => text !== undefined)
  return (good ?? rendering ?? texts[0]!).shape
}

// Text that went through tojson shows up as a string in a string.
function showsCall(text: string): boolean {
  return text.includes(KEY) && text.includes(ARGUMENT) && !text.includes(`\\"${KEY}`)
}

function reasoningKey(tries: Try, shape: MessageShape): MessageShape['reasoning'] {
  const chat = toolLoop.map((message) => (message.role === 'assistant' ? { ...message, reasoning: REASON } : message))
  const keys = ['reasoning_content', 'reasoning', 'thinking'] as const
  return keys.find((reasoning) => tries(chat, [tool()], { ...shape, reasoning })?.includes(REASON)) ?? keys[0]
}

function systemSupport(tries: Try, noTools: Value): TemplateTraits['system'] {
  const lead = [system(FIRST), user('hello')]
  const alone = tries(lead, noTools)
  if (alone === undefined) return 'refused'
  const text = tries([...lead, { role: 'assistant', content: 'hello' }, system(SECOND), user('hello')], noTools)
  // Where it raises on the second, it says so itself.
  if (text === undefined || (text.includes(FIRST) && text.includes(SECOND))) return 'all'
  return alone.includes(FIRST) ? 'first' : 'none'
}

const user = (content: string): ChatMessage => ({ role: 'user', content })
const system = (content: string): ChatMessage => ({ role: 'system', content })

const toolLoop: readonly ChatMessage[] = [
  user('hello'),
  {
    role: 'assistant',
    content: '',
    toolCalls: [{ id: 'call_refrain_1', name: TOOL, arguments: `{"${KEY}": "${ARGUMENT}"}` }],
  },
  { role: 'tool', content: RESULT, name: TOOL, toolCallId: 'call_refrain_1' },
]

function tool(): Value {
  const parameters = `{"type": "object", "properties": {"${KEY}": {"type": "string", "description": "a word"}}}`
  return parseJson(
    `{"type": "function", "function": {"name": "${TOOL}", "description": "a tool", "parameters": ${parameters}}}`,
  )
}
