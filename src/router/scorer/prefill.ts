// What a member has to compute or bring up of the prompt: overlap, as time.

import type { Scorer } from './scorer.js'

export const prefill: Scorer = {
  // The last position is always computed.
  score: ({ promptTokens, savedTokens, rate }) => (Math.max(1, promptTokens - savedTokens) / rate) * 1000,
}
