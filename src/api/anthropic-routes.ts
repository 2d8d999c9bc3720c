// What clients of the Messages API ask beside messages: how long a prompt is, and whether anybody is there. Invariant: a
// count is that of the prompt that a message of the same body would have, by the model's own tokenizer and template; only
// replies that are known as they were sampled may be cut differently there.
// https://platform.claude.com/docs/en/api/messages-count-tokens

import type { FastifyReply, FastifyRequest } from 'fastify'
import { readBody } from './body.js'
import type { ApiOptions } from './contract.js'
import { countSchema, decodeConversation } from './dialect/anthropic-messages.js'
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
  const model = service.resolve(read.model || undefined)
  nameIgnored({ ignored: [...reading.ignored] }, reply)
  const count = async (messages: typeof sent) => (await service.tokenize(model, { ...prompt, messages })).length
  return {
    input_tokens: await count(prompt.messages),
    ...(edited === undefined ? {} : { context_management: { original_input_tokens: await count(sent) } }),
  }
}
