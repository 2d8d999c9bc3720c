// Ids of the Responses API over sessions: the session stands in the id, and behind it the request's, which the log has with
// its turn. Invariant: an id means one place in one log for ever; going on from a place that was left already is a fork.
//
//   resp_ | session, 32 hex digits | request, 32 hex digits

import { RefrainError } from '../core/errors.js'
import type { Tenant } from '../core/request.js'
import type { ResponseStore, SessionState, StoredResponse } from './contract.js'
import type { OpenSession, Whose } from './open-session.js'
import { storedResponse } from './stored-response.js'

export interface ResponseDeps {
  open(whose: Whose): Promise<OpenSession>
  create(tenant: Tenant, model: string): Promise<SessionState>
  fork(tenant: Tenant, id: string, at: number): Promise<readonly SessionState[]>
  /** @throws RefrainError `conflict` where it has forks. */
  erase(tenant: Tenant, id: string): Promise<void>
}

const FORM = /^resp_([0-9a-f]{32})([0-9a-f]{32})$/

export function createResponseStore({ open, create, fork, erase }: ResponseDeps): ResponseStore {
  async function found(tenant: Tenant, responseId: string) {
    const [, session, requestId] = FORM.exec(responseId) ?? []
    const missing = () => new RefrainError('not_found', `no response '${responseId.slice(0, 96)}' is stored`)
    if (session === undefined || requestId === undefined) throw missing()
    const opened = await open({ tenant: tenant.name, session: `ses_${session}` }).catch((error: unknown) => {
      throw error instanceof RefrainError && error.code === 'not_found' ? missing() : error
    })
    if (answeredAt(opened, requestId) === undefined) throw missing()
    return { opened, requestId, response: storedResponse(opened, requestId, tenant.admin) as StoredResponse }
  }
  return {
    find: async (tenant, id) => (await found(tenant, id)).response,
    async erase(tenant, id) {
      const { opened, requestId } = await found({ ...tenant, admin: true }, id)
      const { id: session } = opened.record
      // What a fork took over is its parent's to keep.
      const others = opened.events.some(
        (each) => each.session === session && each.body.kind === 'turn' && each.body.requestId !== requestId,
      )
      if (others)
        throw new RefrainError(
          'conflict',
          `other answers stand in the conversation of '${id.slice(0, 96)}'; DELETE /v1/sessions/${session} erases all of it`,
        )
      await erase(tenant, session)
    },
    idOf: (session, requestId) => `${session.replace(/^ses_/, '')}${requestId}`,
    async open(tenant, { model, previousId }) {
      if (previousId === undefined) return { session: (await create(tenant, model)).id, isNew: true }
      const [, session, requestId] = FORM.exec(previousId) ?? []
      if (session === undefined || requestId === undefined) throw unknown(previousId)
      const id = `ses_${session}`
      const opened = await open({ tenant: tenant.name, session: id }).catch((error: unknown) => {
        if (error instanceof RefrainError && error.code === 'not_found') throw unknown(previousId)
        throw error
      })
      const at = answeredAt(opened, requestId)
      if (at === undefined) throw unknown(previousId)
      const isLast =
        !opened.isHeld && !opened.events.some(({ body, position }) => position > at && body.kind !== 'attempt')
      if (isLast) return { session: id, isNew: false }
      const [made] = await fork(tenant, id, at)
      return { session: (made as SessionState).id, isNew: true }
    },
  }
}

/** Position of the last event of the answer to a request. */
function answeredAt({ events }: OpenSession, requestId: string): number | undefined {
  const own = (turn: number) =>
    events.some(({ body }) => body.kind === 'turn' && body.turn === turn && body.requestId === requestId)
  return events.findLast(({ body }) => body.kind === 'usage' && own(body.turn))?.position
}

function unknown(id: string): RefrainError {
  const message = `no response '${id.slice(0, 96)}' is stored; send store: true with what is to be gone on from`
  return new RefrainError('not_found', message, { param: 'previous_response_id' })
}
