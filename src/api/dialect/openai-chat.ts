// OpenAI Chat Completions, the decoder. https://platform.openai.com/docs/api-reference/chat/create
// Invariant: what is not in a table here or in the ones that are joined in is noted, not honoured and not an error.

import type { GenerateRequest } from '../../core/request.js'
import type { Decoded, Dialect, Envelope, RawBody } from './contract.js'
import {
  accepted,
  boolean,
  custom,
  type Field,
  integer,
  invalid,
  kindOf,
  noted,
  readFields,
  readingOf,
  refused,
  required,
  schemaOf,
  unsupported,
} from './fields.js'
import { ChatBody, ChatStream } from './openai-chat-encode.js'
import { constraintOf, responseFormat } from './openai-constraint.js'
import { messages, tools } from './openai-messages.js'
import { sharedFields, sharedRequest } from './openai-sampling.js'

const toolChoice: Field<'auto' | 'none'> = custom(
  { enum: ['auto', 'none'], description: '`none`: calls are not looked for in the answer.' },
  (value, path) => {
    if (value === 'auto' || value === 'none') return value
    if (value === 'required' || (typeof value === 'object' && value !== null)) {
      throw unsupported(path, "must be 'auto' or 'none': a call cannot be forced")
    }
    throw invalid(path, `must be 'auto' or 'none', not ${kindOf(value)}`)
  },
)

const modalities: Field<undefined> = custom(
  { type: 'array', items: { enum: ['text'] }, description: 'Text only.' },
  (value, path) => {
    if (Array.isArray(value) && value.every((each) => each === 'text')) return undefined
    throw unsupported(path, "must be ['text']: this model writes text only")
  },
)

/** The fields of a chat body. */
export const chatFields = {
  messages,
  tools,
  tool_choice: toolChoice,
  parallel_tool_calls: accepted('calls come as the model makes them'),
  max_tokens: integer({ min: 0 }, 'Tokens of the answer at most; cut to what the window leaves. 0: prefill only.'),
  max_completion_tokens: integer({ min: 0 }, 'The same as max_tokens, and goes before it.'),
  logprobs: boolean('Log probabilities of the answer.'),
  top_logprobs: integer({ min: 0, max: 20 }, 'Alternatives beside each; needs logprobs.'),
  response_format: responseFormat,
  ...sharedFields,
  modalities,
  reasoning_effort: noted('the model decides how long it thinks'),
  reasoning: noted('the model decides how long it thinks'),
  thinking: noted('the model decides how long it thinks'),
  include_reasoning: noted('reasoning is always sent apart'),
  reasoning_format: noted('reasoning is always sent as reasoning_content'),
  verbosity: noted('the model decides how long it talks'),
  functions: refused([], 'legacy functions; use tools'),
  function_call: refused(['auto', 'none'], 'legacy functions; use tool_choice'),
  audio: refused([], 'this model writes text only'),
  web_search_options: refused([], 'there is no search'),
  best_of: refused([1], 'use n'),
  echo: refused([false], 'belongs to /v1/completions'),
  n_predict: refused([-1], 'use max_tokens'),
  add_generation_prompt: refused([true], 'the answer is always begun'),
  continue_final_message: refused([false], 'an answer cannot be continued'),
  add_special_tokens: refused([false], "the model's template decides"),
  chat_template: refused([], "the model's own template is used"),
  chat_template_kwargs: refused([], "the model's own template is used as it is"),
  documents: refused([], 'put them into messages'),
}

export const openaiChat: Dialect = {
  name: 'openai-chat',
  path: '/v1/chat/completions',
  idPrefix: 'chatcmpl-',
  schema: schemaOf(chatFields, ['messages']),
  decode: (raw, envelope) => decodeChat(raw, envelope),
}

/** Decodes a chat body; `more` fields beside are skipped (`/v1/cache/warm` has a few of its own). */
export function decodeChat(raw: RawBody, envelope: Envelope, more: readonly string[] = []): Decoded {
  const reading = readingOf(raw.text, envelope.limits.jsonDepth)
  const skipped = Object.fromEntries(more.map((key) => [key, accepted('read elsewhere')]))
  const read = readFields({ ...chatFields, ...skipped } as typeof chatFields, raw.value, '', reading)
  if (read.top_logprobs !== undefined && read.logprobs !== true) throw invalid('top_logprobs', 'needs logprobs: true')
  const maxTokens = read.max_completion_tokens ?? read.max_tokens
  const constraint = constraintOf(read, read.response_format)
  const request: GenerateRequest = {
    ...sharedRequest(read, envelope),
    prompt: { kind: 'chat', messages: required(read.messages, 'messages'), tools: read.tools ?? [] },
    ...(read.tool_choice === undefined ? {} : { toolChoice: { mode: read.tool_choice } }),
    echo: false,
    ...(maxTokens === undefined ? {} : { maxTokens }),
    ...(read.logprobs === true ? { logprobs: read.top_logprobs ?? 0 } : {}),
    ...(constraint === undefined ? {} : { constraint }),
  }
  const includeUsage = read.stream_options?.include_usage === true
  return {
    requests: [request],
    stream: read.stream ?? false,
    ignored: [...reading.ignored],
    streamEncoder: (about) => new ChatStream(about, { n: request.n, includeUsage }),
    bodyEncoder: (about) => new ChatBody(about, { n: request.n, includeUsage }),
  }
}
