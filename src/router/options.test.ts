// The router's defaults are the config's.

import { expect, test } from 'vitest'
import { makeConfig } from '../config.js'
import { createFleetRouter } from './fleet-router.js'
import { ROUTER_DEFAULTS } from './options.js'

test('config router has the defaults, and is what the router takes', () => {
  const { router } = makeConfig({})
  expect(router).toEqual(ROUTER_DEFAULTS)
  const parts = { members: () => [], clock: { now: () => 0, after: () => () => undefined } }
  expect(() => createFleetRouter(router, parts)).not.toThrow()
  expect(() => createFleetRouter({ ...router, weights: { luck: 1 } }, parts)).toThrow(
    /^router\.weights: unknown kind 'luck'; known are affinity, prefill, pressure, queue, random, streams$/,
  )
})
