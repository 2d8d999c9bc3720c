// The scenarios that public routers are measured by, in virtual time, with requests that come to several routers one after
// the other: where they share their books, as good as one router; where they do not, as bad as strangers.

import { expect, test } from 'vitest'
import { AFFINITY, BENCH_FLEET, HOT_HEAD, SKEW, simulate } from '../testing/fleet-simulation.js'
import { sharedRouters } from '../testing/shared-routers.js'

const HALF = { ...BENCH_FLEET, cacheShare: 1 / 2 }

test.each([
  [2, 1],
  [4, 1],
  [4, 5],
])('%i routers whose news take %i ms more do what one does', (count, wireMs) => {
  for (const named of [false, true]) {
    for (const load of [AFFINITY, SKEW]) {
      const [one, all] = [1, count].map((routers) =>
        simulate({ ...load, named }, BENCH_FLEET, sharedRouters({ count: routers, wireMs, shares: true })),
      )
      expect(all).toEqual(one)
      expect(all?.prefilledOverIdeal).toBeLessThanOrEqual(1.02)
    }
  }
})

test('a head that 32 sessions ask for within 16 ms is computed no more often, though they are told of it late', () => {
  for (const count of [2, 4]) {
    const found = simulate(HOT_HEAD, HALF, sharedRouters({ count, wireMs: 1, shares: true }))
    expect(found.prefilledOverIdeal).toBeLessThanOrEqual(1.21)
    expect(found.ttftMs.p95).toBeLessThanOrEqual(2400)
  }
})

test('routers that know of their own requests only compute half as much again', () => {
  const found = simulate(AFFINITY, BENCH_FLEET, sharedRouters({ count: 2, wireMs: 1, shares: false }))
  expect(found.prefilledOverIdeal).toBeGreaterThan(1.5)
  expect(found.moves).toBeGreaterThan(40)
})
