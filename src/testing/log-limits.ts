// Bounds of a session in tests of the log: so wide that only a test of the bounds themselves comes to them.

import type { AppendLimits } from '../session/log/place-events.js'

export const HOUSE_LIMITS: AppendLimits = { sessionEvents: 200_000, sessionBytes: 2 ** 30, sources: 1000 }
