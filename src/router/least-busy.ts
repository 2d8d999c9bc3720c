// The baseline of the fleet's routers: the member with the fewest requests under way, and nothing remembered. Tests and
// benchmarks stand against it.

import { RefrainError } from '../core/errors.js'
import type { FleetRouter, Member, MemberKind } from './contract.js'

/** A member that has said what it is. */
export interface AskedRemote {
  readonly id: string
  readonly url: string
  readonly kind: MemberKind
  readonly models: readonly string[]
}

export interface LeastBusy extends FleetRouter {
  /** Requests under way. */
  inFlight(): number
}

const RATES = { prefillTokensPerSecond: 2000, restoreCost: { device: 0, host: 0.1, disk: 0.3, remote: 0.5 } }

/** `members`: those that are there now. */
export function createLeastBusy(members: () => readonly AskedRemote[]): LeastBusy {
  const running = new Map<string, number>()
  const add = (member: string, change: number) => running.set(member, (running.get(member) ?? 0) + change)
  let turn = 0
  return {
    place({ model, excluded = [] }) {
      const able = members().filter((member) => member.models.includes(model))
      if (able.length === 0) throw new RefrainError('model_not_found', `no backend has the model '${model}'`)
      const left = able.filter(({ id }) => !excluded.includes(id))
      if (left.length === 0) throw new RefrainError('engine_failed', 'no backend is left that could answer')
      turn++
      const load = ({ id }: AskedRemote) => running.get(id) ?? 0
      const rotated = left.map((_, i) => left[(i + turn) % left.length] as AskedRemote)
      const best = rotated.reduce((a, b) => (load(b) < load(a) ? b : a))
      return {
        member: memberOf(best, load(best)),
        scores: left.map((member) => ({
          member: member.id,
          ttftMs: 0,
          overlapTokens: 0,
          parts: { load: load(member) },
        })),
        reason: left.length === 1 ? 'only choice' : 'least busy',
        predictedHitTokens: 0,
      }
    },
    sent: (_query, { member }) => add(member.id, 1),
    hedged: (_query, { member }) => add(member.id, 1),
    started: () => undefined,
    settled: ({ member }) => add(member, -1),
    release: () => false,
    inFlight: () => [...running.values()].reduce((sum, each) => sum + each, 0),
  }
}

function memberOf(remote: AskedRemote, inFlight: number): Member {
  return {
    ...remote,
    state: 'up',
    weight: 1,
    knowledge: 'load',
    load: { inFlight, queuedPrefillTokens: 0, decoding: 0, reportedQueue: 0 },
    rates: RATES,
  }
}
