// Results that the model has read become placeholders, but for the latest few. The first to go: `read_result` gives each of
// them again.

import type { StepKind } from './contract.js'

/** A placeholder has up to about this many characters: shorter results would grow. */
const PLACEHOLDER_CHARS = 110

export const micro: StepKind = {
  rank: 'restorable',
  plan({ units, unreadFrom, lifecycle }) {
    const { keep, chars } = lifecycle.micro
    const shown = units.flatMap(({ calls }, i) => calls.map((call) => ({ ...call, isRead: i < unreadFrom })))
    const results = shown
      .filter(({ result }) => result !== undefined)
      .slice(0, keep === 0 ? undefined : -keep)
      .filter((call) => call.isRead && !call.isPlaceholder && call.resultChars > Math.max(chars, PLACEHOLDER_CHARS))
      .map(({ result }) => result as number)
    return results.length === 0 ? undefined : { step: 'micro', results }
  },
}
