// Ids of the Responses API over sessions: the session stands in the id, and behind it the request's, which the log has with
// its turn. Invariant: an id means one place in one log for ever; going on from a place that was left already is a fork.
//
//   resp_ | session, 32 hex digits | request, 32 hex digits

import { RefrainError } from '../core/errors.js'
import type { Tenant } from '../core/request.js'
import type { ResponseStore, SessionState } from './contract.js'
import type { OpenSession, Whose } from './open-session.js'

export interface ResponseDeps {
  open(whose: Whose): Promise<OpenSession>
  create(tenant: Tenant, model: string): Promise<SessionState>
  fork(tenant: Tenant, id: string, at: number): Promise<readonly SessionState[]>
}

const FORM = /^resp_([0-9a-f]{32})([0-9a-f]{32})$/

export function createResponseStore({ open, create, fork }: ResponseDeps): ResponseStore {
  return {
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
