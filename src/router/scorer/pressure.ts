// What a session has to expect turn by turn where others live already: their next turns come before its own. The queue of
// the moment does not show it, since sessions come and stay.

import type { Scorer } from './scorer.js'

export const pressure: Scorer = { score: ({ residentTokens, rate }) => (residentTokens / rate) * 1000 }
