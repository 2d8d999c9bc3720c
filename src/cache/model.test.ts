// The cache against a plain model of it, under random histories of requests, cancellations, operators and disasters.
// Roomy: nothing is ever evicted, so that every answer is known exactly. Tight: little memory, a small failing disk; then
// what counts is that no byte is wrong, no budget is exceeded, nothing pinned is lost and nothing leaks.

import fc from 'fast-check'
import { expect, test } from 'vitest'
import type { BlockHash } from '../core/block.js'
import type { Priority } from '../core/request.js'
import { fallback } from '../native/fallback.js'
import { FaultyDisk } from '../testing/faulty-disk.js'
import { ManualClock } from '../testing/manual-clock.js'
import { seeded } from '../testing/random.js'
import { ask, commitNext, expectRight, type ToyPrompt, toyPrompt, toyRoot } from '../testing/toy-blocks.js'
import { recordBytes } from './block-file.js'
import type { Lease } from './contract.js'
import { type ErasableKvCache, openKvCache } from './kv-cache.js'

const BLOCK = 256
const STRIDE = recordBytes(BLOCK)
const PRIORITIES: readonly Priority[] = ['interactive', 'interactive', 'interactive', 'auxiliary', 'background']

/** Prompts of one to ten blocks that share prefixes in many ways, of three tenants. */
const PROMPTS: ToyPrompt[] = [toyRoot('a'), toyRoot('b'), toyRoot('c')].flatMap((root) =>
  [
    [1],
    [1, 2],
    [1, 2, 3, 4],
    [1, 2, 3, 5, 6, 7],
    [1, 2, 8, 9],
    [1, 4, 4, 4, 4],
    [2, 2, 2, 2, 2, 2],
    [2, 2, 3],
    [3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
  ].map((path) => toyPrompt(path, root)),
)

interface Open {
  readonly lease: Lease
  readonly prompt: ToyPrompt
  readonly resident: number
}

interface Size {
  readonly memoryBlocks: number
  readonly diskBlocks: number
  /** Of requests; side requests' blocks are not written at once. */
  readonly priorities: readonly Priority[]
}

class World {
  readonly clock = new ManualClock()
  readonly disk = new FaultyDisk()
  readonly size: Size
  cache!: ErasableKvCache
  /** Every block that was ever committed and kept, and not erased. */
  readonly ever = new Set<BlockHash>()
  readonly claimed = new Map<BlockHash, Lease>()
  /** Blocks of a pin that were all in memory when it was set. */
  readonly pinned = new Map<string, { prompt: ToyPrompt; blocks: number }>()
  open: Open[] = []
  waiting: Promise<void>[] = []
  /** Processes that there were. */
  age = 0

  constructor(size: Size) {
    this.size = size
  }

  async start(): Promise<void> {
    const { memoryBlocks, diskBlocks } = this.size
    const budget = { capacityBytes: diskBlocks * STRIDE + 1000, segmentBytes: 4 * STRIDE }
    this.cache = await openKvCache(
      {
        ...{ blockBytes: BLOCK, memoryBytes: memoryBlocks * BLOCK, restore: 'always' },
        disk: { folder: '/cache', keepFreeBytes: 0, retryMs: 100, slowMs: 50, ...budget },
      },
      { clock: this.clock, crc32c: fallback.crc32c, files: this.disk.door() },
    )
  }

  /** The process ends: what it held is gone with it. */
  forget(): void {
    this.age++
    this.open = []
    this.claimed.clear()
    this.pinned.clear()
  }

  /** Until every request that was begun has its lease; time passes only where one waits for it. */
  async settle(): Promise<void> {
    let waits = true
    const all = Promise.all(this.waiting.splice(0)).then(() => {
      waits = false
    })
    for (let turn = 0; waits; turn++) {
      await new Promise((resolve) => setImmediate(resolve))
      if (turn > 100) this.clock.advance(100)
    }
    await all
  }

  /** What must be true at any time. */
  check(): void {
    for (const { lease, prompt, resident } of this.open) {
      expectRight(lease, resident)
      for (let i = resident; i < lease.ready; i++) expect(this.ever.has(prompt.chain.hashes[i]!)).toBe(true)
    }
    for (const { usedBytes, capacityBytes } of this.cache.status()) expect(usedBytes).toBeLessThanOrEqual(capacityBytes)
    expect(this.disk.usedBytes).toBeLessThanOrEqual(this.size.diskBlocks * STRIDE + 1000)
    for (const { prompt, blocks } of this.pinned.values()) {
      expect(this.cache.match(prompt.chain, prompt.tokens).memory).toBeGreaterThanOrEqual(blocks)
    }
  }
}

/** A lease whose own commits can't be looked at: `expectRight` would ask for them, so their place is left out. */
class Request implements Open {
  readonly prompt: ToyPrompt
  readonly lease: Lease
  constructor(prompt: ToyPrompt, lease: Lease, resident: number) {
    this.prompt = prompt
    this.lease = lease
    this.#resident = resident
  }
  #resident: number
  get resident(): number {
    return this.#resident
  }
  committed(): void {
    this.#resident = this.lease.ready
  }
}

type Step = readonly [kind: string, a: number, b: number]

const pick = <T>(items: readonly T[], at: number): T | undefined => items[at % Math.max(1, items.length)]

async function acquire(world: World, [, a, b]: Step): Promise<void> {
  const prompt = pick(PROMPTS, a)!
  const blocks = prompt.chain.hashes.length
  const resident = b % 4 === 0 ? (b >> 2) % (blocks + 1) : 0
  const maxBlocks = b % 7 === 0 ? blocks - 1 : blocks
  const controller = new AbortController()
  const { age } = world
  const asked = ask(world.cache, prompt, {
    ...{ resident, maxBlocks, priority: pick(world.size.priorities, b >> 3)!, signal: controller.signal },
    transient: world.size.priorities.length > 1 && a % 6 === 0,
  }).then(
    (lease) => {
      // Its process is gone.
      if (age !== world.age) return
      expect(lease.ready).toBeGreaterThanOrEqual(Math.min(resident, maxBlocks))
      expect(lease.ready).toBeLessThanOrEqual(maxBlocks)
      world.open.push(new Request(prompt, lease, Math.min(resident, maxBlocks)))
    },
    (reason) => expect(reason).toBe('cancelled'),
  )
  world.waiting.push(asked)
  if (b % 5 === 0) controller.abort('cancelled')
  if (b % 3 !== 0) await world.settle()
}

function commit(world: World, [, a]: Step): void {
  const one = pick(world.open, a) as Request | undefined
  if (one === undefined || one.lease.ready >= one.prompt.chain.hashes.length) return
  const hash = one.prompt.chain.hashes[one.lease.ready]!
  const kept = commitNext(one.lease, one.prompt)
  one.committed()
  if (kept) world.ever.add(hash)
  world.claimed.delete(hash)
}

function claim(world: World, [, a]: Step): void {
  const one = pick(world.open, a)
  if (one === undefined) return
  const { lease, prompt } = one
  const hash = prompt.chain.hashes[lease.ready]
  const mine = lease.claim()
  if (hash === undefined) expect(mine).toBe(true)
  // Another holds it, then: somebody who is still there.
  if (!mine)
    expect(world.open.some((other) => other.lease !== lease && other.prompt.chain.hashes.includes(hash!))).toBe(true)
}

function release(world: World, [, a]: Step): void {
  const one = pick(world.open, a)
  if (one === undefined) return
  one.lease.release()
  world.open = world.open.filter((other) => other !== one)
}

function pin(world: World, [, a, b]: Step): void {
  const prompt = pick(PROMPTS, a)!
  const id = `pin${b % 3}`
  const before = world.cache.match(prompt.chain, prompt.tokens)
  const blocks = world.cache.pin(id, prompt.chain, prompt.tokens, 1_000_000)
  world.pinned.delete(id)
  if (before.disk === 0) world.pinned.set(id, { prompt, blocks: Math.min(blocks, before.memory) })
}

async function end(world: World, [kind, a]: Step): Promise<void> {
  if (kind === 'restart') {
    await world.settle()
    for (const { lease } of world.open) lease.release()
    await world.cache.close()
    world.disk.kill()
  } else if (kind === 'crash') world.disk.crash(seeded(a).next)
  else world.disk.kill()
  world.waiting = []
  world.forget()
  // A folder that can't be read at opening is an error; the operator mends it.
  world.disk.heal()
  await world.start()
}

/** A whole request, from its arrival to its end. */
async function serve(world: World, [, a, b]: Step): Promise<void> {
  const before = new Set(world.open)
  await acquire(world, ['acquire', a, 1 + 5 * (b | 1)])
  await world.settle()
  const mine = world.open.find((one) => !before.has(one))
  if (mine === undefined) return
  const at = world.open.indexOf(mine)
  for (let i = 0; i < 10; i++) commit(world, ['commit', at, 0])
  release(world, ['release', at, 0])
}

const FAULTS = [
  ['read', 'EIO'],
  ['write', 'EIO'],
  ['write', 'ENOSPC'],
  ['sync', 'EIO'],
  ['truncate', 'EIO'],
  ['create', 'ENOSPC'],
  ['unlink', 'EIO'],
] as const

const STEPS: Record<string, (world: World, step: Step) => void | Promise<void>> = {
  acquire,
  serve,
  commit,
  claim,
  release,
  extend: (world, [, a]) => void pick(world.open, a)?.lease.extend(),
  commitAll: (world, step) => {
    for (let i = 0; i < 10; i++) commit(world, step)
  },
  pin,
  unpin: (world, [, , b]) => {
    world.cache.unpin(`pin${b % 3}`)
    world.pinned.delete(`pin${b % 3}`)
  },
  demote: (world, [, a, b]) => {
    const { hashes } = pick(PROMPTS, a)!.chain
    world.cache.demote(hashes.slice(b % hashes.length))
  },
  settle: (world) => world.settle(),
  wait: (world, [, a]) => world.clock.advanceSlowly(a),
  clear: async (world) => {
    await world.cache.clear()
  },
  fault: (world, [, a, b]) => {
    const [operation, code] = pick(FAULTS, a)!
    world.disk.fail(operation, code, 1 + (b % 3))
  },
  heal: (world) => world.disk.heal(),
  restart: end,
  crash: end,
  kill: end,
}

function history(kinds: readonly string[], maxLength: number): fc.Arbitrary<Step[]> {
  const number = fc.integer({ min: 0, max: 200 })
  return fc.array(fc.tuple(fc.constantFrom(...kinds), number, number), { minLength: 5, maxLength, size: 'max' })
}

const USUAL = [
  'serve',
  'serve',
  'serve',
  'acquire',
  'acquire',
  'acquire',
  'commitAll',
  'commitAll',
  'commit',
  'claim',
  'release',
  'release',
  'extend',
]

test('tight: never a wrong byte, no budget exceeded, nothing pinned lost, nothing leaked', async () => {
  const kinds = [
    ...USUAL,
    ...USUAL,
    ...USUAL,
    ...USUAL,
    'pin',
    'unpin',
    'demote',
    'settle',
    'wait',
    'clear',
    'fault',
    'heal',
    'restart',
    'crash',
    'kill',
  ]
  await fc.assert(
    fc.asyncProperty(history(kinds, 60), async (steps) => {
      const world = new World({ memoryBlocks: 9, diskBlocks: 18, priorities: PRIORITIES })
      await world.start()
      for (const step of steps) {
        await STEPS[step[0]]!(world, step)
        world.check()
      }
      await world.settle()
      for (const { lease } of world.open) lease.release()
      world.forget()
      for (const { id } of world.cache.pins()) world.cache.unpin(id)
      world.disk.heal()
      await world.clock.advanceSlowly(100_000)
      await world.cache.flush()
      await world.cache.clear()
      expect(world.cache.status()).toMatchObject([
        { blocks: 0, pinnedBlocks: 0, healthy: true },
        { blocks: 0, pinnedBlocks: 0, healthy: true, pendingWrites: 0 },
      ])
      expect(world.cache.status()[1]!.usedBytes).toBe(world.disk.usedBytes)
      await world.cache.close()
    }),
    { numRuns: 40, interruptAfterTimeLimit: 30_000 },
  )
})

test('roomy: a request finds exactly the longest prefix that was ever committed', async () => {
  await fc.assert(
    fc.asyncProperty(history([...USUAL, 'restart', 'kill'], 40), async (steps) => {
      const world = new World({ memoryBlocks: 200, diskBlocks: 400, priorities: ['interactive'] })
      await world.start()
      for (const step of steps) {
        // A kill loses what is not written yet: here nothing is.
        if (step[0] === 'kill') await world.cache.flush()
        await STEPS[step[0]]!(world, step)
        await world.settle()
        world.check()
        for (const { chain, tokens } of PROMPTS) {
          const { memory, disk } = world.cache.match(chain, tokens)
          const known = chain.hashes.findIndex((hash) => !world.ever.has(hash))
          expect(memory + disk).toBe(known === -1 ? chain.hashes.length : known)
        }
      }
    }),
    { numRuns: 40, interruptAfterTimeLimit: 20_000 },
  )
})

test('claims: one computes each block, and all get it', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(fc.integer({ min: 0, max: 1000 }), { minLength: 2, maxLength: 8 }), async (seeds) => {
      const world = new World({ memoryBlocks: 100, diskBlocks: 100, priorities: PRIORITIES })
      await world.start()
      const requests = await Promise.all(
        seeds.map(async (seed) => ({
          prompt: pick(PROMPTS, seed)!,
          lease: await ask(world.cache, pick(PROMPTS, seed)!),
        })),
      )
      const computed: BlockHash[] = []
      const { below } = seeded(seeds[0]!)
      let left = requests
      for (let turn = 0; left.length > 0; turn++) {
        expect(turn).toBeLessThan(10_000)
        const { lease, prompt } = left[below(left.length)]!
        if (lease.extend() < prompt.chain.hashes.length && lease.claim()) {
          computed.push(prompt.chain.hashes[lease.ready]!)
          commitNext(lease, prompt)
        }
        if (lease.ready === prompt.chain.hashes.length) {
          lease.release()
          left = left.filter((one) => one.lease !== lease)
        }
      }
      expect(new Set(computed).size).toBe(computed.length)
      await world.cache.close()
    }),
    { numRuns: 100 },
  )
})
