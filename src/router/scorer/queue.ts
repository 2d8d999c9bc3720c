// What a request waits for before its own prefill begins: prefills that were sent there, and the member's own queue.

import type { Scorer } from './scorer.js'

/** Of a request that others sent there nothing is known; it is taken for a turn of an agent. */
const UNKNOWN_TOKENS = 512

export const queue: Scorer = {
  score: ({ waitTokens, reportedQueue, rate }) => ((waitTokens + reportedQueue * UNKNOWN_TOKENS) / rate) * 1000,
}
