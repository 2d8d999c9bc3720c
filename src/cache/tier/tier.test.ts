// The conformance of all kinds of tiers: a block comes back as it went in or not at all, and the budget holds.

import { describe, expect, test } from 'vitest'
import { fallback } from '../../native/fallback.js'
import { FaultyDisk } from '../../testing/faulty-disk.js'
import { ManualClock } from '../../testing/manual-clock.js'
import { blocksOf, toyBytes } from '../../testing/toy-blocks.js'
import { type BlockName, PrefixIndex } from '../prefix-index.js'
import * as tiers from './index.js'
import type { SlowTier, Tier } from './tier.js'

const BLOCK = 512
const CAPACITY = 16_000

/** What every tier can do, in one form: memory is synchronous, the others are awaited. */
interface Subject {
  readonly tier: Tier
  put(block: BlockName): Promise<boolean>
  get(block: BlockName): Promise<Uint8Array | undefined>
  drop(block: BlockName): Promise<void>
}

function ofMemory(): Subject {
  const index = new PrefixIndex()
  const options = { capacityBytes: CAPACITY, evictor: 'lru' }
  const tier = tiers.memory.create(options, { blockBytes: BLOCK, index })
  const find = ({ hash, root, tokens }: BlockName) => {
    const entry = index.find(hash, root, tokens, 0)
    return entry === 'collision' ? undefined : entry
  }
  return {
    tier,
    async put(block) {
      const slot = tier.reserve('interactive')
      if (slot === undefined) return false
      tier.pool.bytes(slot).set(toyBytes(block.hash, BLOCK))
      const entry = index.name(block.hash, block.root, block.parent, block.tokens)
      tier.place(entry, slot)
      index.touch([entry], 'interactive', 0)
      return true
    },
    async get(block) {
      const entry = find(block)
      return entry && tier.bytes(entry)
    },
    async drop(block) {
      tier.drop(find(block)!)
    },
  }
}

function ofSlow(tier: SlowTier): Subject {
  return {
    tier,
    put: (block) => tier.store(block, toyBytes(block.hash, BLOCK)),
    async get(block) {
      const into = new Uint8Array(BLOCK)
      return (await tier.load(block, into)) === 'loaded' ? into : undefined
    },
    drop: async (block) => {
      await tier.drop([block.hash], 'forget')
    },
  }
}

const deps = () => ({
  ...{ blockBytes: BLOCK, clock: new ManualClock(), crc32c: fallback.crc32c, files: new FaultyDisk().door() },
  worth: () => 0,
  lost: () => undefined,
  recovered: () => undefined,
})

const SUBJECTS: Record<keyof typeof tiers, () => Promise<Subject>> = {
  none: async () => ofSlow(await tiers.none.create({}, deps())),
  memory: async () => ofMemory(),
  disk: async () =>
    ofSlow(await tiers.disk.create({ folder: '/cache', capacityBytes: CAPACITY, keepFreeBytes: 0 }, deps())),
}

/** Why a kind may skip a case. */
const SKIPS: Partial<Record<keyof typeof tiers, string>> = { none: 'keeps nothing, by its purpose' }

describe.each(Object.keys(tiers) as (keyof typeof tiers)[])('%s', (kind) => {
  const skip = SKIPS[kind]
  const keeps = skip === undefined ? test : test.skip
  const why = skip === undefined ? '' : ` (skipped: ${skip})`

  test('gives nothing that was not put', async () => {
    const subject = await SUBJECTS[kind]()
    expect(await subject.get(blocksOf(1, 1)[0]!)).toBeUndefined()
  })

  keeps(`gives the bytes that were put${why}`, async () => {
    const subject = await SUBJECTS[kind]()
    const blocks = blocksOf(1, 5)
    for (const block of blocks) expect(await subject.put(block)).toBe(true)
    for (const block of blocks) expect(await subject.get(block)).toEqual(toyBytes(block.hash, BLOCK))
    expect(subject.tier.status()).toMatchObject({ blocks: 5, healthy: true })
  })

  keeps(`gives nothing under another root, or for other tokens${why}`, async () => {
    const subject = await SUBJECTS[kind]()
    const [block] = blocksOf(1, 1) as [BlockName]
    await subject.put(block)
    const tokens = block.tokens.slice()
    tokens[63]!++
    expect(await subject.get({ ...block, tokens })).toBeUndefined()
    expect(
      await subject.get({ ...block, root: blocksOf(2, 1)[0]!.hash as unknown as BlockName['root'] }),
    ).toBeUndefined()
    expect(await subject.get(block)).toBeDefined()
  })

  keeps(`gives nothing that was dropped${why}`, async () => {
    const subject = await SUBJECTS[kind]()
    const [a, b] = blocksOf(1, 2) as [BlockName, BlockName]
    await subject.put(a)
    await subject.put(b)
    await subject.drop(b)
    expect(await subject.get(b)).toBeUndefined()
    expect(await subject.get(a)).toBeDefined()
    expect(subject.tier.status()).toMatchObject({ blocks: 1 })
  })

  test('keeps within its budget', async () => {
    const subject = await SUBJECTS[kind]()
    for (let seed = 0; seed < 40; seed++) {
      for (const block of blocksOf(seed, 2)) await subject.put(block)
      const { usedBytes = 0, capacityBytes = 0 } = subject.tier.status() ?? {}
      expect(usedBytes).toBeLessThanOrEqual(capacityBytes)
      expect(capacityBytes).toBeLessThanOrEqual(CAPACITY)
    }
  })
})
