// An embedded engine's cache, published and followed by our own subscriber over sockets: what the follower believes is what the
// cache holds, through commits, evictions, clears, a restart of the engine and of the follower.

import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { BLOCK_TOKENS, blockBytes } from '../../core/block.js'
import { promptKeys } from '../../core/block-keys.js'
import { type BlockPlaced, blockPlaced } from '../../core/signals.js'
import type { Medium } from '../../router/contract.js'
import { ask, jobOf, LAYOUT, openHouse } from '../../testing/engine-house.js'
import { HeldIndex } from '../../testing/held-index.js'
import { decodeBatch } from './event-batch.js'
import { type Follower, followMember } from './follower.js'
import { type Applied, MemberHoldings, RankHoldings } from './holdings.js'
import { PublishLog } from './publish-log.js'
import { type BlockPublisher, publishBlocks } from './publisher.js'

const ANYWHERE = 'tcp://127.0.0.1:*'
const closing: (() => unknown)[] = []
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close()
})

let folder: string
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'refrain-publisher-'))
})
afterAll(() => rm(folder, { recursive: true }))

async function publisher(options: { bufferSteps?: number } = {}): Promise<BlockPublisher> {
  const made = await publishBlocks({
    ...{ publish: ANYWHERE, replay: ANYWHERE, topic: 'kv@refrain', bufferBytes: 2 ** 24 },
    bufferSteps: options.bufferSteps ?? 1000,
  })
  closing.push(() => made.close())
  return made
}

async function follow({ endpoints }: BlockPublisher, index: HeldIndex): Promise<Follower> {
  const events = { endpoint: endpoints.publish, topic: 'kv@', bind: false, ranks: 1, aliases: 10_000 }
  const follower = await followMember(
    { member: 'm', events: { ...events, replay: endpoints.replay as string } },
    { sink: index },
  )
  closing.push(() => follower.close())
  return follower
}

async function until(what: () => boolean): Promise<void> {
  const end = Date.now() + 30_000
  while (!what()) {
    if (Date.now() > end) throw new Error('it did not come about')
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
}

const prompt = (seed: number, blocks: number) =>
  Int32Array.from({ length: blocks * BLOCK_TOKENS + 5 }, (_, i) => 1 + ((i * 7 + seed * 31) % 300))
const held = (index: HeldIndex, tokens: Int32Array, medium: Medium = 'host') =>
  index.prefix('m', promptKeys(tokens, { blockTokens: BLOCK_TOKENS }), medium)

describe('an engine that publishes', () => {
  test('is followed through commits, evictions and clears, and by one that joins late', async () => {
    const published = await publisher()
    const index = new HeldIndex()
    const follower = await follow(published, index)
    const house = await openHouse({ cache: { memoryBytes: 12 * blockBytes(LAYOUT) } })
    closing.push(() => house.close())
    await ask(house, jobOf(prompt(1, 4), { maxTokens: 2 }))
    await until(() => held(index, prompt(1, 4)) === 4)
    expect(follower.state).toEqual({ connected: true, complete: true, blockTokens: [BLOCK_TOKENS], salted: true })
    for (let seed = 2; seed < 8; seed++) await ask(house, jobOf(prompt(seed, 4), { maxTokens: 2 }))
    await until(() => held(index, prompt(7, 4)) === 4)
    expect(held(index, prompt(1, 4))).toBeLessThan(4)
    expect(index.held('m', 'host').length).toBe(house.cache.status()[0]?.blocks)
    const late = new HeldIndex()
    const second = await follow(published, late)
    await until(() => second.state.complete)
    expect(late.held('m', 'host')).toEqual(index.held('m', 'host'))
    house.workingSet.clear()
    await house.cache.clear()
    await until(() => index.held('m', 'host').length === 0)
    expect(index.told).toContain('cleared')
    expect([...index.complaints, ...late.complaints]).toEqual([])
  })

  test('tells of its disk, as far as it was read, and of what a dead engine held', async () => {
    const published = await publisher()
    const index = new HeldIndex()
    await follow(published, index)
    // However slow the disk is beside other tests, it is read.
    const disk = { folder: join(folder, 'disk'), capacityBytes: 2 ** 24, slowMs: 60_000 }
    const first = await openHouse({ cache: { disk } })
    await ask(first, jobOf(prompt(1, 4), { maxTokens: 2 }))
    await first.cache.flush()
    await until(() => held(index, prompt(1, 4), 'disk') === 4)
    await first.close()
    // As the backend says when its worker died.
    blockPlaced.publish({ what: 'cleared' })
    await until(() => index.told.includes('cleared'))
    expect(held(index, prompt(1, 4), 'disk')).toBe(0)
    const second = await openHouse({ cache: { disk } })
    closing.push(() => second.close())
    expect(second.cache.status()[1]?.blocks).toBe(4)
    await ask(second, jobOf(prompt(1, 4), { maxTokens: 2 }))
    await until(() => held(index, prompt(1, 4), 'disk') === 4)
    expect(held(index, prompt(1, 4), 'host')).toBe(4)
    expect(index.complaints).toEqual([])
  })

  test('nobody listens to blocks where nothing is published', async () => {
    const published = await publisher()
    expect(blockPlaced.channel.hasSubscribers).toBe(true)
    await published.close()
    expect(blockPlaced.channel.hasSubscribers).toBe(false)
  })

  test('an endpoint that is taken is said', async () => {
    const published = await publisher()
    const publish = published.endpoints.publish
    const again = publishBlocks({ publish, topic: '', bufferSteps: 1, bufferBytes: 1 })
    await expect(again).rejects.toThrow(/^events: tcp:\/\/127.0.0.1:\d+ can't be bound/)
  })
})

describe('the log', () => {
  const place = (
    what: 'stored' | 'removed',
    line: number,
    i: number,
    tier: 'memory' | 'disk' = 'memory',
  ): BlockPlaced => {
    const name = (at: number) => `${line}${at}`.padStart(32, '0') as never
    const root = 'ffffffffffffffffffffffffffffffff' as never
    const tokens = prompt(line, 4).subarray(i * BLOCK_TOKENS, (i + 1) * BLOCK_TOKENS)
    return { what, tier, hash: name(i), root, parent: i === 0 ? root : name(i - 1), tokens, salt: 'a' }
  }

  function heldAfter(batches: Iterable<{ payload: Buffer }>): string[] {
    const index = new HeldIndex()
    const rank = new RankHoldings(new MemberHoldings('m', index), { aliases: 10_000, isOnly: true })
    const applied: Applied = { stored: 0, removed: 0, duplicates: 0, orphans: 0, ignored: 0 }
    for (const { payload } of batches) for (const event of decodeBatch(payload).events) rank.apply(event, applied)
    expect(index.complaints).toEqual([])
    expect(applied.orphans).toBe(0)
    return (['host', 'disk'] as const).flatMap((medium) => index.held('m', medium).map((key) => `${medium} ${key}`))
  }

  test('gives all that is held, however little of it is kept', () => {
    for (const steps of [1, 3, 50]) {
      const log = new PublishLog({ steps, bytes: 2 ** 20, now: () => 0 })
      const live: { seq: number; payload: Buffer }[] = []
      const add = (...blocks: BlockPlaced[]) => {
        const batch = log.add(blocks)
        if (batch !== undefined) live.push(batch)
      }
      for (let line = 1; line < 5; line++) {
        for (let i = 0; i < 4; i++) add(place('stored', line, i))
        add(place('stored', line, 0, 'disk'), place('stored', line, 1, 'disk'))
      }
      add(place('removed', 2, 3), place('removed', 2, 2))
      // A parent that leaves memory, not the disk, and comes back behind its child.
      add(place('removed', 3, 0))
      add(place('stored', 3, 0))
      const replayed = [...log.since(0)]
      expect(heldAfter(replayed)).toEqual(heldAfter(live))
      expect(replayed.at(-1)?.seq).toBe(live.at(-1)?.seq)
      expect(replayed.length).toBe(Math.min(steps + 1, live.length))
      expect([...log.since(live.length - 1)].map(({ seq }) => seq)).toEqual([live.length - 1])
      expect([...log.since(live.length)]).toEqual([])
    }
  })

  test('tells a salt with the first block, and one event for blocks that follow each other', () => {
    const log = new PublishLog({ steps: 10, bytes: 2 ** 20, now: () => 0 })
    const batch = log.add([place('stored', 1, 0), place('stored', 1, 1), place('stored', 2, 0)])
    const { events, bad } = decodeBatch((batch as { payload: Buffer }).payload)
    expect(bad).toBe(0)
    expect(events.map((event) => event.type === 'stored' && [event.hashes.count, event.salt])).toEqual([
      [2, 'a'],
      [1, 'a'],
    ])
  })

  test('a block that was found on disk is told when it is read; one that goes before is not told at all', () => {
    const log = new PublishLog({ steps: 10, bytes: 2 ** 20, now: () => 0 })
    const found = (i: number) => ({ ...place('stored', 1, i, 'disk'), tokens: undefined }) as BlockPlaced
    expect(log.add([found(0), found(1)])).toBeUndefined()
    expect(log.add([place('removed', 1, 1, 'disk')])).toBeUndefined()
    const batch = log.add([place('stored', 1, 0)])
    const { events } = decodeBatch((batch as { payload: Buffer }).payload)
    expect(events.map((event) => event.type === 'stored' && event.medium)).toEqual(['host', 'disk'])
  })
})
