// The baseline: first in, first out, as if nobody ever came back.

import Type from 'typebox'
import { type Before, classEvictor, firstOf } from './classes.js'
import type { EvictorKind } from './evictor.js'

const older: Before = (a, b) => a.bornTick < b.bornTick

export const fifo: EvictorKind = {
  options: Type.Object({}),
  create: () => classEvictor(older, (tops) => firstOf(tops, older)),
}
