// Circuits of members over several routers: what one found failing the others leave alone, for as long as that one does.

import { beforeEach, describe, expect, test } from 'vitest'
import { type Ending, type ExchangeRequest, type Remote, RemoteFault } from '../backend/remote/contract.js'
import { ManualClock } from '../testing/manual-clock.js'
import { Fleet } from './fleet.js'
import { createFleetRouter } from './fleet-router.js'
import { ROUTER_DEFAULTS } from './options.js'
import { Peers, SHARE_MS } from './peers.js'

const HEALTH = {
  ...{ probeMs: 1000, downProbeMs: 100, unanswered: 2 },
  ...{ breakerFailures: 3, breakerMs: 1000, slowStartMs: 1 },
}
const ID = 'http://a'

let clock: ManualClock
/** Whether anybody listens at the member's port. */
let listens: boolean
let texts: string[]
let nodes: Node[]

class Node {
  readonly fleet: Fleet
  readonly peers: Peers

  constructor(place: number) {
    this.fleet = new Fleet(HEALTH, {
      clock,
      open: (options) => {
        const facts: Remote['facts'] = { kind: 'vllm', models: [{ id: 'm', json: '{}' }], lacks: [] }
        const ping = async () => {
          if (!listens) throw new RemoteFault('refused', { sent: false, code: 'ECONNREFUSED' })
        }
        const ask = async () => {
          await ping()
          return facts
        }
        return { id: ID, options, facts, ping, ask, close: async () => undefined } as unknown as Remote
      },
      onCircuit: (...turned) => this.peers.circuit(...turned),
    })
    const router = createFleetRouter(ROUTER_DEFAULTS, { members: () => this.fleet.members(), clock })
    this.peers = new Peers({
      ...{ clock, origin: `router-${place}`, books: () => router.books, circuits: this.fleet },
      wire: {
        send(text) {
          texts.push(text)
          for (const [i, { peers }] of nodes.entries()) if (i !== place) peers.hear(text)
        },
      },
    })
    const options = { url: ID, kind: 'auto', headers: {}, models: {} } as never
    this.fleet.add(options, 'config')
  }

  get state() {
    return this.fleet.members()[0]?.state
  }

  /** Requests that are sent now and answered when `end` says so. */
  send(count: number) {
    const ends: ((ending: Ending) => void)[] = []
    const all = Array.from({ length: count }, () => {
      const request = { remote: this.fleet.remotes()[0], onFirst: () => undefined } as unknown as ExchangeRequest
      return this.fleet.exchange(request, () => new Promise((resolve) => ends.push(resolve)))
    })
    return async (status: number) => {
      for (const end of ends) end({ kind: 'whole', status } as Ending)
      await Promise.all(all)
    }
  }

  async fail(count: number) {
    for (let i = 0; i < count; i++) await this.send(1)(500)
  }
}

beforeEach(() => {
  clock = new ManualClock()
  listens = true
  texts = []
  nodes = []
})

/** Lets what was answered be heard. */
const settle = () => new Promise((resolve) => setImmediate(resolve))

async function pass(ms: number) {
  for (let left = ms; left > 0; left -= 50) {
    clock.advance(Math.min(50, left))
    await settle()
  }
}

async function add(): Promise<Node> {
  const node = new Node(nodes.length)
  nodes.push(node)
  node.peers.start()
  node.fleet.start()
  await pass(2 * SHARE_MS)
  return node
}

const states = () => nodes.map(({ state }) => state)

describe('a circuit that opened at one', () => {
  test('is open at all within a batch, for as long, and closes at all by one answer', async () => {
    const [one, two] = [await add(), await add(), await add()]
    expect(states()).toEqual(['up', 'up', 'up'])
    await one.fail(2)
    await pass(SHARE_MS)
    // Counts are nobody else's business.
    await two.fail(2)
    expect(states()).toEqual(['up', 'up', 'up'])
    await one.fail(1)
    await pass(SHARE_MS)
    expect(states()).toEqual(['down', 'down', 'down'])
    expect(two.fleet.report(ID).why).toMatch(/circuit is open/)
    await pass(900)
    expect(states()).toEqual(['down', 'down', 'down'])
    await pass(250)
    expect(states()).toEqual(['up', 'up', 'up'])
    // It had its chance: another's first failure opens it for twice as long.
    await two.fail(1)
    await pass(1500)
    expect(states()).toEqual(['down', 'down', 'down'])
    await pass(800)
    expect(states()).toEqual(['up', 'up', 'up'])
    await one.send(1)(200)
    await pass(SHARE_MS)
    await two.fail(2)
    expect(states()).toEqual(['up', 'up', 'up'])
  })

  test('does not open again by requests that were under way', async () => {
    const [one, two] = [await add(), await add()]
    const [mine, theirs] = [one.send(6), two.send(6)]
    await mine(500)
    await pass(SHARE_MS)
    await theirs(500)
    await pass(1150)
    expect(states()).toEqual(['up', 'up'])
  })

  test('is open for whoever comes later', async () => {
    const one = await add()
    await one.fail(3)
    const late = await add()
    await pass(500)
    expect(late.state).toBe('starting')
    await pass(700)
    expect(states()).toEqual(['up', 'up'])
  })

  test('closes at all when one finds its process gone', async () => {
    const [one, two] = [await add(), await add()]
    await one.fail(3)
    await pass(1100)
    await one.fail(1)
    await pass(SHARE_MS)
    expect(two.fleet.circuits()).toEqual([[ID, 2]])
    // Only the first finds nobody there.
    listens = false
    one.fleet.look(ID)
    await settle()
    listens = true
    await pass(300)
    expect(states()).toEqual(['up', 'up'])
  })

  test('is told in a few words, none of which a backend said', async () => {
    const one = await add()
    await one.fail(3)
    await pass(SHARE_MS)
    expect(texts.at(-1)).toBe(`["1","router-0",[["o","${ID}",1]]]`)
  })
})
