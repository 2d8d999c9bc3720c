// How measured rates follow what is observed.

import { expect, test } from 'vitest'
import { ManualClock } from '../testing/manual-clock.js'
import { Rate, Throughput } from './rates.js'

test('a rate is its prior until measured, then follows slowly', () => {
  const rate = new Rate(7)
  expect([rate.perMs, rate.measuredPerSecond]).toEqual([7, undefined])
  rate.observe(0, 5)
  rate.observe(5, 0)
  rate.observe(Number.NaN, 1)
  expect(rate.perMs).toBe(7)
  rate.observe(100, 10)
  expect([rate.perMs, rate.measuredPerSecond]).toEqual([10, 10_000])
  rate.observe(1000, 10)
  expect(rate.perMs).toBe(32.5)
})

test('a throughput counts overlapping transfers over the time that any was in flight', () => {
  const clock = new ManualClock()
  const through = new Throughput(clock, 1)
  through.start()
  clock.advance(2)
  through.start()
  clock.advance(2)
  through.end(100)
  clock.advance(1)
  through.end(100)
  expect(through.rate.perMs).toBe(40)
  clock.advance(100)
  through.start()
  clock.advance(10)
  through.end(400)
  expect(through.rate.perMs).toBe(40)
  through.start()
  through.end(0)
  expect(through.rate.perMs).toBe(40)
})
