// What it costs to leave home, beyond what is known to be computed again: a session that moves once is likely to be wrong
// about its caches twice.

import type { Scorer } from './scorer.js'

export const affinity: Scorer = { score: ({ isHome }, { affinityMs }) => (isHome === false ? affinityMs : 0) }
