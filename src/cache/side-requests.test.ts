// What side requests (titles, summaries) and dead branches leave in the cache: nothing that costs the sessions anything.

import { afterEach, describe, expect, test } from 'vitest'
import { fallback } from '../native/fallback.js'
import { FaultyDisk } from '../testing/faulty-disk.js'
import { ManualClock } from '../testing/manual-clock.js'
import { ask, commitNext, serve, straightPrompt, toyPrompt } from '../testing/toy-blocks.js'
import { recordBytes } from './block-file.js'
import { type ErasableKvCache, openKvCache } from './kv-cache.js'

const BLOCK = 512
const open: ErasableKvCache[] = []
afterEach(async () => {
  for (const cache of open.splice(0)) await cache.close()
})

async function cacheOf(blocks: number, evictor = 'priority-lru'): Promise<ErasableKvCache> {
  const options = { blockBytes: BLOCK, memoryBytes: blocks * BLOCK, restore: 'always', evictor } as const
  const cache = await openKvCache(options, { clock: new ManualClock() })
  open.push(cache)
  return cache
}

async function withDisk(memoryBlocks: number) {
  const cache = await openKvCache(
    {
      blockBytes: BLOCK,
      memoryBytes: memoryBlocks * BLOCK,
      restore: 'always',
      disk: { folder: '/cache', capacityBytes: 400 * recordBytes(BLOCK), keepFreeBytes: 0 },
    },
    { clock: new ManualClock(), crc32c: fallback.crc32c, files: new FaultyDisk().door() },
  )
  open.push(cache)
  const stored = () => cache.status().find(({ tier }) => tier === 'disk')?.blocks
  return { cache, stored }
}

const held = (cache: ErasableKvCache, prompt: ReturnType<typeof toyPrompt>) =>
  cache.match(prompt.chain, prompt.tokens).memory

describe('a side request', () => {
  test('uses what sessions have', async () => {
    const cache = await cacheOf(20)
    await serve(cache, toyPrompt([1, 2, 3]))
    expect(await serve(cache, toyPrompt([1, 2, 3, 9]), { transient: true })).toEqual({ memory: 3, disk: 0 })
  })

  test('evicts nothing of a session, however urgent it says it is: its blocks are not kept', async () => {
    const cache = await cacheOf(6)
    await serve(cache, straightPrompt(1, 5))
    await serve(cache, straightPrompt(2, 4), { transient: true, priority: 'interactive' })
    expect(held(cache, straightPrompt(1, 5))).toBe(5)
    expect(held(cache, straightPrompt(2, 4))).toBe(1)
  })

  test('is the first to go', async () => {
    const cache = await cacheOf(6)
    await serve(cache, straightPrompt(1, 3))
    await serve(cache, straightPrompt(2, 3), { transient: true })
    await serve(cache, straightPrompt(3, 3))
    expect(held(cache, straightPrompt(1, 3))).toBe(3)
    expect(held(cache, straightPrompt(2, 3))).toBe(0)
  })

  test('makes room for the next side request', async () => {
    const cache = await cacheOf(6)
    await serve(cache, straightPrompt(1, 4))
    await serve(cache, straightPrompt(2, 2), { transient: true })
    await serve(cache, straightPrompt(3, 2), { transient: true })
    expect(held(cache, straightPrompt(3, 2))).toBe(2)
    expect(held(cache, straightPrompt(1, 4))).toBe(4)
  })

  test('is not written to disk, however often it comes', async () => {
    const { cache, stored } = await withDisk(20)
    await serve(cache, straightPrompt(1, 3))
    for (let i = 0; i < 4; i++) await serve(cache, straightPrompt(2, 3), { transient: true })
    await cache.flush()
    expect(stored()).toBe(3)
  })

  test('leaves blocks that are written once a session comes for them', async () => {
    const { cache, stored } = await withDisk(20)
    await serve(cache, straightPrompt(2, 3), { transient: true })
    expect(await serve(cache, straightPrompt(2, 3))).toEqual({ memory: 3, disk: 0 })
    await cache.flush()
    expect(stored()).toBe(3)
  })

  test('leaves blocks that are written when a session follows it while it computes', async () => {
    const { cache, stored } = await withDisk(20)
    const prompt = straightPrompt(2, 2)
    const side = await ask(cache, prompt, { transient: true })
    const session = await ask(cache, prompt)
    expect([side.claim(), session.claim()]).toEqual([true, false])
    commitNext(side, prompt)
    commitNext(side, prompt)
    expect(session.extend()).toBe(2)
    side.release()
    session.release()
    await cache.flush()
    expect(stored()).toBe(2)
  })
})

describe('a dead branch', () => {
  test.each(['lru', 'priority-lru'])(
    'goes first with what was generated behind it, the trunk stays (%s)',
    async (evictor) => {
      const cache = await cacheOf(9, evictor)
      const [old, generated, live] = [toyPrompt([1, 2, 3, 4]), toyPrompt([1, 2, 3, 4, 5]), toyPrompt([1, 2, 7])]
      await serve(cache, straightPrompt(8, 2))
      await serve(cache, generated)
      expect(cache.demote(old.chain.hashes.slice(2))).toBe(3)
      await serve(cache, live)
      await serve(cache, straightPrompt(9, 4))
      expect(held(cache, generated)).toBe(2)
      expect(held(cache, live)).toBe(3)
      expect(held(cache, straightPrompt(8, 2))).toBe(2)
    },
  )

  test('that is used again is alive again', async () => {
    const cache = await cacheOf(6)
    const branch = straightPrompt(1, 4)
    await serve(cache, straightPrompt(2, 2))
    await serve(cache, branch)
    cache.demote(branch.chain.hashes)
    await serve(cache, branch)
    await serve(cache, straightPrompt(3, 2))
    expect(held(cache, branch)).toBe(4)
  })

  test('keeps what is pinned; unknown blocks are nothing', async () => {
    const cache = await cacheOf(6)
    const branch = straightPrompt(1, 3)
    await serve(cache, branch)
    cache.pin('p', straightPrompt(1, 2).chain, straightPrompt(1, 2).tokens, 1000)
    expect(cache.demote(branch.chain.hashes)).toBe(1)
    expect(cache.demote(straightPrompt(5, 3).chain.hashes)).toBe(0)
    await serve(cache, straightPrompt(2, 4))
    expect(held(cache, branch)).toBe(2)
  })
})
