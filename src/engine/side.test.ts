// Side requests, checkpoints and dead branches in the engine: sessions keep their places, marks don't pile up.

import { afterEach, describe, expect, test } from 'vitest'
import type { GenerateRequest, Job } from '../core/request.js'
import {
  ask,
  type EngineHouse,
  type HouseOptions,
  jobOf,
  LAYOUT,
  openHouse,
  promptOf,
} from '../testing/engine-house.js'
import { slotBytes } from './slot.js'

const houses: EngineHouse[] = []
afterEach(async () => {
  for (const opened of houses.splice(0)) await opened.close()
})

async function house(options: HouseOptions = {}): Promise<EngineHouse> {
  const opened = await openHouse(options)
  houses.push(opened)
  return opened
}

/** The working set holds one window of 4096 tokens, or a few shorter sequences. */
const TIGHT = slotBytes(LAYOUT, 4096)

const side = (tokens: number[], more: Partial<GenerateRequest> = {}): Job => ({
  ...jobOf(tokens, { priority: 'auxiliary', ...more }),
  transient: true,
})

describe('a side request', () => {
  test('hits what the session left, answers as without a cache, and leaves the session all of it', async () => {
    const on = await house()
    const session = promptOf(1, 1000)
    await ask(on, jobOf(session))
    const summary = [...session, ...promptOf(2, 50)]
    const answer = await ask(on, side(summary))
    expect(answer.start.cache.working).toBeGreaterThanOrEqual(1000)
    const baseline = await house({ cached: false })
    expect(answer.ids).toEqual((await ask(baseline, jobOf(summary))).ids)
    expect((await ask(on, jobOf([...session, 7, 8]))).start.cache.working).toBe(1000)
  })

  test('keeps nothing once a session needs the room', async () => {
    const on = await house({ cache: { memoryBytes: 20 * 4096 } })
    await ask(on, jobOf(promptOf(1, 640)))
    const before = on.cache.match(jobOf(promptOf(1, 640)).chain, Int32Array.from(promptOf(1, 640)))
    await ask(on, side(promptOf(2, 1500)))
    expect(on.cache.match(jobOf(promptOf(1, 640)).chain, Int32Array.from(promptOf(1, 640)))).toEqual(before)
  })

  test('waits for room that no session needs, and is told to come again', async () => {
    // The cache holds next to nothing: warm slots are all that the sessions have.
    const on = await house({
      workingSetBytes: TIGHT,
      cache: { memoryBytes: 2 * 4096 },
      engine: { sideRequestMs: 30 },
    })
    const sessions = [promptOf(1, 2000), promptOf(2, 1000)]
    for (const tokens of sessions) await ask(on, jobOf(tokens))
    await expect(ask(on, side(promptOf(3, 1500)))).rejects.toMatchObject({ code: 'no_room', retryAfterMs: 5000 })
    for (const tokens of sessions) {
      expect((await ask(on, jobOf([...tokens, 7, 8]))).start.cache.working).toBeGreaterThanOrEqual(tokens.length)
    }
  })

  test('takes a slot whose blocks the cache has too: the session goes on from there', async () => {
    const on = await house({ workingSetBytes: TIGHT })
    const session = promptOf(1, 2500)
    await ask(on, jobOf(session))
    await ask(on, side(promptOf(3, 2500)))
    const { working, memory } = (await ask(on, jobOf([...session, 7, 8]))).start.cache
    expect(working + memory).toBeGreaterThanOrEqual(2496)
  })

  test('takes what other side requests left', async () => {
    const on = await house({
      workingSetBytes: TIGHT,
      cache: { memoryBytes: 2 * 4096 },
      engine: { sideRequestMs: 2000 },
    })
    await ask(on, side(promptOf(1, 2500)))
    await ask(on, side(promptOf(2, 2500)))
    await ask(on, side(promptOf(3, 2500)))
  })
})

describe('checkpoints', () => {
  const withPins = (tokens: number[], at: number[], session?: string): Job => ({
    ...jobOf(tokens, { maxTokens: 1, ...(session !== undefined && { session }) }),
    pins: at.map((count) => ({ tokens: count, ttlMs: 60_000 })),
  })

  test('that move on with a session leave no pins behind', async () => {
    const on = await house()
    const tokens = promptOf(1, 900)
    await ask(on, withPins(tokens.slice(0, 300), [128, 290], 's'))
    await ask(on, withPins(tokens.slice(0, 600), [128, 590], 's'))
    await ask(on, withPins(tokens, [890], 's'))
    expect(on.cache.pins().map(({ id, blocks }) => [id, blocks])).toEqual([['default/s#0', 13]])
  })

  test('of requests without a session stand alone; a side request sets none', async () => {
    const on = await house()
    await ask(on, withPins(promptOf(1, 300), [128]))
    await ask(on, withPins(promptOf(2, 300), [256]))
    await ask(on, { ...withPins(promptOf(3, 300), [256]), transient: true })
    expect(on.cache.pins().map(({ blocks }) => blocks)).toEqual([2, 4])
  })

  test('take no more of the memory than cache.pinnedShare', async () => {
    const on = await house({ cache: { pinnedShare: 0.001 } })
    await ask(on, withPins(promptOf(1, 900), [900]))
    expect(on.cache.pins().map(({ blocks }) => blocks)).toEqual([4])
  })
})

test('a dead branch goes before what lives', async () => {
  const blocks = 24
  const on = await house({ cache: { memoryBytes: blocks * 4096 } })
  const [old, live] = [promptOf(1, 640), promptOf(2, 640)]
  await ask(on, jobOf(live, { maxTokens: 1 }))
  const dead = jobOf(old, { maxTokens: 1 })
  await ask(on, dead)
  await ask(on, { ...jobOf(promptOf(3, 640), { maxTokens: 1 }), deadBranch: dead.chain.hashes })
  const left = (tokens: number[]) => on.cache.match(jobOf(tokens).chain, Int32Array.from(tokens)).memory
  expect(left(live)).toBe(10)
  expect(left(old)).toBeLessThan(10)
})
