// What router processes leave to their owner, and what every one of them says of it: turns of sessions that came to any of
// them, and what the page shows. The processes are here in one, joined as real ones are.

import { afterEach, describe, expect, test } from 'vitest'
import { keepForAll, type LeftToOwner, leaveToOwner } from './compose-sharing.js'
import { makeConfig } from './config.js'
import { systemClock } from './core/clock.js'
import { attemptSettled, type RequestSettled, requestSettled, turnMissed } from './core/signals.js'
import { SERIES_FIELDS } from './dashboard/contract.js'
import { listenedTo } from './explain/turn-ears.js'
import type { FleetRouter, Member, MemberPlacement, RouteQuery } from './router/contract.js'
import { Dialogue } from './router/dialogue.js'
import { OwnerLink } from './router/owner-link.js'
import { createPreciseIndex } from './router/precise-index.js'
import { type WorkerEnd, WorkerHub } from './router/worker-hub.js'
import { joinedPorts } from './testing/joined-ports.js'

const anna = { name: 'anna', admin: false }
const ops = { name: 'ops', admin: true }
const TOKENS = 200
const nothing = () => undefined
const soon = (ms = 0) => new Promise((resolve) => setTimeout(resolve, ms))

let count = 0
const closing: (() => void)[] = []
afterEach(() => {
  for (const close of closing.splice(0)) close()
})

class Process {
  readonly left: LeftToOwner
  readonly end: WorkerEnd
  readonly link: OwnerLink
  readonly router: FleetRouter

  constructor(left: LeftToOwner, end: WorkerEnd, link: OwnerLink) {
    this.left = left
    this.end = end
    this.link = link
    const deaf = { place: nothing, sent: nothing, started: nothing, settled: nothing, release: nothing }
    this.router = listenedTo(deaf as unknown as FleetRouter, left.ears as NonNullable<typeof left.ears>)
  }

  begin(segments: readonly string[], more: Partial<RouteQuery> = {}, on = 'a'): RouteQuery {
    const hashes = segments.map((_, i) => segments.slice(0, i + 1).join('|'))
    const query: RouteQuery = {
      ...{ id: `r${++count}`, model: 'm', tenant: 'anna', salt: '', requestClass: 'main', session: 's' },
      ...{ priority: 'interactive', promptTokens: segments.length * TOKENS, estimated: true },
      segments: { hashes, tokens: segments.map((_, i) => (i + 1) * TOKENS), head: 1, parts: ['system'] },
      ...more,
    }
    this.router.sent(query, { member: { id: on } as Member } as MemberPlacement)
    return query
  }

  /** One turn that `on` answers with `cachedTokens`. */
  turn(segments: readonly string[], cachedTokens: number, more: Partial<RouteQuery> = {}, on = 'a'): RouteQuery {
    const query = this.begin(segments, more, on)
    const counts = { promptTokens: segments.length * TOKENS, completionTokens: 10, cachedTokens }
    this.router.settled({ query, member: on, predictedHitTokens: 0, failed: false, ...counts })
    return query
  }

  get turns() {
    return this.left.turns as NonNullable<LeftToOwner['turns']>
  }
}

async function house(processes: number, explain: object = {}) {
  const config = makeConfig({ flags: { backends: [{ url: 'http://a' }], 'fleet.processes': processes, ...explain } })
  const hub: WorkerHub = new WorkerHub({
    ...{ origin: 'owner', clock: systemClock, seats: { take: nothing } },
    welcome: () => ({ processes, members: [], up: [], records: [], isWatched: kept.isWatched() }),
    ...{ retell: nothing, told: nothing, changed: nothing, look: nothing },
    enclosed: (...what) => kept.enclosed(...what),
    ended: (origin) => kept.ended(origin),
    answer: (question) => kept.answer(question),
    scrape: async () => ({ type: '', text: '' }),
  })
  const kept = keepForAll(config, { clock: systemClock, hub, members: () => ['a', 'b'] })
  closing.push(() => kept.close())
  const backend = { id: 'b', kind: 'vllm', state: 'up', notes: [], models: ['m'], running: 3, waiting: 0 }
  const add = async (name: string, watches: boolean) => {
    const [ownersEnd, processsEnd] = joinedPorts()
    const end = hub.add(ownersEnd, { name, listening: nothing }, {})
    const link = await OwnerLink.open(new Dialogue(processsEnd))
    const left = leaveToOwner(config, link, { models: () => ['m'], backends: () => [backend] })
    const { enclosure, watched } = left.told
    closing.push(() => watched(false))
    link.listen({
      ...{ news: nothing, assign: nothing, desk: nothing, look: nothing, stop: nothing },
      ...{ kv: createPreciseIndex(), metrics: async () => [], enclosure },
      // Signals are those of all that runs here: one of them hears them for all.
      watched: watches ? watched : nothing,
    })
    link.listening('http://x')
    await soon()
    return new Process(left, end, link)
  }
  const all: Process[] = []
  for (let i = 0; i < processes; i++) all.push(await add(`process ${i}`, i === 0))
  return { hub, all }
}

describe('turns', () => {
  test('of a session come to any process, and each explains all of them', async () => {
    const missed: string[] = []
    closing.push(turnMissed.subscribe(({ reason }) => missed.push(reason)))
    const { all } = await house(2)
    const [one, two] = all as [Process, Process]
    one.turn(['s', 'u1'], 0)
    await one.turns.sessions(anna)
    two.turn(['s', 'u1', 'a1', 'u2'], 400)
    await one.turns.sessions(anna)
    one.turn(['s2', 'u1', 'a1', 'u2', 'a2', 'u3'], 0)
    await two.turns.sessions(anna)
    two.turn(['s2', 'u1', 'a1', 'u2', 'a2', 'u3', 'a3', 'u4'], 0, {}, 'b')
    for (const { turns } of all) {
      const { value, missing } = await turns.turns(anna, 's')
      expect(missing).toEqual([])
      expect(value?.session).toMatchObject({ turns: 4, promptTokens: 20 * TOKENS, reusedTokens: 400 })
      expect(value?.turns.map(({ turn, miss }) => [turn, miss?.reason])).toEqual([
        [1, 'first_seen'],
        [2, undefined],
        [3, 'system_changed'],
        [4, 'other_backend'],
      ])
      const { value: third } = await turns.turn(anna, 's', { turn: 3 })
      expect(third?.found?.turn.miss).toMatchObject({ comparedWith: 2, missedTokens: 768 })
      expect((await turns.turn(anna, 's', { turn: 9 })).value).toMatchObject({ session: { turns: 4 } })
      expect((await turns.sessions(anna)).value.map(({ session }) => session)).toEqual(['s'])
    }
    // Told once, where they are compared.
    expect(missed).toEqual(['first_seen', 'system_changed', 'other_backend'])
  })

  test('of a session without a key are one session’s, whichever process they come to', async () => {
    const { all } = await house(3)
    for (const first of ['u', 'v']) {
      const said = ['s', `${first}1`]
      for (let turn = 0; turn < 6; turn++) {
        const process = all[turn % 3] as Process
        process.turn(said, 0, { session: undefined } as never)
        await process.turns.sessions(anna)
        said.push(`a${turn}`, `${first}${turn + 2}`)
      }
    }
    const { value } = await (all[1] as Process).turns.sessions(anna)
    expect(value.map(({ byContent, turns }) => [byContent, turns])).toEqual([
      [true, 6],
      [true, 6],
    ])
  })

  test('are a tenant’s own at every process, and an admin’s all', async () => {
    const { all } = await house(2)
    const [one, two] = all as [Process, Process]
    one.turn(['s'], 0, { tenant: 'bert' })
    expect((await two.turns.sessions(anna)).value).toEqual([])
    expect((await two.turns.turns(anna, 's')).value).toBeUndefined()
    expect((await two.turns.turns(anna, 's', 'bert')).value).toBeUndefined()
    expect((await two.turns.turns(ops, 's', 'bert')).value?.turns).toHaveLength(1)
  })

  test('of a process that died have failed, and the answer says that it did', async () => {
    const { all } = await house(2)
    const [one, two] = all as [Process, Process]
    two.begin(['s', 'u1'])
    expect((await one.turns.turns(anna, 's')).value?.turns[0]).toMatchObject({ status: 'running' })
    two.end.close()
    const { value, missing } = await one.turns.turns(anna, 's')
    expect(value?.turns[0]).toMatchObject({ status: 'failed' })
    expect(missing).toEqual([])
  })

  test('are told as far as they are known where the owner does not answer', async () => {
    const { all } = await house(1)
    const [one] = all as [Process]
    one.link.question = async () => undefined
    expect(await one.turns.sessions(anna)).toEqual({ value: [], missing: ['the owner of the router processes'] })
    expect(await one.turns.turns(anna, 's')).toMatchObject({ value: undefined, missing: [expect.any(String)] })
    const page = await one.left.dashboard.feed(ops, 'some cursor')
    expect(page).toMatchObject({ reset: false, cursor: 'some cursor', missing: [expect.any(String)], sessions: [] })
    expect(page.backends?.map(({ id }) => id)).toEqual(['b'])
  })

  test('are nobody’s where explain.turns is 0', async () => {
    const { all } = await house(1, { 'explain.turns': 0 })
    expect(all[0]?.left).toMatchObject({ ears: undefined, turns: undefined })
  })
})

describe('the page', () => {
  const at = (field: (typeof SERIES_FIELDS)[number]) => SERIES_FIELDS.indexOf(field)
  const settled: RequestSettled = {
    ...{ id: 'x', tenant: 'anna', route: '/v1/chat/completions', model: 'm', status: 200, durationMs: 5 },
    ...{ promptTokens: 100, completionTokens: 7, working: 0, memory: 64, disk: 0, computed: 36 },
  }

  test('shows what came to any process, from whichever it is asked, with one cursor', async () => {
    const { all } = await house(2)
    const [one, two] = all as [Process, Process]
    one.turn(['s', 'u1'], 0)
    two.turn(['v', 'w1'], 200, { session: 'other' })
    const first = await two.left.dashboard.feed(anna, undefined)
    expect(first).toMatchObject({ reset: true, missing: [], server: { kind: 'fleet', processes: 2, models: ['m'] } })
    expect(first.sessions.map(({ session }) => session).sort()).toEqual(['other', 's'])
    // Of before anybody looked: from turns.
    const sum = (field: (typeof SERIES_FIELDS)[number], page: typeof first) =>
      page.series.reduce((total, row) => total + (row[at(field)] ?? 0), 0)
    expect([sum('requests', first), sum('memory', first)]).toEqual([2, 200])
    expect(requestSettled.channel.hasSubscribers).toBe(true)
    requestSettled.publish(settled)
    attemptSettled.publish({
      ...{ id: 'x', key: {}, backend: 'b', routeMs: 1, outcome: 'answered', status: 200, why: undefined, ttftMs: 1 },
      ...{ predictedHitTokens: 80, promptTokens: 100, completionTokens: 7, cachedTokens: 64 },
    })
    const second = await one.left.dashboard.feed(ops, undefined)
    expect([sum('requests', second), sum('memory', second)]).toEqual([3, 264])
    // As the process knows them, with what the owner counted.
    expect(second.backends).toEqual([
      expect.objectContaining({
        ...{ id: 'b', state: 'up', running: 3 },
        overlap: { requests: 1, promptTokens: 100, predictedTokens: 80, cachedTokens: 64 },
      }),
    ])
    expect((await two.left.dashboard.turns(anna, 's'))?.turns).toHaveLength(1)
    expect(await two.left.dashboard.turns({ name: 'bert', admin: false }, 's')).toBeUndefined()
    expect(await one.left.dashboard.tree(ops)).toBeUndefined()
    const third = await two.left.dashboard.feed(anna, (await one.left.dashboard.feed(anna, first.cursor)).cursor)
    expect(third).toMatchObject({ reset: false, sessions: [] })
  })
})
