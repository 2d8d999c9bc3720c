// Following over real sockets on this machine: both shapes of replays, a publisher that goes and comes back, and frames that
// are nobody's.

import { pack } from 'msgpackr'
import { afterEach, describe, expect, test } from 'vitest'
import { Publisher, Router } from 'zeromq'
import { promptKeys } from '../../core/block-keys.js'
import { type KvHeard, kvHeard } from '../../core/signals.js'
import { HeldIndex } from '../../testing/held-index.js'
import { endpointOf, type Follower, followMember } from './follower.js'

const END = Buffer.alloc(8, 0xff)
const number = (seq: number) => {
  const bytes = Buffer.alloc(8)
  bytes.writeBigUInt64BE(BigInt(seq))
  return bytes
}

/** What `make` gives, tried again while it throws, two seconds at most. */
async function patiently<T>(make: () => Promise<T>): Promise<T> {
  for (let tries = 0; ; tries++) {
    try {
      return await make()
    } catch (error) {
      if (tries === 100) throw error
      await new Promise((resolve) => setTimeout(resolve, 20))
    }
  }
}

/** An engine's end of the protocol. `shape`: whether replies carry the topic. */
class Engine {
  readonly batches: Buffer[] = []
  readonly #shape: 'topic' | 'bare'
  #pub = new Publisher({ linger: 0 })
  #router = new Router({ linger: 0 })

  constructor(shape: 'topic' | 'bare' = 'topic') {
    this.#shape = shape
  }

  async open(pub: string, replay: string): Promise<{ pub: string; replay: string }> {
    await this.#pub.bind(pub)
    await this.#router.bind(replay)
    void this.#serve()
    return { pub: this.#pub.lastEndpoint as string, replay: this.#router.lastEndpoint as string }
  }

  async publish(...events: unknown[]): Promise<void> {
    const payload = pack([Date.now() / 1000, events, 0]) as Buffer
    this.batches.push(payload)
    await this.#pub.send([Buffer.from('kv@a'), number(this.batches.length - 1), payload])
  }

  async stray(...frames: Buffer[]): Promise<void> {
    await this.#pub.send([Buffer.from('kv@a'), ...frames])
  }

  close(): void {
    this.#pub.close()
    this.#router.close()
  }

  async #serve(): Promise<void> {
    const head = this.#shape === 'topic' ? [Buffer.from('kv@a')] : []
    for await (const [peer, empty, from] of this.#router) {
      const first = Number((from as Buffer).readBigUInt64BE())
      for (const [seq, payload] of this.batches.entries()) {
        if (seq >= first) await this.#router.send([peer as Buffer, empty as Buffer, ...head, number(seq), payload])
      }
      await this.#router.send([
        peer as Buffer,
        empty as Buffer,
        ...head.map(() => Buffer.alloc(0)),
        END,
        Buffer.alloc(0),
      ])
    }
  }
}

const BLOCK = 4
const tokens = Array.from({ length: 4 * BLOCK }, (_, i) => i)
const store = (from: number, to: number) => ({
  ...{ type: 'BlockStored', block_size: BLOCK, token_ids: tokens.slice(from * BLOCK, to * BLOCK) },
  block_hashes: Array.from({ length: to - from }, (_, i) => from + i + 1),
  parent_block_hash: from === 0 ? null : from,
})
const keys = promptKeys(tokens, { blockTokens: BLOCK })

const closing: (() => void)[] = []
afterEach(() => {
  for (const close of closing.splice(0)) close()
})

async function follow(index: HeldIndex, at: { pub: string; replay?: string }): Promise<Follower> {
  const events = { endpoint: at.pub, topic: 'kv@', bind: false, ranks: 1, aliases: 1000 }
  const follower = await followMember(
    { member: 'm', events: { ...events, ...(at.replay !== undefined && { replay: at.replay }) } },
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

describe('over sockets', () => {
  test.each(['topic', 'bare'] as const)(
    'what was published before is asked for, live events follow (%s)',
    async (shape) => {
      const engine = new Engine(shape)
      closing.push(() => engine.close())
      const at = await engine.open('tcp://127.0.0.1:*', 'tcp://127.0.0.1:*')
      await engine.publish(store(0, 2))
      const index = new HeldIndex()
      const follower = await follow(index, at)
      await until(() => index.prefix('m', keys) === 2)
      await engine.publish(store(2, 4))
      await until(() => index.prefix('m', keys) === 4)
      expect(follower.state).toEqual({ connected: true, complete: true, blockTokens: [BLOCK], salted: true })
      expect(index.states.get('m')).toEqual(follower.state)
      expect(index.complaints).toEqual([])
    },
  )

  test('a publisher that goes away and comes back as another process is followed anew', async () => {
    const first = new Engine()
    const at = await first.open('tcp://127.0.0.1:*', 'tcp://127.0.0.1:*')
    const index = new HeldIndex()
    const follower = await follow(index, at)
    await until(() => follower.state.connected)
    await first.publish(store(0, 4))
    await until(() => index.prefix('m', keys) === 4)
    first.close()
    await until(() => !follower.state.connected)
    expect(index.prefix('m', keys)).toBe(4)
    const second = new Engine()
    closing.push(() => second.close())
    await second.open(at.pub, at.replay)
    await second.publish(store(0, 1))
    await until(() => index.prefix('m', keys) === 1)
    await until(() => follower.state.complete && follower.state.connected)
    expect(index.told).toContain('lost')
  })

  test('an engine that connects to us is followed too, and frames that are no batch are counted', async () => {
    const index = new HeldIndex()
    const heard: KvHeard[] = []
    closing.push(kvHeard.subscribe((counts) => heard.push(counts)))
    // A free port, given back at once.
    const probe = new Publisher()
    await probe.bind('tcp://127.0.0.1:*')
    const endpoint = probe.lastEndpoint as string
    probe.close()
    const events = { endpoint, topic: '', bind: true, ranks: 1, aliases: 1000 }
    // A closed socket lets go of its port a moment later.
    const follower = await patiently(() => followMember({ member: 'm', events }, { sink: index }))
    closing.push(() => follower.close())
    const pub = new Publisher({ linger: 0 })
    closing.push(() => pub.close())
    pub.connect(endpoint)
    await until(() => follower.state.connected)
    for (const frames of [
      ['a'],
      ['a', 'b', 'c'],
      ['', number(0), 'garbage'],
      ['', number(1), pack([1, [store(0, 1)]])],
    ]) {
      await pub.send(frames)
    }
    await until(() => index.prefix('m', keys) === 1)
    expect(heard.map(({ broken }) => broken)).toEqual([1, 1, 1, 0])
    expect(heard.map(({ stored }) => stored)).toEqual([0, 0, 0, 1])
  })
})

test('ranks publish at ports that follow each other', () => {
  expect(endpointOf('tcp://10.0.0.5:5557', 0)).toBe('tcp://10.0.0.5:5557')
  expect(endpointOf('tcp://10.0.0.5:5557', 3)).toBe('tcp://10.0.0.5:5560')
  expect(endpointOf('inproc://kv', 1)).toBe('inproc://kv_dp1')
})
