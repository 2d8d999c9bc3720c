// The least urgent class first, least recently used within it: side requests come and go without touching the sessions.

import Type from 'typebox'
import { classEvictor } from './classes.js'
import type { EvictorKind } from './evictor.js'

export const priorityLru: EvictorKind = {
  options: Type.Object({}),
  create: () =>
    classEvictor(
      (a, b) => a.usedTick < b.usedTick,
      (tops) => tops[0],
    ),
}
