// What the model saw at a turn, made again from the log: the same events, the policy that was in force, the compiler of that
// time, the rendering that was logged. Invariant: it is what was sent, byte for byte, and says so itself; turns that rest on
// what was revoked since are shown to auditors alone.

import { RefrainError } from '../core/errors.js'
import { compileContext } from './compile/compilers.js'
import type { CompiledContext } from './compile/contract.js'
import type { ContextView, Rendering, SessionPorts } from './contract.js'
import type { PolicySnapshot, TurnEvent } from './log/event.js'
import type { OpenSession } from './open-session.js'
import { policyAt } from './policy.js'
import { dateOf, digestOf } from './turn-try.js'

interface Viewing {
  readonly ports: SessionPorts
  /** Of now. */
  readonly policy: PolicySnapshot | undefined
  /** Undefined: as the next would see it. */
  readonly turn: number | undefined
  readonly revoked: readonly string[]
  readonly mayAudit: boolean
}

/** @throws RefrainError `not_found`, `source_revoked`, `erased`. */
export function contextView(open: OpenSession, viewing: Viewing): ContextView {
  const { ports, turn, policy } = viewing
  if (turn === undefined) {
    const context = open.compile(policy ?? policyAt(open.events, open.position))
    const rendering: Rendering = { date: dateOf(open).toISOString() }
    return viewOf(open, { context, upTo: open.position, rendering, ports })
  }
  const sent = turnOf(open, turn)
  const before = open.events.filter(({ position }) => position <= sent.upTo)
  const context = compileContext(before, policyAt(before, sent.upTo), sent.compiler)
  refuseTainted(context, viewing)
  const rendering = JSON.parse(sent.rendering) as Rendering
  const view = viewOf(open, { context, upTo: sent.upTo, rendering, ports })
  const matches = context.digest === sent.digest && view.promptDigest === sent.promptDigest
  return { ...view, turn, matches }
}

function turnOf({ events, fold, record }: OpenSession, turn: number): TurnEvent {
  const found = events.findLast(({ body }) => body.kind === 'turn' && body.turn === turn)?.body
  if (found?.kind === 'turn') return found
  throw new RefrainError('not_found', `'${record.id}' has no turn ${turn}; it had ${fold.turns}`, { param: 'at' })
}

function refuseTainted({ sources }: CompiledContext, { revoked, mayAudit }: Viewing): void {
  const tainted = sources.filter((source) => revoked.includes(source))
  if (mayAudit || tainted.length === 0) return
  throw new RefrainError('source_revoked', `the turn rests on '${tainted[0]}', which was revoked: an admin may see it`)
}

interface Viewed {
  readonly context: CompiledContext
  readonly upTo: number
  readonly rendering: Rendering
  readonly ports: SessionPorts
}

function viewOf({ record }: OpenSession, { context, upTo, rendering, ports }: Viewed): ContextView {
  const { tools, messages, tail, version, digest, stableDigest, series, withheld, sources } = context
  const { thinking, templateValues } = rendering
  const shown = ports.shown(record.model, {
    kind: 'chat',
    messages: [...messages, ...tail],
    tools,
    ...(thinking !== undefined && { thinking }),
    ...(templateValues !== undefined && { templateValues }),
  })
  const prompt = ports.render(record.model, shown, rendering)
  return {
    session: record.id,
    ...{ upTo, compiler: version, digest, stableDigest, series, tools, messages, tail, withheld, sources, prompt },
    promptDigest: digestOf(prompt),
  }
}
