// A generating request as a turn of a logged session: where its body names one, or asks for an answer that is kept under its
// id. Invariant: what a body asks for and cannot have is refused before anything is logged.

import { RefrainError } from '../core/errors.js'
import type { ApiOptions } from './contract.js'
import type { Dialect, Envelope, RawBody } from './dialect/contract.js'
import { invalid } from './dialect/fields.js'
import { loggedIn } from './dialect/session-field.js'

/** The envelope with its session, where the body names one. @throws RefrainError that names the field. */
export function inSession(envelope: Envelope, raw: RawBody, key: string | string[] | undefined): Envelope {
  const named = loggedIn(raw, key)
  return named === undefined ? envelope : { ...envelope, ...named }
}

export interface Kept {
  readonly envelope: Envelope
  /** Of the answer, without its prefix. */
  readonly answerId: string
  /** What is not to be kept is gone when it resolves. */
  over(failure: unknown): Promise<void>
}

/**
 * The session behind an answer's id, for APIs that keep answers. Undefined: nothing is kept, and nothing gone on from.
 * @throws RefrainError `not_found`, `unsupported_parameter`.
 */
export async function keptAnswer(
  dialect: Dialect,
  raw: RawBody,
  { envelope, options }: { readonly envelope: Envelope; readonly options: ApiOptions },
): Promise<Kept | undefined> {
  const { sessions, storesResponses = false } = options
  if (dialect.storing === undefined || envelope.requestClass === 'compaction') return undefined
  const asked = dialect.storing(raw)
  const stored = asked ?? (storesResponses ? { keeps: true } : undefined)
  if (stored === undefined || (!stored.keeps && stored.previousId === undefined)) return undefined
  if (envelope.logged !== undefined) {
    if (stored.previousId === undefined) return undefined
    throw invalid('previous_response_id', "cannot stand beside 'session'")
  }
  if (sessions === undefined) {
    if (stored.previousId === undefined) return undefined
    const why = 'answers are not kept here (sessions.log.store); send the whole conversation as input'
    throw new RefrainError('unsupported_parameter', `'previous_response_id' cannot be honoured: ${why}`, {
      param: 'previous_response_id',
    })
  }
  const { tenant, id } = envelope
  const { model } = raw.value
  const { name } = options.service.resolve(typeof model === 'string' && model !== '' ? model : undefined)
  const { previousId, keeps } = stored
  const from = previousId !== undefined && { previousId }
  const { session, isNew } = await sessions.responses.open(tenant, { model: name, ...from })
  return {
    answerId: sessions.responses.idOf(session, id),
    async over(failure) {
      // A session that was made for this answer alone is none without it.
      if (isNew && (failure !== undefined || !keeps)) await sessions.erase(tenant, session)
    },
    envelope: {
      ...envelope,
      session,
      stored,
      logged: { wholeHead: true, ...(!keeps && { aside: 'behind' as const }) },
    },
  }
}
