// Members that come, fail, are gone and come back, over remotes that answer what a test tells them, in a clock moved by hand.

import { beforeEach, describe, expect, test } from 'vitest'
import { type Ending, type Remote, RemoteFault, type RemoteOptions } from '../backend/remote/contract.js'
import { RefrainError } from '../core/errors.js'
import { ManualClock } from '../testing/manual-clock.js'
import { Fleet } from './fleet.js'

const HEALTH = {
  probeMs: 1000,
  downProbeMs: 100,
  unanswered: 2,
  breakerFailures: 3,
  breakerMs: 1000,
  slowStartMs: 4000,
}

type Mood = 'fine' | 'refuses' | 'silent'

class ToldRemote implements Remote {
  readonly id: string
  readonly options: RemoteOptions
  facts: Remote['facts']
  mood: Mood = 'fine'
  pings = 0
  closed = false

  constructor(options: RemoteOptions) {
    this.options = options
    this.id = options.name ?? options.url
  }

  async ask() {
    await this.ping()
    this.facts = { kind: 'vllm', models: [{ id: 'm', json: '{}' }], lacks: [] }
    return this.facts
  }

  async ping() {
    this.pings++
    if (this.mood === 'refuses') throw new RemoteFault('refused', { sent: false, code: 'ECONNREFUSED' })
    if (this.mood === 'silent') throw new RemoteFault('no answer', { sent: true })
  }

  send(): never {
    throw new Error('not in this double')
  }

  call(): never {
    throw new Error('not in this double')
  }

  async close() {
    this.closed = true
  }
}

const options = (url: string, more: Partial<RemoteOptions> = {}): RemoteOptions => ({
  url,
  kind: 'auto',
  forwardAuthorization: false,
  headers: {},
  shared: false,
  priority: false,
  models: {},
  ...more,
})

let clock: ManualClock
let remotes: ToldRemote[]
let emptied: string[]
let fleet: Fleet

beforeEach(() => {
  clock = new ManualClock()
  remotes = []
  emptied = []
  const open = (entry: RemoteOptions) => {
    if (!URL.canParse(entry.url)) throw new Error('no URL')
    const remote = new ToldRemote(entry)
    remotes.push(remote)
    return remote
  }
  fleet = new Fleet(HEALTH, { open, clock, onEmptied: (id) => emptied.push(id) })
})

/** Lets what was answered be heard. */
const settle = () => new Promise((resolve) => setImmediate(resolve))

async function pass(ms: number) {
  for (let left = ms; left > 0; left -= 50) {
    clock.advance(Math.min(50, left))
    await settle()
  }
}

async function up(...urls: string[]) {
  for (const url of urls) fleet.add(options(url), 'config')
  fleet.start()
  await settle()
}

const state = (i = 0) => fleet.members()[i]?.state

/** An exchange at a member that ends as it is told. */
function under(i = 0) {
  let finish: (ending: Ending) => void = () => undefined
  let lost: string | undefined
  const request = { remote: remotes[i] as Remote }
  let begin: () => void = () => undefined
  const ending = fleet.exchange(request, (watch) => {
    begin = () => watch?.begun()
    return new Promise((resolve) => {
      finish = resolve
      watch?.losable((why) => {
        lost = why
        resolve({
          kind: 'fault',
          fault: new RemoteFault(why, { sent: true, code: 'LOST' }),
          begun: false,
          stale: false,
        })
      })
    })
  })
  return { ending, begin, finish: (ending: Ending) => finish(ending), lost: () => lost }
}

const fault = (more: { sent: boolean; code?: string; stale?: boolean }): Ending => ({
  kind: 'fault',
  fault: new RemoteFault('broken', more),
  begun: false,
  stale: more.stale ?? false,
})

const status = (code: number): Ending => ({ kind: 'whole', status: code, headers: {}, body: Buffer.alloc(0) })

describe('health', () => {
  test('a member is starting until it has said what it is, then up', async () => {
    fleet.add(options('http://a'), 'config')
    expect(fleet.members()[0]).toMatchObject({ state: 'starting', models: [] })
    fleet.start()
    await settle()
    expect(fleet.members()[0]).toMatchObject({ state: 'up', models: ['m'], kind: 'vllm', weight: 1 })
  })

  test('one that refuses is down at the first probe, and up again within 0.3 s of answering, emptied', async () => {
    await up('http://a')
    remotes[0]!.mood = 'refuses'
    await pass(1050)
    expect(state()).toBe('down')
    await pass(30_000)
    remotes[0]!.mood = 'fine'
    await pass(300)
    expect(state()).toBe('up')
    expect(emptied).toEqual(['http://a'])
    await pass(300_000)
    remotes[0]!.mood = 'refuses'
    await pass(200_000)
    remotes[0]!.mood = 'fine'
    await pass(300)
    expect(state()).toBe('up')
  })

  test('one that is silent once stays, silent twice goes; what its memory holds is not doubted', async () => {
    await up('http://a')
    remotes[0]!.mood = 'silent'
    await pass(1050)
    expect(state()).toBe('up')
    await pass(100)
    expect(state()).toBe('down')
    remotes[0]!.mood = 'fine'
    await pass(150)
    expect(state()).toBe('up')
    expect(emptied).toEqual([])
  })

  test('it gets its share by and by after it came back', async () => {
    await up('http://a')
    remotes[0]!.mood = 'refuses'
    await pass(1050)
    remotes[0]!.mood = 'fine'
    await pass(100)
    const first = fleet.members()[0]!.weight
    expect(first).toBeGreaterThan(0)
    expect(first).toBeLessThan(0.3)
    await pass(2000)
    expect(fleet.members()[0]!.weight).toBeGreaterThan(first)
    await pass(4000)
    expect(fleet.members()[0]!.weight).toBe(1)
  })

  test('a request that finds nobody there tells it at once, and what waits there is lost to others, what began is not', async () => {
    await up('http://a')
    const [first, waiting, begun] = [under(), under(), under()]
    begun.begin()
    remotes[0]!.mood = 'refuses'
    first.finish(fault({ sent: false, code: 'ECONNREFUSED' }))
    await first.ending
    await settle()
    expect(state()).toBe('down')
    expect(waiting.lost()).toBe('broken')
    expect(begun.lost()).toBeUndefined()
    expect(fleet.members()[0]!.load).toMatchObject({ inFlight: 1, decoding: 1 })
    begun.finish({ kind: 'stream' })
    await begun.ending
    expect(fleet.members()[0]!.load).toMatchObject({ inFlight: 0, decoding: 0 })
  })

  test('a connection that broke is looked into at once', async () => {
    await up('http://a')
    const pings = remotes[0]!.pings
    remotes[0]!.mood = 'refuses'
    const one = under()
    one.finish(fault({ sent: true, code: 'UND_ERR_SOCKET', stale: true }))
    await one.ending
    await settle()
    expect(remotes[0]!.pings).toBe(pings + 1)
    expect(state()).toBe('down')
  })
})

describe('the circuit', () => {
  const fail = async (times: number) => {
    for (let i = 0; i < times; i++) {
      const one = under()
      one.finish(status(500))
      await one.ending
    }
  }

  test('opens after failures in a row, though probes are answered; one more failure opens it for twice as long', async () => {
    await up('http://a')
    await fail(2)
    expect(state()).toBe('up')
    const good = under()
    good.finish(status(404))
    await good.ending
    await fail(2)
    expect(state()).toBe('up')
    await fail(1)
    expect(state()).toBe('down')
    expect(fleet.report('http://a').why).toMatch(/circuit/)
    await pass(900)
    expect(state()).toBe('down')
    await pass(200)
    expect(state()).toBe('up')
    await fail(1)
    await pass(1500)
    expect(state()).toBe('down')
    await pass(700)
    expect(state()).toBe('up')
  })

  test('a process that is gone takes its failures with it', async () => {
    await up('http://a')
    await fail(3)
    remotes[0]!.mood = 'refuses'
    await pass(1100)
    remotes[0]!.mood = 'fine'
    await pass(300)
    expect(state()).toBe('up')
    await fail(1)
    expect(state()).toBe('up')
  })
})

describe('operators', () => {
  test('drain keeps new requests away until undrain', async () => {
    await up('http://a')
    fleet.drain('http://a')
    expect(state()).toBe('draining')
    fleet.undrain('http://a')
    expect(state()).toBe('up')
    expect(() => fleet.drain('http://b')).toThrow(RefrainError)
  })

  test('one that is taken out is closed when its last request is over', async () => {
    await up('http://a', 'http://b')
    const one = under(0)
    const leaving = fleet.remove('http://a')
    await settle()
    expect(fleet.members().map(({ id }) => id)).toEqual(['http://b'])
    expect(remotes[0]!.closed).toBe(false)
    one.finish({ kind: 'stream' })
    await leaving
    expect(remotes[0]!.closed).toBe(true)
  })

  test('one that is added while it runs is asked at once; a second of the same id and a bad URL are refused', async () => {
    await up('http://a')
    fleet.add(options('http://b'), 'api')
    await settle()
    expect(state(1)).toBe('up')
    expect(() => fleet.add(options('http://a'), 'api')).toThrow(/already/)
    expect(() => fleet.add(options('what'), 'api')).toThrow(/no URL/)
    expect(fleet.members()).toHaveLength(2)
  })

  test('a source that is read again brings and takes its own alone; one that changed is opened anew', async () => {
    await up('http://a')
    fleet.assign('file', [options('http://b'), options('http://c')])
    await settle()
    expect(fleet.members().map(({ id }) => id)).toEqual(['http://a', 'http://b', 'http://c'])
    const kept = fleet.members()[1]
    fleet.assign('file', [options('http://b'), options('http://c', { shared: true }), options('http://a')])
    await settle()
    expect(fleet.members().map(({ id }) => id)).toEqual(['http://a', 'http://b', 'http://c'])
    expect(fleet.members()[1]).toBe(kept)
    expect(fleet.remotes()[2]?.options.shared).toBe(true)
    fleet.drain('http://b')
    fleet.assign('file', [options('http://b', { shared: true })])
    await settle()
    expect(state(1)).toBe('draining')
    fleet.assign('file', [])
    expect(fleet.members().map(({ id }) => id)).toEqual(['http://a'])
    fleet.assign('file', [options('http://b')])
    await settle()
    expect(state(1)).toBe('up')
  })
})
