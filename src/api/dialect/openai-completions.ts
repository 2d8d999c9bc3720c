// OpenAI Completions: text or token ids in, text out. https://platform.openai.com/docs/api-reference/completions
// Invariant: the text of a prompt is never parsed for special tokens; choices are counted through all prompts, n each.

import type { GenerateRequest, Prompt } from '../../core/request.js'
import type { Decoded, Dialect, Envelope, RawBody } from './contract.js'
import {
  boolean,
  custom,
  type Field,
  integer,
  invalid,
  kindOf,
  readFields,
  readingOf,
  refused,
  required,
  schemaOf,
  unsupported,
  wellFormed,
} from './fields.js'
import { CompletionBody, CompletionStream } from './openai-completions-encode.js'
import { constraintOf, responseFormat } from './openai-constraint.js'
import { idList, isTokenId, sharedFields, sharedRequest } from './openai-sampling.js'

/** What OpenAI's API generates when max_tokens is absent. */
const DEFAULT_MAX_TOKENS = 16

const ids = idList('Token ids.')

const prompt: Field<readonly Prompt[]> = custom(
  {
    description: 'A text, several texts, token ids, or several lists of them.',
    anyOf: [{ type: 'string' }, { type: 'array', items: { type: ['string', 'integer', 'array'] } }],
  },
  (value, path, reading) => {
    if (typeof value === 'string') return [{ kind: 'text', text: wellFormed(value) }]
    if (!Array.isArray(value)) throw invalid(path, `must be a string or an array, not ${kindOf(value)}`)
    if (value.length === 0) throw invalid(path, 'must not be empty')
    if (isTokenId(value[0])) return [{ kind: 'tokens', ids: ids.read(value, path, reading) }]
    return value.map((each, i): Prompt => {
      const at = `${path}[${i}]`
      if (typeof each === 'string') return { kind: 'text', text: wellFormed(each) }
      const list = ids.read(each, at, reading)
      if (list.length === 0) throw invalid(at, 'must not be empty')
      return { kind: 'tokens', ids: list }
    })
  },
)

export const completionFields = {
  prompt,
  suffix: refused([''], 'text is not filled in in front of other text'),
  max_tokens: integer({ min: 0 }, `Tokens of the answer at most. Default ${DEFAULT_MAX_TOKENS}.`),
  logprobs: integer({ min: 0, max: 20 }, 'Log probabilities, with this many alternatives.'),
  echo: boolean("The prompt's text stands before the answer."),
  best_of: integer({ min: 1 }, 'Refused unless equal to n.'),
  response_format: responseFormat,
  ...sharedFields,
  session: refused([], 'a session is a chat'),
  n_predict: refused([-1], 'use max_tokens'),
  add_special_tokens: refused([true], 'the model decides'),
  prompt_embeds: refused([], 'embeddings are not read'),
}

export const openaiCompletions: Dialect = {
  name: 'openai-completions',
  path: '/v1/completions',
  idPrefix: 'cmpl-',
  schema: schemaOf(completionFields, ['prompt']),
  decode,
}

function decode(raw: RawBody, envelope: Envelope): Decoded {
  const reading = readingOf(raw.text, envelope.limits.jsonDepth)
  const read = readFields(completionFields, raw.value, '', reading)
  const prompts = required(read.prompt, 'prompt')
  if (prompts.length > envelope.limits.prompts) {
    throw invalid('prompt', `must be at most ${envelope.limits.prompts} prompts (limits.prompts)`)
  }
  const shared = sharedRequest(read, envelope)
  if (read.best_of !== undefined && read.best_of !== shared.n) throw unsupported('best_of', 'must be equal to n')
  const echo = read.echo ?? false
  if (echo && read.logprobs !== undefined) {
    throw unsupported('logprobs', 'cannot stand beside echo: log probabilities of the prompt are not available')
  }
  const constraint = constraintOf(read, read.response_format)
  const requests = prompts.map(
    (each, i): GenerateRequest => ({
      ...shared,
      id: i === 0 ? shared.id : `${shared.id}.${i}`,
      prompt: each,
      echo,
      maxTokens: read.max_tokens ?? DEFAULT_MAX_TOKENS,
      ...(read.logprobs === undefined ? {} : { logprobs: read.logprobs }),
      ...(constraint === undefined ? {} : { constraint }),
    }),
  )
  const choices = prompts.length * shared.n
  const includeUsage = read.stream_options?.include_usage === true
  return {
    requests: requests as [GenerateRequest, ...GenerateRequest[]],
    stream: read.stream ?? false,
    ignored: [...reading.ignored],
    streamEncoder: (about) => new CompletionStream(about, { choices, includeUsage }),
    bodyEncoder: (about) => new CompletionBody(about, { choices, includeUsage }),
  }
}
