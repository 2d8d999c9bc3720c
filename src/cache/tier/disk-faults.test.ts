// The disk tier where space ends and the disk fails or stalls: a miss and a complaint, and well again by itself.

import { describe, expect, test } from 'vitest'
import { BLOCK, DiskHouse, STRIDE } from '../../testing/disk-house.js'
import { blocksOf } from '../../testing/toy-blocks.js'

describe('space', () => {
  test('stays within the budget under churn, to the byte', async () => {
    const house = await new DiskHouse().open({ capacityBytes: 40 * STRIDE, segmentBytes: 5 * STRIDE })
    for (let seed = 0; seed < 60; seed++) {
      for (const block of blocksOf(seed, 5)) {
        await house.put(block)
        expect(house.disk.usedBytes).toBeLessThanOrEqual(40 * STRIDE)
        expect(house.tier.status()!.usedBytes).toBe(house.disk.usedBytes)
      }
    }
    expect(house.tier.status()!.evictedBlocks).toBeGreaterThan(200)
    expect(house.lost.length).toBe(house.tier.status()!.evictedBlocks)
    expect(await house.found(blocksOf(59, 5))).toBe(5)
  })

  test('copies what is pinned or worth it forward, and gives up the rest', async () => {
    const house = await new DiskHouse().open({ capacityBytes: 40 * STRIDE, segmentBytes: 5 * STRIDE })
    const [pinned, useful] = [blocksOf(1, 2), blocksOf(2, 2)]
    for (const { hash } of pinned) house.worth.set(hash, Number.POSITIVE_INFINITY)
    for (const { hash } of useful) house.worth.set(hash, 1)
    for (const block of [...pinned, ...useful]) await house.put(block)
    for (let seed = 10; seed < 60; seed++) for (const block of blocksOf(seed, 5)) await house.put(block)
    expect(await house.found(pinned)).toBe(2)
    expect(await house.found(useful)).toBe(2)
    await house.tier.close()
    await house.open({ capacityBytes: 40 * STRIDE, segmentBytes: 5 * STRIDE })
    expect(await house.found([...pinned, ...useful])).toBe(4)
  })

  test('that is pinned all over takes no more blocks, and loses none', async () => {
    const house = await new DiskHouse().open({ capacityBytes: 20 * STRIDE, segmentBytes: 3 * STRIDE })
    const blocks = blocksOf(1, 30)
    for (const { hash } of blocks) house.worth.set(hash, Number.POSITIVE_INFINITY)
    let stored = 0
    for (const block of blocks) if (await house.put(block)) stored++
    expect(stored).toBeGreaterThan(5)
    expect(stored).toBeLessThan(20)
    expect(await house.found(blocks)).toBe(stored)
    house.worth.clear()
    expect(await house.put(blocksOf(2, 1)[0]!)).toBe(true)
  })

  test('runs out on the volume: not stored, unhealthy, and well again by itself', async () => {
    const house = await new DiskHouse().open({ retryMs: 1000 })
    const blocks = blocksOf(1, 8)
    house.disk.capacityBytes = 64 + 3.5 * STRIDE
    const stored = []
    for (const block of blocks) stored.push(await house.put(block))
    expect(stored).toEqual([true, true, true, false, false, false, false, false])
    expect(house.tier.status()).toMatchObject({ healthy: false, complaint: 'no space is left on the volume' })
    expect(house.tier.status()!.usedBytes).toBe(house.disk.usedBytes)
    expect(await house.found(blocks)).toBe(3)
    await house.clock.advanceSlowly(1000)
    expect(house.tier.writable).toBe(false)
    house.disk.heal()
    await house.clock.advanceSlowly(2000)
    expect(house.tier.status()).toMatchObject({ healthy: true })
    for (const block of blocks) expect(await house.put(block)).toBe(true)
    expect(await house.found(blocks)).toBe(8)
    expect(house.disk.paths).not.toContain('/cache/probe.tmp')
  })

  test('of the volume is left to others', async () => {
    const house = await new DiskHouse().open({ keepFreeBytes: 100 * STRIDE })
    house.disk.capacityBytes = 99 * STRIDE
    expect(await house.put(blocksOf(1, 1)[0]!)).toBe(false)
    expect(house.tier.status()).toMatchObject({ healthy: false })
  })

  test('refuses a budget that holds nothing', async () => {
    await expect(new DiskHouse().open({ capacityBytes: 1000 })).rejects.toThrow('cache.diskBytes')
  })
})

describe('faults', () => {
  test('of reading are misses; after a pause it reads again', async () => {
    const house = await new DiskHouse().open({ retryMs: 1000 })
    const blocks = blocksOf(1, 4)
    for (const block of blocks) await house.put(block)
    house.disk.fail('read', 'EIO', 1)
    expect(await house.tier.load(blocks[0]!, new Uint8Array(BLOCK))).toBe('failed')
    const reads = house.disk.counts.get('read')
    expect(await house.tier.load(blocks[1]!, new Uint8Array(BLOCK))).toBe('failed')
    expect(house.disk.counts.get('read')).toBe(reads)
    expect(house.tier.status()!.complaint).toContain('EIO')
    expect(house.tier.writable).toBe(true)
    await house.clock.advanceSlowly(1000)
    expect(house.tier.readable).toBe(true)
    expect(await house.found(blocks)).toBe(3)
    expect(house.lost).toEqual([blocks[0]!.hash])
  })

  test('pauses grow while the fault stays', async () => {
    const house = await new DiskHouse().open({ retryMs: 1000, longestRetryMs: 4000 })
    await house.put(blocksOf(1, 1)[0]!)
    // Nothing is left to read, so that the probe lists the folder.
    house.disk.fail('read', 'EIO', 1)
    house.disk.fail('list', 'EIO')
    await house.has(blocksOf(1, 1)[0]!)
    const probes: number[] = []
    for (let second = 1; second <= 16; second++) {
      const before = house.disk.counts.get('list')!
      await house.clock.advanceSlowly(1000)
      if (house.disk.counts.get('list')! > before) probes.push(second)
    }
    expect(probes).toEqual([1, 3, 7, 11, 15])
    expect(house.tier.status()!.healthy).toBe(false)
  })

  test('of writing cut the record off again', async () => {
    const house = await new DiskHouse().open({ retryMs: 1000 })
    const blocks = blocksOf(1, 3)
    await house.put(blocks[0]!)
    house.disk.fail('write', 'EIO', 1)
    expect(await house.put(blocks[1]!)).toBe(false)
    expect(house.disk.usedBytes).toBe(64 + STRIDE)
    expect(house.tier.status()!.usedBytes).toBe(64 + STRIDE)
    await house.clock.advanceSlowly(1000)
    expect(await house.put(blocks[1]!)).toBe(true)
    await house.tier.close()
    await house.open()
    expect(await house.found(blocks)).toBe(2)
  })

  test('of writing and cutting seal the segment and count its weight', async () => {
    const house = await new DiskHouse().open({ retryMs: 1000 })
    const blocks = blocksOf(1, 3)
    await house.put(blocks[0]!)
    house.disk.fail('write', 'EIO', 1)
    house.disk.fail('truncate', 'EIO', 1)
    expect(await house.put(blocks[1]!)).toBe(false)
    expect(house.tier.status()!.usedBytes).toBe(64 + 2 * STRIDE)
    await house.clock.advanceSlowly(1000)
    expect(await house.put(blocks[1]!)).toBe(true)
    expect(house.segments).toHaveLength(2)
    expect(await house.found(blocks)).toBe(2)
    await house.tier.close()
    await house.open()
    expect(await house.found(blocks)).toBe(2)
    expect(house.tier.status()!.usedBytes).toBe(house.disk.usedBytes)
  })

  test('of a stall show before the operation ends', async () => {
    const house = await new DiskHouse().open({ slowMs: 2000, retryMs: 1000 })
    const blocks = blocksOf(1, 2)
    for (const block of blocks) await house.put(block)
    const go = house.disk.stall('read')
    const load = house.tier.load(blocks[0]!, new Uint8Array(BLOCK))
    await house.clock.advanceSlowly(2000)
    expect(house.tier.status()).toMatchObject({ healthy: false, complaint: 'an operation takes more than 2000 ms' })
    expect(await house.tier.load(blocks[1]!, new Uint8Array(BLOCK))).toBe('failed')
    go()
    expect(await load).toBe('loaded')
    await house.clock.advanceSlowly(1000)
    expect(await house.found(blocks)).toBe(2)
  })

  test('of one file at opening cost that file alone', async () => {
    const house = await new DiskHouse().open({ segmentBytes: 2 * STRIDE + 64 })
    const blocks = blocksOf(1, 6)
    for (const block of blocks) await house.put(block)
    await house.tier.close()
    house.disk.fail('open', 'EIO', 1)
    await house.open()
    expect(house.tier.status()).toMatchObject({ healthy: false })
    house.disk.heal()
    await house.clock.advanceSlowly(1000)
    expect(await house.found(blocks)).toBe(4)
  })

  test('of listing the folder at opening are an error', async () => {
    const house = new DiskHouse()
    house.disk.fail('list', 'EACCES')
    await expect(house.open()).rejects.toThrow('EACCES')
    house.disk.heal()
    await house.open()
  })
})
