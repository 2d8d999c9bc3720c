// POST /v1/quick in fleet mode: the questions are read and checked as they are before an engine of our own, and the chat
// goes on as the bytes that came, with one question behind it. Invariant: messages and tools keep their very text.

import { setImmediate } from 'node:timers/promises'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Clock } from '../core/clock.js'
import { chatParts, isJoinable, withQuestion } from './aside-body.js'
import { readBody } from './body.js'
import { BodyScan } from './body-scan.js'
import type { FleetQuick, Forward, QuickForward } from './contract.js'
import { type Calling, countedCall } from './counted-call.js'
import { wireResult, wireUsage } from './dialect/quick-result.js'
import { type AskingOptions, askedOf } from './forward-asked.js'
import { type Active, nameIgnored } from './generate-route.js'
import { decodeQuick, quickSchema } from './quick-routes.js'
import type { Route } from './route.js'

export interface FleetQuickOptions extends AskingOptions {
  readonly quick: FleetQuick
  readonly clock: Clock
}

const CHAT_PATH = '/v1/chat/completions'

export function fleetQuickRoutes(options: FleetQuickOptions, active: Active): Route[] {
  return [
    {
      method: 'POST',
      path: '/v1/quick',
      right: 'tenant',
      summary: 'Side questions about a chat, asked where its prefix is held.',
      body: quickSchema,
      handler: (request, reply) => ask(request, reply, { options, active }),
    },
  ]
}

async function ask(
  request: FastifyRequest,
  reply: FastifyReply,
  calling: Calling & { readonly options: FleetQuickOptions },
) {
  const { options } = calling
  return countedCall(request, reply, calling, async (call) => {
    const { tally } = call
    const raw = readBody(request.body)
    const { id, tenant } = request
    const { limits } = options
    const decoded = decodeQuick(raw, { id, tenant, session: undefined, priority: 'auxiliary', limits })
    nameIgnored(decoded, reply)
    const quick = forwardOf(request, decoded.request.quick?.tasks ?? [], options)
    const { model, session } = quick.whole.query
    call.model = model
    request.session = session
    const answered = await options.quick.ask(quick, (route) => reply.header('x-refrain-route', route), call.signal)
    // Attempts are told of a moment after their answers, and before the whole.
    await setImmediate()
    if (answered.kind === 'whole') {
      const { status, headers, body } = answered.answer
      return reply.code(status).headers(headers).type('application/json; charset=utf-8').send(body)
    }
    const { results, usage } = answered
    const { promptTokens, completionTokens, cachedTokens } = usage
    const computed = promptTokens - (cachedTokens ?? 0)
    tally.cache = { working: 0, memory: cachedTokens ?? 0, disk: 0, computed }
    Object.assign(tally, { quick: results, promptTokens, completionTokens })
    const told = wireUsage(promptTokens, completionTokens, cachedTokens)
    return { id: `quick-${id}`, object: 'quick', model, results: results.map(wireResult), usage: told }
  })
}

/** Members that are no part of a chat. */
const OWN = new Set(['tasks', 'session'])

function forwardOf(request: FastifyRequest, tasks: QuickForward['tasks'], options: FleetQuickOptions): QuickForward {
  const bytes = request.body as Buffer
  const scan = new BodyScan(bytes)
  const parts = chatParts(scan, (key) => !OWN.has(key))
  let part = 0
  const asking = (path: string, body: Buffer): Forward => {
    const { id, tenant } = request
    const at = { id, tenant, path, request: request.raw, headers: { 'x-request-id': id } }
    const asked = askedOf({ ...at, bytes: body, scan: new BodyScan(body), isJson: true }, options)
    const query = { ...asked.query, part: part++, requestClass: 'auxiliary', priority: 'auxiliary' } as const
    return { ...asked, query, url: path, stream: false, beside: undefined }
  }
  return {
    tasks,
    isJoinable: isJoinable(scan, parts.messages.at(-1)),
    whole: asking('/v1/quick', bytes),
    chat: (question) => ({ ...asking(CHAT_PATH, withQuestion(parts, question)), aside: question.aside }),
  }
}
