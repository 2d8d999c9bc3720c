// Anthropic Messages, the decoder. https://platform.claude.com/docs/en/api/messages/create
// Invariant: what is not in a table here or in the ones that are joined in is noted, not honoured and not an error: clients
// of this API send what is newer than any table.

import { RefrainError } from '../../core/errors.js'
import type { ChatMessage, Constraint, GenerateRequest, Thinking, ToolDefinition } from '../../core/request.js'
import { CacheMarks, cacheControl } from './anthropic-cache-marks.js'
import { Conversation, messagesSchema, systemSchema } from './anthropic-content.js'
import { applyEdits, type EditedContext } from './anthropic-context.js'
import { contextManagement } from './anthropic-edits.js'
import { MessageBody, MessageStream } from './anthropic-encode.js'
import { anthropicError, anthropicErrorSchema, NO_THREAD } from './anthropic-shape.js'
import { anthropicToolChoice, choiceOf, readTools, toolsSchema } from './anthropic-tools.js'
import { type Decoded, type Dialect, type Envelope, envelopeRequest, type RawBody } from './contract.js'
import {
  accepted,
  asObject,
  boolean,
  custom,
  type Field,
  integer,
  invalid,
  type JsonSchema,
  kindOf,
  listOf,
  noted,
  number,
  object,
  oneOf,
  type Reading,
  type ReadOf,
  readFields,
  readingOf,
  refused,
  required,
  schemaOf,
  text,
  unsupported,
} from './fields.js'
import { schemaField } from './openai-constraint.js'
import { quick, quickOf } from './quick-field.js'
import { sessionFields } from './session-field.js'
import { refrainMember } from './tool-choice.js'

/** Read as they are: what they mean depends on other fields. */
const asSent = (schema: JsonSchema): Field<unknown> => custom(schema, (value) => value)

const schemaOfFormat = schemaField('The JSON Schema.')

const format: Field<Constraint> = custom(
  { type: 'object', description: '`{type: "json_schema", schema}`: the answer follows it.', required: ['type'] },
  (value, path, reading) => {
    const { type, schema } = asObject(value, path)
    if (typeof type !== 'string') throw invalid(`${path}.type`, `must be a string, not ${kindOf(type ?? null)}`)
    if (type !== 'json_schema') throw unsupported(`${path}.type`, `must be 'json_schema', not '${type.slice(0, 40)}'`)
    if (schema === undefined || schema === null) throw invalid(`${path}.schema`, 'is required')
    return { kind: 'json-schema', schema: schemaOfFormat.read(schema, `${path}.schema`, reading) }
  },
)

/** A thread may be begun, for every request brings its conversation; the SDK's own loops begin one and go on without. */
const thread: Field<undefined> = custom(
  {
    type: 'object',
    description: '`{type: "create"}`; nothing is held, so `continue` finds none and the client starts anew.',
  },
  (value, path, reading) => {
    const { type } = readFields(threadFields, value, path, reading)
    required(type, `${path}.type`)
    if (type === 'create') return undefined
    throw new RefrainError('not_found', 'conversations are not held here; send all of it as messages', {
      param: NO_THREAD,
    })
  },
)
const threadFields = { type: oneOf(['create', 'continue'], 'What is done.'), previous_message_id: text('An answer.') }

const previousMessage: Field<string> = text('The id of the answer to compare with.')

const fields = {
  model: text('A model of /v1/models, or a name that an alias pattern matches. Absent: the default model.'),
  messages: asSent(messagesSchema),
  system: asSent(systemSchema),
  tools: asSent(toolsSchema),
  tool_choice: anthropicToolChoice,
  max_tokens: integer(
    { min: 0 },
    'Tokens of the answer at most; cut to what the window leaves. 0: the prompt is computed and kept, nothing is said.',
  ),
  stream: boolean('Server-sent events.'),
  temperature: number({ min: 0, max: 2 }, '0 is greedy. Default 1.'),
  top_p: number({ min: 0, max: 1 }, 'Default 1.'),
  top_k: integer({ min: -1 }, '0 or -1: off.'),
  stop_sequences: listOf(text('Ends the answer.'), 'End the answer.'),
  thinking: object(
    {
      type: oneOf(['enabled', 'disabled', 'adaptive', 'between_tools'], 'On, off, as the model likes.'),
      display: oneOf(['summarized', 'omitted', 'updates', 'full'], '`omitted`: only the signature is sent.'),
      budget_tokens: noted('the model decides how long it thinks'),
      block_binding: noted('signatures are not checked'),
    },
    'How the model thinks.',
    ['type'],
  ),
  output_config: object(
    {
      effort: oneOf(['low', 'medium', 'high', 'xhigh', 'max'], 'How long the model thinks.'),
      format,
      task_budget: noted('there is no budget'),
    },
    'The form of the answer.',
  ),
  output_format: format,
  cache_control: cacheControl,
  context_management: contextManagement,
  diagnostics: object({ previous_message_id: previousMessage }, 'Asks why the cache was missed.'),
  refrain: refrainMember,
  ...sessionFields,
  quick,
  cache_salt: text('Requests share cached prefixes only with requests of the same salt.'),
  metadata: accepted("the tenant is the key's"),
  service_tier: accepted('there is one'),
  inference_geo: accepted('there is one place'),
  user_profile_id: accepted("the tenant is the key's"),
  workspace_id: accepted("the tenant is the key's"),
  betas: accepted('what is known needs no switch'),
  billing_policy: accepted('nothing is billed'),
  fallback_credit_token: accepted('nothing is billed'),
  speed: noted('there is one'),
  fallbacks: noted('there is nothing to fall back to'),
  compaction: noted('the client compacts'),
  container: refused([''], 'there are no containers'),
  mcp_servers: refused([], 'the server calls no tools'),
  thread,
}

type Read = ReadOf<typeof fields>

export const anthropicMessages: Dialect = {
  name: 'anthropic-messages',
  path: '/v1/messages',
  idPrefix: 'msg_',
  schema: schemaOf(fields, ['messages', 'max_tokens']),
  errors: { header: 'anthropic-version', body: anthropicError, schema: anthropicErrorSchema },
  decode(raw, envelope) {
    const { read, reading, prompt, ...rest } = decodeConversation(raw, envelope)
    const maxTokens = required(read.max_tokens, 'max_tokens')
    const asides = quickOf(read.quick, { maxTokens, limits: envelope.limits, continues: prompt.continueFinal }).request
    const request = { ...requestOf(read, envelope, prompt, maxTokens), ...asides }
    const shape = {
      maxTokens,
      lifetime: rest.marks.lifetime,
      omitsThinking: read.thinking?.display === 'omitted',
      appliedEdits: rest.edited?.applied,
      previousMessage: read.diagnostics && (read.diagnostics.previous_message_id ?? null),
    }
    const checkpoints = rest.marks.checkpoints(prompt.messages.length)
    return {
      requests: [checkpoints === undefined ? request : { ...request, checkpoints }],
      stream: read.stream ?? false,
      ignored: [...reading.ignored],
      streamEncoder: (about) => new MessageStream(about, shape),
      bodyEncoder: (about) => new MessageBody(about, shape),
    } satisfies Decoded
  },
}

export const countSchema: JsonSchema = schemaOf(fields, ['messages'])

type ChatPrompt = Extract<GenerateRequest['prompt'], { kind: 'chat' }>

export interface DecodedConversation {
  readonly read: Read
  readonly reading: Reading
  readonly prompt: ChatPrompt
  /** The messages as they were sent, before any edit. */
  readonly sent: readonly ChatMessage[]
  readonly marks: CacheMarks
  /** Undefined: `context_management` was not sent. */
  readonly edited: EditedContext | undefined
}

/** All of a body but how long its answer is: what `count_tokens` takes too. @throws RefrainError that names the field. */
export function decodeConversation(raw: RawBody, envelope: Envelope): DecodedConversation {
  const reading = readingOf(raw.text, envelope.limits.jsonDepth)
  const read = readFields(fields, raw.value, '', reading)
  const marks = new CacheMarks()
  const tools = readTools(read.tools, marks, reading)
  const conversation = new Conversation(reading, marks)
  conversation.readSystem(read.system)
  conversation.readMessages(required(read.messages, 'messages'))
  const sent: readonly ChatMessage[] = conversation.messages
  marks.add(sent.length - 1, read.cache_control)
  const continueFinal = conversation.continuesFinal()
  const edited = editedContext(read, { sent, tools, envelope })
  const thinking = thinkingOf(read)
  const prompt: ChatPrompt = {
    kind: 'chat',
    messages: edited?.messages ?? sent,
    tools,
    ...(continueFinal && { continueFinal }),
    ...(thinking === undefined ? {} : { thinking }),
  }
  return { read, reading, prompt, sent, marks, edited }
}

interface Sent {
  readonly sent: readonly ChatMessage[]
  readonly tools: readonly ToolDefinition[]
  readonly envelope: Envelope
}

/** Characters a token, where nobody counts better. */
const TOKEN_CHARS = 4

function editedContext(read: Read, { sent, tools, envelope }: Sent): EditedContext | undefined {
  if (read.context_management === undefined) return undefined
  const { countTokens } = envelope
  const tokensOf = (plain: string) =>
    countTokens === undefined ? Math.ceil(plain.length / TOKEN_CHARS) : countTokens(read.model, plain)
  return applyEdits(sent, read.context_management, { head: tools.map(({ json }) => json).join('\n'), tokensOf })
}

function requestOf(read: Read, envelope: Envelope, prompt: ChatPrompt, maxTokens: number): GenerateRequest {
  const stop = read.stop_sequences ?? []
  checkStop(stop, envelope)
  const tools = envelope.logged !== undefined && prompt.tools.length === 0 ? undefined : prompt.tools
  const toolChoice = choiceOf(read.tool_choice, read.refrain?.allowed_tools, tools)
  const constraint = constraintOf(read)
  return {
    ...envelopeRequest(envelope),
    model: read.model ?? '',
    prompt,
    sampling: {
      temperature: read.temperature ?? 1,
      topP: read.top_p ?? 1,
      topK: Math.max(0, read.top_k ?? 0),
      minP: 0,
      repetitionPenalty: 1,
      presencePenalty: 0,
      frequencyPenalty: 0,
      logitBias: {},
    },
    stop,
    stopTokenIds: [],
    ignoreEos: false,
    n: 1,
    echo: false,
    maxTokens,
    ...(toolChoice === undefined ? {} : { toolChoice }),
    ...(constraint === undefined ? {} : { constraint }),
    ...(read.cache_salt === undefined ? {} : { cacheSalt: read.cache_salt }),
  }
}

function checkStop(stop: readonly string[], { limits }: Envelope): void {
  const path = 'stop_sequences'
  if (stop.length > limits.stopStrings) {
    throw invalid(path, `must have at most ${limits.stopStrings} strings (limits.stopStrings)`)
  }
  for (const [i, each] of stop.entries()) {
    if (each === '') throw invalid(`${path}[${i}]`, 'must not be empty')
    if (each.length <= limits.stopChars) continue
    throw invalid(`${path}[${i}]`, `must have at most ${limits.stopChars} characters (limits.stopChars)`)
  }
}

function constraintOf(read: Read): Constraint | undefined {
  const { output_format: older, output_config: config } = read
  if (older !== undefined && config?.format !== undefined) {
    throw invalid('output_format', "cannot stand beside 'output_config.format'")
  }
  return config?.format ?? older
}

function thinkingOf({ thinking, output_config: config }: Read): Thinking | undefined {
  if (thinking?.type === 'disabled') return { enabled: false }
  const isOn = thinking?.type === 'enabled'
  const effort = config?.effort
  if (!isOn && effort === undefined) return undefined
  return { ...(isOn && { enabled: true }), ...(effort === undefined ? {} : { effort }) }
}
