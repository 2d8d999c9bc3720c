// What a member has to compute or bring up of the prompt: overlap, as time.

import type { Medium } from '../contract.js'
import type { Scorer } from './scorer.js'

export const prefill: Scorer = {
  score({ promptTokens, held, restoreCost, rate }) {
    let tokens = promptTokens
    for (const medium in held) tokens -= (held[medium as Medium] ?? 0) * (1 - restoreCost[medium as Medium])
    // The last position is always computed.
    return (Math.max(1, tokens) / rate) * 1000
  },
}
