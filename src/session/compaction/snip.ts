// Many messages: the first few and the last many stay, a marker says how many went. Costs no model; what went can be read in
// the log, but by no tool of the model's.

import type { CompactionStep, SessionEvent } from '../log/event.js'
import type { StepInput, StepKind, Unit } from './contract.js'
import { recentUnits } from './units.js'

type SnipStep = Extract<CompactionStep, { step: 'snip' }>

export const snip: StepKind = {
  rank: 'cheap',
  plan(input) {
    const { over, first, last } = input.lifecycle.snip
    const messages = input.units.reduce((sum, unit) => sum + unit.messages, 0)
    return messages <= over ? undefined : cut(input, first, Math.min(input.recentFrom, recentUnits(input.units, last)))
  },
}

/** The last resort: everything between the first messages and the recent ones. */
export function cutTo(input: StepInput): SnipStep | undefined {
  return cut(input, input.lifecycle.snip.first, input.recentFrom)
}

/** Units between the first `messages` and the one at `end`. */
function cut({ units, events }: StepInput, messages: number, end: number): SnipStep | undefined {
  let begin = 0
  for (let kept = 0; begin < end && kept < messages; begin++) kept += (units[begin] as Unit).messages
  const gone = units.slice(begin, end)
  // One marker for another gains nothing.
  if (gone.every(({ made }) => made === 'marker')) return undefined
  return {
    step: 'snip',
    from: Math.min(...gone.map(({ from }) => from)),
    to: Math.max(...gone.map(({ to }) => to)),
    messages: gone.reduce((sum, unit) => sum + (hiddenBy(unit, events) ?? unit.messages), 0),
  }
}

/** Messages that a marker stands for; undefined: it is none. */
function hiddenBy({ made, from, to }: Unit, events: readonly SessionEvent[]): number | undefined {
  if (made !== 'marker') return undefined
  for (const { body } of events.toReversed()) {
    if (body.kind !== 'compaction') continue
    const step = body.steps.find((each) => each.step === 'snip' && each.from === from && each.to === to)
    if (step?.step === 'snip') return step.messages
  }
  return undefined
}
