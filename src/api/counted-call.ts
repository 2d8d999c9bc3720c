// A call that generates and answers with one body of its own: it is counted like any other request, ended by its client's
// leaving or by a drain. Invariant: what became of it is told once, whatever happened.

import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Clock } from '../core/clock.js'
import { ClientGone, Tally } from './answer.js'
import { type Active, settle, tellBegun } from './generate-route.js'

export interface CountedCall {
  readonly signal: AbortSignal
  readonly tally: Tally
  /** The model's own name, as soon as it is known. */
  model: string
}

export interface Calling {
  readonly options: { readonly clock: Clock }
  readonly active: Active
}

/** What `answer` gives is the body. @throws what it throws, but for the client's leaving. */
export async function countedCall(
  request: FastifyRequest,
  reply: FastifyReply,
  { options: { clock }, active }: Calling,
  answer: (call: CountedCall) => Promise<unknown>,
): Promise<unknown> {
  const stop = new AbortController()
  reply.raw.once('close', () => {
    if (!reply.raw.writableFinished) stop.abort(new ClientGone())
  })
  const call: CountedCall = { signal: stop.signal, tally: new Tally(), model: '' }
  let failure: unknown
  active.add(stop)
  tellBegun(request, clock)
  try {
    return await answer(call)
  } catch (error) {
    failure = error
    if (!(error instanceof ClientGone)) throw error
    reply.hijack()
    return reply
  } finally {
    active.delete(stop)
    const { tally, model } = call
    settle(request, { tally, model, failure, clock })
  }
}
