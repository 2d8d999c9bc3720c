// A chat to the text that its model was trained on; step 4 of a request's path. Invariant: a template renders all that it
// was given, or the caller gets its sentence: nothing is left out in silence, and there is no second template to fall
// back on. Rendering is whole every time (0.1 to 0.4 ms for 100 messages); only parsed JSON is remembered.

import { RefrainError } from '../core/errors.js'
import type { ChatMessage } from '../core/request.js'
import type { ChatTemplate } from './contract.js'
import { compileTemplate, TemplateFault, type Value } from './jinja/index.js'
import { probeTemplate, type TemplateTraits } from './template-probe.js'
import { createJsonReader, messageValue, toolValues } from './template-values.js'
import { withToolsAsText } from './tool-fallback.js'

export interface TemplateOptions {
  readonly bosToken: string
  readonly eosToken: string
  /** How tools are rendered where the template knows none; undefined: they are refused. */
  readonly toolFallback?: 'hermes' | undefined
  /** The date that `strftime_now` prints. */
  readonly dateNow: () => Date
}

// Definitions and arguments that are kept parsed, for each template.
const JSON_BYTES = 16_000_000

/**
 * Compiles and probes `source`, a Jinja chat template.
 * @throws RefrainError `template_failed` when it cannot be parsed.
 */
export function createTemplate(source: string, options: TemplateOptions): ChatTemplate {
  const rendering = compile(source, options.dateNow)
  const render = (messages: readonly Value[], tools: Value, addGenerationPrompt: boolean): string =>
    rendering([
      ['messages', messages],
      ['tools', tools],
      ['documents', null],
      ['add_generation_prompt', addGenerationPrompt],
      ['bos_token', options.bosToken],
      ['eos_token', options.eosToken],
    ])
  const traits = probeTemplate((messages, tools) => render(messages, tools, true))
  const read = createJsonReader(JSON_BYTES)
  return {
    render(messages, { tools, addGenerationPrompt }) {
      const given = { messages, tools: toolValues(tools, read) }
      const chat = asTemplateKnowsIt(given, traits, options.toolFallback)
      checkSystem(chat.messages, traits)
      const values = chat.messages.map((message) => messageValue(message, traits, read))
      const text = refused(() =>
        render(values, chat.tools.length === 0 ? traits.noTools : chat.tools, addGenerationPrompt),
      )
      return { text, spans: [], tail: text.length }
    },
  }
}

function compile(source: string, dateNow: () => Date): ReturnType<typeof compileTemplate> {
  try {
    return compileTemplate(source, dateNow)
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause)
    throw new RefrainError('template_failed', `The chat template cannot be parsed: ${reason}`, { cause })
  }
}

function refused(render: () => string): string {
  try {
    return render()
  } catch (cause) {
    if (!(cause instanceof TemplateFault)) throw cause
    throw new RefrainError('template_failed', cause.message, { param: 'messages', cause })
  }
}

interface Chat {
  readonly messages: readonly ChatMessage[]
  readonly tools: readonly Value[]
}

// Tools are the template's own where it renders all of them: definitions, calls and results. Half of it would tell the
// model one form and show it another.
function asTemplateKnowsIt(
  { messages, tools }: Chat,
  { knows, system }: TemplateTraits,
  fallback: TemplateOptions['toolFallback'],
): Chat {
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
  if (!knows.calls && messages.some((message) => (message.toolCalls?.length ?? 0) > 0)) {
    throw lacks('tool calls', 'messages')
  }
  if (!knows.results && messages.some((message) => message.role === 'tool')) throw lacks('tool results', 'messages')
  return { messages, tools }
}

function checkSystem(messages: readonly ChatMessage[], { system }: TemplateTraits): void {
  if (system === 'all' || system === 'refused') return
  const lost = messages.findIndex((message, i) => message.role === 'system' && (system === 'none' || i > 0))
  if (lost < 0) return
  const which = system === 'none' ? 'system messages' : 'a system message that is not the first message'
  throw new RefrainError('template_failed', `The model's chat template leaves out ${which} (messages[${lost}]).`, {
    param: 'messages',
  })
}
