import { expect, test } from 'vitest'
import { recordBytes } from '../cache/block-file.js'
import { makeRoot } from '../cache/chain.js'
import { type ErasableKvCache, openKvCache } from '../cache/kv-cache.js'
import type { Root } from '../core/block.js'
import { fallback } from '../native/fallback.js'
import { FaultyDisk } from '../testing/faulty-disk.js'
import { ManualClock } from '../testing/manual-clock.js'
import { ask, serve, straightPrompt, toyRoot } from '../testing/toy-blocks.js'
import { createEraser } from './erase.js'
import { slotBytes } from './slot.js'
import { WorkingSet } from './working-set.js'

const BLOCK = 512
const STRIDE = recordBytes(BLOCK)
const layout = { layers: 1, kvHeads: 1, headDim: 2, dtype: 'fp16' } as const

class House {
  readonly disk = new FaultyDisk()
  readonly clock = new ManualClock()
  readonly workingSet = new WorkingSet({
    layout,
    contextLength: 1024,
    capacityBytes: 4 * slotBytes(layout, 1024),
    reuse: true,
  })
  cache!: ErasableKvCache

  async open(memoryBlocks = 8, diskRecords = 400): Promise<this> {
    const disk = { folder: '/cache', capacityBytes: diskRecords * STRIDE, keepFreeBytes: 0, segmentBytes: 8 * STRIDE }
    this.cache = await openKvCache(
      { blockBytes: BLOCK, memoryBytes: memoryBlocks * BLOCK, disk, restore: 'always' },
      { clock: this.clock, crc32c: fallback.crc32c, files: this.disk.door() },
    )
    return this
  }

  get erase() {
    return createEraser({ cache: this.cache, workingSet: this.workingSet, clock: this.clock })
  }

  /** A warm slot that holds these tokens. */
  warm(root: Root, tokens: Int32Array): void {
    const { slot } = this.workingSet.take(root, tokens, { capacity: tokens.length })!
    slot.append(tokens, () => new Float32Array(tokens.length * 2))
    slot.root = root
    this.workingSet.release(slot)
  }

  /** Whether any file has these ids, one after the other. */
  filesHave(tokens: Int32Array): boolean {
    const run = Buffer.from(tokens.buffer, tokens.byteOffset, 32)
    return this.disk.paths.some((path) => this.disk.contents(path).includes(run))
  }

  resident(root: Root, tokens: Int32Array): number {
    const { slot, resident } = this.workingSet.take(root, tokens, { capacity: tokens.length })!
    this.workingSet.release(slot)
    return resident
  }
}

test('erases blocks by name from disk, memory and the working set, and leaves the others', async () => {
  const house = await new House().open(20)
  const [mine, theirs] = [straightPrompt(1, 3), straightPrompt(2, 3)]
  for (const prompt of [mine, theirs]) {
    await serve(house.cache, prompt)
    house.warm(prompt.chain.root, prompt.tokens)
  }
  await house.cache.flush()
  expect(house.filesHave(mine.tokens)).toBe(true)
  expect(await house.erase({ hashes: mine.chain.hashes })).toEqual({ blocks: 3, complete: true })
  expect(house.filesHave(mine.tokens)).toBe(false)
  expect(house.filesHave(mine.tokens.subarray(128))).toBe(false)
  expect(house.filesHave(theirs.tokens)).toBe(true)
  expect(house.resident(mine.chain.root, mine.tokens)).toBe(0)
  expect(house.resident(theirs.chain.root, theirs.tokens)).toBe(192)
})

test('overwrites what the disk evicted or dropped long ago', async () => {
  const house = await new House().open(8)
  const mine = straightPrompt(1, 3)
  await serve(house.cache, mine)
  // A neighbour in the segment, so that the file stays.
  await serve(house.cache, straightPrompt(2, 3))
  await house.cache.flush()
  house.cache.pin('keep', straightPrompt(2, 3).chain, straightPrompt(2, 3).tokens, 60_000)
  expect(await house.cache.clear()).toBe(3)
  expect(house.filesHave(mine.tokens)).toBe(true)
  expect((await house.erase({ hashes: mine.chain.hashes })).complete).toBe(true)
  expect(house.filesHave(mine.tokens)).toBe(false)
  expect(house.filesHave(straightPrompt(2, 3).tokens)).toBe(true)
})

test('erases a tenant with all of its salts, and no other tenant', async () => {
  const house = await new House().open(20)
  const parts = { weightsDigest: 'w', tokenizerDigest: 't', layout, rounding: 'fp16', arithmetic: 'toy' } as const
  const salted = makeRoot({ ...parts, tenantSalt: 'a', cacheSalt: 's' })
  const [plain, other] = [makeRoot({ ...parts, tenantSalt: 'a' }), makeRoot({ ...parts, tenantSalt: 'b' })]
  const prompts = [straightPrompt(1, 2, plain), straightPrompt(2, 2, salted), straightPrompt(3, 2, other)]
  for (const prompt of prompts) await serve(house.cache, prompt)
  house.warm(salted, Int32Array.of(7, 8, 9))
  await house.cache.flush()
  expect(await house.erase({ tenants: [plain] })).toEqual({ blocks: 4, complete: true })
  expect(prompts.map(({ tokens }) => house.filesHave(tokens))).toEqual([false, false, true])
  expect(house.resident(salted, Int32Array.of(7, 8, 9))).toBe(0)
})

test('what is in use goes when it is free, whether the asker waited or not', async () => {
  const house = await new House().open(20)
  const mine = straightPrompt(1, 2, toyRoot('a'))
  await serve(house.cache, mine)
  await house.cache.flush()
  const lease = await ask(house.cache, mine)
  const erased = house.erase({ hashes: mine.chain.hashes })
  const pass = async (ms: number) => {
    for (let at = 0; at < ms; at += 50) {
      house.clock.advance(50)
      for (let i = 0; i < 20; i++) await new Promise((resolve) => setImmediate(resolve))
    }
  }
  await pass(6000)
  expect(await erased).toEqual({ blocks: 0, complete: false })
  expect(house.filesHave(mine.tokens)).toBe(true)
  lease.release()
  await pass(200)
  expect(house.filesHave(mine.tokens)).toBe(false)
  expect(house.cache.match(mine.chain, mine.tokens)).toEqual({ memory: 0, disk: 0 })
})
