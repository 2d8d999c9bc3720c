// The owner and its processes, in one process: who hears what, what a newcomer gets, and what is left of one that ended.

import { describe, expect, test } from 'vitest'
import type { EventSink } from '../backend/kv-events/contract.js'
import type { RemoteOptions } from '../backend/remote/contract.js'
import { systemClock } from '../core/clock.js'
import { RefrainError } from '../core/errors.js'
import { joinedPorts } from '../testing/joined-ports.js'
import { ManualClock } from '../testing/manual-clock.js'
import type { RouteQuery } from './contract.js'
import { Dialogue } from './dialogue.js'
import { readNews } from './news.js'
import { type DeskChange, OwnerLink, type Question } from './owner-link.js'
import { createPreciseIndex } from './precise-index.js'
import type { SlotSeats } from './slot-seats.js'
import { WorkerHub } from './worker-hub.js'

const OPTIONS = { url: 'http://a', kind: 'auto' } as RemoteOptions
const QUERY = { id: 'r', model: 'm' } as RouteQuery
const soon = (ms = 0) => new Promise((resolve) => setTimeout(resolve, ms))

function house(seats: SlotSeats = { take: () => undefined }) {
  const said = { told: [] as string[], changed: [] as DeskChange[], looked: [] as string[] }
  const enclosed: [string, unknown][] = []
  const clock = new ManualClock()
  const index = createPreciseIndex()
  const hub: WorkerHub = new WorkerHub({
    origin: 'owner',
    clock: { now: () => clock.now(), after: (ms, run) => (ms < 100 ? systemClock : clock).after(ms, run) },
    welcome: () => ({
      processes: 2,
      members: [{ options: OPTIONS, source: 'config', drained: true }],
      up: ['a'],
      records: [{ key: 'k', member: 'a', scope: 's', tail: 't', tokens: 5 }],
      isWatched: true,
    }),
    retell: (sink) => index.retell(sink),
    told: (text) => void said.told.push(text),
    changed: (change) => void said.changed.push(change),
    look: (member) => void said.looked.push(member),
    seats,
    enclosed: (...what) => void enclosed.push(what),
    ended: (origin) => void enclosed.push([origin, 'ended']),
    async answer({ kind, body }: Question) {
      if (kind === 'never') return new Promise(() => undefined)
      if (kind === 'what') throw new RefrainError('invalid_request', 'not so', { param: 'what' })
      return { body, missing: await hub.gather() }
    },
    scrape: async (parts) => ({ type: 'text', text: JSON.stringify(parts) }),
  })
  const kv: EventSink = {
    stored(...told) {
      hub.kv.stored(...told)
      index.stored(...told)
    },
    removed: () => undefined,
    cleared: () => undefined,
    lost: () => undefined,
    followed(...told) {
      hub.kv.followed(...told)
      index.followed(...told)
    },
  }
  let count = 0
  const add = async () => {
    const [ownersEnd, processsEnd] = joinedPorts()
    const name = count++
    const heard: unknown[] = []
    const urls: string[] = []
    /** What it has gathered. */
    const gathered: unknown[] = []
    let lost = 0
    const ears = { name: `process ${name}`, listening: (url: string) => void urls.push(url) }
    const end = hub.add(ownersEnd, ears, { some: 'config' })
    const dialogue = new Dialogue(processsEnd)
    const config = await dialogue.ask('config')
    const link = await OwnerLink.open(dialogue)
    link.listen({
      news: (text) => void heard.push(['news', text]),
      assign: (assigned) => void heard.push(['assign', assigned]),
      desk: (change) => void heard.push(['desk', change]),
      look: (member) => void heard.push(['look', member]),
      kv: {
        stored: (member, { medium, keys }) => void heard.push(['stored', member, medium, [...keys]]),
        removed: () => undefined,
        cleared: () => undefined,
        lost: (member) => void heard.push(['lost', member]),
        followed: (member, state) => void heard.push(['followed', member, state.connected]),
      },
      watched: (isWatched) => void heard.push(['watched', isWatched]),
      enclosure: {
        take: () => gathered.shift(),
        lost: () => lost++,
      },
      metrics: async () => [`of ${name}`],
      stop: (drainMs) => void heard.push(['stop', drainMs]),
    })
    return { link, end, heard, urls, config, gathered, lost: () => lost }
  }
  return { hub, add, said, kv, enclosed, clock }
}

describe('a process', () => {
  test('gets the config, a name, the members, the sessions, and all that is known of caches', async () => {
    const { add, kv } = house()
    kv.followed('a', { connected: true, complete: true, blockTokens: [16], salted: true })
    kv.stored('a', { medium: 'host', keys: new Uint32Array([1, 2]) })
    const one = await add()
    expect(one.config).toEqual({ some: 'config' })
    expect(one.link.welcome).toMatchObject({
      origin: 'owner.0',
      processes: 2,
      members: [{ source: 'config', drained: true }],
      up: ['a'],
    })
    expect(one.link.takeRecords()).toMatchObject([{ key: 'k' }])
    expect(one.link.takeRecords()).toEqual([])
    await soon()
    expect(one.heard).toEqual([
      ['stored', 'a', 'host', [1, 2]],
      ['followed', 'a', true],
    ])
    kv.stored('a', { medium: 'device', keys: new Uint32Array([5, 6]) })
    await soon(20)
    expect(one.heard.slice(2)).toEqual([['stored', 'a', 'device', [5, 6]]])
  })

  test('is heard by the others and by the owner, not by itself', async () => {
    const { add, said } = house()
    const [one, two, three] = [await add(), await add(), await add()]
    one.link.send('["1","owner.0",[]]')
    one.link.changed({ what: 'drain', id: 'a' })
    one.link.turned('a')
    one.link.listening('http://x')
    await soon()
    const heard = [
      ['news', '["1","owner.0",[]]'],
      ['desk', { what: 'drain', id: 'a' }],
      ['look', 'a'],
    ]
    expect(one.heard).toEqual([])
    expect(two.heard).toEqual(heard)
    expect(three.heard).toEqual(heard)
    expect(said).toEqual({ told: ['["1","owner.0",[]]'], changed: [{ what: 'drain', id: 'a' }], looked: ['a'] })
    expect(one.urls).toEqual(['http://x'])
  })

  test('that ended is said to be gone, and its seats are free', async () => {
    const left: unknown[] = []
    const { add, said } = house({
      take: async () => ({ settings: [{ key: 'id_slot', json: '3' }], leave: (usage) => void left.push(usage) }),
    })
    const [one, two] = [await add(), await add()]
    const stop = new AbortController()
    const seat = await one.link.seat('a', QUERY, stop.signal)
    expect(seat.settings).toEqual([{ key: 'id_slot', json: '3' }])
    const usage = { promptTokens: 4, completionTokens: 2 }
    ;(await one.link.seat('a', QUERY, stop.signal)).leave(usage)
    await soon()
    expect(left).toEqual([usage])
    one.end.close()
    expect(left).toEqual([usage, undefined])
    await soon()
    expect(readNews(said.told.at(-1) as string)?.items).toEqual([{ kind: 'gone', origin: 'owner.0' }])
    expect(two.heard).toEqual([['news', said.told.at(-1)]])
    expect(one.heard).toEqual([])
  })

  test('that gives up waiting for a seat leaves none taken', async () => {
    let give: (seat: NonNullable<Awaited<ReturnType<SlotSeats['take']>>>) => void = () => undefined
    let left = 0
    const { add } = house({ take: () => new Promise((resolve) => (give = resolve)) })
    const one = await add()
    const stop = new AbortController()
    const asked = one.link.seat('a', QUERY, stop.signal)
    await soon()
    stop.abort(new Error('left'))
    // It was given at the same moment.
    give({ settings: [], leave: () => void left++ })
    await expect(asked).rejects.toThrow('left')
    await soon()
    expect(left).toBe(1)
  })
})

test('metrics are those of all processes; one that does not answer is left out', async () => {
  const { add } = house()
  const [one, two] = [await add(), await add()]
  expect((await one.link.scrape()).text).toBe('[["of 0"],["of 1"]]')
  two.end.close()
  expect((await one.link.scrape()).text).toBe('[["of 0"]]')
})

describe('what processes leave to the owner', () => {
  test('goes along with news, and what has gathered is handed over before a question is answered', async () => {
    const { add, said, enclosed } = house()
    const [one, two] = [await add(), await add()]
    for (const { link } of [one, two]) link.listening('http://x')
    one.gathered.push('a', 'b')
    two.gathered.push('c')
    one.link.send('["1","owner.0",[]]')
    await soon()
    expect(enclosed).toEqual([['owner.0', 'a']])
    expect(said.told).toEqual(['["1","owner.0",[]]'])
    expect(two.heard).toEqual([['news', '["1","owner.0",[]]']])
    expect(await two.link.question({ kind: 'all', body: 7 })).toEqual({ body: 7, missing: [] })
    expect(enclosed.slice(1)).toEqual([
      ['owner.0', 'b'],
      ['owner.1', 'c'],
    ])
    one.link.send('["1","owner.0",[]]')
    await soon()
    expect(enclosed).toHaveLength(3)
    await expect(two.link.question({ kind: 'what', body: 7 })).rejects.toMatchObject({ param: 'what' })
    expect(await two.link.question({ kind: 'never', body: 7 }, 10)).toBeUndefined()
  })

  test('one that stands still is named, waited for once, and what it has is taken when it is there', async () => {
    const { hub, add, enclosed, clock } = house()
    const [one, two] = [await add(), await add()]
    const [ownersEnd, processsEnd] = joinedPorts()
    hub.add(ownersEnd, { name: 'still', listening: () => undefined }, {})
    const still = new Dialogue(processsEnd)
    const link = await OwnerLink.open(still)
    // It starts: nothing has come to it.
    expect(await hub.gather()).toEqual([])
    still.tell('listening', 'http://x')
    for (const each of [one, two]) each.link.listening('http://x')
    await soon()
    one.gathered.push('a')
    const asked = hub.gather()
    await soon()
    clock.advance(500)
    expect(await asked).toEqual(['still'])
    expect(await hub.gather()).toEqual(['still'])
    expect(enclosed).toEqual([['owner.0', 'a']])
    const gathered = ['late']
    const nothing = () => undefined
    link.listen({
      ...{ news: nothing, assign: nothing, desk: nothing, look: nothing, watched: nothing, stop: nothing },
      ...{ kv: createPreciseIndex(), metrics: async () => [] },
      enclosure: { take: () => gathered.shift(), lost: nothing },
    })
    await soon()
    expect(enclosed.at(-1)).toEqual(['owner.2', 'late'])
    expect(await hub.gather()).toEqual([])
  })

  test('ends with it, and with one that is gone nobody waits', async () => {
    const { hub, add, enclosed } = house()
    const [one, two] = [await add(), await add()]
    for (const { link } of [one, two]) link.listening('http://x')
    await soon()
    two.gathered.push('late')
    const asked = hub.gather()
    two.end.close()
    expect(await asked).toEqual(['process 1'])
    two.link.send('["1","owner.1",[]]')
    await soon()
    expect(enclosed).toEqual([['owner.1', 'ended']])
    expect(await hub.gather()).toEqual([])
  })

  test('is told to be lost where the owner does not keep up', async () => {
    const [, processsEnd] = joinedPorts()
    // Nothing that is posted leaves.
    const dialogue = new Dialogue({ post: () => undefined, onMessage: processsEnd.onMessage })
    const ask = dialogue.ask.bind(dialogue)
    dialogue.ask = async () => ({ records: [], origin: 'o' }) as never
    const link = await OwnerLink.open(dialogue)
    dialogue.ask = ask
    let lost = 0
    const nothing = () => undefined
    link.listen({
      ...{ news: nothing, assign: nothing, desk: nothing, look: nothing, watched: nothing, stop: nothing },
      ...{ kv: createPreciseIndex(), metrics: async () => [] },
      enclosure: { take: () => 'some', lost: () => lost++ },
    })
    for (let i = 0; i < 1001; i++) link.send('x')
    expect([lost, dialogue.lost]).toEqual([1, 1])
  })

  test('is asked for while somebody looks', async () => {
    const { hub, add } = house()
    const one = await add()
    expect(one.link.welcome.isWatched).toBe(true)
    hub.watched(false)
    await soon()
    expect(one.heard).toEqual([['watched', false]])
  })
})
