// Why turns missed the cache: sessions, their turns, and each turn's reason, place and cost. Invariant: a tenant is answered
// about its own sessions alone, an admin about all; a session that is not known and one that is somebody else's look the same.

import type { FastifyRequest } from 'fastify'
import { RefrainError } from '../core/errors.js'
import type { MissView, SessionView, TurnArchive, TurnDesk, TurnView } from '../explain/contract.js'
import type { ApiOptions } from './contract.js'
import type { Route } from './route.js'

export function explainRoutes({ turns }: Pick<ApiOptions, 'turns'>): Route[] {
  return turns === undefined ? [] : turnRoutes(turnsHere(turns))
}

/** Turns that are kept in this process. */
export function turnsHere(archive: TurnArchive): TurnDesk {
  return {
    sessions: async (viewer) => joined(archive.sessions(viewer)),
    async turns(viewer, key, tenant) {
      const session = archive.session(viewer, key, tenant)
      return joined(session && { session, turns: archive.turns(viewer, key, tenant) ?? [] })
    },
    async turn(viewer, key, which) {
      const session = archive.session(viewer, key, which.tenant)
      return joined(session && { session, found: archive.turn(viewer, key, which) })
    },
  }
}

const joined = <T>(value: T) => ({ value, missing: [] })

/** Wherever turns are kept. */
export function turnRoutes(desk: TurnDesk): Route[] {
  return [
    {
      method: 'GET',
      path: '/v1/explain/sessions',
      right: 'tenant',
      summary:
        'Sessions whose turns are known, the latest first, with what they missed and what keeps changing in them.',
      handler: async ({ tenant }) => {
        const { value, missing } = await desk.sessions(tenant)
        return { object: 'list', data: value.map(sessionObject), ...missingIn(missing) }
      },
    },
    {
      method: 'GET',
      path: '/v1/sessions/:id/turns',
      right: 'tenant',
      summary: "A session's turns: tokens by where they came from, and why what was missed was missed.",
      handler: (request) => listTurns(request, desk),
    },
    {
      method: 'GET',
      path: '/v1/sessions/:id/turns/:n/explain',
      right: 'tenant',
      summary: 'Why a turn missed: the reason, the message and byte where it parts from the turn before, what it cost.',
      handler: (request) => explainTurn(request, desk),
    },
  ]
}

interface Asked {
  readonly id: string
  /** `?tenant=`, for admins. */
  readonly tenant?: string
}

function askedOf({ params, query }: FastifyRequest): Asked {
  const { id } = params as { id: string }
  const { tenant } = query as { tenant?: unknown }
  return { id, ...(typeof tenant === 'string' && tenant !== '' && { tenant }) }
}

async function listTurns(request: FastifyRequest, desk: TurnDesk) {
  const { id, tenant } = askedOf(request)
  const { value, missing } = await desk.turns(request.tenant, id, tenant)
  if (value === undefined) throw unknownSession(id, missing)
  const { session, turns } = value
  return { ...sessionObject(session), object: 'list', data: turns.map(turnObject), ...missingIn(missing) }
}

async function explainTurn(request: FastifyRequest, desk: TurnDesk) {
  const { id, tenant } = askedOf(request)
  const { n } = request.params as { n: string }
  if (!/^[1-9]\d{0,8}$/.test(n)) {
    throw new RefrainError('invalid_request', `'n' must be the number of a turn, from 1, not '${n.slice(0, 32)}'`, {
      param: 'n',
    })
  }
  const which = { turn: Number(n), ...(tenant !== undefined && { tenant }) }
  const { value, missing } = await desk.turn(request.tenant, id, which)
  if (value === undefined) throw unknownSession(id, missing)
  const { session, found } = value
  if (found === undefined) {
    const text = `turn ${n} is not among those that are kept (explain.turns); ${session.turns} were seen`
    throw new RefrainError('not_found', text + silentIn(missing))
  }
  return {
    ...turnObject(found.turn),
    object: 'session.turn.explanation',
    session: session.session,
    tenant: session.tenant,
    segments: found.segments.map(snakeKeys),
    ...missingIn(missing),
  }
}

function unknownSession(id: string, missing: readonly string[]): RefrainError {
  return new RefrainError('not_found', `no turns of a session '${id.slice(0, 128)}' are known${silentIn(missing)}`)
}

/** Who did not answer, where somebody did not. */
function missingIn(missing: readonly string[]) {
  return missing.length > 0 && { missing }
}

function silentIn(missing: readonly string[]): string {
  return missing.length === 0 ? '' : `; not all were asked: no answer from ${missing.join(', ')}`
}

function sessionObject({ session, tenant, byContent, turns, at, repeats, side, ...tokens }: SessionView) {
  return {
    object: 'session.summary',
    session,
    tenant,
    by_content: byContent,
    turns,
    last_turn_at: Math.floor(at / 1000),
    prompt_tokens: tokens.promptTokens,
    reused_tokens: tokens.reusedTokens,
    missed_tokens: tokens.missedTokens,
    ...(side && { side: snakeKeys(side) }),
    repeats,
  }
}

function turnObject({ turn, requestId, at, requestClass, miss, cache, quickTokens, ...rest }: TurnView) {
  return {
    object: 'session.turn',
    turn,
    id: requestId,
    created: Math.floor(at / 1000),
    class: requestClass,
    model: rest.model,
    backend: rest.backend,
    template: rest.template,
    status: rest.status,
    prompt_tokens: rest.promptTokens,
    completion_tokens: rest.completionTokens,
    committed_tokens: rest.committedTokens,
    cache: cache ?? null,
    ...(quickTokens !== undefined && { quick_tokens: quickTokens }),
    miss: miss === undefined ? null : missObject(miss),
  }
}

function missObject({ reason, missedTokens, sentence, comparedWith, difference, causes, repeats }: MissView) {
  return {
    reason,
    missed_tokens: missedTokens,
    sentence,
    compared_with: comparedWith ?? null,
    ...(difference && { difference }),
    causes: causes.map((cause) => ({ reason: cause.reason, missed_tokens: cause.missedTokens })),
    ...(repeats && { repeats }),
  }
}

function snakeKeys(object: object): object {
  return Object.fromEntries(
    Object.entries(object).map(([key, value]) => [
      key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
      value,
    ]),
  )
}
