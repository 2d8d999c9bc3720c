// Deadlines over a clock that is moved by hand: each is told at its time, once, and not once it was removed.

import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { expect, test } from 'vitest'
import { ManualClock } from '../testing/manual-clock.js'
import { Deadlines, type Due } from './deadlines.js'

const told: string[] = []
const due = (name: string, again?: () => void): Due => ({
  dueAt: 0,
  seat: -1,
  onDue() {
    told.push(name)
    again?.()
  },
})

test('each at its time, whatever the order', () => {
  told.length = 0
  const clock = new ManualClock()
  const deadlines = Deadlines.of(clock)
  expect(Deadlines.of(clock)).toBe(deadlines)
  const [late, early, gone] = [due('late'), due('early'), due('gone')]
  deadlines.add(late, 1000)
  deadlines.add(gone, 500)
  deadlines.add(early, 100)
  clock.advance(90)
  expect(told).toEqual([])
  clock.advance(20)
  expect(told).toEqual(['early'])
  deadlines.remove(gone)
  clock.advance(800)
  expect(told).toEqual(['early'])
  clock.advance(200)
  expect(told).toEqual(['early', 'late'])
})

test('one that adds itself again is told again, one that is put off later', () => {
  told.length = 0
  const clock = new ManualClock()
  const deadlines = new Deadlines(clock)
  const every: Due = due('every', () => deadlines.add(every, 100))
  const put = due('put off')
  deadlines.add(every, 100)
  deadlines.add(put, 50)
  deadlines.add(put, 250)
  clock.advance(110)
  clock.advance(100)
  expect(told).toEqual(['every', 'every'])
  clock.advance(60)
  expect(told).toEqual(['every', 'every', 'put off'])
  deadlines.remove(every)
  clock.advance(1000)
  expect(told).toEqual(['every', 'every', 'put off'])
})

test('what was removed is not kept, however young collections look', () => {
  setFlagsFromString('--expose-gc')
  const gc = runInNewContext('gc') as (options?: { type: 'minor' }) => void
  const deadlines = new Deadlines(new ManualClock())
  const under: Due[] = []
  /** A request with a body: a few are under way at once. */
  const pass = () => {
    const one = Object.assign(due('one'), { body: Buffer.allocUnsafeSlow(100_000) })
    deadlines.add(one, 1000)
    under.push(one)
    if (under.length > 8) deadlines.remove(under.shift() as Due)
  }
  for (let i = 0; i < 50; i++) pass()
  // All that is there is old from here on.
  gc()
  const before = process.memoryUsage().arrayBuffers
  for (let i = 0; i < 500; i++) {
    pass()
    if (i % 25 === 0) gc({ type: 'minor' })
  }
  gc({ type: 'minor' })
  gc({ type: 'minor' })
  expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(10_000_000)
})
