// The baseline: up to a second, by chance, the same for the same request and member.

import { affinityOf } from '../rendezvous.js'
import type { Scorer } from './scorer.js'

export const random: Scorer = { score: ({ request, member }) => affinityOf(request, member) * 1000 }
