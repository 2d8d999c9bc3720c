// OpenAI Responses, the decoder. https://platform.openai.com/docs/api-reference/responses/create
// Invariant: what is not in a table here or in the ones that are joined in is noted, not honoured and not an error.
// A request brings its whole conversation, or what is new behind an answer that was stored.

import type { Constraint, GenerateRequest, Thinking } from '../../core/request.js'
import type { Decoded, Dialect, Envelope, RawBody, Storing } from './contract.js'
import {
  accepted,
  asObject,
  boolean,
  custom,
  type Field,
  ignore,
  integer,
  invalid,
  type JsonSchema,
  kindOf,
  noted,
  object,
  oneOf,
  readFields,
  readingOf,
  refused,
  required,
  schemaOf,
  text,
  unsupported,
} from './fields.js'
import { constraintOf, schemaField } from './openai-constraint.js'
import { ResponsesBody, ResponsesStream } from './openai-responses-encode.js'
import { inputSchema, readInput } from './openai-responses-input.js'
import { echoOf } from './openai-responses-shape.js'
import { NO_TOOLS, responsesToolChoice, responsesTools } from './openai-responses-tools.js'
import { sharedFields, sharedRequest } from './openai-sampling.js'
import { quick, quickOf } from './quick-field.js'
import { sessionFields } from './session-field.js'
import { narrowChoice, parallelToolCalls, refrainMember } from './tool-choice.js'

const EFFORTS = ['none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max'] as const

const schemaOfFormat = schemaField('The JSON Schema.')

const format: Field<Constraint | undefined> = custom(
  {
    type: 'object',
    description: '`{type: "text" | "json_object" | "json_schema", name?, schema?}`.',
    properties: { type: { enum: ['text', 'json_object', 'json_schema'] } } satisfies JsonSchema,
    required: ['type'],
  },
  (value, path, reading) => {
    const { type, schema } = asObject(value, path)
    if (type === 'text') return undefined
    if (type === 'json_object') return { kind: 'json' }
    if (type === 'json_schema') {
      if (schema === undefined || schema === null) throw invalid(`${path}.schema`, 'is required')
      return { kind: 'json-schema', schema: schemaOfFormat.read(schema, `${path}.schema`, reading) }
    }
    if (typeof type !== 'string') throw invalid(`${path}.type`, `must be a string, not ${kindOf(type ?? null)}`)
    throw unsupported(`${path}.type`, `must be 'text', 'json_object' or 'json_schema', not '${type.slice(0, 40)}'`)
  },
)

interface Included {
  readonly sealsReasoning: boolean
  readonly logprobs: boolean
}

const include: Field<Included> = custom(
  {
    type: 'array',
    items: { type: 'string' },
    description: '`reasoning.encrypted_content`, `message.output_text.logprobs`; the others have nothing to include.',
  },
  (value, path, reading) => {
    if (!Array.isArray(value)) throw invalid(path, `must be an array, not ${kindOf(value)}`)
    for (const [i, each] of value.entries()) {
      if (typeof each !== 'string') throw invalid(`${path}[${i}]`, `must be a string, not ${kindOf(each)}`)
      if (!KNOWN_INCLUDES.includes(each)) ignore(`include.${each.slice(0, 64)}`, reading)
    }
    return { sealsReasoning: value.includes(KNOWN_INCLUDES[0]), logprobs: value.includes(KNOWN_INCLUDES[1]) }
  },
)
const KNOWN_INCLUDES = ['reasoning.encrypted_content', 'message.output_text.logprobs']

const store = boolean('True: the answer can be gone on from by its id. Absent: sessions.log.storeResponses says.')

/** Read as they are: what they mean depends on other fields. */
const asSent = (schema: JsonSchema): Field<unknown> => custom(schema, (value) => value)

const fields = {
  ...sharedFields,
  input: asSent(inputSchema),
  instructions: text('The system message in front of the input.'),
  tools: responsesTools,
  tool_choice: asSent({
    description: '`auto`, `none`, `required`, a function or `allowed_tools`.',
    anyOf: [{ enum: ['auto', 'none', 'required'] }, { type: 'object' }],
  }),
  parallel_tool_calls: parallelToolCalls,
  refrain: refrainMember,
  ...sessionFields,
  quick,
  max_output_tokens: integer(
    { min: 0 },
    'Tokens of the answer at most; cut to what the window leaves. 0: prefill only.',
  ),
  text: object({ format, verbosity: noted('the model decides how long it talks') }, 'The form of the answer.'),
  reasoning: object(
    {
      effort: oneOf(EFFORTS, 'How long the model thinks; `none`: not at all.'),
      summary: noted('reasoning is sent as it is'),
      generate_summary: noted('reasoning is sent as it is'),
      context: accepted('the model card says what is kept'),
      mode: noted('there is one'),
    },
    'How the model thinks.',
  ),
  include,
  top_logprobs: integer({ min: 0, max: 20 }, 'Alternatives beside each token of the text.'),
  stream_options: object({ include_obfuscation: accepted('nothing is obfuscated') }, 'What a stream carries.'),
  store: custom<undefined>(store.schema, (value, path, reading) => {
    store.read(value, path, reading)
  }),
  metadata: custom<undefined>({ type: 'object', description: 'Repeated in the response.' }, (value, path) => {
    asObject(value, path)
    return undefined
  }),
  truncation: custom<undefined>(
    { enum: ['auto', 'disabled'], description: 'A prompt is never cut: too long a one is refused.' },
    (value, path, reading) => {
      if (value === 'disabled') return undefined
      if (value !== 'auto') throw invalid(path, `must be 'auto' or 'disabled', not ${kindOf(value)}`)
      ignore(path, reading)
      return undefined
    },
  ),
  previous_response_id: text(
    'The answer that the input goes on from; instructions and tools are those of this request.',
  ),
  conversation: refused([''], 'use previous_response_id, or session'),
  background: refused([false], 'an answer is given to whoever waits for it'),
  prompt: refused([], 'prompts are not stored; send instructions and input'),
  n: refused([1], 'a response has one answer'),
  messages: refused([], 'belongs to /v1/chat/completions; use input'),
  max_tool_calls: noted('it limits tools that the server runs, and there are none'),
  context_management: noted('nothing is taken out of the input'),
  moderation: noted('nothing is judged'),
  client_metadata: accepted('not part of the prompt'),
  betas: accepted('there are none'),
}

const storingFields = { store, previous_response_id: fields.previous_response_id }

export const openaiResponses: Dialect = {
  name: 'openai-responses',
  path: '/v1/responses',
  idPrefix: 'resp_',
  schema: schemaOf(fields, ['input']),
  storing,
  decode: decodeResponses,
}

/** @throws RefrainError that names the field. */
function storing({ value, text: raw }: RawBody): Storing | undefined {
  const { store = null, previous_response_id = null } = value
  const read = readFields(storingFields, { store, previous_response_id }, '', readingOf(raw, 1))
  const { previous_response_id: previousId } = read
  const goesOn = previousId !== undefined && previousId !== ''
  if (read.store === undefined && !goesOn) return undefined
  return { keeps: read.store ?? true, ...(goesOn && { previousId }) }
}

function decodeResponses(raw: RawBody, envelope: Envelope): Decoded {
  const reading = readingOf(raw.text, envelope.limits.jsonDepth)
  const read = readFields(fields, raw.value, '', reading)
  if (raw.value['store'] === true && envelope.stored === undefined) ignore('store', reading)
  const tools = read.tools ?? NO_TOOLS
  const messages = readInput(required(read.input, 'input'), read.instructions, tools, reading)
  const chosen = responsesToolChoice(read.tool_choice, read.parallel_tool_calls, tools, reading)
  const toolChoice = narrowChoice(chosen, read.refrain?.allowed_tools, tools.definitions)
  const constraint = constraintOf(read, read.text?.format)
  const thinking = thinkingOf(read.reasoning?.effort)
  const wantsLogprobs = read.include?.logprobs === true || (read.top_logprobs ?? 0) > 0
  const request: GenerateRequest = {
    ...sharedRequest(read, envelope),
    prompt: { kind: 'chat', messages, tools: tools.definitions, ...(thinking === undefined ? {} : { thinking }) },
    ...(toolChoice === undefined ? {} : { toolChoice }),
    echo: false,
    ...(read.max_output_tokens === undefined ? {} : { maxTokens: read.max_output_tokens }),
    ...quickOf(read.quick, { maxTokens: read.max_output_tokens, limits: envelope.limits }).request,
    ...(wantsLogprobs ? { logprobs: read.top_logprobs ?? 0 } : {}),
    ...(constraint === undefined ? {} : { constraint }),
  }
  const shape = {
    echo: echoOf(reading),
    byModelName: tools.byModelName,
    sealsReasoning: read.include?.sealsReasoning === true,
    ...(envelope.stored && { stored: envelope.stored }),
  }
  return {
    requests: [request],
    stream: read.stream ?? false,
    ignored: [...reading.ignored],
    streamEncoder: (about) => new ResponsesStream(about, shape),
    bodyEncoder: (about) => new ResponsesBody(about, shape),
  }
}

function thinkingOf(effort: (typeof EFFORTS)[number] | undefined): Thinking | undefined {
  if (effort === undefined) return undefined
  return effort === 'none' ? { enabled: false } : { enabled: true, effort }
}
