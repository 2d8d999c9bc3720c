// A chat to the text that its model was trained on; step 4 of a request's path. Invariant: a template renders all that it
// was given, or the caller gets its sentence: nothing is left out in silence, and there is no second template to fall
// back on. What is remembered (parsed JSON, messages and what loops wrote for them) changes no text.

import { RefrainError } from '../core/errors.js'
import type { ChatMessage } from '../core/request.js'
import type { ChatTemplate, ChatTraits, MessageSpan, Rendered, RenderOptions } from './contract.js'
import { ChangeFault, compileTemplate, strftimeAt, TemplateFault, type Value } from './jinja/index.js'
import { probeTemplate, type RenderValues, type TemplateTraits } from './template-probe.js'
import { watchSpans } from './template-spans.js'
import { type Names, thinkingNames } from './template-switches.js'
import { type Placed, withSystemInPlace } from './template-system.js'
import { createJsonReader, createMessageReader, type JsonReader, messageValue, toolValues } from './template-values.js'
import { withToolsAsText } from './tool-fallback.js'

export interface TemplateOptions {
  readonly bosToken: string
  readonly eosToken: string
  /** How tools are rendered where the template knows none; undefined: they are refused. */
  readonly toolFallback?: 'hermes' | undefined
  /** The date that `strftime_now` prints. */
  readonly dateNow: () => Date
  /** Bytes of messages that are remembered with what was rendered for them; undefined: 64 MB; 0: none. */
  readonly memoBytes?: number
}

// Definitions and arguments that are kept parsed, for each template.
const JSON_BYTES = 16_000_000

// Messages that are kept as values, with what was rendered for them.
const MESSAGE_BYTES = 64_000_000

// What a template is given anyway; a client's values cannot take their place.
const GIVEN = [
  ...['messages', 'tools', 'add_generation_prompt', 'bos_token', 'eos_token', 'strftime_now'],
  ...['range', 'namespace', 'dict', 'raise_exception'],
]

/**
 * Compiles and probes `source`, a Jinja chat template.
 * @throws RefrainError `template_failed` when it cannot be parsed.
 */
export function createTemplate(source: string, options: TemplateOptions): ChatTemplate {
  const rendering = compile(source)
  const render = (
    messages: readonly Value[],
    how: Parameters<RenderValues>[1] & { date?: Date | undefined },
  ): string => {
    const given: Names = [
      ['messages', messages],
      ['tools', how.tools],
      ['documents', null],
      ['add_generation_prompt', how.prompt],
      ['bos_token', options.bosToken],
      ['eos_token', options.eosToken],
      ['strftime_now', strftimeAt(how.date ?? options.dateNow())],
    ]
    return rendering(how.names === undefined ? given : [...given, ...how.names], how.watch)
  }
  const traits = probeTemplate(render)
  const read = createJsonReader(JSON_BYTES)
  const readMessages = createMessageReader(traits, read, options.memoBytes ?? MESSAGE_BYTES)
  return {
    traits: { keepsReasoning: traits.keepsReasoning, toolsAt: traits.toolsAt, options: optionsOf(traits) },
    render(messages, asked) {
      if (asked.continueFinal === true) checkContinued(messages)
      const chat = chatFor(traits, options.toolFallback, { messages, tools: toolsFor(asked, traits, options, read) })
      checkSystem(chat.messages, traits)
      const mark = asked.continueFinal === true ? markEnd(chat.messages) : undefined
      const origins = chat.messages.map(({ origin }) => origin)
      const plain = (mark?.messages ?? chat.messages).map(({ message }) => message)
      const how = {
        tools: chat.tools.length === 0 ? traits.noTools : chat.tools,
        names: namesFor(asked, traits, read),
        date: asked.date,
      }
      const prompt = asked.addGenerationPrompt && mark === undefined
      const { text, values, watch } = refused(() =>
        unchanged(
          () => readMessages(plain),
          () => plain.map((message) => messageValue(message, traits, { read })),
          (values) => {
            const watch = watchSpans(values, origins, traits.writing)
            return { text: render(values, { ...how, prompt, watch }), values, watch }
          },
        ),
      )
      const spans = watch.spans(text)
      if (mark !== undefined) return cutAt(mark.end, text, spans)
      const own = spans.find(({ message }) => message === origins.at(-1))
      if (own !== undefined && !(prompt && traits.promptInLoop)) return { text, spans, tail: own.end }
      const tail = prompt
        ? sharedStart(
            text,
            refused(() => render(values, { ...how, prompt: false })),
          )
        : text.length
      return { text, spans: spans.map((span) => ({ ...span, end: Math.min(span.end, tail) })), tail }
    },
  }
}

function optionsOf({ switches: { enabled, effort, keep } }: TemplateTraits): ChatTraits['options'] {
  return [
    ...(enabled === undefined ? [] : ['thinking' as const]),
    ...(effort === undefined ? [] : ['effort' as const]),
    ...(keep.length === 0 ? [] : ['keepReasoning' as const]),
  ]
}

/** Definitions to render: the request's, or those that its session had where the template renders them. */
function toolsFor(
  { tools, keepTools = [] }: RenderOptions,
  traits: TemplateTraits,
  { toolFallback }: TemplateOptions,
  read: JsonReader,
): Value[] {
  if (tools.length > 0) return toolValues(tools, read)
  return traits.knows.definitions || toolFallback !== undefined ? toolValues(keepTools, read) : []
}

function namesFor({ thinking, keepReasoning, values }: RenderOptions, traits: TemplateTraits, read: JsonReader): Names {
  return [
    ...thinkingNames(traits.switches, thinking),
    ...(keepReasoning === true ? traits.switches.keep : []),
    ...(values === undefined ? [] : givenNames(values, read)),
  ]
}

/** @throws RefrainError `invalid_request` for what is no object, or has a name that the template gets anyway. */
function givenNames(json: string, read: JsonReader): Names {
  const param = 'chat_template_kwargs'
  const wrong = (what: string, cause?: unknown) =>
    new RefrainError('invalid_request', `'${param}' ${what}`, { param, cause })
  let value: Value
  try {
    value = read(json)
  } catch (cause) {
    throw cause instanceof SyntaxError ? wrong(`is not read: ${cause.message}`, cause) : cause
  }
  if (!(value instanceof Map)) throw wrong('must be an object')
  const names = [...value].map(([name, each]) => [String(name), each] as const)
  const taken = names.find(([name]) => GIVEN.includes(name))
  if (taken !== undefined) throw wrong(`cannot set '${taken[0]}', which the request itself gives`)
  return names
}

/** @throws RefrainError `invalid_request` unless the last of `messages` can be continued. */
function checkContinued(messages: readonly ChatMessage[]): void {
  const last = messages.at(-1)
  const why =
    last?.role !== 'assistant' ? "it is not the assistant's" : (last.toolCalls?.length ?? 0) > 0 && 'it has tool calls'
  if (why === false) return
  throw new RefrainError('invalid_request', `The last message cannot be continued: ${why}.`, { param: 'messages' })
}

/** `messages` with a word behind the last one's content, by which its end is found in the text. */
function markEnd(messages: readonly Placed[]): { readonly messages: readonly Placed[]; readonly end: string } {
  const last = messages.at(-1)!
  const { content } = last.message
  let end = 'refrain_end'
  while (content.includes(end)) end += '_'
  return { messages: messages.with(-1, { ...last, message: { ...last.message, content: content + end } }), end }
}

function cutAt(end: string, text: string, spans: readonly MessageSpan[]): Rendered {
  const tail = text.lastIndexOf(end)
  if (tail < 0) {
    throw new RefrainError(
      'template_failed',
      "The model's chat template does not show the last message as it was given, so it cannot be continued.",
      { param: 'messages' },
    )
  }
  return { text: text.slice(0, tail), spans: spans.map((span) => ({ ...span, end: Math.min(span.end, tail) })), tail }
}

function sharedStart(a: string, b: string): number {
  let at = 0
  while (at < a.length && at < b.length && a.charCodeAt(at) === b.charCodeAt(at)) at++
  return at
}

function compile(source: string): ReturnType<typeof compileTemplate> {
  try {
    return compileTemplate(source)
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause)
    throw new RefrainError('template_failed', `The chat template cannot be parsed: ${reason}`, { cause })
  }
}

/** Renders with values that a template cannot change, and with others where it wants to. */
function unchanged<T>(shared: () => Value[], own: () => Value[], render: (values: Value[]) => T): T {
  try {
    return render(shared())
  } catch (error) {
    if (!(error instanceof ChangeFault)) throw error
    return render(own())
  }
}

function refused<T>(render: () => T): T {
  try {
    return render()
  } catch (cause) {
    if (!(cause instanceof TemplateFault)) throw cause
    throw new RefrainError('template_failed', cause.message, { param: 'messages', cause })
  }
}

interface Chat {
  readonly messages: readonly Placed[]
  readonly tools: readonly Value[]
}

// Tools are the template's own where it renders all of them: definitions, calls and results. Half of it would tell the
// model one form and show it another.
function chatFor(
  traits: TemplateTraits,
  fallback: TemplateOptions['toolFallback'],
  given: { readonly messages: readonly ChatMessage[]; readonly tools: readonly Value[] },
): Chat {
  const { knows, system } = traits
  const { tools } = given
  const messages = withSystemInPlace(given.messages, traits)
  if (knows.definitions && knows.calls && knows.results) return { messages, tools }
  if (fallback === 'hermes') {
    const place = system === 'none' || system === 'refused' ? 'user' : 'system'
    return { messages: withToolsAsText(messages, tools, place), tools: [] }
  }
  const lacks = (what: string, param: string): RefrainError =>
    new RefrainError(
      'unsupported_parameter',
      `The model's chat template does not render ${what}, and its card names no toolFallback.`,
      { param },
    )
  if (tools.length > 0 && !knows.definitions) throw lacks('tools', 'tools')
  if (!knows.calls && given.messages.some((message) => (message.toolCalls?.length ?? 0) > 0)) {
    throw lacks('tool calls', 'messages')
  }
  if (!knows.results && given.messages.some((message) => message.role === 'tool'))
    throw lacks('tool results', 'messages')
  return { messages, tools }
}

function checkSystem(messages: readonly Placed[], { system }: TemplateTraits): void {
  const lost = system === 'none' ? messages.findIndex(({ message }) => message.role === 'system') : -1
  if (lost < 0) return
  throw new RefrainError(
    'template_failed',
    `The model's chat template leaves out system messages (messages[${lost}]).`,
    {
      param: 'messages',
    },
  )
}
