// An answer of the Responses API as the log has it: from its request's first turn to its last usage. Invariant: what is told
// again is what was told, calls of the server's own left out; what rests on a revoked source is told to admins alone.

import { RefrainError } from '../core/errors.js'
import type { StoredResponse } from './contract.js'
import type { EventBody, HeadEvent, UsageEvent } from './log/event.js'
import type { OpenSession } from './open-session.js'
import { toldAgain } from './turn-answer.js'

/** Undefined: no request of that id was answered in the session. @throws RefrainError `source_revoked`. */
export function storedResponse(
  { events, fold, record }: OpenSession,
  requestId: string,
  mayAudit: boolean,
): StoredResponse | undefined {
  const isOwn = (body: EventBody) => body.kind === 'turn' && body.requestId === requestId
  const turns = new Set(events.flatMap(({ body }) => (body.kind === 'turn' && isOwn(body) ? [body.turn] : [])))
  const isEnd = (body: EventBody) => body.kind === 'usage' && turns.has(body.turn)
  const from = events.findIndex(({ body }) => isOwn(body))
  const to = events.findLastIndex(({ body }) => isEnd(body))
  if (to < 0) return undefined
  const answer = events.slice(from, to + 1)
  const revoked = new Set([...fold.gone, ...(fold.policy?.revoked ?? [])])
  const tainted = answer.flatMap(({ sources }) => sources).find((source) => revoked.has(source))
  if (tainted !== undefined && !mayAudit)
    throw new RefrainError('source_revoked', `the answer rests on the source '${tainted}', which was revoked`)
  const usages = answer.flatMap(({ body }) => (body.kind === 'usage' ? [body] : []))
  const bodies = answer
    .map(({ body }) => body)
    .filter((body) => body.kind !== 'tool_call' || !fold.builtIns.has(body.name))
  const before = events.slice(0, from)
  const heads = before.flatMap(({ body }): HeadEvent[] => (body.kind === 'head' ? [body] : []))
  const previous = before.findLast(({ body }) => body.kind === 'usage')?.body as UsageEvent | undefined
  const last = before.findLast(({ body }) => body.kind === 'turn' && body.turn === previous?.turn)
  return {
    model: record.model,
    createdAt: events[from]?.at ?? record.createdAt,
    system: heads.findLast(({ system }) => system !== undefined)?.system ?? '',
    tools: (heads.findLast(({ tools }) => tools !== undefined)?.tools ?? []).filter(
      ({ name }) => !fold.builtIns.has(name),
    ),
    ...(last?.body.kind === 'turn' && { previous: { session: last.session, requestId: last.body.requestId } }),
    events: [...toldAgain(bodies, summed(usages))],
  }
}

function summed(usages: readonly UsageEvent[]) {
  const sum = (of: 'promptTokens' | 'completionTokens' | 'cachedTokens') =>
    usages.reduce((total, usage) => total + usage[of], 0)
  return {
    promptTokens: sum('promptTokens'),
    completionTokens: sum('completionTokens'),
    cachedTokens: sum('cachedTokens'),
  }
}
