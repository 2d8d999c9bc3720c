// How a side question is put to a server elsewhere: greedy, short, without reasoning, its answer held to a form where the
// server can do that. Invariant: a server that cannot is named as such; its answer is never just hoped for.

import type { Aside } from '../../core/quick.js'
import type { Setting } from './contract.js'

/** What every server takes. */
export function plainAside({ maxTokens, stop }: Aside): Setting[] {
  return [
    { key: 'temperature', json: '0' },
    { key: 'max_tokens', json: String(maxTokens) },
    ...(stop === undefined ? [] : [{ key: 'stop', json: JSON.stringify(stop) }]),
  ]
}

/** Alternatives of the first token, from which the choices' probabilities come. */
export function withLogprobs({ guide }: Aside): Setting[] {
  if (guide?.kind !== 'choice') return []
  return [
    { key: 'logprobs', json: 'true' },
    { key: 'top_logprobs', json: '20' },
  ]
}

/** For hybrid models: their templates skip the reasoning. `sent`: what the client set there. */
export function withoutThinking(sent: string | undefined): Setting[] {
  const rest = sent?.trim().startsWith('{') ? sent.trim().slice(1).trimStart() : '}'
  const comma = rest.startsWith('}') ? '' : ','
  return [{ key: 'chat_template_kwargs', json: `{"enable_thinking":false,"thinking":false${comma}${rest}` }]
}

/** As JSON Schema: a choice is the one member of an object. https://platform.openai.com/docs/guides/structured-outputs */
export function asResponseFormat({ guide }: Aside): Setting[] | undefined {
  if (guide === undefined) return []
  if (guide.kind === 'regex') return undefined
  const schema =
    guide.kind === 'json-schema'
      ? guide.schema
      : JSON.stringify({
          type: 'object',
          properties: { answer: { type: 'string', enum: guide.choices } },
          required: ['answer'],
          additionalProperties: false,
        })
  const format = `{"type":"json_schema","json_schema":{"name":"answer","strict":true,"schema":${schema}}}`
  return [{ key: 'response_format', json: format }]
}

/** One of the choices, as a regular expression. */
export function choiceRegex(choices: readonly string[]): string {
  return `(${choices.map((choice) => choice.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')).join('|')})`
}
