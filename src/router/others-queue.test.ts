// What waits at a member and is not ours, and that a router goes elsewhere for it.

import { describe, expect, test } from 'vitest'
import type { Remote, WaitingThere } from '../backend/remote/contract.js'
import { RemoteFault, type RemoteOptions } from '../backend/remote/contract.js'
import { ManualClock } from '../testing/manual-clock.js'
import type { RouteQuery } from './contract.js'
import { Fleet } from './fleet.js'
import { createFleetRouter, type SharedRouter } from './fleet-router.js'
import { ROUTER_DEFAULTS } from './options.js'
import { OthersQueue } from './others-queue.js'

const NOBODY = { inFlight: 0, decoding: 0 }
const waiting = (requests: number): WaitingThere => ({ requests, withRunning: false })

describe('the queue of others', () => {
  const heard = (queue: OthersQueue, said: WaitingThere | undefined, ours = NOBODY) => {
    queue.ask(0)(said, ours)
    return queue.requests
  }

  test('follows what is said, smoothed, and forgets it when nothing is said any more', () => {
    const queue = new OthersQueue()
    expect([heard(queue, waiting(8)), heard(queue, waiting(8))]).toEqual([4, 6])
    for (let i = 0; i < 6; i++) heard(queue, waiting(0))
    expect(queue.requests).toBe(0)
    heard(queue, waiting(8))
    expect([1, 2, 3].map(() => heard(queue, undefined))).toEqual([4, 4, 0])
  })

  test('has none of ours, wherever those stand', () => {
    expect(heard(new OthersQueue(), waiting(5), { inFlight: 7, decoding: 2 })).toBe(0)
    expect(heard(new OthersQueue(), waiting(7), { inFlight: 7, decoding: 2 })).toBe(1)
    expect(heard(new OthersQueue(), { requests: 7, withRunning: true }, { inFlight: 7, decoding: 2 })).toBe(0)
    expect(heard(new OthersQueue(), { requests: 9, withRunning: true }, { inFlight: 7, decoding: 2 })).toBe(1)
  })

  test('is asked for one question at a time, and not of a member that went down meanwhile', () => {
    const queue = new OthersQueue()
    const answer = queue.ask(1000)
    expect(queue.isDue(9000, 3000)).toBe(false)
    queue.clear()
    answer(waiting(8), NOBODY)
    expect([queue.requests, queue.isDue(3999, 3000), queue.isDue(4000, 3000)]).toEqual([0, false, true])
  })
})

const HEALTH = {
  ...{ probeMs: 1000, downProbeMs: 100, unanswered: 2, breakerFailures: 3, breakerMs: 1000, slowStartMs: 1 },
  queueMs: 3000,
}

const settle = () => new Promise((resolve) => setImmediate(resolve))

/** Two members over servers that say that so many wait there; `asked` counts the questions. */
async function two(queueMs: number) {
  const clock = new ManualClock()
  const said: Record<string, number | 'silent'> = { 'http://a': 0, 'http://b': 0 }
  let asked = 0
  const fleet = new Fleet(
    { ...HEALTH, queueMs },
    {
      clock,
      open: (options) => remoteOf(options),
      viewOf: (member) => router.view(member),
      async waitingAt({ id }) {
        asked++
        const requests = said[id]
        if (typeof requests !== 'number') throw new RemoteFault('no answer', { sent: true })
        return waiting(requests)
      },
    },
  )
  const router: SharedRouter = createFleetRouter(ROUTER_DEFAULTS, { members: () => fleet.members(), clock })
  for (const url of Object.keys(said)) fleet.add({ url } as RemoteOptions, 'config')
  fleet.start()
  await settle()
  const pass = async (seconds: number) => {
    for (let i = 0; i < seconds; i++) {
      clock.advance(1000)
      await settle()
    }
  }
  const queues = () => fleet.members().map(({ load }) => load.reportedQueue)
  return { router, said, pass, queues, fleet, asked: () => asked }
}

function remoteOf(options: RemoteOptions): Remote {
  const remote = {
    ...{ id: options.url, options: { ...options, models: {} }, facts: { kind: 'vllm', models: [], lacks: [] } },
    ping: async () => undefined,
    ask: async () => ({ kind: 'vllm', models: [{ id: 'm', json: '{}' }], lacks: [] }),
    close: async () => undefined,
  }
  return remote as unknown as Remote
}

const ask = (name: string): RouteQuery => ({
  ...{ id: name, model: 'm', tenant: 't', salt: '', requestClass: 'main', priority: 'interactive', estimated: true },
  segments: { hashes: [`head ${name}`, name], tokens: [1000, 1100], head: 1 },
  promptTokens: 1100,
})

describe('a fleet', () => {
  test.each(['http://a', 'http://b'])('avoids %s, where others wait, while another is free', async (busy) => {
    const { router, said, pass } = await two(3000)
    said[busy] = 12
    await pass(6)
    const names = Array.from({ length: 20 }, (_, i) => `n${i}`)
    expect(new Set(names.map((name) => router.place(ask(name)).member.id))).toEqual(
      new Set(['http://a', 'http://b'].filter((id) => id !== busy)),
    )
    said[busy] = 0
    await pass(30)
    expect(new Set(names.map((name) => router.place(ask(name)).member.id)).size).toBe(2)
  })

  test('does not count what it sent there itself', async () => {
    const { router, said, pass, queues } = await two(3000)
    const sent: Record<string, number> = { 'http://a': 0, 'http://b': 0 }
    for (let i = 0; i < 12; i++) {
      const query = ask(`own ${i}`)
      const placement = router.place(query)
      router.sent(query, placement)
      sent[placement.member.id]! += 1
    }
    Object.assign(said, sent)
    await pass(9)
    expect(queues()).toEqual([0, 0])
    said['http://a'] = sent['http://a']! + 4
    await pass(3)
    expect(queues()).toEqual([2, 0])
  })

  test('asks each once in that time, beside its probes, and not at all where it is off', async () => {
    const { pass, asked } = await two(3000)
    await pass(12)
    expect(asked()).toBe(2 * 5)
    const off = await two(0)
    off.said['http://a'] = 5
    await off.pass(12)
    expect([off.asked(), off.queues()]).toEqual([0, [0, 0]])
  })

  test('one that does not answer that question stays up', async () => {
    const { said, pass, queues, fleet } = await two(3000)
    said['http://a'] = 6
    await pass(6)
    said['http://a'] = 'silent'
    await pass(12)
    expect(queues()).toEqual([0, 0])
    expect(fleet.members().map(({ state }) => state)).toEqual(['up', 'up'])
  })
})
