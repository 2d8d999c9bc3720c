// POST /v1/quick: side questions about a conversation, all of them answered from its one prefix. Invariant: a question that
// fails says so in its own result; what cannot be asked at all is refused before anything is computed.

import type { FastifyReply, FastifyRequest } from 'fastify'
import type { GenerateRequest } from '../core/request.js'
import { cacheHeader } from './answer.js'
import { readBody } from './body.js'
import type { ApiOptions } from './contract.js'
import { type Calling, countedCall } from './counted-call.js'
import { type Decoded, type Envelope, envelopeRequest, type RawBody } from './dialect/contract.js'
import { readFields, readingOf, required, schemaOf, text, unsupported } from './dialect/fields.js'
import { messages, tools } from './dialect/openai-messages.js'
import { samplingOf } from './dialect/openai-sampling.js'
import { usageOf } from './dialect/openai-shape.js'
import { thinkingFields, thinkingOf } from './dialect/openai-thinking.js'
import { checkQuick, tasks } from './dialect/quick-field.js'
import { wireResult, withAdded } from './dialect/quick-result.js'
import { sessionFields } from './dialect/session-field.js'
import { type Active, envelopeOf, nameIgnored } from './generate-route.js'
import type { Route } from './route.js'

const quickFields = {
  model: text('Absent: the default model.'),
  messages,
  tools,
  tasks,
  session: sessionFields.session,
  cache_salt: text('Keeps the prefixes of those who send it apart from others.'),
  ...thinkingFields,
}

/** Of the body. */
export const quickSchema = schemaOf(quickFields, ['tasks'])

export function quickRoutes(options: ApiOptions, active: Active): Route[] {
  return [
    {
      method: 'POST',
      path: '/v1/quick',
      right: 'tenant',
      summary: 'Side questions about a chat, answered together from its prefix.',
      body: quickSchema,
      handler: (request, reply) => ask(request, reply, { options, active }),
    },
  ]
}

/** @throws RefrainError that names the field. */
export function decodeQuick(raw: RawBody, envelope: Envelope): Pick<Decoded, 'ignored'> & { request: GenerateRequest } {
  const reading = readingOf(raw.text, envelope.limits.jsonDepth)
  const read = readFields(quickFields, raw.value, '', reading)
  const asked = required(read.tasks, 'tasks')
  checkQuick(asked, 'tasks', envelope.limits)
  const isLogged = envelope.logged !== undefined
  if (read.session !== undefined && !isLogged)
    throw unsupported('session', 'cannot be honoured: nothing is logged here')
  const request: GenerateRequest = {
    ...envelopeRequest(envelope),
    ...(isLogged && { logged: { aside: 'behind' } }),
    requestClass: 'auxiliary',
    model: read.model ?? '',
    prompt: {
      kind: 'chat',
      messages: required(read.messages ?? (isLogged ? [] : undefined), 'messages'),
      tools: read.tools ?? [],
      ...thinkingOf(read),
    },
    sampling: samplingOf({ temperature: 0 }),
    ...{ stop: [], stopTokenIds: [], ignoreEos: false, n: 1, echo: false, maxTokens: 0 },
    ...(read.cache_salt === undefined ? {} : { cacheSalt: read.cache_salt }),
    quick: { tasks: asked, at: 'user' },
  }
  return { request, ignored: [...reading.ignored] }
}

async function ask(request: FastifyRequest, reply: FastifyReply, calling: Calling & { readonly options: ApiOptions }) {
  const { options } = calling
  return countedCall(request, reply, calling, async (call) => {
    const { tally } = call
    const raw = readBody(request.body)
    const envelope = envelopeOf(request, options, raw)
    request.session = envelope.session
    const isSaid = request.headers['x-refrain-priority'] !== undefined
    const decoded = decodeQuick(raw, isSaid ? envelope : { ...envelope, priority: 'auxiliary' })
    const { name: model } = options.service.resolve(decoded.request.model || undefined)
    call.model = model
    nameIgnored(decoded, reply)
    let usage: object | undefined
    for await (const event of options.service.generate(decoded.request, call.signal)) {
      tally.add(event, options.clock)
      if (event.type === 'finish') usage = usageOf(withAdded(event, tally.quick), 0)
    }
    reply.header('x-refrain-cache', cacheHeader(tally.cache))
    return { id: `quick-${request.id}`, object: 'quick', model, results: tally.quick.map(wireResult), usage }
  })
}
