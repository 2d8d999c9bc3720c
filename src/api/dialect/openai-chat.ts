// OpenAI Chat Completions, the decoder. https://platform.openai.com/docs/api-reference/chat/create
// Invariant: what is not in a table here or in the ones that are joined in is noted, not honoured and not an error.

import type { ChatMessage, GenerateRequest } from '../../core/request.js'
import type { Decoded, Dialect, Envelope, RawBody } from './contract.js'
import {
  accepted,
  boolean,
  custom,
  type Field,
  integer,
  invalid,
  noted,
  type ReadOf,
  readFields,
  readingOf,
  refused,
  required,
  schemaOf,
  unsupported,
} from './fields.js'
import { ChatBody, ChatStream } from './openai-chat-encode.js'
import { constraintOf, responseFormat } from './openai-constraint.js'
import { checkContinued, isContinued, messages, tools } from './openai-messages.js'
import { sharedFields, sharedRequest } from './openai-sampling.js'
import { thinkingFields, thinkingOf } from './openai-thinking.js'
import { quick, quickOf } from './quick-field.js'
import { isLogged, sessionFields } from './session-field.js'
import { parallelToolCalls, refrainMember, toolChoice, toolChoiceOf } from './tool-choice.js'

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
  quick,
  tool_choice: toolChoice,
  parallel_tool_calls: parallelToolCalls,
  refrain: refrainMember,
  max_tokens: integer({ min: 0 }, 'Tokens of the answer at most; cut to what the window leaves. 0: prefill only.'),
  max_completion_tokens: integer({ min: 0 }, 'The same as max_tokens, and goes before it.'),
  logprobs: boolean('Log probabilities of the answer.'),
  top_logprobs: integer({ min: 0, max: 20 }, 'Alternatives beside each; needs logprobs.'),
  response_format: responseFormat,
  ...sharedFields,
  modalities,
  ...thinkingFields,
  ...sessionFields,
  include_reasoning: noted('reasoning is always sent apart'),
  reasoning_format: noted('server.reasoningField names the field'),
  verbosity: noted('the model decides how long it talks'),
  functions: refused([], 'legacy functions; use tools'),
  function_call: refused(['auto', 'none'], 'legacy functions; use tool_choice'),
  audio: refused([], 'this model writes text only'),
  web_search_options: refused([], 'there is no search'),
  best_of: refused([1], 'use n'),
  echo: refused([false], 'belongs to /v1/completions'),
  n_predict: refused([-1], 'use max_tokens'),
  add_generation_prompt: boolean('False goes with continue_final_message alone; else the answer is always begun.'),
  continue_final_message: boolean("The answer continues the last message, the assistant's."),
  add_special_tokens: refused([false], "the model's template decides"),
  chat_template: refused([], "the model's own template is used"),
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
  const sentTools = read.tools ?? []
  const calls = { choice: read.tool_choice, parallel: read.parallel_tool_calls, allowed: read.refrain?.allowed_tools }
  const choice = toolChoiceOf(calls, isLogged(reading) && sentTools.length === 0 ? undefined : sentTools)
  const sent = required(read.messages, 'messages')
  const continues = continuesFinal(read, sent, raw)
  const asked = quickOf(read.quick, { messages: raw.value['messages'], maxTokens, limits: envelope.limits, continues })
  const request: GenerateRequest = {
    ...sharedRequest(read, envelope),
    prompt: {
      kind: 'chat',
      messages: sent,
      tools: sentTools,
      ...(continues && { continueFinal: true }),
      ...thinkingOf(read),
    },
    ...(choice === undefined ? {} : { toolChoice: choice }),
    echo: false,
    ...(maxTokens === undefined ? {} : { maxTokens }),
    ...asked.request,
    ...(read.logprobs === true ? { logprobs: read.top_logprobs ?? 0 } : {}),
    ...(constraint === undefined ? {} : { constraint }),
  }
  const includeUsage = read.stream_options?.include_usage === true
  const shape = { n: request.n, includeUsage, isTask: asked.isTask }
  return {
    requests: [request],
    stream: read.stream ?? false,
    ignored: [...reading.ignored],
    streamEncoder: (about) => new ChatStream(about, shape),
    bodyEncoder: (about) => new ChatBody(about, shape),
  }
}

/** Whether the last message is continued, by its own mark or by the body's. */
function continuesFinal(read: ReadOf<typeof chatFields>, sent: readonly ChatMessage[], raw: RawBody): boolean {
  const { continue_final_message: continues = false, add_generation_prompt: begins } = read
  if (continues) {
    if (begins === true) throw invalid('add_generation_prompt', 'must be false beside continue_final_message: true')
    checkContinued(sent.at(-1), { path: 'continue_final_message' })
    return true
  }
  if (begins === false) throw unsupported('add_generation_prompt', 'must be true: the answer is always begun')
  return isContinued(raw.value['messages'])
}
