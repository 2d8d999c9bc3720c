// What a context's body consists of, as units that a step takes whole: an answer and the results of its calls are one.
// Invariant: units are in the order of the log and cover every message but the head's.

import type { CompiledContext, Origin } from '../compile/contract.js'
import type { SessionEvent } from '../log/event.js'
import type { StepInput, Unit, UnitCall } from './contract.js'

interface Shown {
  readonly message: CompiledContext['messages'][number]
  readonly origin: Origin
}

/** Characters of a body: what was said, without tools, system text and memory. */
export function historyChars({ messages, origins, chars }: CompiledContext): number {
  return origins[0]?.made === 'head' ? chars - (messages[0]?.content.length ?? 0) : chars
}

export function unitsOf(context: CompiledContext, events: readonly SessionEvent[]): readonly Unit[] {
  const body = context.messages.flatMap((message, i): Shown[] => {
    const origin = context.origins[i] as Origin
    return origin.made === 'head' ? [] : [{ message, origin }]
  })
  const units: Unit[] = []
  for (let at = 0; at < body.length; ) {
    const end = endOf(body, at)
    units.push(unitOf(body.slice(at, end), events))
    at = end
  }
  return units
}

/** Index behind the unit that begins at `at`. */
function endOf(body: readonly Shown[], at: number): number {
  const first = body[at] as Shown
  let end = at + 1
  const isSame = ({ message, origin }: Shown) =>
    first.origin.made === 'summary' ? origin.made === 'summary' : message.role === 'tool'
  while (end < body.length && isSame(body[end] as Shown)) end++
  return end
}

function unitOf(shown: readonly Shown[], events: readonly SessionEvent[]): Unit {
  const [first] = shown as [Shown]
  const { role } = first.message
  const calls = callsOf(shown, events)
  const places = calls.flatMap(({ call, result }) => [call, result ?? call])
  return {
    from: first.origin.from,
    to: Math.max(first.origin.to, ...places),
    messages: shown.length,
    chars: shown.reduce((sum, { message }) => sum + message.content.length, 0),
    role: role === 'tool' ? 'assistant' : role,
    made: first.origin.made,
    calls,
  }
}

function callsOf([answer, ...results]: readonly Shown[], events: readonly SessionEvent[]): UnitCall[] {
  const ids = (answer?.message.toolCalls ?? []).map(({ id }) => id)
  const { from, to } = (answer as Shown).origin
  const calls: UnitCall[] = []
  for (let position = from; position <= to && calls.length < ids.length; position++) {
    const body = events[position - 1]?.body
    if (body?.kind !== 'tool_call' || body.id !== ids[calls.length]) continue
    const shown = results[calls.length]
    const made = shown?.origin.made
    calls.push({
      call: position,
      result: shown === undefined || made === 'missing' ? undefined : shown.origin.from,
      resultChars: shown?.message.content.length ?? 0,
      isPlaceholder: made === 'placeholder',
    })
  }
  return calls
}

/** Index of the first of the last units that have `keep` messages between them; 0 where there are fewer. */
export function recentUnits(units: readonly Unit[], keep: number): number {
  let messages = 0
  for (let i = units.length - 1; i >= 0; i--) {
    messages += (units[i] as Unit).messages
    if (messages >= keep) return i
  }
  return 0
}

/** Index of the first unit that the model has not answered yet: results of the last calls, and what came behind them. */
export function unreadUnits(units: readonly Unit[]): number {
  const answer = units.findLastIndex(({ role, made }) => role === 'assistant' && made === undefined)
  return answer >= 0 && (units[answer] as Unit).calls.length > 0 ? answer : answer + 1
}

/** What steps go by. */
export function stepInput(
  context: CompiledContext,
  { events, lifecycle, keep }: Pick<StepInput, 'events' | 'lifecycle'> & { readonly keep: number },
): StepInput {
  const units = unitsOf(context, events)
  const unreadFrom = unreadUnits(units)
  return { events, context, units, unreadFrom, recentFrom: Math.min(unreadFrom, recentUnits(units, keep)), lifecycle }
}
