// What chat clients say about the model's reasoning, in the words of OpenAI, DeepSeek, OpenRouter, Qwen and vLLM, read
// into the core's own. Invariant: the clearer word goes first (a switch before an effort), and what a template is to be
// given under its own names travels on as the raw text that was sent.

import type { Thinking } from '../../core/request.js'
import {
  accepted,
  asObject,
  boolean,
  custom,
  type Field,
  ignore,
  noted,
  object,
  oneOf,
  type ReadOf,
  shallow,
} from './fields.js'

const EFFORTS = ['none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max', 'ultra', 'default'] as const
type SentEffort = (typeof EFFORTS)[number]

const effort: Field<SentEffort> = oneOf(EFFORTS, '`none`: no reasoning; `default`: as the model does by itself.')

/** `{type: "enabled" | "disabled" | "adaptive"}`, of DeepSeek and Anthropic. */
const thinkingSwitch: Field<boolean | undefined> = custom(
  {
    type: 'object',
    description: '`{type: "enabled" | "disabled" | "adaptive"}`: reasoning on, off, as the model likes.',
  },
  (value, path, reading) => {
    if (typeof value === 'boolean') return value
    const object = asObject(value, path)
    for (const key of Object.keys(object)) if (key !== 'type') ignore(`${path}.${key}`, reading)
    const type = switchType.read(object['type'], `${path}.type`, reading)
    return type === 'enabled' ? true : type === 'disabled' ? false : undefined
  },
)
const switchType = oneOf(['enabled', 'disabled', 'adaptive', 'auto'], 'On, off, as the model likes.')

/** Values for the template under its own names. */
interface TemplateValues {
  /** Raw JSON text of the object; undefined: it is empty. */
  readonly raw: string | undefined
  readonly enabled: boolean | undefined
}

const templateValues: Field<TemplateValues> = custom(
  { type: 'object', description: "Values for the model's chat template, under the names that it reads." },
  (value, path, reading) => {
    const object = asObject(value, path)
    const { enable_thinking: enable, thinking } = object
    return {
      raw: Object.keys(object).length === 0 ? undefined : shallow(reading.raw.at([path]) ?? '{}', path, reading),
      enabled: typeof enable === 'boolean' ? enable : typeof thinking === 'boolean' ? thinking : undefined,
    }
  },
)

export const thinkingFields = {
  reasoning_effort: effort,
  reasoning: object(
    {
      effort,
      enabled: boolean('On or off.'),
      max_tokens: noted('the model decides how long it thinks'),
      exclude: noted('reasoning is always sent apart'),
      summary: accepted('reasoning is sent as it is'),
    },
    'The same in the form of OpenRouter.',
  ),
  thinking: thinkingSwitch,
  enable_thinking: boolean('The same as a switch.'),
  thinking_budget: noted('the model decides how long it thinks'),
  preserve_thinking: boolean('Reasoning of earlier turns is shown to the model where its template can.'),
  chat_template_kwargs: templateValues,
}

export type ThinkingRead = ReadOf<typeof thinkingFields>

/** A prompt's members for what was said; those that nothing was said about are absent. */
export function thinkingOf(read: ThinkingRead): { readonly thinking?: Thinking; readonly templateValues?: string } {
  const values = read.chat_template_kwargs
  const said = read.reasoning_effort ?? read.reasoning?.effort
  const on = read.thinking ?? read.reasoning?.enabled ?? read.enable_thinking ?? values?.enabled
  const enabled = on ?? (said === 'none' ? false : undefined)
  const level = effortOf(said)
  const thinking = { ...(enabled === undefined ? {} : { enabled }), ...(level === undefined ? {} : { effort: level }) }
  const raw = withPreserve(values?.raw, read.preserve_thinking)
  return {
    ...(Object.keys(thinking).length === 0 ? {} : { thinking }),
    ...(raw === undefined ? {} : { templateValues: raw }),
  }
}

function effortOf(said: SentEffort | undefined): Thinking['effort'] {
  if (said === undefined || said === 'none' || said === 'default') return undefined
  return said === 'ultra' ? 'max' : said
}

/** A name of Qwen's templates that its clients send beside the others. */
function withPreserve(raw: string | undefined, preserve: boolean | undefined): string | undefined {
  if (preserve === undefined) return raw
  const member = `"preserve_thinking": ${preserve}`
  // What was sent among the template's own values stands later, and so goes first.
  return raw === undefined ? `{${member}}` : `{${member}, ${raw.trim().slice(1)}`
}
