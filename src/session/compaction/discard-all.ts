// All history of tools goes, calls and results; what was said stays. Lossy, without a model. (DeepSeek-V3.2, arXiv 2512.02556,
// names it as one of the ways to go on when a search agent's context is full.)

import type { StepInput, StepKind } from './contract.js'

export const discardAll: StepKind = {
  rank: 'lossy',
  plan: (input) => discard(input, Number.POSITIVE_INFINITY),
}

/** The first `count` calls, but none whose result was not read yet. */
export function discard({ units, unreadFrom }: StepInput, count: number): ReturnType<StepKind['plan']> {
  const read = units.slice(0, unreadFrom).flatMap((unit) => unit.calls)
  const calls = read.slice(0, count).map(({ call }) => call)
  return calls.length === 0 ? undefined : { step: 'discard', calls }
}
