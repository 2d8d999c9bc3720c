// What clients of the Messages API ask beside messages: how long a prompt is, and whether anybody is there. Invariant: a
// count is that of the prompt that a message of the same body would have, by the model's own tokenizer and template; only
// replies that are known as they were sampled may be cut differently there.
// https://platform.claude.com/docs/en/api/messages-count-tokens

import type { FastifyReply, FastifyRequest } from 'fastify'
import { RefrainError } from '../core/errors.js'
import type { Sessions } from '../session/contract.js'
import { readBody } from './body.js'
import type { ApiOptions } from './contract.js'
import { countSchema, decodeConversation } from './dialect/anthropic-messages.js'
import type { Envelope } from './dialect/contract.js'
import { envelopeOf, nameIgnored } from './generate-route.js'
import type { Route } from './route.js'

export function anthropicRoutes(options: ApiOptions): Route[] {
  return [
    {
      method: 'POST',
      path: '/v1/messages/count_tokens',
      right: 'tenant',
      summary: 'How many tokens the prompt of a Messages body has: system, tools, messages and what the template adds.',
      body: countSchema,
      handler: (request, reply) => countTokens(request, reply, options),
    },
    {
      method: 'GET',
      path: '/api/hello',
      right: 'anyone',
      summary: 'Answers; Claude Code asks with HEAD when it starts.',
      handler: () => ({}),
    },
  ]
}

async function countTokens(request: FastifyRequest, reply: FastifyReply, options: ApiOptions) {
  const { service } = options
  const body = readBody(request.body)
  const envelope = envelopeOf(request, options, body)
  const { read, reading, prompt, sent, edited } = decodeConversation(body, envelope)
  nameIgnored({ ignored: [...reading.ignored] }, reply)
  const count = async (messages: typeof sent) => {
    const asked = { model: read.model ?? '', prompt: { ...prompt, messages } }
    const whole = await inContext(asked, envelope, options)
    return (await service.tokenize(service.resolve(whole.model || undefined), whole.prompt)).length
  }
  return {
    input_tokens: await count(prompt.messages),
    ...(edited === undefined ? {} : { context_management: { original_input_tokens: await count(sent) } }),
  }
}

type Asked = Pick<Parameters<Sessions['trial']>[2], 'model' | 'prompt'>

/** With all of the session's context, where the body names a session and brings only what is new. */
async function inContext(
  asked: Asked,
  { tenant, session, logged }: Envelope,
  { sessions }: ApiOptions,
): Promise<Asked> {
  if (logged === undefined || session === undefined) return asked
  if (sessions !== undefined) return sessions.trial(tenant, session, { ...asked, logged })
  const why = "'session' cannot be honoured: sessions are not logged here (sessions.log.store)"
  throw new RefrainError('unsupported_parameter', why, { param: 'session' })
}
