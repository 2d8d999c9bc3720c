// What the router decides and remembers, request by request: homes, parents, heads, salts, members that come and go.

import { beforeEach, describe, expect, test } from 'vitest'
import type { RefrainError } from '../core/errors.js'
import { ManualClock } from '../testing/manual-clock.js'
import type { CacheAwareRouter, Member, MemberPlacement, PromptBlocks, RouteOutcome, RouteQuery } from './contract.js'
import { createFleetRouter } from './fleet-router.js'
import { ROUTER_DEFAULTS, type RouterOptions } from './options.js'
import { createPreciseIndex, type PreciseIndex } from './precise-index.js'
import type { SessionRecord, SessionStore } from './session-store.js'

type Writable<T> = { -readonly [K in keyof T]: T[K] }

let clock: ManualClock
let members: Writable<Member>[]
let router: CacheAwareRouter
let count = 0

beforeEach(() => {
  clock = new ManualClock()
  members = ['a', 'b', 'c', 'd'].map(memberOf)
  router = routerWith({})
})

function memberOf(id: string): Writable<Member> {
  return {
    id,
    url: `http://${id}`,
    kind: 'vllm',
    models: ['m'],
    state: 'up',
    weight: 1,
    knowledge: 'learned',
    load: { inFlight: 0, queuedPrefillTokens: 0, decoding: 0, reportedQueue: 0 },
    rates: { prefillTokensPerSecond: 2000, restoreCost: { device: 0, host: 0.1, disk: 0.5, remote: 0.8 } },
  }
}

function routerWith(options: Partial<RouterOptions>, more: { store?: SessionStore; precise?: PreciseIndex } = {}) {
  return createFleetRouter({ ...ROUTER_DEFAULTS, ...options }, { members: () => members, clock, ...more })
}

/** A prompt of a head of 4000 tokens, and messages of 300 each. */
function ask(head: string, messages: readonly string[], more: Partial<RouteQuery> = {}): RouteQuery {
  const hashes = [`tools ${head}`, `head ${head}`]
  for (const [i] of messages.entries()) hashes.push(`${head}: ${messages.slice(0, i + 1).join(' ')}`)
  const tokens = hashes.map((_, i) => (i === 0 ? 1000 : 4000 + (i - 1) * 300))
  return {
    id: `request-${count++}`,
    model: 'm',
    tenant: 'default',
    salt: '',
    requestClass: 'main',
    priority: 'interactive',
    segments: { hashes, tokens, head: 2 },
    promptTokens: tokens.at(-1)!,
    estimated: true,
    ...more,
  }
}

/** Places and runs a request to its end, in the time that it takes. */
function run(query: RouteQuery, outcome: Partial<RouteOutcome> = {}): MemberPlacement {
  const placement = router.place(query)
  const member = placement.member.id
  router.sent(query, placement)
  if (outcome.failed !== true) {
    clock.advance(((query.promptTokens - placement.predictedHitTokens) / 2000) * 1000)
    router.started(query, member)
  }
  const { predictedHitTokens } = placement
  router.settled({ query, member, predictedHitTokens, failed: false, ...outcome })
  return placement
}

const at = (placement: MemberPlacement) => placement.member.id
const codeOf = (query: RouteQuery) => {
  try {
    router.place(query)
    return undefined
  } catch (error) {
    return (error as RefrainError).code
  }
}

describe('a session', () => {
  test.each([
    ['by its name', { session: 's' }],
    ['by its prompt', {}],
  ])('returns home, %s', (_, more) => {
    const home = at(run(ask('h', ['one'], more)))
    for (const messages of [
      ['one', 'two', 'three'],
      ['one', 'two', 'three', 'four', 'five'],
    ]) {
      const placement = run(ask('h', messages, more))
      expect([at(placement), placement.reason]).toEqual([home, 'session'])
      expect(placement.predictedHitTokens).toBeGreaterThan(4000)
    }
  })

  test('by its name, though its context was written anew', () => {
    const home = at(run(ask('h', ['one'], { session: 's' })))
    expect(at(run(ask('other head', ['summary'], { session: 's' })))).toBe(home)
  })

  test('whose last messages are rewritten is still the same, one that begins alike is not', () => {
    run(ask('h', ['one', 'two', 'three', 'four']))
    expect(router.place(ask('h', ['one', 'two', 'three', 'other'])).reason).toBe('session')
    expect(router.place(ask('h', ['other'])).reason).not.toBe('session')
  })

  test('goes to the next best overlap where its home is gone, and alone', () => {
    const home = at(run(ask('h', ['one'], { session: 's' })))
    const other = at(run(ask('g', ['one'], { session: 'other' })))
    expect(other).not.toBe(home)
    members.find(({ id }) => id === home)!.state = 'down'
    const placement = run(ask('h', ['one', 'two'], { session: 's' }))
    expect(at(placement)).not.toBe(home)
    expect(placement.reason).toMatch(/^home is gone/)
    members.find(({ id }) => id === home)!.state = 'up'
    expect(at(run(ask('h', ['one', 'two', 'three'], { session: 's' })))).toBe(at(placement))
    expect(at(run(ask('g', ['one', 'two'], { session: 'other' })))).toBe(other)
  })

  test('leaves a home whose queue is longer than its whole prompt twice over', () => {
    const query = ask('h', ['one'], { session: 's' })
    const home = at(run(query))
    const long = ask('x', ['long'], { promptTokens: 100_000, session: 'long' })
    router.sent(long, { ...router.place(long), member: members.find(({ id }) => id === home)! })
    const placement = router.place(ask('h', ['one', 'two'], { session: 's' }))
    expect([at(placement) === home, placement.reason]).toEqual([false, expect.stringMatching(/^moved/)])
  })

  test('is forgotten when it is released, and after its time', () => {
    run(ask('h', ['one'], { session: 's' }))
    expect(router.release('other tenant', 's')).toBe(false)
    expect(router.release('default', 's')).toBe(true)
    expect(router.release('default', 's')).toBe(false)
    run(ask('h', ['one'], { session: 's' }))
    clock.advance(ROUTER_DEFAULTS.sessionTtlMs + 1)
    expect(router.place(ask('g', ['two'], { session: 's' })).reason).toBe('new head')
  })

  test('a key that two conversations have leads each to what it goes on from', () => {
    const first = at(run(ask('h', ['one'], { session: 'user' })))
    members.find(({ id }) => id === first)!.state = 'draining'
    const second = at(run(ask('g', ['eins'], { session: 'user' })))
    members.find(({ id }) => id === first)!.state = 'up'
    expect(second).not.toBe(first)
    for (let turn = 2; turn < 5; turn++) {
      expect(at(run(ask('h', ['one', ...'23456'.slice(0, turn)], { session: 'user' })))).toBe(first)
      expect(at(run(ask('g', ['eins', ...'23456'.slice(0, turn)], { session: 'user' })))).toBe(second)
    }
  })
})

describe('beside a session', () => {
  test('a sub-agent stays with its parent unless that is overloaded', () => {
    const home = at(run(ask('h', ['one'], { session: 'p' })))
    const child = (i: number) =>
      ask(`agent ${i}`, ['task'], { session: `c${i}`, parentSession: 'p', requestClass: 'subagent' })
    const first = router.place(child(0))
    expect([at(first), first.reason]).toEqual([home, "parent's"])
    const all = Array.from({ length: 12 }, (_, i) => child(i)).map((query) => {
      const placement = router.place(query)
      router.sent(query, placement)
      return at(placement)
    })
    expect(new Set(all).size).toBe(4)
  })

  test('a side request goes where it begins soonest and moves nothing', () => {
    const home = at(run(ask('h', ['one'], { session: 's' })))
    const side = run(ask('title', ['one'], { session: 's', requestClass: 'auxiliary' }))
    expect(side.reason).toBe('side request')
    const placement = run(ask('h', ['one', 'two'], { session: 's' }))
    expect([at(placement), placement.reason]).toEqual([home, 'session'])
  })

  test('a summary of it goes where its prefix is', () => {
    const home = at(run(ask('h', ['one', 'two', 'three'], { session: 's' })))
    const query = ask('h', ['one', 'two', 'three', 'summarize'], { session: 's', requestClass: 'compaction' })
    expect(at(router.place(query))).toBe(home)
  })
})

describe('new sessions', () => {
  test('with one head go where it is; other heads go elsewhere', () => {
    const first = at(run(ask('h', ['one'])))
    const placement = run(ask('h', ['two']))
    expect([at(placement), placement.reason]).toEqual([first, 'overlap'])
    const heads = new Set([first, ...['g', 'i', 'j'].map((head) => at(run(ask(head, ['one']))))])
    expect(heads.size).toBe(4)
  })

  test('of two salts or models do not meet', () => {
    run(ask('h', ['one'], { salt: 'x' }))
    members.forEach((member) => {
      member.models = ['m', 'n']
    })
    for (const more of [{ salt: 'y' }, { salt: 'x', model: 'n' }]) {
      const { scores } = router.place(ask('h', ['one'], more))
      expect(scores.map(({ overlapTokens }) => overlapTokens)).toEqual([0, 0, 0, 0])
    }
    expect(router.place(ask('h', ['two'], { salt: 'x' })).predictedHitTokens).toBe(4000)
  })

  test('count what is on its way: a head that was just sent is not sent elsewhere', () => {
    const query = ask('h', ['one'])
    const placement = router.place(query)
    router.sent(query, placement)
    clock.advance(200)
    expect(at(router.place(ask('h', ['two'])))).toBe(at(placement))
  })
})

describe('members', () => {
  test('that fail before they began are not believed to hold the prompt', () => {
    const placement = run(ask('h', ['one'], { session: 's' }), { failed: true })
    const again = router.place(ask('h', ['one'], { session: 's', excluded: [at(placement)] }))
    expect(at(again)).not.toBe(at(placement))
    expect(router.place(ask('h', ['two'])).predictedHitTokens).toBe(0)
  })

  test('that fail are not believed to hold what another one holds', () => {
    const home = at(run(ask('h', ['one'])))
    const query = ask('h', ['one', 'two'])
    const other = members.find(({ id }) => id !== home)!
    const placement = router.place({ ...query, excluded: members.filter((each) => each !== other).map(({ id }) => id) })
    router.sent(query, placement)
    const held = () =>
      router.place(ask('h', ['one', 'two'])).scores.find(({ member }) => member === other.id)!.overlapTokens
    expect(held()).toBeGreaterThan(4000)
    router.settled({ query, member: other.id, predictedHitTokens: 0, failed: true })
    expect(held()).toBe(0)
  })

  test('whose server was started anew hold nothing', () => {
    const { id } = run(ask('h', ['one'])).member
    router.emptied(id)
    expect(router.place(ask('h', ['two'])).predictedHitTokens).toBe(0)
  })

  test('that are down, draining, tried or without the model are no choice, each with its error', () => {
    expect(codeOf(ask('h', ['one'], { model: 'x' }))).toBe('model_not_found')
    expect(codeOf(ask('h', ['one'], { excluded: ['a', 'b', 'c', 'd'] }))).toBe('engine_failed')
    members[0]!.state = 'down'
    members[1]!.state = 'draining'
    members[2]!.models = ['x']
    expect([at(router.place(ask('h', ['one']))), router.place(ask('h', ['one'])).reason]).toEqual(['d', 'only choice'])
    members[3]!.state = 'starting'
    expect(codeOf(ask('h', ['one']))).toBe('engine_failed')
  })

  test('have no more requests at once than they may', () => {
    router = routerWith({ maxInFlight: 2 })
    const sent = Array.from({ length: 8 }, (_, i) => ask('h', [`${i}`]))
    for (const query of sent) router.sent(query, router.place(query))
    expect(members.map((member) => router.view(member).load.inFlight)).toEqual([2, 2, 2, 2])
    expect(codeOf(ask('h', ['one']))).toBe('queue_full')
    for (const { id } of members) {
      for (const query of sent) router.settled({ query, member: id, predictedHitTokens: 0, failed: false })
    }
    expect(codeOf(ask('h', ['one']))).toBeUndefined()
  })

  test('that came back get their share by and by', () => {
    members[0]!.weight = 0.2
    for (let i = 0; i < 40; i++) {
      const query = ask(`head ${i}`, ['one'])
      router.sent(query, router.place(query))
    }
    const [first, ...others] = members.map((member) => router.view(member).load.inFlight)
    expect(first).toBeGreaterThan(0)
    expect(first).toBeLessThan(Math.min(...others) / 2)
  })
})

describe('what members report', () => {
  test('a rate is learned from what was sent alone and from what waited', () => {
    run(ask('h', ['one']))
    const { member } = run(ask('h', ['two']))
    expect(router.view(member).prefillTokensPerSecond).toBeCloseTo(2000, -1)
  })

  test('hits that are never what they should be: less and less is believed', () => {
    const levels = new Set<string>()
    for (let i = 0; i < 40; i++) {
      const query = ask('h', ['one', ...Array.from({ length: i }, String)], { session: 's' })
      const { member } = run(query, { cachedTokens: 0, promptTokens: query.promptTokens })
      levels.add(router.view(member).knowledge)
    }
    expect([...levels].at(-1)).toBe('load')
  })

  test('a miss of what was sent long ago teaches how much a cache holds', () => {
    members = members.slice(0, 1)
    const send = (name: string, cachedTokens: number) => {
      const query = ask(name, ['one'])
      return run(query, { cachedTokens, promptTokens: query.promptTokens })
    }
    for (let i = 0; i < 10; i++) send(`head ${i}`, 0)
    // 43 000 tokens later the first is gone, what was sent 8600 tokens ago is there.
    expect(send('head 8', 4300).predictedHitTokens).toBeGreaterThan(4000)
    expect(send('head 0', 0).predictedHitTokens).toBeGreaterThan(4000)
    expect(router.view(members[0]!).capacityTokens).toBeLessThan(45_000)
    expect(router.place(ask('head 1', ['one'])).predictedHitTokens).toBe(0)
    expect(router.place(ask('head 9', ['one'])).predictedHitTokens).toBeGreaterThan(4000)
  })
})

describe('precise knowledge', () => {
  const keysOf = (chain: number, blocks: number) =>
    Uint32Array.from({ length: 2 * blocks }, (_, i) => (i % 2 === 0 ? i >>> 1 : chain))
  const blocksOf = (chain: number, blocks: number): PromptBlocks[] => [
    { blockTokens: 16, salted: true, keys: keysOf(chain, blocks) },
  ]
  const state = { connected: true, complete: true, blockTokens: [16], salted: true }
  let precise: PreciseIndex
  beforeEach(() => {
    precise = createPreciseIndex()
    for (const member of members) {
      member.knowledge = 'precise'
      precise.followed(member.id, state)
    }
    router = routerWith({}, { precise })
  })

  test('finds what nobody here sent, and media by what they cost', () => {
    precise.stored('b', { medium: 'disk', keys: keysOf(1, 250) })
    precise.stored('c', { medium: 'device', keys: keysOf(1, 200) })
    const placement = router.place(ask('h', ['one'], { blocks: blocksOf(1, 268) }))
    expect([at(placement), placement.predictedHitTokens]).toEqual(['c', 3200])
    expect(placement.scores.map(({ overlapTokens }) => overlapTokens)).toEqual([0, 4000, 3200, 0])
    expect(router.view(members[2]!).knowledge).toBe('precise')
  })

  test('knows what was evicted, and what is on its way', () => {
    const query = ask('h', ['one'], { blocks: blocksOf(1, 268) })
    const placement = router.place(query)
    router.sent(query, placement)
    const held = () =>
      router
        .place(ask('h', ['two'], { blocks: blocksOf(1, 250) }))
        .scores.find(({ member }) => member === at(placement))!.overlapTokens
    expect(held()).toBe(4000)
    router.started(query, at(placement))
    expect(held()).toBe(4000)
    router.settled({ query, member: at(placement), predictedHitTokens: 0, failed: false })
    expect(held()).toBe(0)
    precise.stored(at(placement), { medium: 'device', keys: keysOf(1, 268) })
    expect(held()).toBe(4000)
    precise.removed(at(placement), { medium: 'device', keys: keysOf(1, 268) })
    expect(held()).toBe(0)
  })

  test('is learned knowledge where the member is not followed, and both where it is from the middle on', () => {
    const { id } = run(ask('h', ['one'], { blocks: blocksOf(1, 268) })).member
    const next = () => router.place(ask('h', ['two'], { blocks: blocksOf(1, 250) })).predictedHitTokens
    expect(next()).toBe(0)
    precise.followed(id, { ...state, complete: false })
    expect(next()).toBe(4000)
    precise.followed(id, { ...state, connected: false })
    expect(next()).toBe(4000)
    expect(router.view(members.find((member) => member.id === id)!).knowledge).toBe('learned')
  })
})

function memoryStore() {
  const records = new Map<string, SessionRecord>()
  const store: SessionStore = {
    records: () => [...records.values()],
    put: (record) => records.set(record.key, record),
    remove: (key) => records.delete(key),
  }
  return { records, store }
}

test.each([
  ['', false],
  [', after the router was started anew', true],
])('a conversation that is held again word by word is followed from where it is now%s', (_, anew) => {
  const { store } = memoryStore()
  router = routerWith({}, { store })
  const words = Array.from({ length: 12 }, (_, i) => `message ${i}`)
  const turns = [1, 3, 5, 7, 9, 11].map((count) => words.slice(0, count))
  for (const messages of turns) run(ask('h', messages))
  for (let round = 0; round < 3; round++) {
    if (anew) router = routerWith({}, { store })
    // The member that it was on is busy with something else when it begins.
    const { id } = router.place(ask('h', turns[0]!)).member
    members.find((member) => member.id === id)!.state = 'draining'
    const home = at(run(ask('h', turns[0]!)))
    members.find((member) => member.id === id)!.state = 'up'
    for (const messages of turns.slice(1)) {
      const placement = run(ask('h', messages))
      expect([at(placement), placement.reason]).toEqual([home, 'session'])
    }
  }
})

test('what was recalled of a member is forgotten when the first session finds it gone', () => {
  const { store } = memoryStore()
  members = members.slice(0, 2)
  router = routerWith({}, { store })
  const home = at(run(ask('h', ['one'])))
  run(ask('h', ['eins']))
  router = routerWith({}, { store })
  const query = ask('h', ['one', 'two'])
  const placement = run(query, { cachedTokens: 0, promptTokens: query.promptTokens })
  expect([at(placement), placement.predictedHitTokens]).toEqual([home, 4300])
  const { scores } = router.place(ask('h', ['eins', 'zwei']))
  expect(scores.find(({ member }) => member === home)!.overlapTokens).toBe(4000)
})

test('sessions and heads return to where they were after the router was started anew', () => {
  const { records, store } = memoryStore()
  router = routerWith({}, { store })
  const homes = ['g', 'h', 'i'].map((head) => {
    run(ask(head, ['one'], { session: `named ${head}` }))
    return [at(run(ask(head, ['eins']))), at(run(ask(head, ['one', 'two'], { session: `named ${head}` })))]
  })
  expect(JSON.stringify([...records.values()])).not.toMatch(/named/)
  router = routerWith({}, { store })
  for (const [i, head] of ['g', 'h', 'i'].entries()) {
    // Nobody has shown yet that the member was not started anew, too: where all else is equal, it is the one.
    const { member, predictedHitTokens } = router.place(ask(head, ['new']))
    expect([homes[i]!.includes(member.id), predictedHitTokens]).toEqual([true, 0])
    const query = ask(head, ['eins', 'zwei', 'drei'])
    expect(at(run(query, { cachedTokens: 4000, promptTokens: query.promptTokens }))).toBe(homes[i]![0])
    expect(at(run(ask(head, ['one', 'two', 'three'], { session: `named ${head}` })))).toBe(homes[i]![1])
    expect(router.place(ask(head, ['new'])).predictedHitTokens).toBe(4000)
  }
  router.release('default', 'named g')
  expect(records.size).toBe(5)
})
