// The door over the ladder: what comes back from disk, what is worth it, who waits for whom, and what never waits.

import { afterEach, describe, expect, test } from 'vitest'
import { type CacheMoved, cacheMoved } from '../core/signals.js'
import { fallback } from '../native/fallback.js'
import { FaultyDisk } from '../testing/faulty-disk.js'
import { ManualClock } from '../testing/manual-clock.js'
import { ask, commitNext, expectRight, serve, straightPrompt, toyPrompt, toyRoot } from '../testing/toy-blocks.js'
import { recordBytes } from './block-file.js'
import type { KvCache } from './contract.js'
import { type ErasableKvCache, type KvCacheOptions, openKvCache } from './kv-cache.js'

const BLOCK = 512
const STRIDE = recordBytes(BLOCK)

class Bench {
  readonly disk = new FaultyDisk()
  readonly clock = new ManualClock()
  cache!: ErasableKvCache

  async open(memoryBlocks: number, more: Partial<KvCacheOptions> = {}): Promise<this> {
    const disk = { folder: '/cache', capacityBytes: 400 * STRIDE, keepFreeBytes: 0, retryMs: 1000, slowMs: 2000 }
    this.cache = await openKvCache(
      { blockBytes: BLOCK, memoryBytes: memoryBlocks * BLOCK, disk, restore: 'always', ...more },
      { clock: this.clock, crc32c: fallback.crc32c, files: this.disk.door() },
    )
    return this
  }

  async reopen(memoryBlocks: number, more: Partial<KvCacheOptions> = {}): Promise<this> {
    await this.cache.close()
    return await this.open(memoryBlocks, more)
  }

  get memory() {
    return this.cache.status()[0]!
  }

  get below() {
    return this.cache.status()[1]!
  }
}

const stops: (() => void)[] = []
afterEach(() => {
  for (const stop of stops.splice(0)) stop()
})

function moves(what: CacheMoved['what']): CacheMoved[] {
  const seen: CacheMoved[] = []
  stops.push(cacheMoved.subscribe((move) => move.what === what && seen.push(move)))
  return seen
}

const turns = async (count = 50) => {
  for (let i = 0; i < count; i++) await new Promise((resolve) => setImmediate(resolve))
}

const match = (cache: KvCache, prompt: { chain: Parameters<KvCache['match']>[0]; tokens: Int32Array }) =>
  cache.match(prompt.chain, prompt.tokens)

describe('the disk', () => {
  test('gives back what memory lost: by eviction and by a restart', async () => {
    const bench = await new Bench().open(10)
    const [first, second] = [straightPrompt(1, 8), straightPrompt(2, 8)]
    await serve(bench.cache, first)
    await bench.cache.flush()
    await serve(bench.cache, second)
    await bench.cache.flush()
    expect(match(bench.cache, first)).toEqual({ memory: 2, disk: 6 })
    expect(await serve(bench.cache, first)).toEqual({ memory: 2, disk: 6 })
    await bench.reopen(10)
    expect(match(bench.cache, second)).toEqual({ memory: 0, disk: 8 })
    expect(await serve(bench.cache, second)).toEqual({ memory: 0, disk: 8 })
    expect(await serve(bench.cache, second)).toEqual({ memory: 8, disk: 0 })
    expect(bench.below).toMatchObject({ hits: 8, blocks: 16, pendingWrites: 0 })
    await bench.cache.close()
  })

  test('takes an answer’s blocks too, and only once', async () => {
    const bench = await new Bench().open(20)
    const whole = straightPrompt(1, 5)
    const start = {
      tokens: whole.tokens.subarray(0, 128),
      chain: { ...whole.chain, hashes: whole.chain.hashes.slice(0, 2) },
    }
    const lease = await ask(bench.cache, start)
    for (let i = 0; i < 5; i++) commitNext(lease, whole)
    lease.release()
    await serve(bench.cache, whole)
    await bench.reopen(20)
    expect(bench.below.blocks).toBe(5)
    expect(await serve(bench.cache, whole)).toEqual({ memory: 0, disk: 5 })
  })

  test('of two tenants shares nothing', async () => {
    const bench = await new Bench().open(20)
    await serve(bench.cache, toyPrompt([1, 2], toyRoot('a')))
    await bench.reopen(20)
    expect(await serve(bench.cache, toyPrompt([1, 2], toyRoot('b')))).toEqual({ memory: 0, disk: 0 })
    expect(await serve(bench.cache, toyPrompt([1, 2], toyRoot('a')))).toEqual({ memory: 0, disk: 2 })
  })

  test('carries what is longer than the memory', async () => {
    const bench = await new Bench().open(8)
    const long = straightPrompt(1, 30)
    const lease = await ask(bench.cache, long)
    for (let i = 0; i < 30; i++) {
      expect(commitNext(lease, long)).toBe(true)
      await bench.cache.flush()
    }
    lease.release()
    expect(match(bench.cache, long).disk).toBeGreaterThan(20)
    const again = await ask(bench.cache, long)
    expect(again.ready).toBe(8)
    expectRight(again)
    again.release()
    expect(bench.memory.usedBytes).toBeLessThanOrEqual(8 * BLOCK)
  })

  test('damaged gives a shorter prefix, and is mended by computing', async () => {
    const bench = await new Bench().open(20)
    const prompt = straightPrompt(1, 6)
    await serve(bench.cache, prompt)
    await bench.reopen(20)
    const [path] = bench.disk.paths
    bench.disk.contents(path!)[64 + 3 * STRIDE + 450]! ^= 8
    const corrupt = moves('corrupt')
    expect(await serve(bench.cache, prompt)).toEqual({ memory: 0, disk: 3 })
    expect(corrupt).toMatchObject([{ tier: 'disk', blocks: 1 }])
    await bench.reopen(20)
    expect(await serve(bench.cache, prompt)).toEqual({ memory: 0, disk: 6 })
  })
})

describe('restore by cost', () => {
  /** A cache whose disk has been measured: `blocksPerMs` blocks are read in a millisecond of the clock. */
  async function measured(msPerBlock: number, msPerToken: number) {
    const bench = await new Bench().open(40, { restore: 'cost', readConcurrency: 1 })
    const probe = straightPrompt(99, 1)
    await serve(bench.cache, probe)
    await serve(bench.cache, straightPrompt(1, 4))
    await bench.reopen(40, { restore: 'cost', readConcurrency: 1 })
    const go = bench.disk.stall('read')
    const asked = ask(bench.cache, probe)
    await turns(5)
    bench.clock.advance(msPerBlock)
    go()
    const lease = await asked
    lease.release()
    bench.cache.observeCompute(64, 64 * msPerToken)
    return bench
  }

  test('brings up when reading is faster than computing', async () => {
    const bench = await measured(10, 1)
    expect(bench.below.readRate).toBeCloseTo((BLOCK * 1000) / 10)
    expect(await serve(bench.cache, straightPrompt(1, 4))).toEqual({ memory: 0, disk: 4 })
  })

  test('computes when that is faster', async () => {
    const bench = await measured(100, 1)
    const prompt = straightPrompt(1, 4)
    expect(await serve(bench.cache, prompt)).toEqual({ memory: 0, disk: 0 })
    expect(match(bench.cache, prompt)).toEqual({ memory: 4, disk: 0 })
    expect(bench.below.blocks).toBe(5)
  })

  test('reads what is slow to read when enough memory stands behind it', async () => {
    const bench = await measured(10, 1)
    const [first, all] = [straightPrompt(1, 1), straightPrompt(1, 4)]
    const lease = await ask(bench.cache, all, { resident: 1 })
    expect(lease.found).toEqual({ memory: 0, disk: 3 })
    lease.release()
    for (let i = 0; i < 20; i++) bench.cache.observeCompute(64, 6)
    expect((await ask(bench.cache, first)).ready).toBe(0)
    expect((await ask(bench.cache, all)).found).toEqual({ memory: 3, disk: 1 })
  })
})

describe('loads', () => {
  test('are shared by all who wait for the same blocks', async () => {
    const bench = await new Bench().open(20)
    const prompt = straightPrompt(1, 5)
    await serve(bench.cache, prompt)
    await bench.reopen(20)
    const before = bench.disk.counts.get('read')!
    const leases = await Promise.all([1, 2, 3].map(() => ask(bench.cache, prompt)))
    for (const lease of leases) {
      expect(lease.ready).toBe(5)
      expect(lease.found).toEqual({ memory: 0, disk: 5 })
      expectRight(lease)
      lease.release()
    }
    expect(bench.disk.counts.get('read')! - before).toBe(5)
  })

  test('end for one caller by its signal, and go on for the others', async () => {
    const bench = await new Bench().open(20, { readConcurrency: 1 })
    const prompt = straightPrompt(1, 5)
    await serve(bench.cache, prompt)
    await bench.reopen(20, { readConcurrency: 1 })
    const go = bench.disk.stall('read')
    const controller = new AbortController()
    const gone = ask(bench.cache, prompt, { signal: controller.signal })
    const stays = ask(bench.cache, prompt)
    await turns(3)
    controller.abort(new Error('left'))
    await expect(gone).rejects.toThrow('left')
    go()
    const lease = await stays
    expect(lease.ready).toBe(5)
    lease.release()
  })

  test('that nobody waits for are not begun, and leave no slot behind', async () => {
    const bench = await new Bench().open(20, { readConcurrency: 1 })
    const prompt = straightPrompt(1, 5)
    await serve(bench.cache, prompt)
    await bench.reopen(20, { readConcurrency: 1 })
    const before = bench.disk.counts.get('read')!
    const go = bench.disk.stall('read')
    const controller = new AbortController()
    const gone = ask(bench.cache, prompt, { signal: controller.signal })
    await turns(3)
    expect(bench.memory.blocks).toBe(5)
    controller.abort(new Error('left'))
    await expect(gone).rejects.toThrow('left')
    expect(bench.memory.blocks).toBe(1)
    go()
    await turns()
    expect(bench.disk.counts.get('read')! - before).toBe(1)
    expect(match(bench.cache, prompt)).toEqual({ memory: 1, disk: 4 })
  })

  test('that stall make nobody wait longer than the patience', async () => {
    const bench = await new Bench().open(20, { patienceMs: 500 })
    const prompt = straightPrompt(1, 5)
    await serve(bench.cache, prompt)
    await bench.reopen(20, { patienceMs: 500 })
    const go = bench.disk.stall('read')
    const asked = ask(bench.cache, prompt)
    await turns(3)
    bench.clock.advance(500)
    const lease = await asked
    expect(lease.ready).toBe(0)
    commitNext(lease, prompt)
    await bench.clock.advanceSlowly(1500)
    expect(bench.below).toMatchObject({ healthy: false })
    const started = bench.clock.now()
    const second = await ask(bench.cache, straightPrompt(1, 3))
    expect(second.ready).toBe(1)
    expect(bench.clock.now()).toBe(started)
    go()
    await turns()
    expectRight(second)
    lease.release()
    second.release()
    await bench.clock.advanceSlowly(1000)
    expect(bench.below.healthy).toBe(true)
    expect((await serve(bench.cache, prompt)).memory).toBeGreaterThan(0)
  })

  test('find what others commit meanwhile', async () => {
    const bench = await new Bench().open(20)
    const [short, long] = [straightPrompt(1, 2), straightPrompt(1, 4)]
    await serve(bench.cache, short)
    await bench.reopen(20)
    const writer = await ask(bench.cache, long)
    const go = bench.disk.stall('read')
    const other = straightPrompt(2, 1)
    await serve(bench.cache, other)
    go()
    commitNext(writer, long)
    commitNext(writer, long)
    const lease = await ask(bench.cache, long)
    expect(lease.ready).toBe(4)
    writer.release()
    lease.release()
  })
})

describe('writes', () => {
  test('wait for nobody and hold no more than their bound: what memory evicts before is counted', async () => {
    const bench = await new Bench().open(12, { queueBytes: 4 * BLOCK })
    const go = bench.disk.stall('write', 'create')
    const dropped = moves('dropped-write')
    await serve(bench.cache, straightPrompt(1, 10))
    expect(bench.below.pendingWrites).toBe(10)
    await serve(bench.cache, straightPrompt(2, 8))
    expect(match(bench.cache, straightPrompt(1, 10))).toEqual({ memory: 4, disk: 0 })
    go()
    await bench.cache.flush()
    expect(dropped).toHaveLength(6)
    expect(bench.below).toMatchObject({ blocks: 12, pendingWrites: 0 })
    await serve(bench.cache, straightPrompt(1, 10))
    await bench.cache.flush()
    expect(bench.below.blocks).toBe(18)
  })

  test('wait for a disk that is away, and go on by themselves', async () => {
    const bench = await new Bench().open(8)
    bench.disk.fail('write', 'EIO', 1)
    await serve(bench.cache, straightPrompt(1, 6))
    await bench.cache.flush()
    expect(bench.below).toMatchObject({ healthy: false, blocks: 0, pendingWrites: 6 })
    // Meanwhile they are held by nobody.
    await serve(bench.cache, straightPrompt(2, 4))
    await bench.clock.advanceSlowly(1000)
    await turns(100)
    expect(bench.below).toMatchObject({ healthy: true, blocks: 8, pendingWrites: 0 })
  })

  test('of side requests are made once somebody comes back', async () => {
    const bench = await new Bench().open(40)
    const side = straightPrompt(1, 3)
    await serve(bench.cache, side, { priority: 'auxiliary' })
    await bench.cache.flush()
    expect(bench.below.blocks).toBe(0)
    await serve(bench.cache, side, { priority: 'auxiliary' })
    await bench.cache.flush()
    expect(bench.below.blocks).toBe(3)
    const pinned = straightPrompt(2, 2)
    await serve(bench.cache, pinned, { priority: 'background' })
    bench.cache.pin('p', pinned.chain, pinned.tokens, 1000)
    await bench.cache.flush()
    expect(bench.below.blocks).toBe(5)
  })

  test('of a full volume fail nobody, and are made up for later', async () => {
    const bench = await new Bench().open(40)
    bench.disk.capacityBytes = 64 + 2 * STRIDE
    const prompt = straightPrompt(1, 6)
    await serve(bench.cache, prompt)
    await bench.cache.flush()
    expect(bench.below).toMatchObject({ healthy: false, complaint: 'no space is left on the volume', blocks: 2 })
    expect(await serve(bench.cache, prompt)).toEqual({ memory: 6, disk: 0 })
    bench.disk.heal()
    await bench.clock.advanceSlowly(1000)
    expect(bench.below.healthy).toBe(true)
    await serve(bench.cache, prompt)
    await bench.cache.flush()
    expect(bench.below.blocks).toBe(6)
  })

  test('that hang do not keep a close from its end', async () => {
    const bench = await new Bench().open(40, { drainMs: 3000 })
    bench.disk.stall('write', 'create')
    await serve(bench.cache, straightPrompt(1, 3))
    const closed = bench.cache.close()
    await bench.clock.advanceSlowly(3000)
    await closed
  })

  test('are through when flush resolves, also for a loss of power', async () => {
    const bench = await new Bench().open(40)
    const prompt = straightPrompt(1, 9)
    await serve(bench.cache, prompt)
    await bench.cache.flush()
    bench.disk.crash(() => 0)
    await bench.open(40)
    expect(await serve(bench.cache, prompt)).toEqual({ memory: 0, disk: 9 })
  })
})

describe('operators', () => {
  test('clear all tiers, for good', async () => {
    const bench = await new Bench().open(6)
    await serve(bench.cache, straightPrompt(1, 5))
    await bench.cache.flush()
    await serve(bench.cache, straightPrompt(2, 5))
    expect(await bench.cache.clear()).toBe(10)
    expect(bench.cache.status().map(({ blocks }) => blocks)).toEqual([0, 0])
    await bench.reopen(6)
    expect(bench.below.blocks).toBe(0)
    expect(await serve(bench.cache, straightPrompt(1, 5))).toEqual({ memory: 0, disk: 0 })
  })

  test('erase a tenant from disk and memory', async () => {
    const bench = await new Bench().open(40)
    const [mine, theirs] = [straightPrompt(1, 3, toyRoot('a')), straightPrompt(1, 3, toyRoot('b'))]
    await serve(bench.cache, mine)
    await serve(bench.cache, theirs)
    await bench.cache.flush()
    expect(await bench.cache.erase(({ root }) => root === mine.chain.root)).toEqual({
      blocks: 3,
      inUse: 0,
      complete: true,
    })
    for (const path of bench.disk.paths) {
      expect(bench.disk.contents(path).includes(Buffer.from(mine.chain.root, 'hex').subarray(0, 8))).toBe(true)
    }
    await bench.reopen(40)
    expect(await serve(bench.cache, mine)).toEqual({ memory: 0, disk: 0 })
    expect(await serve(bench.cache, theirs)).toEqual({ memory: 0, disk: 3 })
  })

  test('pin what is on disk: garbage collection carries it along', async () => {
    const bench = new Bench()
    const disk = { folder: '/cache', capacityBytes: 30 * STRIDE, segmentBytes: 4 * STRIDE, keepFreeBytes: 0 }
    await bench.open(12, { disk })
    const warm = straightPrompt(1, 3)
    await serve(bench.cache, warm)
    expect(bench.cache.pin('warm', warm.chain, warm.tokens, 1e6)).toBe(3)
    for (let seed = 2; seed < 30; seed++) {
      await serve(bench.cache, straightPrompt(seed, 4))
      await bench.cache.flush()
    }
    expect(bench.below.pinnedBlocks).toBe(3)
    await bench.reopen(12, { disk })
    expect(await serve(bench.cache, warm)).toEqual({ memory: 0, disk: 3 })
    expect(bench.below.usedBytes).toBeLessThanOrEqual(30 * STRIDE)
  })
})

test('a simulation runs the tiers without bytes', async () => {
  const bench = new Bench()
  const disk = {
    folder: '/cache',
    capacityBytes: 40 * recordBytes(0),
    segmentBytes: 4 * recordBytes(0),
    keepFreeBytes: 0,
  }
  await bench.open(0, { blockBytes: 0, memoryBlocks: 6, disk })
  await serve(bench.cache, straightPrompt(1, 5))
  await bench.cache.flush()
  await serve(bench.cache, straightPrompt(2, 5))
  expect(await serve(bench.cache, straightPrompt(1, 5))).toEqual({ memory: 1, disk: 4 })
  expect(bench.memory).toMatchObject({ blocks: 6, usedBytes: 0 })
})

test('a folder that another owns is refused with its sentence', async () => {
  const bench = await new Bench().open(4)
  const files = bench.disk.door()
  const disk = { folder: '/cache', capacityBytes: 40 * STRIDE }
  await expect(openKvCache({ blockBytes: BLOCK, memoryBytes: 0, disk }, { files })).rejects.toThrow(
    'belongs to another process',
  )
  await bench.cache.close()
})
