// The scenarios that public routers were measured by, in virtual time: what is prefilled against the least possible, who
// does how much, and how long the slow ones wait.

import { expect, test } from 'vitest'
import { AFFINITY, BENCH_FLEET, HOT_HEAD, simulate } from '../testing/fleet-simulation.js'
import { createFleetRouter } from './fleet-router.js'
import { ROUTER_DEFAULTS } from './options.js'

const create = (parts: Parameters<typeof createFleetRouter>[1]) => createFleetRouter(ROUTER_DEFAULTS, parts)

test('four heads on four members: nothing is computed twice', () => {
  const found = simulate(AFFINITY, BENCH_FLEET, create)
  expect(found.prefilledOverIdeal).toBe(1)
  expect(found.moves).toBe(0)
})

test('a head that all share is everywhere, and everybody does the same', () => {
  const found = simulate(HOT_HEAD, { ...BENCH_FLEET, cacheShare: 1 / 2 }, create)
  expect(found.prefilledOverIdeal).toBeLessThanOrEqual(1.21)
  expect(found.requests).toEqual([48, 48, 48, 48])
})
