// The chat templates of the scripted backend: plain lines, ChatML with tools and reasoning as today's models have it, or
// any Jinja source. Stands where a model's own template stands, step 4. Invariant: each knows which special tokens it is
// written with, so that the scripted tokenizer cuts where a real one would.

import type { ChatMessage } from '../core/request.js'
import type { ChatTemplate, RenderOptions } from '../prompt/contract.js'
import { createTemplate } from '../prompt/template.js'

export interface ScriptedTemplate {
  readonly template: ChatTemplate
  /** How the token that ends an answer is spelled. */
  readonly end: string
  /** Spellings of further special tokens. */
  readonly specials: readonly string[]
}

export interface ScriptedTemplateOptions {
  /** `plain`, `chatml`, or Jinja. */
  readonly template: string
  /** Spelling of the end token of a template of one's own. */
  readonly end: string
  readonly specials: readonly string[]
}

/** @throws RefrainError `template_failed` for what is no template. */
export function scriptedTemplate(options: ScriptedTemplateOptions): ScriptedTemplate {
  if (options.template === 'plain') return { template: createScriptedTemplate(), end: options.end, specials: [] }
  const chatml = options.template === 'chatml'
  const end = chatml ? '<|im_end|>' : options.end
  const specials = chatml ? ['<|im_start|>', ...options.specials] : options.specials
  const template = createTemplate(chatml ? CHATML : options.template, {
    bosToken: '',
    eosToken: end,
    dateNow: () => new Date(),
  })
  return { template, end, specials }
}

/** Plain text: tools as one line of JSON each, then `role: content` lines. Prefixes of a chat render to prefixes. */
export function createScriptedTemplate(): ChatTemplate {
  return {
    render(messages, options: RenderOptions) {
      const tools = options.tools.map((tool) => `tool: ${tool.json}\n`).join('')
      let text = tools
      const spans = messages.map((message, i) => {
        const start = text.length
        text += line(message)
        return { message: i, start, end: text.length }
      })
      const tail = text.length
      return { text: text + (options.addGenerationPrompt ? 'assistant: ' : ''), spans, tail }
    },
  }
}

function line(message: ChatMessage): string {
  const calls = (message.toolCalls ?? []).map((call) => ` ${call.name}(${call.arguments})`).join('')
  return `${message.role}: ${message.content}${calls}\n`
}

/** Tools in the first system message, Hermes calls, reasoning in think tags wherever a message has it. */
const CHATML = `{%- macro calls(message) %}
{%- for call in message.tool_calls %}
{%- if message.content or not loop.first %}{{ '\\n' }}{% endif %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{%- if call.function.arguments is string %}{{ call.function.arguments }}{% else %}{{ call.function.arguments | tojson }}{% endif %}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{%- endmacro %}
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}
{{- messages[0].content + '\\n\\n' }}
{%- endif %}
{{- '# Tools\\n\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}
{{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'system' and loop.first and tools %}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- if message.reasoning_content %}{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}
{{- message.content }}
{%- if message.tool_calls %}{{ calls(message) }}{% endif %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}`
