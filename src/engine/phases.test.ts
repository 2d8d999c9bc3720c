// Phases of requests as the engine tells them: every request once, whatever became of it.

import { afterEach, expect, test } from 'vitest'
import { type PhasesTimed, phasesTimed } from '../core/signals.js'
import { ask, type EngineHouse, jobOf, openHouse, promptOf } from '../testing/engine-house.js'

let house: EngineHouse | undefined
let told: PhasesTimed[] = []
const stop = () => phasesTimed.subscribe((phases) => told.push(phases))
let unsubscribe = () => undefined as unknown

afterEach(async () => {
  unsubscribe()
  await house?.close()
  told = []
})

test('all phases of a request that is answered, and where its prompt was found', async () => {
  house = await openHouse()
  unsubscribe = stop()
  const job = jobOf(promptOf(1, 300))
  await ask(house, job)
  await ask(house, jobOf(promptOf(1, 300)))
  expect(told).toHaveLength(2)
  expect(told[0]).toEqual({
    id: job.request.id,
    endedAt: expect.any(Number),
    queueMs: expect.any(Number),
    restoreMs: expect.any(Number),
    prefillMs: expect.any(Number),
    decodeMs: expect.any(Number),
    promptTokens: 300,
    completionTokens: job.maxTokens,
    cache: { working: 0, memory: 0, disk: 0, computed: 300 },
  })
  for (const { queueMs, restoreMs = -1, prefillMs = -1, decodeMs = -1 } of told) {
    for (const ms of [queueMs, restoreMs, prefillMs, decodeMs]) expect(ms).toBeGreaterThanOrEqual(0)
  }
  expect(told[1]?.cache.computed).toBeLessThan(64)
})

test('a request that is not admitted any more has waited and done nothing else', async () => {
  house = await openHouse({ engine: { maxRunning: 1 } })
  unsubscribe = stop()
  const first = ask(house, jobOf(promptOf(1, 300)))
  const left = new AbortController()
  const waiting = house.engine.generate(jobOf(promptOf(2, 300)), left.signal)
  left.abort(new Error('gone'))
  await expect(
    (async () => {
      for await (const _ of waiting);
    })(),
  ).rejects.toThrow('gone')
  await first
  expect(told).toHaveLength(2)
  const [gone] = told
  expect(gone).toMatchObject({ completionTokens: 0, queueMs: expect.any(Number) })
  expect(gone).not.toHaveProperty('restoreMs')
  expect(gone).not.toHaveProperty('decodeMs')
})
