// What the requests at a member slow a new one down while they decode beside its prefill.

import type { Scorer } from './scorer.js'

export const streams: Scorer = { score: ({ inFlight }, { streamMs }) => inFlight * streamMs }
