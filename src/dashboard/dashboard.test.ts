// The page's side of the server: what a cursor brings, who sees what, and that nothing listens while nobody looks.

import { describe, expect, test } from 'vitest'
import type { PrefixTree, PrefixTreeAsk } from '../cache/contract.js'
import type { BlockHash, Root } from '../core/block.js'
import {
  attemptSettled,
  cacheAlarm,
  cacheMoved,
  quickAnswered,
  type RequestSettled,
  requestSettled,
} from '../core/signals.js'
import type { SessionView, TurnArchive, TurnView, Viewer } from '../explain/contract.js'
import { ManualClock } from '../testing/manual-clock.js'
import type { DashboardSources } from './contract.js'
import { SERIES_FIELDS, type SeriesRow } from './contract.js'
import { createDashboard, WATCH_MS } from './dashboard.js'
import { SessionBoard } from './session-board.js'

const START = 1_800_000_000_000
const admin: Viewer = { name: 'ops', admin: true }
const anna: Viewer = { name: 'anna', admin: false }
const bert: Viewer = { name: 'bert', admin: false }

function session(name: string, tenant: string, more: Partial<SessionView> = {}): SessionView {
  const counts = { turns: 1, at: START - 1000, promptTokens: 100, reusedTokens: 60, missedTokens: 0 }
  return { session: name, tenant, byContent: false, ...counts, repeats: [], ...more }
}

function turn(requestId: string, more: Partial<TurnView> = {}): TurnView {
  return {
    ...{ turn: 1, requestId, at: START - 60_000, requestClass: 'main', model: 'm', backend: 'embedded', template: 't' },
    ...{ status: 'done', promptTokens: 100, completionTokens: 5, committedTokens: 64 },
    cache: { working: 0, memory: 64, disk: 0, computed: 36 },
    ...more,
  }
}

/** What explain/ would tell of these. */
function archiveOf(held: { sessions: SessionView[]; turns: Record<string, TurnView[]> }): TurnArchive {
  const sees = (viewer: Viewer, tenant: string) => viewer.admin || viewer.name === tenant
  const find = (viewer: Viewer, key: string, tenant?: string) =>
    held.sessions.find(
      (each) => each.session === key && sees(viewer, each.tenant) && (tenant === undefined || each.tenant === tenant),
    )
  return {
    sessions: (viewer) => held.sessions.filter(({ tenant }) => sees(viewer, tenant)),
    session: find,
    turns: (viewer, key, tenant) => find(viewer, key, tenant) && (held.turns[key] ?? []),
    turn: () => undefined,
    compare: () => 'unknown',
    prefixes: (viewer) =>
      held.sessions
        .filter(({ tenant }) => sees(viewer, tenant))
        .map(({ session: key, tenant }) => ({
          session: key,
          tenant,
          chain: {
            root: `root-${tenant}` as Root,
            hashes: [`${tenant}-a`, `${tenant}-b`, `${tenant}-${key}`] as BlockHash[],
          },
        })),
  }
}

function house(more: Partial<DashboardSources> = {}) {
  const clock = new ManualClock()
  const sources: DashboardSources = {
    ...{ version: '1', kind: 'engine', clock },
    models: () => ['m'],
    backends: () => [
      { id: 'embedded', kind: 'embedded', state: 'up', notes: [], models: ['m'], running: 1, waiting: 0 },
    ],
    ...more,
  }
  return { clock, dashboard: createDashboard(sources, () => START + clock.now()) }
}

function settle(more: Partial<RequestSettled> = {}): void {
  requestSettled.publish({
    ...{ id: 'r', tenant: 'anna', route: '/v1/chat/completions', model: 'm', status: 200 },
    ...{ promptTokens: 100, completionTokens: 7, working: 32, memory: 32, disk: 0, computed: 36, durationMs: 5 },
    ...more,
  })
}

const sum = (rows: readonly SeriesRow[], field: (typeof SERIES_FIELDS)[number]) =>
  rows.reduce((total, row) => total + (row[SERIES_FIELDS.indexOf(field)] ?? 0), 0)

describe('watching', () => {
  test('begins with the first question and ends a while after the last', async () => {
    const before = [requestSettled, cacheMoved, quickAnswered, attemptSettled].map(
      ({ channel }) => channel.hasSubscribers,
    )
    expect(before).toEqual([false, false, false, false])
    const { clock, dashboard } = house()
    expect(requestSettled.channel.hasSubscribers).toBe(false)
    const { cursor } = await dashboard.feed(admin, undefined)
    expect(requestSettled.channel.hasSubscribers).toBe(true)
    clock.advance(WATCH_MS - 1000)
    await dashboard.feed(admin, cursor)
    clock.advance(WATCH_MS - 1000)
    expect(requestSettled.channel.hasSubscribers).toBe(true)
    clock.advance(2000)
    expect(requestSettled.channel.hasSubscribers).toBe(false)
    expect(clock.waiting).toBe(0)
    expect((await dashboard.feed(admin, cursor)).reset).toBe(true)
    dashboard.close()
    expect(requestSettled.channel.hasSubscribers).toBe(false)
  })

  test('turns of before are counted from the archive, none of them twice', async () => {
    const turns = { s: [turn('r1'), turn('r2', { at: START - 5_000_000 }), turn('r3', { status: 'running' })] }
    const { dashboard } = house({ turns: archiveOf({ sessions: [session('s', 'anna')], turns }) })
    const asked = dashboard.feed(anna, undefined)
    settle({ id: 'r3' })
    const { series } = await asked
    expect(sum(series, 'requests')).toBe(2)
    expect(sum(series, 'memory')).toBe(64 + 32)
    expect(series[0]?.[0]).toBe(START - 60_000)
    dashboard.close()
  })

  test('what is no generating request is not counted, what was refused is', async () => {
    const { dashboard } = house()
    await dashboard.feed(anna, undefined)
    settle({ route: '/v1/dashboard/feed', status: 401, promptTokens: 0 })
    settle({ status: 429, promptTokens: 0, completionTokens: 0, working: 0, memory: 0, computed: 0 })
    const { series } = await dashboard.feed(anna, undefined)
    expect([sum(series, 'requests'), sum(series, 'failed')]).toEqual([1, 1])
    dashboard.close()
  })
})

describe('the feed', () => {
  test('brings what has changed since its cursor, and all without one', async () => {
    const held = { sessions: [session('a', 'anna'), session('b', 'anna')], turns: {} }
    const { clock, dashboard } = house({ turns: archiveOf(held) })
    const first = await dashboard.feed(anna, undefined)
    expect(first.reset).toBe(true)
    expect(first.sessions.map((each) => each.session)).toEqual(['a', 'b'])

    clock.advance(20_000)
    held.sessions = [session('a', 'anna', { turns: 2 }), session('c', 'anna')]
    settle()
    const second = await dashboard.feed(anna, first.cursor)
    expect(second.reset).toBe(false)
    expect(second.sessions.map((each) => each.session)).toEqual(['a', 'c'])
    expect(second.gone).toEqual([{ tenant: 'anna', session: 'b' }])
    expect(second.series.map(([at]) => at)).toEqual([START + 20_000])

    clock.advance(1000)
    const third = await dashboard.feed(anna, second.cursor)
    expect(third).toMatchObject({ reset: false, sessions: [], gone: [] })
    // The bucket that is going on is told again.
    expect(sum(third.series, 'requests')).toBe(1)
    for (const strange of ['', 'x', '000000000000.1.1', `${second.cursor}0.5`]) {
      expect((await dashboard.feed(anna, strange)).reset).toBe(true)
    }
    dashboard.close()
  })

  test('is of the viewer: a tenant sees its own, an admin all, and operators’ things alone', async () => {
    const held = { sessions: [session('a', 'anna'), session('b', 'bert')], turns: {} }
    const alarm = { at: START, kind: 'cold', sentence: 'It is cold.' }
    const { dashboard } = house({
      turns: archiveOf(held),
      alarms: (viewer) =>
        [
          { ...alarm, tenant: 'anna' },
          { ...alarm, tenant: 'bert' },
        ].filter(({ tenant }) => viewer.admin || tenant === viewer.name),
    })
    await dashboard.feed(admin, undefined)
    settle()
    settle({ tenant: 'bert', computed: 1000 })
    const quick = { task: 'title', form: 'native', promptTokens: 9, completionTokens: 4 }
    quickAnswered.publish({ ...quick, tenant: 'bert', error: undefined })
    quickAnswered.publish({ ...quick, tenant: 'bert', error: 'incomplete' })

    const own = await dashboard.feed(anna, undefined)
    expect(own.sessions.map(({ tenant }) => tenant)).toEqual(['anna'])
    expect(sum(own.series, 'computed')).toBe(36)
    expect(own).toMatchObject({ quick: [], viewer: { tenant: 'anna', admin: false } })
    expect(own.alarms.map(({ tenant }) => tenant)).toEqual(['anna'])
    expect(own).not.toHaveProperty('backends')
    expect(own).not.toHaveProperty('cache')

    const theirs = await dashboard.feed(bert, undefined)
    expect(theirs.quick).toEqual([
      {
        task: 'title',
        form: 'native',
        answered: 1,
        failed: 1,
        promptTokens: 18,
        completionTokens: 8,
        lastError: 'incomplete',
      },
    ])
    const all = await dashboard.feed(admin, undefined)
    expect(all.sessions.map(({ tenant }) => tenant)).toEqual(['anna', 'bert'])
    expect(sum(all.series, 'computed')).toBe(1036)
    expect(all.backends?.map(({ id }) => id)).toEqual(['embedded'])
    expect(dashboard.turns(anna, 'b')).toBeUndefined()
    expect(dashboard.turns(anna, 'b', 'bert')).toBeUndefined()
    expect(dashboard.turns(admin, 'b')?.session.tenant).toBe('bert')
    dashboard.close()
  })

  test('does not wait for an engine that is in a long run', async () => {
    let answer: (value: never) => void = () => undefined
    const status = () => new Promise<never>((resolve) => (answer = resolve))
    const { clock, dashboard } = house({ cache: { status } })
    expect(await dashboard.feed(admin, undefined)).not.toHaveProperty('cache')
    const tiers = [{ tier: 'memory', usedBytes: 10, capacityBytes: 100 }]
    answer({ tiers, pins: [], blockBytes: 1, blockTokens: 64 } as never)
    await Promise.resolve()
    cacheMoved.publish({ what: 'evict', tier: 'memory', blocks: 3, bytes: 3 })
    clock.advance(100)
    const feed = await dashboard.feed(admin, undefined)
    expect(feed.cache).toEqual({ tiers, blockBytes: 1, blockTokens: 64, pins: 0 })
    expect([sum(feed.series, 'memoryBytes'), sum(feed.series, 'evictedMemory')]).toEqual([10, 3])
    dashboard.close()
  })

  test('in front of a fleet: sessions from what requests came to, overlap from what backends told', async () => {
    const { clock, dashboard } = house({ kind: 'fleet' })
    await dashboard.feed(admin, undefined)
    const attempt = { key: {}, routeMs: 1, outcome: 'answered', status: 200, why: undefined, ttftMs: 1 } as const
    attemptSettled.publish({
      ...{ ...attempt, id: 'r', backend: 'embedded' },
      ...{ predictedHitTokens: 80, promptTokens: 100, completionTokens: 7, cachedTokens: 64 },
    })
    settle({ session: 'x', working: 0, memory: 64 })
    clock.advance(1000)
    const feed = await dashboard.feed(admin, undefined)
    expect(feed.server).toMatchObject({ kind: 'fleet', explains: false, hasTree: false })
    expect(feed.sessions).toMatchObject([{ session: 'x', turns: 1, promptTokens: 100, reusedTokens: 64 }])
    expect(feed.backends?.[0]?.overlap).toEqual({
      requests: 1,
      promptTokens: 100,
      predictedTokens: 80,
      cachedTokens: 64,
    })
    expect(dashboard.turns(anna, 'x')?.turns).toMatchObject([{ turn: 1, backend: 'embedded', completionTokens: 7 }])
    expect(dashboard.turns(bert, 'x')).toBeUndefined()
    expect(await dashboard.tree(admin)).toBeUndefined()
    dashboard.close()
  })
})

describe('the tree', () => {
  const node = (hash: string, more: object) => ({
    ...{ hash: hash as BlockHash, root: 'root-anna' as Root, depth: 0, blocks: 2, uses: 3, below: 1 },
    ...{ tiers: [{ tier: 'memory' as const, blocks: 2 }], hidden: { branches: 0, blocks: 0 }, ...more },
  })

  test('is asked of the viewer’s own roots, counts its sessions, and names no hash', async () => {
    const asks: PrefixTreeAsk[] = []
    const tree = async (ask: PrefixTreeAsk): Promise<PrefixTree> => {
      asks.push(ask)
      const nodes = [node('anna-a', {}), node('anna-s1', { parent: 0, depth: 2, blocks: 1 })]
      return { nodes, blocks: 3, detachedBlocks: 0, complete: true }
    }
    const held = { sessions: [session('s1', 'anna'), session('s2', 'anna'), session('s3', 'bert')], turns: {} }
    const { clock, dashboard } = house({
      turns: archiveOf(held),
      cache: { status: () => new Promise(() => undefined), tree },
      roots: { of: (tenant) => [`root-${tenant}` as Root], ownersOf: () => ['anna'] },
    })
    const own = await dashboard.tree(anna)
    expect(own?.nodes).toMatchObject([
      { from: 0, tokens: 128, belowTokens: 64, uses: 3, sessions: 2, names: ['s1', 's2'] },
      { from: 128, tokens: 64, sessions: 1, names: ['s1'], parent: own?.nodes[0]?.id },
    ])
    expect(own?.nodes[0]).not.toHaveProperty('tenant')
    expect(JSON.stringify(own)).not.toContain('anna-')
    await dashboard.tree(anna)
    expect(asks).toEqual([{ nodes: 300, tenants: ['root-anna'] }])
    clock.advance(5000)
    const all = await dashboard.tree(admin)
    expect(all?.nodes[0]?.tenant).toBe('anna')
    expect(asks[1]).toEqual({ nodes: 300 })
    dashboard.close()
  })

  test('an engine that fails is asked again', async () => {
    let fails = true
    const tree = async () => {
      if (fails) throw new Error('the engine went away')
      return { nodes: [], blocks: 0, detachedBlocks: 0, complete: true }
    }
    const { dashboard } = house({ cache: { status: () => new Promise(() => undefined), tree } })
    await expect(dashboard.tree(admin)).rejects.toThrow('went away')
    fails = false
    expect(await dashboard.tree(admin)).toMatchObject({ nodes: [], tokens: 0 })
    dashboard.close()
  })
})

test('alarms are kept from the start on, each tenant’s its own', async () => {
  const { dashboard } = house()
  const lost = {
    what: 'unscheduled_invalidation',
    expectedTokens: 640,
    cachedTokens: 64,
    reason: 'system_changed',
  } as const
  cacheAlarm.publish({ tenant: 'anna', session: 's', turn: 7, ...lost })
  for (let i = 0; i < 60; i++) {
    cacheAlarm.publish({
      tenant: 'bert',
      session: undefined,
      turn: undefined,
      what: 'hit_rate',
      hitRate: 0.124,
      turns: i,
    })
  }
  const own = await dashboard.feed(anna, undefined)
  expect(own.alarms).toEqual([
    {
      ...{ at: START, tenant: 'anna', session: 's', kind: 'unscheduled_invalidation' },
      sentence: 'turn 7 had 64 of 640 tokens that should have been there: system changed',
    },
  ])
  const theirs = await dashboard.feed(bert, undefined)
  expect(theirs.alarms).toHaveLength(50)
  expect(theirs.alarms[0]?.sentence).toBe('12 % of the prompt tokens of all sessions were reused in the last 59 turns')
  expect((await dashboard.feed(admin, undefined)).alarms).toHaveLength(51)
  dashboard.close()
  expect(cacheAlarm.channel.hasSubscribers).toBe(false)
})

test('a reader that is too far behind the sessions that went begins anew', () => {
  const board = new SessionBoard()
  board.refresh([session('stays', 'anna')])
  const { version } = board
  for (let i = 0; i < 1500; i++) board.refresh([session('stays', 'anna'), session(`s${i}`, 'anna')])
  expect(board.since(version)).toBeUndefined()
  const near = board.version
  board.refresh([session('stays', 'anna')])
  expect(board.since(near)).toEqual({ sessions: [], gone: [{ tenant: 'anna', session: 's1499' }] })
})
