// A summary in place of everything but the recent turns. Lossy, and written by a model; what it must hold is checked
// (check.ts).

import type { StepInput, StepKind, SummaryWish } from './contract.js'

export const summary: StepKind = { rank: 'lossy', plan: wish }

/** Nothing where there is nothing to cover but an earlier summary. */
export function wish({ units, recentFrom }: StepInput): SummaryWish | undefined {
  const covered = units.slice(0, recentFrom)
  if (covered.every(({ made }) => made === 'summary')) return undefined
  return { step: 'write', to: Math.max(...covered.map(({ to }) => to)) }
}
