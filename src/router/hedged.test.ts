// The router's books on a request that is at two members: one answers and is the session's home, of the other nothing stays,
// here and at routers that share their books.

import { beforeEach, describe, expect, test } from 'vitest'
import { ManualClock } from '../testing/manual-clock.js'
import type { Member, MemberPlacement, RouteOutcome, RouteQuery } from './contract.js'
import { createFleetRouter, type SharedRouter } from './fleet-router.js'
import { ROUTER_DEFAULTS } from './options.js'
import { Peers, SHARE_MS } from './peers.js'
import type { SessionRecord } from './session-store.js'

const ids = ['a', 'b', 'c']

let clock: ManualClock
let kept: SessionRecord[]
/** The one that is told, and one that hears of it. */
let routers: [SharedRouter, SharedRouter]
let count = 0

function memberOf(id: string): Member {
  return {
    ...{ id, url: `http://${id}`, kind: 'vllm', models: ['m'], state: 'up', weight: 1, knowledge: 'learned' },
    load: { inFlight: 0, queuedPrefillTokens: 0, decoding: 0, reportedQueue: 0 },
    rates: { prefillTokensPerSecond: 2000, restoreCost: { device: 0, host: 0.1, disk: 0.5, remote: 0.8 } },
  }
}

beforeEach(() => {
  clock = new ManualClock()
  kept = []
  const peers: Peers[] = []
  const members = ids.map(memberOf)
  routers = [0, 1].map((place) => {
    const own = new Peers({
      ...{ clock, origin: `router-${place}`, books: () => router.books },
      wire: { send: (text) => peers[1 - place]?.hear(text) },
    })
    peers.push(own)
    const store = { records: () => [], put: (record: SessionRecord) => void kept.push(record), remove: () => undefined }
    const router = createFleetRouter(ROUTER_DEFAULTS, { members: () => members, clock, peers: own, store })
    return router
  }) as [SharedRouter, SharedRouter]
})

/** A head of 1000 tokens, and messages of 300 each. */
function ask(messages: readonly string[], more: Partial<RouteQuery> = {}): RouteQuery {
  const hashes = ['head', ...messages.map((_, i) => `head: ${messages.slice(0, i + 1).join(' ')}`)]
  const tokens = hashes.map((_, i) => 1000 + i * 300)
  return {
    ...{ id: `r${count++}`, model: 'm', tenant: 'default', salt: '', requestClass: 'main', priority: 'interactive' },
    ...{ segments: { hashes, tokens, head: 1 }, promptTokens: tokens.at(-1)!, estimated: true },
    ...more,
  }
}

interface Twice {
  readonly query: RouteQuery
  readonly first: MemberPlacement
  readonly second: MemberPlacement
}

/** Sends it to one member, and a second later to another. */
function twice(query: RouteQuery): Twice {
  const [router] = routers
  const first = router.place(query)
  router.sent(query, first)
  clock.advance(1000)
  const second = router.place({ ...query, excluded: [first.member.id] })
  router.hedged(query, second, first.member.id)
  return { query, first, second }
}

function settle({ query }: Twice, { member, predictedHitTokens }: MemberPlacement, more: Partial<RouteOutcome> = {}) {
  routers[0].settled({ query, member: member.id, predictedHitTokens, failed: false, ...more })
}

const USAGE = { promptTokens: 1300, cachedTokens: 0, completionTokens: 10 }

/** What both routers have of a member. */
function booksOn(id: string) {
  clock.advance(2 * SHARE_MS)
  const views = routers.map((router) => router.view(memberOf(id)))
  const { load, sessions, predictionError } = views[0]!
  expect(views[1]).toMatchObject({ load: { inFlight: load.inFlight, decoding: load.decoding }, sessions })
  return { inFlight: load.inFlight, sessions, predictionError }
}

/** Where both routers send the session's next turn, and what each member is believed to hold of it. */
function next(query: RouteQuery) {
  clock.advance(2 * SHARE_MS)
  const [here, there] = routers.map((router) => router.place(query)) as [MemberPlacement, MemberPlacement]
  expect([there.member.id, there.reason]).toEqual([here.member.id, here.reason])
  const held = (id: string) => here.scores.find(({ member }) => member === id)?.overlapTokens
  return { at: here.member.id, reason: here.reason, held }
}

describe.each([
  ['by its name', { session: 's' }],
  ['by its prompt', {}],
])('a session %s', (_, more) => {
  test('stays where it is where the first one answers', () => {
    const both = twice(ask(['1'], more))
    const { query, first, second } = both
    expect(booksOn(first.member.id)).toMatchObject({ inFlight: 1, sessions: 1 })
    expect(booksOn(second.member.id)).toMatchObject({ inFlight: 1, sessions: 0 })
    routers[0].started(query, first.member.id)
    settle(both, second, { failed: true })
    settle(both, first, USAGE)
    expect(booksOn(first.member.id)).toEqual({ inFlight: 0, sessions: 1, predictionError: 0 })
    expect(booksOn(second.member.id)).toEqual({ inFlight: 0, sessions: 0, predictionError: undefined })
    const { at, reason, held } = next(ask(['1', '2'], more))
    expect([at, reason]).toEqual([first.member.id, 'session'])
    expect([held(first.member.id), held(second.member.id)]).toEqual([1300, 0])
    expect(kept.at(-1)?.member).toBe(first.member.id)
  })

  test.each([
    ['a stream', true],
    ['a whole answer', false],
  ])('lives at the second one where that answers, with %s', (__, isStream) => {
    const both = twice(ask(['1'], more))
    const { query, first, second } = both
    if (isStream) routers[0].started(query, second.member.id)
    settle(both, first, { failed: true })
    if (isStream) expect(booksOn(second.member.id)).toMatchObject({ inFlight: 1, sessions: 1 })
    settle(both, second, USAGE)
    expect(booksOn(first.member.id)).toEqual({ inFlight: 0, sessions: 0, predictionError: undefined })
    expect(booksOn(second.member.id)).toEqual({ inFlight: 0, sessions: 1, predictionError: 0 })
    const { at, reason, held } = next(ask(['1', '2'], more))
    expect([at, reason]).toEqual([second.member.id, 'session'])
    expect([held(first.member.id), held(second.member.id)]).toEqual([0, 1300])
    expect(kept.at(-1)?.member).toBe(second.member.id)
  })

  test('stays where it is where nobody answers, because its client left or both fail', () => {
    const left = twice(ask(['1'], more))
    settle(left, left.first)
    settle(left, left.second, { failed: true })
    expect(booksOn(left.first.member.id)).toMatchObject({ inFlight: 0, sessions: 1 })
    expect(booksOn(left.second.member.id)).toMatchObject({ inFlight: 0, sessions: 0 })
    const failed = twice(ask(['1', '2'], more))
    settle(failed, failed.first, { failed: true })
    settle(failed, failed.second, { failed: true })
    for (const id of ids) expect(booksOn(id).inFlight).toBe(0)
  })
})

test('a session that has gone on meanwhile is not called back', () => {
  const both = twice(ask(['1'], { session: 's' }))
  const later = ask(['1', '2'], { session: 's', excluded: [both.first.member.id, both.second.member.id] })
  const third = routers[0].place(later)
  routers[0].sent(later, third)
  routers[0].started(both.query, both.second.member.id)
  expect(booksOn(third.member.id).sessions).toBe(1)
  expect(booksOn(both.second.member.id).sessions).toBe(0)
})

test('a side request moves nothing', () => {
  const turn = ask(['1'], { session: 's' })
  const home = routers[0].place(turn)
  routers[0].sent(turn, home)
  routers[0].settled({ query: turn, member: home.member.id, predictedHitTokens: 0, failed: false, ...USAGE })
  const both = twice(ask(['title'], { session: 's', requestClass: 'auxiliary' }))
  routers[0].started(both.query, both.second.member.id)
  settle(both, both.first, { failed: true })
  settle(both, both.second, USAGE)
  expect(next(ask(['1', '2'], { session: 's' })).at).toBe(home.member.id)
  for (const id of ids) expect(booksOn(id).inFlight).toBe(0)
})
