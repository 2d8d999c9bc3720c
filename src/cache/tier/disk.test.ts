// The disk tier over its life: restarts, damage, erasure, keys. How it fails is in disk-faults.test.ts.

import { describe, expect, test } from 'vitest'
import { fallback } from '../../native/fallback.js'
import { BLOCK, DiskHouse, STRIDE } from '../../testing/disk-house.js'
import { FaultyDisk } from '../../testing/faulty-disk.js'
import { seeded } from '../../testing/random.js'
import { blocksOf, toyBytes } from '../../testing/toy-blocks.js'
import type { BlockName } from '../prefix-index.js'
import type { BlockKeys } from './tier.js'

describe('a restart', () => {
  test('finds everything after a clean end, in a new segment from then on', async () => {
    const house = await new DiskHouse().open()
    const blocks = blocksOf(1, 20)
    for (const block of blocks) await house.put(block)
    await house.tier.close()
    await house.open()
    expect(await house.found(blocks)).toBe(20)
    expect([...house.tier.held()].map(({ hash, root, parent }) => ({ hash, root, parent }))).toEqual(
      expect.arrayContaining(blocks.map(({ hash, root, parent }) => ({ hash, root, parent }))),
    )
    const before = house.segments.length
    await house.put(blocksOf(2, 1)[0]!)
    expect(house.segments.length).toBe(before + 1)
  })

  test('finds everything after a kill, for the system has it', async () => {
    const house = await new DiskHouse().open()
    const blocks = blocksOf(1, 20)
    for (const block of blocks) await house.put(block)
    house.disk.kill()
    await house.open()
    expect(await house.found(blocks)).toBe(20)
  })

  test('after a loss of power finds what was synced, and never wrong bytes', async () => {
    for (let seed = 0; seed < 30; seed++) {
      const random = seeded(seed)
      const house = await new DiskHouse().open()
      const [synced, unsynced] = [blocksOf(1, 10), blocksOf(2, 10)]
      for (const block of synced) await house.put(block)
      await house.tier.flush()
      for (const block of unsynced) await house.put(block)
      house.disk.crash(random.next)
      await house.open()
      expect(await house.found(synced)).toBe(10)
      await house.found(unsynced)
      for (const block of unsynced) await house.put(block)
      expect(await house.found(unsynced)).toBe(10)
    }
  })

  test('syncs by itself after a while', async () => {
    const house = await new DiskHouse().open({ syncMs: 1000 })
    const blocks = blocksOf(1, 3)
    for (const block of blocks) await house.put(block)
    await house.clock.advanceSlowly(1000)
    await house.tier.store(blocks[0]!, toyBytes(blocks[0]!.hash, BLOCK))
    house.disk.crash(() => 0)
    await house.open()
    expect(await house.found(blocks)).toBe(3)
  })

  test('cuts a torn tail', async () => {
    const house = await new DiskHouse().open()
    const blocks = blocksOf(1, 3)
    for (const block of blocks) await house.put(block)
    await house.tier.close()
    const path = house.segments[0]!
    house.disk.corrupt(path, Buffer.from(house.disk.contents(path).subarray(0, -10)))
    await house.open()
    expect(await house.found(blocks)).toBe(2)
    expect(house.disk.contents(path).length).toBe(64 + 2 * STRIDE)
    expect(house.tier.status()!.usedBytes).toBe(house.disk.usedBytes)
  })

  test('keeps a segment of another block length until space is needed, and removes a broken one', async () => {
    const house = await new DiskHouse().open()
    await house.put(blocksOf(1, 1)[0]!)
    await house.tier.close()
    const [mine] = house.segments
    const foreign = Buffer.from(house.disk.contents(mine!).subarray(0, 64))
    foreign.writeBigUInt64LE(BigInt(BLOCK + 8), 16)
    foreign.writeUInt32LE(fallback.crc32c(foreign.subarray(0, 60)), 60)
    house.disk.corrupt('/cache/segment-0000000000000005.kv', Buffer.concat([foreign, Buffer.alloc(20 * STRIDE)]))
    house.disk.corrupt('/cache/segment-0000000000000006.kv', Buffer.from('not ours'))
    house.disk.corrupt('/cache/notes.txt', Buffer.from('a person’s'))
    await house.open()
    expect(house.segments).toHaveLength(2)
    expect(house.tier.status()!.usedBytes).toBe(64 + STRIDE + 64 + 20 * STRIDE)
    for (const block of blocksOf(2, 50)) await house.put(block)
    expect(house.segments).not.toContain('/cache/segment-0000000000000005.kv')
    expect(house.disk.paths).toContain('/cache/notes.txt')
  })

  test('fits a folder to a smaller budget', async () => {
    const house = await new DiskHouse().open()
    for (const block of blocksOf(1, 50)) await house.put(block)
    await house.tier.close()
    await house.open({ capacityBytes: 20 * STRIDE })
    expect(house.disk.usedBytes).toBeLessThanOrEqual(20 * STRIDE)
    expect(house.tier.status()!.usedBytes).toBe(house.disk.usedBytes)
  })

  test('counts the later of two records of one block, and erases both', async () => {
    const house = await new DiskHouse().open()
    const [block] = blocksOf(1, 1) as [BlockName]
    await house.put(block)
    await house.tier.close()
    // As a crash between copying and unlinking leaves it: the same record, in its own place, in two segments.
    const [path] = house.segments
    const copy = Buffer.from(house.disk.contents(path!))
    copy.writeBigUInt64LE(9n, 24)
    copy.writeUInt32LE(fallback.crc32c(copy.subarray(0, 60)), 60)
    house.disk.corrupt('/cache/segment-0000000000000009.kv', copy)
    await house.open()
    expect([...house.tier.held()]).toHaveLength(1)
    expect(await house.has(block)).toBe(true)
    expect(await house.tier.drop([block.hash], 'erase')).toBe(true)
    await house.tier.close()
    await house.open()
    expect([...house.tier.held()]).toHaveLength(0)
  })
})

describe('damage', () => {
  test('is a miss, once: the record is marked dead', async () => {
    const house = await new DiskHouse().open()
    const blocks = blocksOf(1, 3)
    for (const block of blocks) await house.put(block)
    const path = house.segments[0]!
    house.disk.contents(path)[64 + STRIDE + 500]! ^= 1
    expect(await house.tier.load(blocks[1]!, new Uint8Array(BLOCK))).toBe('corrupt')
    expect(await house.tier.load(blocks[1]!, new Uint8Array(BLOCK))).toBe('absent')
    expect(house.lost).toEqual([blocks[1]!.hash])
    expect(await house.found(blocks)).toBe(2)
    await house.tier.close()
    await house.open()
    expect([...house.tier.held()]).toHaveLength(2)
    await house.put(blocks[1]!)
    expect(await house.found(blocks)).toBe(3)
  })

  test('of a header hides no other record', async () => {
    const house = await new DiskHouse().open()
    const blocks = blocksOf(1, 6)
    for (const block of blocks) await house.put(block)
    await house.tier.close()
    house.disk.contents(house.segments[0]!)[64 + 2 * STRIDE + 30]! ^= 4
    await house.open()
    expect(await house.found(blocks)).toBe(5)
  })
})

test('a second owner is refused while the first lives', async () => {
  const disk = new FaultyDisk()
  const first = await new DiskHouse(disk).open()
  await expect(new DiskHouse(disk).open()).rejects.toThrow('belongs to another process')
  await first.tier.close()
  await new DiskHouse(disk).open()
})

describe('erasing', () => {
  test('overwrites the body and survives a loss of power', async () => {
    const house = await new DiskHouse().open()
    const blocks = blocksOf(1, 3)
    for (const block of blocks) await house.put(block)
    expect(await house.tier.drop([blocks[1]!.hash], 'erase')).toBe(true)
    const path = house.segments[0]!
    const bytes = house.disk.contents(path).subarray(64 + STRIDE + 160, 64 + 2 * STRIDE)
    expect(bytes.every((byte) => byte === 0)).toBe(true)
    house.disk.crash(() => 0)
    await house.open()
    expect(await house.found(blocks)).toBe(2)
    expect([...house.tier.held()]).toHaveLength(2)
  })

  test('says when the disk could not be written', async () => {
    const house = await new DiskHouse().open()
    const [block] = blocksOf(1, 1) as [BlockName]
    await house.put(block)
    house.disk.fail('write', 'EIO')
    expect(await house.tier.drop([block.hash], 'erase')).toBe(false)
    expect(await house.has(block)).toBe(false)
  })

  test('of everything leaves no segment', async () => {
    const house = await new DiskHouse().open()
    const blocks = blocksOf(1, 30)
    for (const block of blocks) await house.put(block)
    await house.tier.drop(
      blocks.map(({ hash }) => hash),
      'forget',
    )
    expect(house.segments).toEqual([])
    expect(house.tier.status()!.usedBytes).toBe(0)
    expect(await house.put(blocks[0]!)).toBe(true)
  })
})

describe('keys', () => {
  const KEY = { id: '0'.repeat(31) + '1', key: new Uint8Array(32).fill(7) }
  const withKey: BlockKeys = { keyOf: () => KEY, keyNamed: (id) => (id === KEY.id ? KEY.key : undefined) }

  test('hide token ids and KV, and open them again', async () => {
    const house = new DiskHouse()
    house.keys = withKey
    await house.open()
    const blocks = blocksOf(1, 3)
    for (const block of blocks) await house.put(block)
    const file = house.disk.contents(house.segments[0]!)
    for (const { hash, tokens } of blocks) {
      expect(file.includes(Buffer.from(tokens.slice().buffer))).toBe(false)
      expect(file.includes(Buffer.from(toyBytes(hash, 64)))).toBe(false)
    }
    await house.tier.close()
    await house.open()
    expect(await house.found(blocks)).toBe(3)
  })

  test('that are gone take their blocks with them', async () => {
    const house = new DiskHouse()
    house.keys = withKey
    await house.open()
    const blocks = blocksOf(1, 3)
    for (const block of blocks) await house.put(block)
    house.keys = { ...withKey, keyNamed: () => undefined }
    await house.tier.close()
    await house.open()
    expect(await house.found(blocks)).toBe(0)
    await house.tier.close()
    house.keys = withKey
    await house.open()
    expect(await house.found(blocks)).toBe(0)
  })

  test('that come later do not accept what lies in the clear', async () => {
    const house = await new DiskHouse().open()
    const blocks = blocksOf(1, 2)
    for (const block of blocks) await house.put(block)
    await house.tier.close()
    house.keys = withKey
    await house.open()
    expect(await house.found(blocks)).toBe(0)
  })

  test('stay with their records when these are copied forward', async () => {
    const house = new DiskHouse()
    house.keys = withKey
    await house.open({ capacityBytes: 20 * STRIDE, segmentBytes: 4 * STRIDE })
    const [pinned] = blocksOf(1, 1) as [BlockName]
    house.worth.set(pinned.hash, Number.POSITIVE_INFINITY)
    await house.put(pinned)
    for (let seed = 2; seed < 20; seed++) for (const block of blocksOf(seed, 4)) await house.put(block)
    expect(await house.has(pinned)).toBe(true)
  })
})
