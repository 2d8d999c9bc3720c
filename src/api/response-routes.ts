// Answers of the Responses API that are kept: told again by their ids, and erased. Invariant: an answer is told as it was, an
// id of somebody else's is one that is not there, and nothing is erased that another answer stands on.
// https://platform.openai.com/docs/api-reference/responses/get

import type { FastifyReply, FastifyRequest } from 'fastify'
import { RefrainError } from '../core/errors.js'
import type { ToolDefinition } from '../core/request.js'
import type { Sessions, StoredResponse } from '../session/contract.js'
import type { ApiOptions } from './contract.js'
import { ResponsesBody } from './dialect/openai-responses-encode.js'
import { echoOfStored } from './dialect/openai-responses-shape.js'
import type { Route } from './route.js'

export function responseRoutes({ sessions }: Pick<ApiOptions, 'sessions'>): Route[] {
  const path = '/v1/responses/:id'
  return [
    {
      ...{ method: 'GET', path, right: 'tenant', summary: 'A stored answer of the Responses API.' },
      handler: async (request: FastifyRequest, reply: FastifyReply) => {
        const id = idOf(request)
        const found = await storeOf(sessions).find(request.tenant, id)
        return reply.type('application/json').send(bodyOf(id, found, storeOf(sessions)))
      },
    },
    {
      ...{ method: 'DELETE', path, right: 'tenant', summary: 'Erases a stored answer, and the session behind it.' },
      handler: async (request: FastifyRequest) => {
        const id = idOf(request)
        await storeOf(sessions).erase(request.tenant, id)
        return { id, object: 'response', deleted: true }
      },
    },
  ]
}

function idOf({ params }: FastifyRequest): string {
  return (params as { id: string }).id
}

function storeOf(sessions: Sessions | undefined): Sessions['responses'] {
  if (sessions !== undefined) return sessions.responses
  throw new RefrainError('not_found', 'answers are not kept here (sessions.log.store)')
}

/** The response object; what was asked is told as far as the log has it, the rest as the API's defaults. */
function bodyOf(id: string, found: StoredResponse, store: Sessions['responses']): string {
  const { model, createdAt, system, tools, previous, events } = found
  const about = { id, model, created: Math.floor(createdAt / 1000), forceUsage: false }
  const previousId = previous && { previousId: `resp_${store.idOf(previous.session, previous.requestId)}` }
  const body = new ResponsesBody(about, {
    echo: echoOfStored(system, tools.map(wireTool)),
    byModelName: new Map(),
    stored: { keeps: true, ...previousId },
    sealsReasoning: false,
  })
  for (const event of events) body.event(event)
  return body.body()
}

function wireTool({ json }: ToolDefinition): object {
  const { function: sent, ...rest } = JSON.parse(json) as { function?: object }
  return { strict: false, ...rest, ...sent, type: 'function' }
}
