// Least recently used first, whatever its class (within what a newcomer may displace).

import Type from 'typebox'
import { type Before, classEvictor, firstOf } from './classes.js'
import type { EvictorKind } from './evictor.js'

const staler: Before = (a, b) => a.usedTick < b.usedTick

export const lru: EvictorKind = {
  options: Type.Object({}),
  create: () => classEvictor(staler, (tops) => firstOf(tops, staler)),
}
