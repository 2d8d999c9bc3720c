// The messages of the Messages API, read into the core's own. Invariant: text is taken as it is, calls' input as the raw
// JSON text that was sent, order is kept; what the assistant said in one turn is one message. A block that the model
// cannot be shown is refused by its path; one that only another server could have made is left out and named.

import type { ChatMessage, ToolCall } from '../../core/request.js'
import { type CacheMarks, cacheControl } from './anthropic-cache-marks.js'
import { openThinking } from './anthropic-shape.js'
import {
  accepted,
  asObject,
  boolean,
  custom,
  type Fields,
  ignore,
  invalid,
  type JsonSchema,
  kindOf,
  type Reading,
  readFields,
  required,
  shallow,
  text,
  unsupported,
  wellFormed,
} from './fields.js'
import { isLogged } from './session-field.js'

const ROLES: readonly unknown[] = ['user', 'assistant', 'system']

export const messagesSchema: JsonSchema = {
  type: 'array',
  minItems: 1,
  description: 'The conversation. A final message of the assistant is continued.',
  items: {
    type: 'object',
    required: ['role', 'content'],
    properties: {
      role: { enum: ROLES },
      content: { anyOf: [{ type: 'string' }, { type: 'array', items: { type: 'object' } }] },
    },
  },
}

export const systemSchema: JsonSchema = {
  anyOf: [{ type: 'string' }, { type: 'array', items: { type: 'object' } }],
  description: 'The system text, or text blocks; each begins on a line of its own.',
}

type Steps = readonly (string | number)[]

/** Where a value stands: for complaints, and in the raw text. */
interface Place {
  readonly path: string
  readonly steps: Steps
}

const anything = custom<unknown>({}, (value) => value)

const messageFields = {
  role: anything,
  content: anything,
  cache_control: cacheControl,
  output_config: accepted('it is said once for a body'),
  id: accepted('ids are not part of the prompt'),
  type: accepted('a part of what the server sent'),
  model: accepted('a part of what the server sent'),
  stop_reason: accepted('a part of what the server sent'),
  stop_sequence: accepted('a part of what the server sent'),
  usage: accepted('a part of what the server sent'),
}

const around = { type: text('Names the block.'), cache_control: cacheControl }

const textFields = {
  ...around,
  text: text('The text.'),
  citations: accepted('a part of what the server sent'),
}

const documentFields = {
  ...around,
  source: custom<Readonly<Record<string, unknown>>>({ type: 'object' }, asObject),
  title: text('Stands in front of the text.'),
  context: text('Stands in front of the text.'),
  citations: accepted('the model is shown the text'),
}

const searchResultFields = {
  ...around,
  source: text('Where it is from.'),
  title: text('Its title.'),
  content: anything,
  citations: accepted('the model is shown the text'),
}

const resultFields = {
  ...around,
  tool_use_id: text('The call that this is the result of.'),
  content: anything,
  is_error: boolean('The content says what went wrong.'),
  toolset_name: accepted('the call has it'),
}

const callFields = {
  ...around,
  id: text('Names the call; its result refers to it.'),
  name: text('The tool.'),
  input: anything,
  caller: accepted('the model calls'),
  toolset_name: accepted('the name says which'),
}

const thinkingFields = {
  ...around,
  thinking: text('What the assistant thought.'),
  signature: text('As this server sent it; anything else is not looked at.'),
}

const redactedFields = { ...around, data: text('As this server sent it; what another server sent is skipped.') }

/** Blocks of things that only a server runs, without anything in them that the model would read here. */
const SERVER_BLOCK = /^(server_tool_use|mcp_tool_use|fallback|tool_addition|tool_removal|\w+_tool_result)$/

/** Text of a result that failed and says nothing. */
const FAILED = 'error'

/** `system` and `messages` in the core's words; marks on their blocks are added to `marks`. */
export class Conversation {
  readonly messages: ChatMessage[] = []
  readonly #reading: Reading
  readonly #marks: CacheMarks
  /** The assistant's turn that the last message is: it may go on, and its calls are gathered once. */
  #turn: { readonly said: string; readonly thought: string; readonly calls: ToolCall[] } = {
    said: '',
    thought: '',
    calls: [],
  }

  constructor(reading: Reading, marks: CacheMarks) {
    this.#reading = reading
    this.#marks = marks
  }

  readSystem(value: unknown): void {
    if (value === undefined || value === null) return
    const content = this.#texts(value, { path: 'system', steps: ['system'] }, 'head')
    if (content !== '') this.messages.push({ role: 'system', content })
  }

  /** @throws RefrainError that names the block. */
  readMessages(value: unknown): void {
    if (!Array.isArray(value)) throw invalid('messages', `must be an array, not ${kindOf(value)}`)
    if (value.length === 0 && !isLogged(this.#reading)) throw invalid('messages', 'must not be empty')
    for (const [i, message] of value.entries()) {
      this.#message(message, { path: `messages[${i}]`, steps: ['messages', i] })
    }
  }

  /** Whether the last message is the assistant's. @throws RefrainError where it calls a tool and no result follows. */
  continuesFinal(): boolean {
    const last = this.messages.at(-1)
    if (last?.role !== 'assistant') return false
    if (last.toolCalls === undefined) return true
    const ids = last.toolCalls.map(({ id }) => id.slice(0, 64)).join(', ')
    throw invalid('messages', `must go on with tool_result blocks for the tool_use ids ${ids.slice(0, 256)}`)
  }

  #message(value: unknown, { path, steps }: Place): void {
    const read = readFields(messageFields, value, path, this.#reading)
    const role = required(read.role, `${path}.role`)
    if (!ROLES.includes(role)) {
      const shown = typeof role === 'string' ? `'${role.slice(0, 40)}'` : kindOf(role)
      throw invalid(`${path}.role`, `must be 'user', 'assistant' or 'system', not ${shown}`)
    }
    const content = required(read.content, `${path}.content`)
    const at = { path: `${path}.content`, steps: [...steps, 'content'] }
    if (role === 'assistant') this.#assistant(content, at)
    else if (role === 'user') this.#user(content, at)
    else this.#late(content, at)
    this.#marks.add(this.messages.length - 1, read.cache_control)
  }

  /** A system message in mid-conversation stays where it is: moved, it would change the prompt's beginning. */
  #late(content: unknown, at: Place): void {
    const text = this.#texts(content, at, this.messages.length)
    if (text !== '') this.messages.push({ role: 'system', content: text })
  }

  #user(content: unknown, at: Place): void {
    const before = this.messages.length
    let texts: string[] = []
    const flush = () => {
      if (texts.length > 0) this.messages.push({ role: 'user', content: texts.join('\n') })
      texts = []
    }
    for (const { block, type, place } of blocksOf(content, at)) {
      if (type === 'tool_result') {
        flush()
        this.messages.push(this.#result(block, place))
      } else {
        const shown = this.#shown(block, type, { place, after: this.messages.length })
        if (shown !== '') texts.push(shown)
      }
    }
    flush()
    if (this.messages.length === before) this.messages.push({ role: 'user', content: '' })
  }

  #result(block: Block, { path, steps }: Place): ChatMessage {
    const read = readFields(resultFields, block, path, this.#reading)
    const toolCallId = required(read.tool_use_id, `${path}.tool_use_id`)
    const after = this.messages.length
    const place = { path: `${path}.content`, steps: [...steps, 'content'] }
    const content = read.content === undefined ? '' : this.#texts(read.content, place, after)
    this.#marks.add(after, read.cache_control)
    return { role: 'tool', content: content === '' && read.is_error === true ? FAILED : content, toolCallId }
  }

  /** Blocks of one turn belong together, in however many messages a client sends them. */
  #assistant(content: unknown, at: Place): void {
    const isBegun = this.messages.at(-1)?.role === 'assistant'
    const index = isBegun ? this.messages.length - 1 : this.messages.length
    const { said: before, thought: thoughtBefore, calls } = isBegun ? this.#turn : { said: '', thought: '', calls: [] }
    let said = before
    let thought = thoughtBefore
    for (const { block, type, place } of blocksOf(content, at)) {
      const { path } = place
      if (type === 'tool_use') calls.push(this.#call(block, place, index))
      else if (type === 'thinking') {
        const read = this.#read(thinkingFields, block, { path, after: index })
        thought += read.thinking || (openThinking(read.signature ?? '') ?? '')
      } else if (type === 'redacted_thinking') {
        const opened = openThinking(this.#read(redactedFields, block, { path, after: index }).data ?? '')
        if (opened === undefined) ignore('messages[].content[redacted_thinking]', this.#reading)
        thought += opened ?? ''
      } else if (SERVER_BLOCK.test(type)) ignore(`messages[].content[${type.slice(0, 40)}]`, this.#reading)
      else said += this.#shown(block, type, { place, after: index })
    }
    // An answer that was broken off before its first word.
    if (said === '' && thought === '' && calls.length === 0) return
    this.#turn = { said, thought, calls }
    this.messages[index] = {
      role: 'assistant',
      content: said,
      ...(calls.length === 0 ? {} : { toolCalls: calls }),
      ...(thought === '' ? {} : { reasoning: thought }),
    }
  }

  #call(block: Block, { path, steps }: Place, after: number): ToolCall {
    const { id, name, input = {} } = this.#read(callFields, block, { path, after })
    const at = `${path}.input`
    if (typeof input !== 'object' && typeof input !== 'string') {
      throw invalid(at, `must be an object, not ${kindOf(input)}`)
    }
    const raw = typeof input === 'string' ? wellFormed(input) : this.#reading.raw.at([...steps, 'input'])
    return {
      id: required(id, `${path}.id`),
      name: required(name, `${path}.name`),
      arguments: shallow(raw ?? '{}', at, this.#reading),
    }
  }

  #read<F extends Fields & typeof around>(
    fields: F,
    block: Block,
    { path, after }: { readonly path: string; readonly after: number | 'head' },
  ) {
    const read = readFields(fields, block, path, this.#reading)
    this.#marks.add(after, read.cache_control as number | undefined)
    return read
  }

  /** Text blocks in a row. */
  #texts(value: unknown, at: Place, after: number | 'head'): string {
    return blocksOf(value, at)
      .map(({ block, type, place }) => this.#shown(block, type, { place, after }))
      .filter((shown) => shown !== '')
      .join('\n')
  }

  /** What the model is shown of a block that is no call, result or thought. */
  #shown(block: Block, type: string, where: { readonly place: Place; readonly after: number | 'head' }): string {
    const { place, after } = where
    const { path } = place
    switch (type) {
      case 'text':
        return required(this.#read(textFields, block, { path, after }).text, `${path}.text`)
      case 'document':
        return this.#document(block, where)
      case 'search_result': {
        const { title = '', source = '', content } = this.#read(searchResultFields, block, { path, after })
        const at = { path: `${path}.content`, steps: [...place.steps, 'content'] }
        return joined([title, source, content === undefined ? '' : this.#texts(content, at, after)])
      }
      case 'tool_reference':
        return required(
          this.#read({ ...around, tool_name: text('The tool.') }, block, { path, after }).tool_name,
          `${path}.tool_name`,
        )
    }
    throw unsupported(`${path}.type`, `'${type.slice(0, 40)}' cannot be honoured: this model reads text only`)
  }

  #document(block: Block, { place, after }: { readonly place: Place; readonly after: number | 'head' }): string {
    const { path, steps } = place
    const read = this.#read(documentFields, block, { path, after })
    const source = required(read.source, `${path}.source`)
    const { title = '', context = '' } = read
    const { type, data, content } = source
    if (type === 'text') {
      if (typeof data !== 'string')
        throw invalid(`${path}.source.data`, `must be a string, not ${kindOf(data ?? null)}`)
      return joined([title, context, wellFormed(data)])
    }
    if (type === 'content') {
      const at = { path: `${path}.source.content`, steps: [...steps, 'source', 'content'] }
      return joined([title, context, this.#texts(required(content, at.path), at, after)])
    }
    if (typeof type !== 'string') throw invalid(`${path}.source.type`, `must be a string, not ${kindOf(type ?? null)}`)
    throw unsupported(
      `${path}.source.type`,
      `'${type.slice(0, 40)}' cannot be honoured: of documents the model reads text only`,
    )
  }
}

type Block = Readonly<Record<string, unknown>>

/** The blocks of a content; a string is one block of text. */
function blocksOf(content: unknown, { path, steps }: Place): { block: Block; type: string; place: Place }[] {
  if (typeof content === 'string') {
    return [{ block: { type: 'text', text: content }, type: 'text', place: { path, steps } }]
  }
  if (!Array.isArray(content)) throw invalid(path, `must be a string or an array of blocks, not ${kindOf(content)}`)
  return content.map((each, i) => {
    const place = { path: `${path}[${i}]`, steps: [...steps, i] }
    if (typeof each === 'string') return { block: { type: 'text', text: each }, type: 'text', place }
    const block = asObject(each, place.path)
    const { type } = block
    if (typeof type !== 'string') throw invalid(`${place.path}.type`, `must be a string, not ${kindOf(type ?? null)}`)
    return { block, type, place }
  })
}

function joined(parts: readonly string[]): string {
  return parts.filter((part) => part !== '').join('\n')
}
