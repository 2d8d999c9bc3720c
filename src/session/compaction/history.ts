// A summary where the history has more characters than the policy allows, whatever the window.

import type { StepKind } from './contract.js'
import { wish } from './summary.js'

export const history: StepKind = {
  rank: 'lossy',
  plan(input) {
    const { chars } = input.lifecycle.history
    return chars !== undefined && input.context.chars <= chars ? undefined : wish(input)
  },
}
