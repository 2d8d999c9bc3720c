// When a disk is asked, left alone and asked again.

import { afterEach, describe, expect, test } from 'vitest'
import { type Note, note } from '../../core/signals.js'
import { ManualClock } from '../../testing/manual-clock.js'
import { Breaker, noSpace, describe as sentence } from './breaker.js'

function make(probe: () => Promise<void>) {
  const clock = new ManualClock()
  const breaker = new Breaker({ name: 'reading', clock, probe, retryMs: 100, longestRetryMs: 400 })
  return { clock, breaker }
}

const stops: (() => void)[] = []
afterEach(() => {
  for (const stop of stops.splice(0)) stop()
})

describe('Breaker', () => {
  test('opens with the first complaint and closes with the first good probe', async () => {
    const notes: Note[] = []
    stops.push(note.subscribe((one) => notes.push(one)))
    const { clock, breaker } = make(async () => undefined)
    expect(breaker.complaint).toBeUndefined()
    breaker.fail('first')
    breaker.fail('second')
    expect(breaker.complaint).toBe('first')
    await clock.advanceSlowly(99)
    expect(breaker.complaint).toBe('first')
    await clock.advanceSlowly(1)
    expect(breaker.complaint).toBeUndefined()
    expect(notes.map(({ level, text }) => [level, text])).toEqual([
      ['warn', 'cache disk: reading stops: first'],
      ['info', 'cache disk: reading goes on'],
    ])
  })

  test('waits twice as long after every bad probe, to a limit', async () => {
    const at: number[] = []
    const { clock, breaker } = make(async () => {
      at.push(clock.now())
      throw new Error(`probe ${at.length}`)
    })
    breaker.fail('broken')
    await clock.advanceSlowly(1000)
    await clock.advanceSlowly(1000)
    expect(at).toEqual([100, 300, 700, 1100, 1500, 1900])
    expect(breaker.complaint).toBe('probe 6')
  })

  test('starts anew with the shortest pause only after a success', async () => {
    let probes = 0
    const { clock, breaker } = make(async () => {
      probes++
    })
    breaker.fail('a')
    await clock.advanceSlowly(100)
    breaker.fail('b')
    await clock.advanceSlowly(100)
    expect(probes).toBe(1)
    await clock.advanceSlowly(100)
    expect(probes).toBe(2)
    breaker.succeed()
    breaker.fail('c')
    await clock.advanceSlowly(100)
    expect(probes).toBe(3)
  })

  test('is silent once closed', async () => {
    const { clock, breaker } = make(async () => expect.unreachable())
    breaker.fail('a')
    breaker.close()
    await clock.advanceSlowly(1000)
    breaker.fail('b')
    expect(clock.waiting).toBe(0)
  })
})

test('no space has a sentence of its own', () => {
  expect(sentence(noSpace())).toBe('no space is left on the volume')
  expect(sentence(new Error('EIO: read'))).toBe('EIO: read')
})
