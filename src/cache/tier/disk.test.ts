// The disk tier on a disk that fails: what it promises about restarts, damage, space, stalls and keys.

import { describe, expect, test } from 'vitest'
import { fallback } from '../../native/fallback.js'
import { FaultyDisk } from '../../testing/faulty-disk.js'
import { ManualClock } from '../../testing/manual-clock.js'
import { seeded } from '../../testing/random.js'
import { straightPrompt, toyBytes } from '../../testing/toy-blocks.js'
import { recordBytes } from '../block-file.js'
import type { BlockName } from '../prefix-index.js'
import { type DiskOptions, disk as diskKind } from './disk.js'
import type { BlockKeys, SlowTier } from './tier.js'

const BLOCK = 600
const STRIDE = recordBytes(BLOCK)

class Bench {
  readonly disk: FaultyDisk
  readonly clock = new ManualClock()
  readonly lost: string[] = []
  readonly worth = new Map<string, number>()
  keys: BlockKeys | undefined
  tier!: SlowTier

  constructor(disk = new FaultyDisk()) {
    this.disk = disk
  }

  async open(more: Partial<DiskOptions> = {}): Promise<this> {
    const options = {
      folder: '/cache',
      capacityBytes: 64 * STRIDE,
      segmentBytes: 8 * STRIDE,
      keepFreeBytes: 0,
      ...more,
    }
    this.tier = await diskKind.create(options, {
      ...{ blockBytes: BLOCK, clock: this.clock, crc32c: fallback.crc32c, files: this.disk.door() },
      ...(this.keys && { keys: this.keys }),
      worth: (hash) => this.worth.get(hash) ?? 0,
      lost: (hash) => this.lost.push(hash),
      recovered: () => undefined,
    })
    return this
  }

  async put(block: BlockName): Promise<boolean> {
    return await this.tier.store(block, toyBytes(block.hash, BLOCK))
  }

  /** Whether the block is there; wrong bytes are an error. */
  async has(block: BlockName): Promise<boolean> {
    const into = new Uint8Array(BLOCK)
    if ((await this.tier.load(block, into)) !== 'loaded') return false
    expect(Buffer.compare(into, toyBytes(block.hash, BLOCK))).toBe(0)
    return true
  }

  async found(blocks: readonly BlockName[]): Promise<number> {
    let found = 0
    for (const block of blocks) if (await this.has(block)) found++
    return found
  }

  get segments(): string[] {
    return this.disk.paths.filter((path) => path.endsWith('.kv'))
  }
}

function blocksOf(seed: number, count: number): BlockName[] {
  const { chain, tokens } = straightPrompt(seed, count)
  return chain.hashes.map((hash, i) => ({
    ...{ hash, root: chain.root, parent: chain.hashes[i - 1] ?? chain.root },
    tokens: tokens.subarray(64 * i, 64 * (i + 1)),
  }))
}

describe('a restart', () => {
  test('finds everything after a clean end, in a new segment from then on', async () => {
    const bench = await new Bench().open()
    const blocks = blocksOf(1, 20)
    for (const block of blocks) await bench.put(block)
    await bench.tier.close()
    await bench.open()
    expect(await bench.found(blocks)).toBe(20)
    expect([...bench.tier.held()].map(({ hash, root, parent }) => ({ hash, root, parent }))).toEqual(
      expect.arrayContaining(blocks.map(({ hash, root, parent }) => ({ hash, root, parent }))),
    )
    const before = bench.segments.length
    await bench.put(blocksOf(2, 1)[0]!)
    expect(bench.segments.length).toBe(before + 1)
  })

  test('finds everything after a kill, for the system has it', async () => {
    const bench = await new Bench().open()
    const blocks = blocksOf(1, 20)
    for (const block of blocks) await bench.put(block)
    bench.disk.kill()
    await bench.open()
    expect(await bench.found(blocks)).toBe(20)
  })

  test('after a loss of power finds what was synced, and never wrong bytes', async () => {
    for (let seed = 0; seed < 30; seed++) {
      const random = seeded(seed)
      const bench = await new Bench().open()
      const [synced, unsynced] = [blocksOf(1, 10), blocksOf(2, 10)]
      for (const block of synced) await bench.put(block)
      await bench.tier.flush()
      for (const block of unsynced) await bench.put(block)
      bench.disk.crash(random.next)
      await bench.open()
      expect(await bench.found(synced)).toBe(10)
      await bench.found(unsynced)
      for (const block of unsynced) await bench.put(block)
      expect(await bench.found(unsynced)).toBe(10)
    }
  })

  test('syncs by itself after a while', async () => {
    const bench = await new Bench().open({ syncMs: 1000 })
    const blocks = blocksOf(1, 3)
    for (const block of blocks) await bench.put(block)
    await bench.clock.advanceSlowly(1000)
    await bench.tier.store(blocks[0]!, toyBytes(blocks[0]!.hash, BLOCK))
    bench.disk.crash(() => 0)
    await bench.open()
    expect(await bench.found(blocks)).toBe(3)
  })

  test('cuts a torn tail', async () => {
    const bench = await new Bench().open()
    const blocks = blocksOf(1, 3)
    for (const block of blocks) await bench.put(block)
    await bench.tier.close()
    const path = bench.segments[0]!
    bench.disk.corrupt(path, Buffer.from(bench.disk.contents(path).subarray(0, -10)))
    await bench.open()
    expect(await bench.found(blocks)).toBe(2)
    expect(bench.disk.contents(path).length).toBe(64 + 2 * STRIDE)
    expect(bench.tier.status()!.usedBytes).toBe(bench.disk.usedBytes)
  })

  test('keeps a segment of another block length until space is needed, and removes a broken one', async () => {
    const bench = await new Bench().open()
    await bench.put(blocksOf(1, 1)[0]!)
    await bench.tier.close()
    const [mine] = bench.segments
    const foreign = Buffer.from(bench.disk.contents(mine!).subarray(0, 64))
    foreign.writeBigUInt64LE(BigInt(BLOCK + 8), 16)
    foreign.writeUInt32LE(fallback.crc32c(foreign.subarray(0, 60)), 60)
    bench.disk.corrupt('/cache/segment-0000000000000005.kv', Buffer.concat([foreign, Buffer.alloc(20 * STRIDE)]))
    bench.disk.corrupt('/cache/segment-0000000000000006.kv', Buffer.from('not ours'))
    bench.disk.corrupt('/cache/notes.txt', Buffer.from('a person’s'))
    await bench.open()
    expect(bench.segments).toHaveLength(2)
    expect(bench.tier.status()!.usedBytes).toBe(64 + STRIDE + 64 + 20 * STRIDE)
    for (const block of blocksOf(2, 50)) await bench.put(block)
    expect(bench.segments).not.toContain('/cache/segment-0000000000000005.kv')
    expect(bench.disk.paths).toContain('/cache/notes.txt')
  })

  test('fits a folder to a smaller budget', async () => {
    const bench = await new Bench().open()
    for (const block of blocksOf(1, 50)) await bench.put(block)
    await bench.tier.close()
    await bench.open({ capacityBytes: 20 * STRIDE })
    expect(bench.disk.usedBytes).toBeLessThanOrEqual(20 * STRIDE)
    expect(bench.tier.status()!.usedBytes).toBe(bench.disk.usedBytes)
  })

  test('counts the later of two records of one block, and erases both', async () => {
    const bench = await new Bench().open()
    const [block] = blocksOf(1, 1) as [BlockName]
    await bench.put(block)
    await bench.tier.close()
    // As a crash between copying and unlinking leaves it: the same record, in its own place, in two segments.
    const [path] = bench.segments
    const copy = Buffer.from(bench.disk.contents(path!))
    copy.writeBigUInt64LE(9n, 24)
    copy.writeUInt32LE(fallback.crc32c(copy.subarray(0, 60)), 60)
    bench.disk.corrupt('/cache/segment-0000000000000009.kv', copy)
    await bench.open()
    expect([...bench.tier.held()]).toHaveLength(1)
    expect(await bench.has(block)).toBe(true)
    expect(await bench.tier.drop([block.hash], 'erase')).toBe(true)
    await bench.tier.close()
    await bench.open()
    expect([...bench.tier.held()]).toHaveLength(0)
  })
})

describe('damage', () => {
  test('is a miss, once: the record is marked dead', async () => {
    const bench = await new Bench().open()
    const blocks = blocksOf(1, 3)
    for (const block of blocks) await bench.put(block)
    const path = bench.segments[0]!
    bench.disk.contents(path)[64 + STRIDE + 500]! ^= 1
    expect(await bench.tier.load(blocks[1]!, new Uint8Array(BLOCK))).toBe('corrupt')
    expect(await bench.tier.load(blocks[1]!, new Uint8Array(BLOCK))).toBe('absent')
    expect(bench.lost).toEqual([blocks[1]!.hash])
    expect(await bench.found(blocks)).toBe(2)
    await bench.tier.close()
    await bench.open()
    expect([...bench.tier.held()]).toHaveLength(2)
    await bench.put(blocks[1]!)
    expect(await bench.found(blocks)).toBe(3)
  })

  test('of a header hides no other record', async () => {
    const bench = await new Bench().open()
    const blocks = blocksOf(1, 6)
    for (const block of blocks) await bench.put(block)
    await bench.tier.close()
    bench.disk.contents(bench.segments[0]!)[64 + 2 * STRIDE + 30]! ^= 4
    await bench.open()
    expect(await bench.found(blocks)).toBe(5)
  })
})

describe('space', () => {
  test('stays within the budget under churn, to the byte', async () => {
    const bench = await new Bench().open({ capacityBytes: 40 * STRIDE, segmentBytes: 5 * STRIDE })
    for (let seed = 0; seed < 60; seed++) {
      for (const block of blocksOf(seed, 5)) {
        await bench.put(block)
        expect(bench.disk.usedBytes).toBeLessThanOrEqual(40 * STRIDE)
        expect(bench.tier.status()!.usedBytes).toBe(bench.disk.usedBytes)
      }
    }
    expect(bench.tier.status()!.evictedBlocks).toBeGreaterThan(200)
    expect(bench.lost.length).toBe(bench.tier.status()!.evictedBlocks)
    expect(await bench.found(blocksOf(59, 5))).toBe(5)
  })

  test('copies what is pinned or worth it forward, and gives up the rest', async () => {
    const bench = await new Bench().open({ capacityBytes: 40 * STRIDE, segmentBytes: 5 * STRIDE })
    const [pinned, useful] = [blocksOf(1, 2), blocksOf(2, 2)]
    for (const { hash } of pinned) bench.worth.set(hash, Number.POSITIVE_INFINITY)
    for (const { hash } of useful) bench.worth.set(hash, 1)
    for (const block of [...pinned, ...useful]) await bench.put(block)
    for (let seed = 10; seed < 60; seed++) for (const block of blocksOf(seed, 5)) await bench.put(block)
    expect(await bench.found(pinned)).toBe(2)
    expect(await bench.found(useful)).toBe(2)
    await bench.tier.close()
    await bench.open({ capacityBytes: 40 * STRIDE, segmentBytes: 5 * STRIDE })
    expect(await bench.found([...pinned, ...useful])).toBe(4)
  })

  test('that is pinned all over takes no more blocks, and loses none', async () => {
    const bench = await new Bench().open({ capacityBytes: 20 * STRIDE, segmentBytes: 3 * STRIDE })
    const blocks = blocksOf(1, 30)
    for (const { hash } of blocks) bench.worth.set(hash, Number.POSITIVE_INFINITY)
    let stored = 0
    for (const block of blocks) if (await bench.put(block)) stored++
    expect(stored).toBeGreaterThan(5)
    expect(stored).toBeLessThan(20)
    expect(await bench.found(blocks)).toBe(stored)
    bench.worth.clear()
    expect(await bench.put(blocksOf(2, 1)[0]!)).toBe(true)
  })

  test('runs out on the volume: not stored, unhealthy, and well again by itself', async () => {
    const bench = await new Bench().open({ retryMs: 1000 })
    const blocks = blocksOf(1, 8)
    bench.disk.capacityBytes = 64 + 3.5 * STRIDE
    const stored = []
    for (const block of blocks) stored.push(await bench.put(block))
    expect(stored).toEqual([true, true, true, false, false, false, false, false])
    expect(bench.tier.status()).toMatchObject({ healthy: false, complaint: 'no space is left on the volume' })
    expect(bench.tier.status()!.usedBytes).toBe(bench.disk.usedBytes)
    expect(await bench.found(blocks)).toBe(3)
    await bench.clock.advanceSlowly(1000)
    expect(bench.tier.writable).toBe(false)
    bench.disk.heal()
    await bench.clock.advanceSlowly(2000)
    expect(bench.tier.status()).toMatchObject({ healthy: true })
    for (const block of blocks) expect(await bench.put(block)).toBe(true)
    expect(await bench.found(blocks)).toBe(8)
    expect(bench.disk.paths).not.toContain('/cache/probe.tmp')
  })

  test('of the volume is left to others', async () => {
    const bench = await new Bench().open({ keepFreeBytes: 100 * STRIDE })
    bench.disk.capacityBytes = 99 * STRIDE
    expect(await bench.put(blocksOf(1, 1)[0]!)).toBe(false)
    expect(bench.tier.status()).toMatchObject({ healthy: false })
  })

  test('refuses a budget that holds nothing', async () => {
    await expect(new Bench().open({ capacityBytes: 1000 })).rejects.toThrow('cache.disk.capacityBytes')
  })
})

describe('faults', () => {
  test('of reading are misses; after a pause it reads again', async () => {
    const bench = await new Bench().open({ retryMs: 1000 })
    const blocks = blocksOf(1, 4)
    for (const block of blocks) await bench.put(block)
    bench.disk.fail('read', 'EIO', 1)
    expect(await bench.tier.load(blocks[0]!, new Uint8Array(BLOCK))).toBe('failed')
    const reads = bench.disk.counts.get('read')
    expect(await bench.tier.load(blocks[1]!, new Uint8Array(BLOCK))).toBe('failed')
    expect(bench.disk.counts.get('read')).toBe(reads)
    expect(bench.tier.status()!.complaint).toContain('EIO')
    expect(bench.tier.writable).toBe(true)
    await bench.clock.advanceSlowly(1000)
    expect(bench.tier.readable).toBe(true)
    expect(await bench.found(blocks)).toBe(3)
    expect(bench.lost).toEqual([blocks[0]!.hash])
  })

  test('pauses grow while the fault stays', async () => {
    const bench = await new Bench().open({ retryMs: 1000, longestRetryMs: 4000 })
    await bench.put(blocksOf(1, 1)[0]!)
    // Nothing is left to read, so that the probe lists the folder.
    bench.disk.fail('read', 'EIO', 1)
    bench.disk.fail('list', 'EIO')
    await bench.has(blocksOf(1, 1)[0]!)
    const probes: number[] = []
    for (let second = 1; second <= 16; second++) {
      const before = bench.disk.counts.get('list')!
      await bench.clock.advanceSlowly(1000)
      if (bench.disk.counts.get('list')! > before) probes.push(second)
    }
    expect(probes).toEqual([1, 3, 7, 11, 15])
    expect(bench.tier.status()!.healthy).toBe(false)
  })

  test('of writing cut the record off again', async () => {
    const bench = await new Bench().open({ retryMs: 1000 })
    const blocks = blocksOf(1, 3)
    await bench.put(blocks[0]!)
    bench.disk.fail('write', 'EIO', 1)
    expect(await bench.put(blocks[1]!)).toBe(false)
    expect(bench.disk.usedBytes).toBe(64 + STRIDE)
    expect(bench.tier.status()!.usedBytes).toBe(64 + STRIDE)
    await bench.clock.advanceSlowly(1000)
    expect(await bench.put(blocks[1]!)).toBe(true)
    await bench.tier.close()
    await bench.open()
    expect(await bench.found(blocks)).toBe(2)
  })

  test('of writing and cutting seal the segment and count its weight', async () => {
    const bench = await new Bench().open({ retryMs: 1000 })
    const blocks = blocksOf(1, 3)
    await bench.put(blocks[0]!)
    bench.disk.fail('write', 'EIO', 1)
    bench.disk.fail('truncate', 'EIO', 1)
    expect(await bench.put(blocks[1]!)).toBe(false)
    expect(bench.tier.status()!.usedBytes).toBe(64 + 2 * STRIDE)
    await bench.clock.advanceSlowly(1000)
    expect(await bench.put(blocks[1]!)).toBe(true)
    expect(bench.segments).toHaveLength(2)
    expect(await bench.found(blocks)).toBe(2)
    await bench.tier.close()
    await bench.open()
    expect(await bench.found(blocks)).toBe(2)
    expect(bench.tier.status()!.usedBytes).toBe(bench.disk.usedBytes)
  })

  test('of a stall show before the operation ends', async () => {
    const bench = await new Bench().open({ slowMs: 2000, retryMs: 1000 })
    const blocks = blocksOf(1, 2)
    for (const block of blocks) await bench.put(block)
    const go = bench.disk.stall('read')
    const load = bench.tier.load(blocks[0]!, new Uint8Array(BLOCK))
    await bench.clock.advanceSlowly(2000)
    expect(bench.tier.status()).toMatchObject({ healthy: false, complaint: 'an operation takes more than 2000 ms' })
    expect(await bench.tier.load(blocks[1]!, new Uint8Array(BLOCK))).toBe('failed')
    go()
    expect(await load).toBe('loaded')
    await bench.clock.advanceSlowly(1000)
    expect(await bench.found(blocks)).toBe(2)
  })

  test('of one file at opening cost that file alone', async () => {
    const bench = await new Bench().open({ segmentBytes: 2 * STRIDE + 64 })
    const blocks = blocksOf(1, 6)
    for (const block of blocks) await bench.put(block)
    await bench.tier.close()
    bench.disk.fail('open', 'EIO', 1)
    await bench.open()
    expect(bench.tier.status()).toMatchObject({ healthy: false })
    bench.disk.heal()
    await bench.clock.advanceSlowly(1000)
    expect(await bench.found(blocks)).toBe(4)
  })

  test('of listing the folder at opening are an error', async () => {
    const bench = new Bench()
    bench.disk.fail('list', 'EACCES')
    await expect(bench.open()).rejects.toThrow('EACCES')
    bench.disk.heal()
    await bench.open()
  })
})

test('a second owner is refused while the first lives', async () => {
  const disk = new FaultyDisk()
  const first = await new Bench(disk).open()
  await expect(new Bench(disk).open()).rejects.toThrow('belongs to another process')
  await first.tier.close()
  await new Bench(disk).open()
})

describe('erasing', () => {
  test('overwrites the body and survives a loss of power', async () => {
    const bench = await new Bench().open()
    const blocks = blocksOf(1, 3)
    for (const block of blocks) await bench.put(block)
    expect(await bench.tier.drop([blocks[1]!.hash], 'erase')).toBe(true)
    const path = bench.segments[0]!
    const bytes = bench.disk.contents(path).subarray(64 + STRIDE + 160, 64 + 2 * STRIDE)
    expect(bytes.every((byte) => byte === 0)).toBe(true)
    bench.disk.crash(() => 0)
    await bench.open()
    expect(await bench.found(blocks)).toBe(2)
    expect([...bench.tier.held()]).toHaveLength(2)
  })

  test('says when the disk could not be written', async () => {
    const bench = await new Bench().open()
    const [block] = blocksOf(1, 1) as [BlockName]
    await bench.put(block)
    bench.disk.fail('write', 'EIO')
    expect(await bench.tier.drop([block.hash], 'erase')).toBe(false)
    expect(await bench.has(block)).toBe(false)
  })

  test('of everything leaves no segment', async () => {
    const bench = await new Bench().open()
    const blocks = blocksOf(1, 30)
    for (const block of blocks) await bench.put(block)
    await bench.tier.drop(
      blocks.map(({ hash }) => hash),
      'forget',
    )
    expect(bench.segments).toEqual([])
    expect(bench.tier.status()!.usedBytes).toBe(0)
    expect(await bench.put(blocks[0]!)).toBe(true)
  })
})

describe('keys', () => {
  const KEY = { id: '0'.repeat(31) + '1', key: new Uint8Array(32).fill(7) }
  const withKey: BlockKeys = { keyOf: () => KEY, keyNamed: (id) => (id === KEY.id ? KEY.key : undefined) }

  test('hide token ids and KV, and open them again', async () => {
    const bench = new Bench()
    bench.keys = withKey
    await bench.open()
    const blocks = blocksOf(1, 3)
    for (const block of blocks) await bench.put(block)
    const file = bench.disk.contents(bench.segments[0]!)
    for (const { hash, tokens } of blocks) {
      expect(file.includes(Buffer.from(tokens.slice().buffer))).toBe(false)
      expect(file.includes(Buffer.from(toyBytes(hash, 64)))).toBe(false)
    }
    await bench.tier.close()
    await bench.open()
    expect(await bench.found(blocks)).toBe(3)
  })

  test('that are gone take their blocks with them', async () => {
    const bench = new Bench()
    bench.keys = withKey
    await bench.open()
    const blocks = blocksOf(1, 3)
    for (const block of blocks) await bench.put(block)
    bench.keys = { ...withKey, keyNamed: () => undefined }
    await bench.tier.close()
    await bench.open()
    expect(await bench.found(blocks)).toBe(0)
    await bench.tier.close()
    bench.keys = withKey
    await bench.open()
    expect(await bench.found(blocks)).toBe(0)
  })

  test('that come later do not accept what lies in the clear', async () => {
    const bench = await new Bench().open()
    const blocks = blocksOf(1, 2)
    for (const block of blocks) await bench.put(block)
    await bench.tier.close()
    bench.keys = withKey
    await bench.open()
    expect(await bench.found(blocks)).toBe(0)
  })

  test('stay with their records when these are copied forward', async () => {
    const bench = new Bench()
    bench.keys = withKey
    await bench.open({ capacityBytes: 20 * STRIDE, segmentBytes: 4 * STRIDE })
    const [pinned] = blocksOf(1, 1) as [BlockName]
    bench.worth.set(pinned.hash, Number.POSITIVE_INFINITY)
    await bench.put(pinned)
    for (let seed = 2; seed < 20; seed++) for (const block of blocksOf(seed, 4)) await bench.put(block)
    expect(await bench.has(pinned)).toBe(true)
  })
})
