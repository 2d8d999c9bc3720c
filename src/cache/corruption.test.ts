// 200 random corruptions of segment files: flipped bits, cut, swapped, doubled and zeroed ranges, records in each other's
// place. Never a wrong byte, never a crash, and what was not touched is still found.

import { describe, expect, test } from 'vitest'
import { fallback } from '../native/fallback.js'
import { FaultyDisk } from '../testing/faulty-disk.js'
import { ManualClock } from '../testing/manual-clock.js'
import { type Random, seeded } from '../testing/random.js'
import { serve, type ToyPrompt, toyPrompt, toyRoot } from '../testing/toy-blocks.js'
import { recordBytes } from './block-file.js'
import { openKvCache } from './kv-cache.js'

const BLOCK = 1024
const STRIDE = recordBytes(BLOCK)
const PROMPTS: ToyPrompt[] = [
  ...[
    [1, 2, 3, 4, 5, 6],
    [1, 2, 3, 7, 8],
    [1, 9, 10, 11],
    [12, 13, 14, 15, 16, 17],
  ].map((path) => toyPrompt(path)),
  toyPrompt([1, 2, 3, 4, 5, 6], toyRoot('other tenant')),
]

function openOn(disk: FaultyDisk, blocks = 100) {
  const options = { folder: '/cache', capacityBytes: 200 * STRIDE, segmentBytes: 8 * STRIDE, keepFreeBytes: 0 }
  return openKvCache(
    { blockBytes: BLOCK, memoryBytes: blocks * BLOCK, disk: options, restore: 'always' },
    { clock: new ManualClock(), crc32c: fallback.crc32c, files: disk.door() },
  )
}

async function written(): Promise<Map<string, Buffer>> {
  const disk = new FaultyDisk()
  const cache = await openOn(disk)
  for (const prompt of PROMPTS) await serve(cache, prompt)
  await cache.close()
  return new Map(disk.paths.map((path) => [path, disk.contents(path)]))
}

/** A range of the file; half of the time that of whole records. */
function range({ below, next }: Random, file: Buffer): [number, number] {
  if (next() < 0.5 && file.length >= 64 + STRIDE) {
    const at = 64 + STRIDE * below(Math.floor((file.length - 64) / STRIDE))
    return [at, STRIDE]
  }
  const at = below(file.length)
  return [at, Math.min(file.length - at, 1 + below(2 * STRIDE))]
}

const CORRUPTIONS: Record<string, (file: Buffer, random: Random, other: Buffer) => Buffer> = {
  flip(file, { below }) {
    file[below(file.length)]! ^= 1 << below(8)
    return file
  },
  cut: (file, { below }) => file.subarray(0, below(file.length)),
  grow: (file, { below }) => Buffer.concat([file, Buffer.alloc(1 + below(2 * STRIDE), below(256))]),
  zeroPage(file, { below }) {
    const at = 512 * below(Math.ceil(file.length / 512))
    return file.fill(0, at, Math.min(file.length, at + 4096))
  },
  overwrite(file, random) {
    const [at, length] = range(random, file)
    for (let i = at; i < at + length; i++) file[i] = random.below(256)
    return file
  },
  swap(file, random) {
    const [a, length] = range(random, file)
    const [b] = range(random, file)
    const size = Math.min(length, file.length - b)
    const first = Buffer.from(file.subarray(a, a + size))
    file.copy(file, a, b, b + size)
    first.copy(file, b)
    return file
  },
  double(file, random) {
    const [from, length] = range(random, file)
    const [to] = range(random, file)
    Buffer.from(file.subarray(from, from + length)).copy(file, to)
    return file
  },
  graft(file, random, other) {
    const [from, length] = range(random, other)
    const [to] = range(random, file)
    other.copy(file, to, from, from + length)
    return file
  },
  replace: (_file, _random, other) => Buffer.from(other),
}

describe('200 corruptions', async () => {
  const files = await written()
  const paths = [...files.keys()]
  const names = Object.keys(CORRUPTIONS)

  test.each(Array.from({ length: 20 }, (_, group) => [group]))('group %i', async (group) => {
    for (let seed = group * 10; seed < group * 10 + 10; seed++) {
      const random = seeded(seed)
      const disk = new FaultyDisk()
      for (const [path, bytes] of files) disk.corrupt(path, Buffer.from(bytes))
      const corrupt = () => {
        for (let left = 1 + random.below(4); left > 0; left--) {
          const path = paths[random.below(paths.length)]!
          const other = Buffer.from(files.get(paths[random.below(paths.length)]!)!)
          const name = names[random.below(names.length)]!
          if (disk.paths.includes(path)) disk.corrupt(path, CORRUPTIONS[name]!(disk.contents(path), random, other))
        }
      }
      // Before it is opened, and once more behind the back of the index.
      corrupt()
      const cache = await openOn(disk)
      if (random.next() < 0.5) corrupt()
      for (const prompt of PROMPTS) await serve(cache, prompt)
      await cache.close()
      const mended = await openOn(disk)
      for (const prompt of PROMPTS) await serve(mended, prompt)
      expect(mended.status()[1]!.healthy).toBe(true)
      await mended.close()
    }
  })

  test('cost no more than the blocks they hit', async () => {
    const disk = new FaultyDisk()
    for (const [path, bytes] of files) disk.corrupt(path, Buffer.from(bytes))
    disk.contents(paths[1]!)[64 + 2 * STRIDE + 700]! ^= 1
    const cache = await openOn(disk)
    const before = cache.status()[1]!.blocks
    for (const prompt of PROMPTS) await serve(cache, prompt)
    await cache.flush()
    expect(cache.status()[1]!.blocks).toBe(before)
    expect(cache.status()[1]!.hits).toBeGreaterThan(before / 2)
  })
})
