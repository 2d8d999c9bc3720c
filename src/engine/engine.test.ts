// The product's invariant on the engine with a runner whose tokens depend on every KV row: with the cache on, in every
// tier and after every mishap, the output is what it is with the cache off.

import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterEach, describe, expect, test } from 'vitest'
import { blockBytes } from '../core/block.js'
import { RefrainError } from '../core/errors.js'
import {
  ask,
  type EngineHouse,
  type HouseOptions,
  jobOf,
  LAYOUT,
  openHouse,
  promptOf,
} from '../testing/engine-house.js'
import type { Matcher } from './grammar.js'
import { slotBytes } from './slot.js'

const houses: EngineHouse[] = []
const folders: string[] = []

async function house(options: HouseOptions = {}): Promise<EngineHouse> {
  const opened = await openHouse(options)
  houses.push(opened)
  return opened
}

async function folder(): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'refrain-engine-'))
  folders.push(path)
  return path
}

afterEach(async () => {
  for (const opened of houses.splice(0)) await opened.close()
  for (const path of folders.splice(0)) await rm(path, { recursive: true, force: true })
})

const disk = (path: string) => ({ disk: { folder: path, capacityBytes: 64 * 1024 * 1024, segmentBytes: 1024 * 1024 } })

async function uncached(tokens: number[], more = {}): Promise<number[][]> {
  const baseline = await house({ cached: false })
  return (await ask(baseline, jobOf(tokens, more))).ids
}

describe('output with the cache on equals output with it off', () => {
  test('a second request hits and says the same', async () => {
    const tokens = promptOf(1, 300)
    const on = await house()
    const first = await ask(on, jobOf(tokens))
    const second = await ask(on, jobOf(tokens))
    expect(first.ids).toEqual(await uncached(tokens))
    expect(second.ids).toEqual(first.ids)
    expect(first.finish.cache).toEqual({ working: 0, memory: 0, disk: 0, computed: 300 })
    // One token is wanted, two are computed: a run of one token is not exact.
    expect(second.finish.cache).toEqual({ working: 298, memory: 0, disk: 0, computed: 2 })
  })

  test('from host memory, when the working set gave the slot away', async () => {
    const tokens = promptOf(2, 300)
    const on = await house()
    await ask(on, jobOf(tokens))
    on.workingSet.clear()
    const second = await ask(on, jobOf(tokens))
    expect(second.finish.cache).toEqual({ working: 0, memory: 256, disk: 0, computed: 44 })
    expect(second.ids).toEqual(await uncached(tokens))
  })

  test('from disk, after a restart', async () => {
    const tokens = promptOf(3, 300)
    const path = await folder()
    const before = await openHouse({ cache: disk(path) })
    await ask(before, jobOf(tokens))
    await before.close()
    const after = await house({ cache: disk(path) })
    const answer = await ask(after, jobOf(tokens))
    expect(answer.finish.cache).toEqual({ working: 0, memory: 0, disk: 256, computed: 44 })
    expect(answer.ids).toEqual(await uncached(tokens))
  })

  test('with a memory tier of three blocks, over forty prompts that share a head', async () => {
    const on = await house({ cache: { memoryBytes: 3 * blockBytes(LAYOUT) }, workingSetBytes: 2 * 1024 * 1024 })
    const off = await house({ cached: false })
    const head = promptOf(4, 130)
    for (let i = 0; i < 40; i++) {
      const tokens = [...head, ...promptOf(i % 7, 40 + 3 * i)]
      expect((await ask(on, jobOf(tokens))).ids).toEqual((await ask(off, jobOf(tokens))).ids)
    }
  })

  test('a turn that goes on from what was generated', async () => {
    const on = await house()
    let tokens = promptOf(5, 100)
    for (let turn = 0; turn < 6; turn++) {
      const answer = await ask(on, jobOf(tokens, { maxTokens: 70 }))
      expect(answer.ids).toEqual(await uncached(tokens, { maxTokens: 70 }))
      const warm = turn > 0 && turn !== 4
      if (warm) expect(answer.finish.cache.working).toBeGreaterThan(tokens.length - 100)
      tokens = [...tokens, ...(answer.ids[0] as number[]), ...promptOf(turn, 17)]
      if (turn === 3) on.workingSet.clear()
    }
  })

  test('three choices share one prefill', async () => {
    const runs: number[] = []
    const on = await house({ onRun: (kind, count) => kind === 'prefill' && runs.push(count) })
    const tokens = promptOf(6, 200)
    const answer = await ask(on, jobOf(tokens, { n: 3, maxTokens: 20 }))
    expect(runs.reduce((a, b) => a + b)).toBe(200)
    const [alone] = await uncached(tokens, { maxTokens: 20 })
    expect(answer.ids).toEqual([alone, alone, alone])
    expect(answer.finish.completionTokens).toBe(60)
    expect(on.workingSet.status().usedSlots).toBe(0)
  })

  test('a choice’s biases and penalties stay its own', async () => {
    const on = await house()
    const sampling = { ...jobOf([1]).request.sampling, repetitionPenalty: 1.3, logitBias: { 5: -3, 7: 4 } }
    const tokens = promptOf(12, 90)
    const [alone] = (await ask(on, jobOf(tokens, { sampling }))).ids
    expect((await ask(on, jobOf(tokens, { sampling, n: 3 }))).ids).toEqual([alone, alone, alone])
  })

  test('random sessions at once, with a small memory and a disk (property)', async () => {
    const path = await folder()
    const off = await house({ cached: false })
    const on = await house({
      cache: { memoryBytes: 12 * blockBytes(LAYOUT), ...disk(path) },
      workingSetBytes: 3 * 1024 * 1024,
    })
    const request = fc.record({
      head: fc.integer({ min: 0, max: 2 }),
      body: fc.integer({ min: 0, max: 3 }),
      length: fc.integer({ min: 1, max: 200 }),
      n: fc.integer({ min: 1, max: 2 }),
      cancelled: fc.boolean(),
    })
    await fc.assert(
      fc.asyncProperty(fc.array(request, { minLength: 1, maxLength: 10 }), async (requests) => {
        await Promise.all(
          requests.map(async ({ head, body, length, n, cancelled }) => {
            const tokens = [...promptOf(head, 150), ...promptOf(10 + body, length)]
            const abort = new AbortController()
            if (cancelled) setImmediate(() => abort.abort(new Error('enough')))
            const expected = (await ask(off, jobOf(tokens, { n }))).ids
            const got = await ask(on, jobOf(tokens, { n }), abort.signal).catch((error: Error) => error)
            if (got instanceof Error) expect(got.message).toBe('enough')
            else expect(got.ids).toEqual(expected)
          }),
        )
        expect(on.engine.load).toEqual({ running: 0, waiting: 0 })
        expect(on.workingSet.status().usedSlots).toBe(0)
      }),
      { numRuns: 25 },
    )
  })
})

test.each([true, false])('the next turn goes on in place where unused rows cost nothing (%s)', async (wideSlots) => {
  const on = await house({ wideSlots })
  const used = () => on.workingSet.status().usedBytes
  const first = promptOf(31, 600)
  await ask(on, jobOf(first, { maxTokens: 1 }))
  // 600 tokens and one more: 640 rows; with a quarter on top: 768.
  const before = used()
  expect(before).toBe(slotBytes(LAYOUT, wideSlots ? 768 : 640))
  const { finish } = await ask(on, jobOf([...first, ...promptOf(32, 100)], { maxTokens: 1 }))
  expect(finish.cache.working).toBe(600)
  expect(used() === before).toBe(wideSlots)
})

describe('single flight', () => {
  test('followers of a cold prefix take the leader’s blocks one by one', async () => {
    let computed = 0
    const on = await house({ onRun: (kind, count) => (computed += kind === 'prefill' ? count : 0) })
    const head = promptOf(7, 640)
    const jobs = [1, 2, 3, 4].map((i) => jobOf([...head, ...promptOf(100 + i, 30)]))
    const answers = await Promise.all(jobs.map((job) => ask(on, job)))
    expect(computed).toBe(640 + 4 * 30)
    expect(answers.filter(({ finish }) => finish.cache.memory === 640)).toHaveLength(3)
  })

  test('a cancelled leader’s blocks are kept and a follower computes the rest', async () => {
    const abort = new AbortController()
    let computed = 0
    const on = await house({
      engine: { chunks: { streaming: [{ below: Number.POSITIVE_INFINITY, tokens: 64 }], alone: 64 } },
      onRun: (kind, count) => {
        if (kind === 'prefill') computed += count
        if (computed === 192) abort.abort(new Error('gone'))
      },
    })
    const tokens = promptOf(8, 500)
    const leader = ask(on, jobOf(tokens), abort.signal)
    const follower = ask(on, jobOf(tokens))
    await expect(leader).rejects.toThrow('gone')
    expect((await follower).finish.cache).toMatchObject({ memory: 192, computed: 308 })
    expect(computed).toBe(500)
  })
})

describe('limits and endings', () => {
  test('a full queue is refused with a time to come back', async () => {
    const on = await house({ engine: { maxRunning: 1, queuedRequests: 2 }, runMs: 5 })
    const jobs = Array.from({ length: 6 }, (_, i) => ask(on, jobOf(promptOf(i, 90))))
    const settled = await Promise.allSettled(jobs)
    const refused = settled.flatMap((result) => (result.status === 'rejected' ? [result.reason] : []))
    expect(refused.length).toBe(3)
    for (const error of refused) expect(error).toMatchObject({ code: 'queue_full', retryAfterMs: expect.any(Number) })
  })

  test('whoever waits too long is told so', async () => {
    const on = await house({ engine: { maxRunning: 1, queueMs: 20 }, runMs: 10 })
    const first = ask(on, jobOf(promptOf(1, 600), { maxTokens: 20 }))
    await expect(ask(on, jobOf(promptOf(2, 90)))).rejects.toMatchObject({ code: 'queue_timeout' })
    await first
  })

  test('closing ends what runs, with an error that says so', async () => {
    const on = await house({ runMs: 10 })
    const running = ask(on, jobOf(promptOf(1, 2000)))
    const refused = expect(running).rejects.toMatchObject({ code: 'draining' })
    await on.engine.close()
    await refused
    await expect(ask(on, jobOf(promptOf(1, 20)))).rejects.toMatchObject({ code: 'draining' })
  })

  test('a broken runner fails every request and ends the engine', async () => {
    const on = await openHouse({
      onRun: () => {
        throw new Error('the graph is broken')
      },
    })
    const jobs = [1, 2].map((seed) => ask(on, jobOf(promptOf(seed, 100))))
    const failed = Promise.all(jobs.map((job) => expect(job).rejects.toMatchObject({ code: 'engine_failed' })))
    await expect(on.engine.done).rejects.toThrow('the graph is broken')
    await failed
    await on.cache.close()
  })

  test('a grammar that gives up ends its own request alone', async () => {
    const mask = () => {
      throw new RefrainError('invalid_grammar', 'the grammar is too slow')
    }
    const matcher: Matcher = {
      mask,
      accept: () => true,
      finished: false,
      fork: () => matcher,
      dispose: () => undefined,
    }
    const on = await house({
      grammars: { compile: async () => ({ matcher: () => matcher }), close: async () => undefined },
    })
    const constrained = ask(on, jobOf(promptOf(1, 90), { n: 2, constraint: { kind: 'json' } }))
    const refused = expect(constrained).rejects.toMatchObject({ code: 'invalid_grammar' })
    const other = await ask(on, jobOf(promptOf(2, 90)))
    await refused
    expect(other.ids).toEqual(await uncached(promptOf(2, 90)))
    expect(on.workingSet.status().usedSlots).toBe(0)
  })

  test('no tokens asked for: the prompt is computed and pinned', async () => {
    const on = await house()
    const job = jobOf(promptOf(9, 200), { maxTokens: 0, pinTtlMs: 60_000 })
    const { ids, finish } = await ask(on, job)
    expect(ids).toEqual([[]])
    expect(finish.committedTokens).toBe(192)
    expect(on.cache.pins()).toMatchObject([{ id: job.request.id, blocks: 3 }])
  })

  test('two tenants share no hit', async () => {
    const on = await house()
    const tokens = promptOf(1, 300)
    const tenant = (name: string) => ({ name, salt: name, admin: false })
    await ask(on, jobOf(tokens, { tenant: tenant('a') }))
    const other = await ask(on, jobOf(tokens, { tenant: tenant('b') }))
    expect(other.finish.cache.computed).toBe(300)
    const salted = await ask(on, jobOf(tokens, { tenant: tenant('a') }))
    expect(salted.finish.cache.computed).toBe(2)
  })
})
