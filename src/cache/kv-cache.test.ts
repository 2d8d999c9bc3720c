// The door of the cache in memory alone: what acquire, commit, extend, claim, release and the operator's calls promise.

import { afterEach, describe, expect, test } from 'vitest'
import { type CacheMoved, cacheMoved } from '../core/signals.js'
import { ManualClock } from '../testing/manual-clock.js'
import {
  ask,
  commitNext,
  expectRight,
  serve,
  straightPrompt,
  toyPrompt,
  toyRoot,
  toyTokens,
} from '../testing/toy-blocks.js'
import { type KvCacheOptions, openKvCache } from './kv-cache.js'

const BLOCK = 512

function open(blocks: number, more: Partial<KvCacheOptions> = {}, clock = new ManualClock()) {
  return openKvCache({ blockBytes: BLOCK, memoryBytes: blocks * BLOCK, restore: 'always', ...more }, { clock })
}

const stops: (() => void)[] = []
afterEach(() => {
  for (const stop of stops.splice(0)) stop()
})

function moves(): CacheMoved[] {
  const seen: CacheMoved[] = []
  stops.push(cacheMoved.subscribe((move) => seen.push(move)))
  return seen
}

describe('acquire', () => {
  test('gives the longest cached prefix with the bytes that were committed', async () => {
    const cache = await open(100)
    expect(await serve(cache, toyPrompt([1, 2, 3]))).toEqual({ memory: 0, disk: 0 })
    expect(await serve(cache, toyPrompt([1, 2, 3]))).toEqual({ memory: 3, disk: 0 })
    expect(await serve(cache, toyPrompt([1, 2, 9, 3]))).toEqual({ memory: 2, disk: 0 })
    expect(await serve(cache, toyPrompt([9, 2, 3]))).toEqual({ memory: 0, disk: 0 })
    expect(cache.match(toyPrompt([1, 2, 9, 7]).chain, toyTokens([1, 2, 9, 7]))).toEqual({ memory: 3, disk: 0 })
  })

  test('uses no more than maxBlocks, and leaves to the engine what it has', async () => {
    const cache = await open(100)
    const prompt = straightPrompt(1, 6)
    await serve(cache, prompt)
    const lease = await ask(cache, prompt, { resident: 2, maxBlocks: 5 })
    expect(lease.ready).toBe(5)
    expect(lease.found).toEqual({ memory: 3, disk: 0 })
    expectRight(lease, 2)
    expect(() => lease.block(1)).toThrow(RangeError)
    expect(() => lease.block(5)).toThrow(RangeError)
    lease.release()
    const all = await ask(cache, prompt, { resident: 9, maxBlocks: 5 })
    expect(all.ready).toBe(5)
    all.release()
  })

  test('counts what the engine has as ready, even when the cache has lost it', async () => {
    const cache = await open(100)
    const lease = await ask(cache, straightPrompt(1, 4), { resident: 3 })
    expect(lease.ready).toBe(3)
    expect(commitNext(lease, straightPrompt(1, 4))).toBe(true)
    lease.release()
  })

  test('rejects with the reason of a signal that fired before', async () => {
    const cache = await open(10)
    const signal = AbortSignal.abort(new Error('gone'))
    await expect(ask(cache, straightPrompt(1, 1), { signal })).rejects.toThrow('gone')
  })

  test('of two tenants share nothing', async () => {
    const cache = await open(100)
    const path = [1, 2, 3]
    await serve(cache, toyPrompt(path, toyRoot('a')))
    expect(await serve(cache, toyPrompt(path, toyRoot('b')))).toEqual({ memory: 0, disk: 0 })
    expect(await serve(cache, toyPrompt(path, toyRoot('a')))).toEqual({ memory: 3, disk: 0 })
  })

  test('takes a hash of other tokens for a collision: a miss, counted', async () => {
    const cache = await open(100)
    await serve(cache, toyPrompt([1, 2]))
    const seen = moves()
    const lying = { chain: toyPrompt([1, 2]).chain, tokens: toyTokens([1, 3]) }
    const lease = await ask(cache, lying)
    expect(lease.ready).toBe(1)
    expect(seen).toMatchObject([{ what: 'collision', tier: 'memory', blocks: 1 }])
    lease.release()
  })
})

describe('commit', () => {
  test('is visible at once, to leases that are open too', async () => {
    const cache = await open(100)
    const prompt = straightPrompt(1, 3)
    const [leader, follower] = [await ask(cache, prompt), await ask(cache, prompt)]
    expect(commitNext(leader, prompt)).toBe(true)
    expect(follower.ready).toBe(0)
    expect(follower.extend()).toBe(1)
    expect(follower.found).toEqual({ memory: 1, disk: 0 })
    expectRight(follower)
    commitNext(leader, prompt)
    commitNext(leader, prompt)
    expect(follower.extend()).toBe(3)
    leader.release()
    expectRight(follower)
    follower.release()
  })

  test('of a block that is there keeps the first and says so', async () => {
    const cache = await open(100)
    const prompt = straightPrompt(1, 2)
    const [a, b] = [await ask(cache, prompt), await ask(cache, prompt)]
    expect([commitNext(a, prompt), commitNext(b, prompt), commitNext(b, prompt), commitNext(a, prompt)]).toEqual([
      ...[true, false, true, false],
    ])
    a.release()
    b.release()
    expect(cache.status()[0]!.blocks).toBe(2)
  })

  test('goes on past the prompt, where the next turn finds it', async () => {
    const cache = await open(100)
    const whole = straightPrompt(1, 5)
    const prompt = {
      tokens: whole.tokens.subarray(0, 3 * 64 + 10),
      chain: { ...whole.chain, hashes: whole.chain.hashes.slice(0, 3) },
    }
    const lease = await ask(cache, prompt)
    for (let i = 0; i < 5; i++) expect(commitNext(lease, whole)).toBe(true)
    lease.release()
    expect(await serve(cache, whole)).toEqual({ memory: 5, disk: 0 })
  })

  test('refuses an index, hash or number of tokens that is not the next block’s', async () => {
    const cache = await open(100)
    const prompt = straightPrompt(1, 3)
    const lease = await ask(cache, prompt)
    const [first, second] = prompt.chain.hashes
    const tokens = prompt.tokens.subarray(0, 64)
    const never = () => expect.unreachable()
    expect(() => lease.commit(1, second!, tokens, never)).toThrow(RangeError)
    expect(() => lease.commit(0, second!, tokens, never)).toThrow('own hash')
    expect(() => lease.commit(0, first!, prompt.tokens.subarray(0, 65), never)).toThrow(RangeError)
    const other = straightPrompt(2, 3)
    expect(() => lease.commit(0, other.chain.hashes[0]!, other.tokens.subarray(0, 64), never)).toThrow('not the chain')
    lease.release()
  })

  test('that cannot be filled leaves nothing behind', async () => {
    const cache = await open(1)
    const prompt = straightPrompt(1, 1)
    const lease = await ask(cache, prompt)
    expect(() =>
      lease.commit(0, prompt.chain.hashes[0]!, prompt.tokens, () => {
        throw new Error('engine')
      }),
    ).toThrow('engine')
    lease.release()
    expect(cache.status()[0]!.blocks).toBe(0)
    expect(cache.match(prompt.chain, prompt.tokens)).toEqual({ memory: 0, disk: 0 })
    await serve(cache, prompt)
    expect(cache.status()[0]!.blocks).toBe(1)
  })

  test('without room keeps neither the block nor what follows it', async () => {
    const cache = await open(4)
    const pinned = straightPrompt(1, 4)
    await serve(cache, pinned)
    const holder = await ask(cache, pinned)
    const other = straightPrompt(2, 3)
    const lease = await ask(cache, other)
    expect(commitNext(lease, other)).toBe(false)
    holder.release()
    expect(commitNext(lease, other)).toBe(false)
    expect(lease.ready).toBe(2)
    lease.release()
    expect(cache.match(other.chain, other.tokens)).toEqual({ memory: 0, disk: 0 })
  })

  test('does not push out the block before it', async () => {
    const cache = await open(3)
    const prompt = straightPrompt(1, 5)
    const lease = await ask(cache, prompt)
    expect([1, 2, 3, 4, 5].map(() => commitNext(lease, prompt))).toEqual([true, true, true, false, false])
    lease.release()
    expect(cache.match(prompt.chain, prompt.tokens)).toEqual({ memory: 3, disk: 0 })
  })
})

describe('claims', () => {
  test('let one lease compute, and the others wait block by block', async () => {
    const cache = await open(100)
    const prompt = straightPrompt(1, 3)
    const [leader, follower] = [await ask(cache, prompt), await ask(cache, prompt)]
    expect(leader.claim()).toBe(true)
    expect(leader.claim()).toBe(true)
    expect(follower.claim()).toBe(false)
    commitNext(leader, prompt)
    expect(follower.extend()).toBe(1)
    expect(follower.claim()).toBe(false)
    commitNext(leader, prompt)
    commitNext(leader, prompt)
    expect(follower.extend()).toBe(3)
    expect(follower.claim()).toBe(true)
    leader.release()
    follower.release()
  })

  test('end with their lease: what was committed stays, the next one goes on', async () => {
    const cache = await open(100)
    const prompt = straightPrompt(1, 3)
    const [leader, follower] = [await ask(cache, prompt), await ask(cache, prompt)]
    leader.claim()
    commitNext(leader, prompt)
    leader.release()
    expect(follower.extend()).toBe(1)
    expect(follower.claim()).toBe(true)
    follower.release()
  })

  test('cover what two prompts share and no more', async () => {
    const cache = await open(100)
    const [long, branch] = [toyPrompt([1, 2, 3, 4]), toyPrompt([1, 2, 8, 9])]
    const [a, b] = [await ask(cache, long), await ask(cache, branch)]
    expect(a.claim()).toBe(true)
    expect(b.claim()).toBe(false)
    commitNext(a, long)
    commitNext(a, long)
    b.extend()
    expect(b.claim()).toBe(true)
    a.release()
    b.release()
  })

  test('are given up when the blocks cannot be kept', async () => {
    const cache = await open(2)
    const pinned = straightPrompt(1, 2)
    await serve(cache, pinned)
    const holder = await ask(cache, pinned)
    const prompt = straightPrompt(2, 3)
    const [leader, follower] = [await ask(cache, prompt), await ask(cache, prompt)]
    expect(leader.claim()).toBe(true)
    expect(follower.claim()).toBe(false)
    commitNext(leader, prompt)
    expect(follower.claim()).toBe(true)
    expect(leader.claim()).toBe(true)
    for (const lease of [holder, leader, follower]) lease.release()
  })

  test('of a block that may not be used keep nobody waiting', async () => {
    const cache = await open(100)
    const prompt = straightPrompt(1, 3)
    const [leader, follower] = [await ask(cache, prompt, { maxBlocks: 2 }), await ask(cache, prompt, { maxBlocks: 2 })]
    leader.claim()
    commitNext(leader, prompt)
    commitNext(leader, prompt)
    expect(follower.extend()).toBe(2)
    expect([leader.claim(), follower.claim()]).toEqual([true, true])
    leader.release()
    follower.release()
  })
})

describe('release', () => {
  test('ends a lease once', async () => {
    const cache = await open(10)
    const prompt = straightPrompt(1, 1)
    await serve(cache, prompt)
    const lease = await ask(cache, prompt)
    lease.release()
    for (const use of [() => lease.release(), () => lease.block(0), () => lease.extend(), () => lease.claim()]) {
      expect(use).toThrow('released')
    }
    const longer = straightPrompt(1, 2)
    expect(() => commitNext(lease, longer)).toThrow('released')
  })

  test('lets go of what was held', async () => {
    const cache = await open(4)
    const prompt = straightPrompt(1, 4)
    await serve(cache, prompt)
    const lease = await ask(cache, prompt)
    await serve(cache, straightPrompt(2, 4))
    expectRight(lease)
    expect(cache.match(prompt.chain, prompt.tokens).memory).toBe(4)
    lease.release()
    await serve(cache, straightPrompt(2, 4))
    expect(cache.match(prompt.chain, prompt.tokens).memory).toBe(0)
  })
})

describe('eviction', () => {
  test('takes the tail of the stalest prefix, and keeps within the budget', async () => {
    const cache = await open(8)
    await serve(cache, straightPrompt(1, 4))
    await serve(cache, straightPrompt(2, 4))
    await serve(cache, straightPrompt(1, 4))
    const seen = moves()
    await serve(cache, straightPrompt(3, 2))
    expect(seen.filter(({ what }) => what === 'evict')).toHaveLength(2)
    const held = [1, 2, 3].map(
      (seed) => cache.match(straightPrompt(seed, 4).chain, straightPrompt(seed, 4).tokens).memory,
    )
    expect(held).toEqual([4, 2, 2])
    expect(cache.status()[0]).toMatchObject({
      blocks: 8,
      usedBytes: 8 * BLOCK,
      capacityBytes: 8 * BLOCK,
      evictedBlocks: 2,
    })
  })

  test('spares a trunk that others grow from', async () => {
    const cache = await open(6)
    await serve(cache, toyPrompt([1, 2, 3]))
    await serve(cache, toyPrompt([1, 2, 4, 5]))
    await serve(cache, toyPrompt([9, 8]))
    expect(cache.match(toyPrompt([1, 2]).chain, toyTokens([1, 2])).memory).toBe(2)
    expect(cache.match(toyPrompt([1, 2, 3]).chain, toyTokens([1, 2, 3])).memory).toBe(2)
  })

  test.each(['auxiliary', 'background'] as const)(
    'by %s requests never reaches interactive blocks',
    async (priority) => {
      const cache = await open(6)
      const session = straightPrompt(1, 4)
      await serve(cache, session)
      for (let seed = 2; seed < 10; seed++) await serve(cache, straightPrompt(seed, 4), { priority })
      expect(cache.match(session.chain, session.tokens).memory).toBe(4)
      await serve(cache, straightPrompt(20, 2))
      expect(cache.match(session.chain, session.tokens).memory).toBe(4)
    },
  )

  test('drops what nobody used for long', async () => {
    const clock = new ManualClock()
    const cache = await open(10, { idleMs: 1000 }, clock)
    await serve(cache, straightPrompt(1, 2))
    await serve(cache, straightPrompt(2, 2))
    clock.advance(700)
    await serve(cache, straightPrompt(2, 2))
    await clock.advanceSlowly(600)
    expect(cache.match(straightPrompt(1, 2).chain, straightPrompt(1, 2).tokens).memory).toBe(0)
    expect(cache.match(straightPrompt(2, 2).chain, straightPrompt(2, 2).tokens).memory).toBe(2)
    await cache.close()
  })
})

describe('pins', () => {
  test('keep blocks until their time is over', async () => {
    const clock = new ManualClock()
    const cache = await open(8, {}, clock)
    const warm = straightPrompt(1, 3)
    await serve(cache, warm)
    expect(cache.pin('warm', warm.chain, warm.tokens, 1000)).toBe(3)
    for (let seed = 2; seed < 6; seed++) await serve(cache, straightPrompt(seed, 8))
    expect(cache.match(warm.chain, warm.tokens).memory).toBe(3)
    expect(cache.status()[0]!.pinnedBlocks).toBe(3)
    clock.advance(600)
    expect(cache.pins()).toEqual([{ id: 'warm', blocks: 3, expiresInMs: 400 }])
    expect(cache.pin('warm', warm.chain, warm.tokens, 1000)).toBe(3)
    clock.advance(600)
    expect(cache.pins()).toHaveLength(1)
    const seen = moves()
    clock.advance(400)
    expect(cache.pins()).toEqual([])
    expect(seen).toMatchObject([{ what: 'expired', blocks: 3 }])
    await serve(cache, straightPrompt(9, 8))
    expect(cache.match(warm.chain, warm.tokens).memory).toBe(0)
  })

  test('are released by name, once', async () => {
    const cache = await open(8)
    const warm = straightPrompt(1, 2)
    await serve(cache, warm)
    cache.pin('a', warm.chain, warm.tokens, 1000)
    cache.pin('b', warm.chain, warm.tokens, 1000)
    expect([cache.unpin('a'), cache.unpin('a'), cache.unpin('x')]).toEqual([true, false, false])
    expect(cache.status()[0]!.pinnedBlocks).toBe(2)
    cache.unpin('b')
    expect(cache.status()[0]!.pinnedBlocks).toBe(0)
  })

  test('take at most their share', async () => {
    const cache = await open(8, { pinnedShare: 0.5 })
    const warm = straightPrompt(1, 6)
    await serve(cache, warm)
    expect(cache.pin('a', warm.chain, warm.tokens, 1000)).toBe(4)
    expect(cache.pin('b', straightPrompt(1, 2).chain, warm.tokens, 1000)).toBe(2)
    expect(cache.pin('c', warm.chain, warm.tokens, 1000)).toBe(4)
  })
})

describe('operators', () => {
  test('clear what is neither pinned nor leased', async () => {
    const cache = await open(20)
    const [pinned, leased, other] = [straightPrompt(1, 2), straightPrompt(2, 3), straightPrompt(3, 4)]
    for (const prompt of [pinned, leased, other]) await serve(cache, prompt)
    cache.pin('a', pinned.chain, pinned.tokens, 1000)
    const lease = await ask(cache, leased)
    expect(await cache.clear()).toBe(4)
    expectRight(lease)
    lease.release()
    expect(await cache.clear()).toBe(3)
    expect(cache.status()[0]!.blocks).toBe(2)
  })

  test('erase by root, and are told of what is in use', async () => {
    const cache = await open(20)
    const [mine, theirs] = [straightPrompt(1, 2, toyRoot('a')), straightPrompt(1, 2, toyRoot('b'))]
    await serve(cache, mine)
    await serve(cache, theirs)
    const lease = await ask(cache, mine)
    const isMine = ({ root }: { root: string }) => root === mine.chain.root
    expect(await cache.erase(isMine)).toEqual({ blocks: 0, inUse: 2, complete: true })
    lease.release()
    expect(await cache.erase(isMine)).toEqual({ blocks: 2, inUse: 0, complete: true })
    expect(cache.match(mine.chain, mine.tokens).memory).toBe(0)
    expect(cache.match(theirs.chain, theirs.tokens).memory).toBe(2)
  })

  test('see hits and misses by block', async () => {
    const cache = await open(20)
    await serve(cache, straightPrompt(1, 3))
    await serve(cache, straightPrompt(1, 5))
    expect(cache.status()).toMatchObject([{ tier: 'memory', hits: 3, misses: 5, healthy: true }])
  })
})

test('runs without bytes, for simulations', async () => {
  const cache = await openKvCache({ blockBytes: 0, memoryBytes: 0, memoryBlocks: 4 }, { clock: new ManualClock() })
  await serve(cache, straightPrompt(1, 3))
  await serve(cache, straightPrompt(2, 3))
  expect(cache.status()[0]).toMatchObject({ blocks: 4, usedBytes: 0 })
  expect(await serve(cache, straightPrompt(2, 3))).toEqual({ memory: 3, disk: 0 })
})

test('refuses an evictor that is not there, naming those that are', async () => {
  await expect(open(4, { evictor: 'clever' })).rejects.toThrow(/cache\.evictor.*fifo, lru, priority-lru/)
})
