// The log by itself: what the tier's tests can't reach with a few files. Budget and reclaim are in disk-faults.test.ts.

import { expect, test } from 'vitest'
import { fallback } from '../../native/fallback.js'
import { BLOCK, DiskHouse, STRIDE } from '../../testing/disk-house.js'
import { blocksOf } from '../../testing/toy-blocks.js'
import { scanFolder } from './scan.js'
import { SegmentLog } from './segment-log.js'

async function logOf(house: DiskHouse): Promise<SegmentLog> {
  const files = house.disk.door()
  const common = { files, folder: '/cache', crc32c: fallback.crc32c, blockBytes: BLOCK }
  return new SegmentLog(await scanFolder(common), {
    ...common,
    ...{ capacityBytes: 100 * STRIDE, segmentRecords: 8, keepFreeBytes: 0 },
    worth: () => 0,
    lost: () => expect.unreachable(),
  })
}

test('small segments are copied together, and nothing is lost', async () => {
  const house = new DiskHouse()
  const blocks = blocksOf(1, 12)
  for (const block of blocks) {
    await house.open()
    await house.put(block)
    await house.tier.close()
  }
  expect(house.segments).toHaveLength(12)
  const log = await logOf(house)
  await log.compact(4)
  await log.close()
  expect(house.segments).toHaveLength(5)
  expect(log.usedBytes).toBe(house.disk.usedBytes)
  await house.open()
  expect(await house.found(blocks)).toBe(12)
})

test('a file that cannot be unlinked counts until it can', async () => {
  const house = await new DiskHouse().open()
  for (const block of blocksOf(1, 3)) await house.put(block)
  await house.tier.close()
  const log = await logOf(house)
  for (const hash of [...log.locations.keys()]) log.forget(hash)
  house.disk.fail('unlink', 'EIO', 1)
  await expect(log.dropEmpty()).rejects.toThrow('EIO')
  expect(log.usedBytes).toBe(64 + 3 * STRIDE)
  await log.dropEmpty()
  expect([log.usedBytes, house.disk.usedBytes]).toEqual([0, 0])
})
