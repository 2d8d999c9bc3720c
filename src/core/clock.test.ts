import { expect, test } from 'vitest'
import { ManualClock } from '../testing/manual-clock.js'
import { HeldClock } from './clock.js'

test('a held clock and its timers stand still while the thread is held', async () => {
  const base = new ManualClock()
  const clock = new HeldClock(base)
  let fired = 0
  clock.after(100, () => fired++)
  const cancel = clock.after(100, () => fired++)
  cancel()
  await clock.hold(async () => base.advance(5000))
  expect(clock.now()).toBe(0)
  base.advance(99)
  expect(fired).toBe(0)
  base.advance(1)
  expect(clock.now()).toBe(100)
  expect(fired).toBe(1)
})
