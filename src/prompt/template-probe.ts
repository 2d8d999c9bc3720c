// Finds out what a chat template can do by rendering small chats with marked words and looking for the words. Done once
// per template, at boot. Invariant: nothing here decides on a template's name or source text, only on what it renders.

import type { ChatMessage } from '../core/request.js'
import type { ChatTraits } from './contract.js'
import { parseJson, TemplateFault, type Value, type Watch } from './jinja/index.js'
import { type Writing, watchSpans } from './template-spans.js'
import { findSwitches, type Names, type Switches, thinkingNames } from './template-switches.js'
import type { SystemPlaces } from './template-system.js'
import { type MessageShape, messageValue } from './template-values.js'

export interface TemplateTraits extends MessageShape, SystemPlaces, Omit<ChatTraits, 'options'> {
  /** What `tools` is when there are none: None, or what the template can go through instead. */
  readonly noTools: null | readonly []
  /** Definitions, calls and results each appear in the text. */
  readonly knows: { readonly definitions: boolean; readonly calls: boolean; readonly results: boolean }
  /** How loops write their messages. */
  readonly writing: Writing
  /** The generation prompt is written by the last message's iteration. */
  readonly promptInLoop: boolean
  readonly switches: Switches
}

const TOOL = 'refrain_probe_tool'
const KEY = 'refrain_probe_key'
const ARGUMENT = 'refrain_probe_argument'
const RESULT = 'refrain_probe_result'
const [EARLY_REASON, LATE_REASON] = ['refrain_probe_early_reason', 'refrain_probe_late_reason']
const [ASKED, SAID] = ['refrain_probe_asked', 'refrain_probe_said']
const [FIRST, SECOND] = ['refrain_probe_first', 'refrain_probe_second']

const SHAPES: readonly MessageShape[] = (['object', 'text'] as const).flatMap((form) =>
  (['any', 'nine'] as const).map((ids) => ({ arguments: form, ids, reasoning: 'reasoning_content' as const })),
)

// Transformers gives None; templates made for tools only go through the list without asking.
const NO_TOOLS = [null, []] as const

/** Renders values as they are; what `createTemplate` gives the probe. */
export type RenderValues = (
  messages: readonly Value[],
  options: { readonly tools: Value; readonly prompt: boolean; readonly names?: Names; readonly watch?: Watch },
) => string

export function probeTemplate(render: RenderValues): TemplateTraits {
  const tries: Try = (chat, { tools, shape = SHAPES[0]!, names = [] }) =>
    unlessRefused(() =>
      render(
        chat.map((message) => messageValue(message, shape, { read: parseJson })),
        { tools, prompt: true, names },
      ),
    )
  const noTools = NO_TOOLS[NO_TOOLS.findIndex((none) => tries([user('hello')], { tools: none }) !== undefined)] ?? null
  const shape = { ...bestShape(tries) }
  const loop = tries(toolLoop, { tools: [tool()], shape }) ?? ''
  const switches = findSwitches((names) => tries([user('hello')], { tools: noTools, shape, names }))
  const thinking = thinkingNames(switches, { enabled: true })
  const named = { ...shape, reasoning: reasoningKey(tries, shape, thinking) }
  const plain: Placing = {
    tries: (chat) => tries(chat, { tools: noTools, shape: named }),
    knows: loop.includes(RESULT),
  }
  return {
    ...named,
    noTools,
    knows: {
      definitions: tries([user('hello')], { tools: [tool()] })?.includes(TOOL) === true,
      calls: showsCall(loop),
      results: loop.includes(RESULT),
    },
    system: systemSupport(plain),
    alternates: refusesNeighbours(plain),
    switches: { ...switches, keep: keepSwitch(tries, named, thinking) },
    keepsReasoning: keptReasoning((chat) => tries(chat, { tools: [tool()], shape: named, names: thinking })),
    toolsAt: toolsPlace(tries, named),
    ...writingOf(render, named, noTools),
  }
}

type Try = (
  chat: readonly ChatMessage[],
  options: { readonly tools: Value; readonly shape?: MessageShape; readonly names?: Names },
) => string | undefined

function unlessRefused(render: () => string): string | undefined {
  try {
    return render()
  } catch (error) {
    if (error instanceof TemplateFault) return undefined
    throw error
  }
}

// The parsed form goes first: a template that takes it prints it in the form that its model was trained on.
function bestShape(tries: Try): MessageShape {
  const texts = SHAPES.map((shape) => ({ shape, text: tries(toolLoop, { tools: [tool()], shape }) }))
  const good = texts.find(({ text }) => text !== undefined && showsCall(text) && text.includes(RESULT))
  const rendering = texts.find(({ text }) => text !== undefined)
  return (good ?? rendering ?? texts[0]!).shape
}

// Text that went through tojson shows up as a string in a string.
function showsCall(text: string): boolean {
  return text.includes(KEY) && text.includes(ARGUMENT) && !text.includes(`\\"${KEY}`)
}

function reasoningKey(tries: Try, shape: MessageShape, names: Names): MessageShape['reasoning'] {
  const keys = ['reasoning_content', 'reasoning', 'thinking'] as const
  const shows = (reasoning: MessageShape['reasoning']) =>
    tries(thoughtLoop, { tools: [tool()], shape: { ...shape, reasoning }, names })?.includes(LATE_REASON)
  return keys.find(shows) ?? keys[0]
}

function keptReasoning(tries: (chat: readonly ChatMessage[]) => string | undefined): ChatTraits['keepsReasoning'] {
  const text = tries(thoughtLoop) ?? ''
  if (text.includes(EARLY_REASON)) return 'all'
  return text.includes(LATE_REASON) ? 'since-user' : 'none'
}

/** Names that make a template show what it drops of itself: the reasoning of turns that are over. */
const KEEPERS: readonly Names[] = [
  [['preserve_thinking', true]],
  [['preserved_thinking', true]],
  [['clear_thinking', false]],
  [['truncate_history_thinking', false]],
  [['drop_thinking', false]],
  [['think_render_option', 'all']],
]

function keepSwitch(tries: Try, shape: MessageShape, thinking: Names): Names {
  const shows = (names: Names) =>
    tries(thoughtLoop, { tools: [tool()], shape, names: [...thinking, ...names] })?.includes(EARLY_REASON)
  return shows([]) === true ? [] : (KEEPERS.find(shows) ?? [])
}

interface Placing {
  tries(chat: readonly ChatMessage[]): string | undefined
  /** Calls and results are rendered. */
  readonly knows: boolean
}

/** Where a template is asked for two messages side by side, or at its end. */
function systemSupport({ tries, knows }: Placing): SystemPlaces['system'] {
  const lead = [system(FIRST), user(ASKED)]
  const alone = tries(lead)
  if (alone === undefined) return 'refused'
  if (!alone.includes(FIRST)) return 'none'
  const last = system(SECOND)
  const inPlace =
    inOrder(tries([...lead, assistant(SAID), last, user('hello')]), [FIRST, ASKED, SAID, SECOND, 'hello']) &&
    inOrder(tries([...lead, last]), [FIRST, ASKED, SECOND]) &&
    (!knows || inOrder(tries([system(FIRST), ...toolLoop, last]), [FIRST, RESULT, SECOND]))
  return inPlace ? 'all' : 'first'
}

function refusesNeighbours({ tries, knows }: Placing): boolean {
  const hello = user('hello')
  if (!inOrder(tries([hello, user(FIRST), user(SECOND)]), [FIRST, SECOND])) return true
  return knows && !inOrder(tries([...toolLoop, user(FIRST)]), [RESULT, FIRST])
}

function inOrder(text: string | undefined, words: readonly string[]): boolean {
  let at = 0
  return words.every((word) => {
    at = text?.indexOf(word, at) ?? -1
    return at >= 0
  })
}

function toolsPlace(tries: Try, shape: MessageShape): ChatTraits['toolsAt'] {
  const text = tries([user(FIRST), assistant(SAID), user(SECOND)], { tools: [tool()], shape }) ?? ''
  const at = text.lastIndexOf(TOOL)
  if (at < 0) return 'nowhere'
  return at < text.indexOf(SAID) ? 'head' : 'later'
}

function writingOf(
  render: RenderValues,
  shape: MessageShape,
  noTools: Value,
): Pick<TemplateTraits, 'writing' | 'promptInLoop'> {
  const values = [user(FIRST), assistant(SAID), user(SECOND)].map((each) =>
    messageValue(each, shape, { read: parseJson }),
  )
  const at = (writing: Writing) => {
    const watch = watchSpans(values, [0, 1, 2], writing)
    const text = unlessRefused(() => render(values, { tools: noTools, prompt: true, watch }))
    return { spans: watch.spans(text ?? ''), text }
  }
  const writing = at('direct').spans.length === 0 && at('gathered').spans.length > 0 ? 'gathered' : 'direct'
  const end = at(writing).spans.at(-1)?.end ?? 0
  const bare = unlessRefused(() => render(values, { tools: noTools, prompt: false }))
  return { writing, promptInLoop: bare !== undefined && end > bare.length }
}

const user = (content: string): ChatMessage => ({ role: 'user', content })
const system = (content: string): ChatMessage => ({ role: 'system', content })
const assistant = (content: string): ChatMessage => ({ role: 'assistant', content })

const toolLoop: readonly ChatMessage[] = [
  user('hello'),
  {
    role: 'assistant',
    content: '',
    toolCalls: [{ id: 'call_refrain_1', name: TOOL, arguments: `{"${KEY}": "${ARGUMENT}"}` }],
  },
  { role: 'tool', content: RESULT, name: TOOL, toolCallId: 'call_refrain_1' },
]

// Reasoning in a turn that is over, and since the last word of the user's.
const thoughtLoop: readonly ChatMessage[] = [
  user('hello'),
  { role: 'assistant', content: 'hello', reasoning: EARLY_REASON },
  ...toolLoop.map((message) => (message.role === 'assistant' ? { ...message, reasoning: LATE_REASON } : message)),
]

function tool(): Value {
  const parameters = `{"type": "object", "properties": {"${KEY}": {"type": "string", "description": "a word"}}}`
  return parseJson(
    `{"type": "function", "function": {"name": "${TOOL}", "description": "a tool", "parameters": ${parameters}}}`,
  )
}
