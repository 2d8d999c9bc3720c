// A summary where the history has more characters than the policy allows, whatever the window.

import type { StepKind } from './contract.js'
import { wish } from './summary.js'
import { historyChars } from './units.js'

export const history: StepKind = {
  rank: 'lossy',
  plan(input) {
    const { chars } = input.lifecycle.history
    return chars !== undefined && historyChars(input.context) <= chars ? undefined : wish(input)
  },
}
