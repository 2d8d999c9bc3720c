// What is told of misses in a fleet: by segments, placements and the counts of backends.

import { describe, expect, test } from 'vitest'
import { type TurnMissed, turnMissed } from '../core/signals.js'
import type { FleetRouter, Member, MemberPlacement, RouteQuery } from '../router/contract.js'
import { fleetHouse } from '../testing/fleet-house.js'
import { type StubUpstream, saying } from '../testing/stub-upstream.js'
import { createFleetTurns } from './fleet-turns.js'
import { listenedTo } from './turn-ears.js'

const me = { name: 'default', admin: false }
const TOKENS = 200

class House {
  readonly turns = createFleetTurns({ turns: 8, sessions: 20, memoryBytes: 40_000, keepText: false })
  readonly heard: string[] = []
  readonly router = listenedTo(
    {
      place: () => undefined as never,
      sent: ({ id }: RouteQuery) => this.heard.push(`sent ${id}`),
      hedged: () => undefined,
      started: () => undefined,
      settled: ({ query, failed }) => this.heard.push(`settled ${query.id} ${failed}`),
      release: () => true,
    } as FleetRouter,
    this.turns,
  )
  #count = 0

  /** `segments`: one name each, 200 tokens; those with a small `t` or `s` are tools and system. */
  query(segments: readonly string[], more: Partial<RouteQuery> = {}): RouteQuery {
    const parts = segments.filter((name) => name.startsWith('t')).map(() => 'tools')
    const head = segments.filter((name) => /^[ts]/.test(name)).length
    const hashes = segments.map((_, i) => segments.slice(0, i + 1).join('|'))
    const tokens = segments.map((_, i) => (i + 1) * TOKENS)
    return {
      ...{ id: `r${++this.#count}`, model: 'm', tenant: 'default', salt: '', requestClass: 'main' },
      ...{ priority: 'interactive', promptTokens: segments.length * TOKENS, estimated: true },
      segments: { hashes, tokens, head, parts },
      session: 's',
      ...more,
    }
  }

  /** One turn that `member` answers with `cachedTokens`. */
  turn(
    segments: readonly string[],
    cachedTokens: number | undefined,
    more: Partial<RouteQuery> & { on?: string } = {},
  ) {
    const { on = 'a', ...rest } = more
    const query = this.query(segments, rest)
    this.router.sent(query, placed(on))
    const promptTokens = segments.length * TOKENS
    const counts = { promptTokens, completionTokens: 10, ...(cachedTokens !== undefined && { cachedTokens }) }
    this.router.settled({ query, member: on, predictedHitTokens: 0, failed: false, ...counts })
    return query
  }

  last(key = 's') {
    return this.turns.turns(me, key)?.at(-1)
  }
}

const placed = (id: string) =>
  ({ member: { id } as Member, scores: [], reason: '', predictedHitTokens: 0 }) as MemberPlacement

test('a first turn, and one that goes on from it', () => {
  const house = new House()
  const told: TurnMissed[] = []
  const stop = turnMissed.subscribe((each) => told.push(each))
  house.turn(['t', 's', 'u1'], 0)
  stop()
  expect(told).toEqual([{ reason: 'first_seen', missedTokens: 600 }])
  expect(house.last()?.miss).toMatchObject({ reason: 'first_seen', missedTokens: 600 })
  house.turn(['t', 's', 'u1', 'a1', 'u2'], 600)
  expect(house.last()).toMatchObject({ turn: 2, promptTokens: 1000, cache: { memory: 600, computed: 400 } })
  expect(house.last()?.miss).toBeUndefined()
  expect(house.turns.session(me, 's')).toMatchObject({
    turns: 2,
    promptTokens: 1600,
    reusedTokens: 600,
    missedTokens: 600,
  })
})

describe('a change of the prompt', () => {
  test.each([
    [['t2', 's', 'u1', 'a1', 'u2'], 0, 'tools_changed', 'the tools'],
    [['t', 's2', 'u1', 'a1', 'u2'], 200, 'system_changed', 'the system prompt'],
    [['t', 's', 'u1', 'x', 'u2'], 600, 'messages_changed', 'message 2'],
    [['s', 'u1', 'a1', 'u2'], 0, 'tools_changed', 'the tools'],
  ])('%j, of which %d are cached: %s', (segments, cached, reason, place) => {
    const house = new House()
    house.turn(['t', 's', 'u1', 'a1'], 0)
    house.turn(segments, cached)
    const { miss } = house.last() ?? {}
    expect(miss).toMatchObject({ reason, comparedWith: 1 })
    expect(miss?.sentence).toContain(place)
  })

  test('that cuts the end off misses nothing', () => {
    const house = new House()
    house.turn(['t', 's', 'u1', 'a1'], 0)
    house.turn(['t', 's', 'u1'], 576)
    expect(house.last()?.miss).toBeUndefined()
  })

  test('costs what is behind it, and the cache’s own loss is told beside it', () => {
    const house = new House()
    house.turn(['t', 's', 'u1', 'a1', 'u2', 'a2'], 0)
    // Four segments are the same; of their 800 tokens the backend has 600.
    house.turn(['t', 's', 'u1', 'a1', 'x', 'a2', 'u3'], 600)
    expect(house.last()?.miss?.causes).toEqual([
      { reason: 'messages_changed', missedTokens: 1152 - 768 },
      { reason: 'evicted', missedTokens: 768 - 600 },
    ])
  })

  test('that comes back is named', () => {
    const house = new House()
    for (let i = 0; i < 5; i++) house.turn(['t', `s${i}`, 'u1', 'a1'], 200)
    expect(house.last()?.miss?.repeats).toMatchObject({ changed: 4, compared: 4 })
    expect(house.last()?.miss?.repeats?.sentence).toBe('the system prompt changed in 4 of 4 turns')
    expect(house.turns.session(me, 's')?.repeats).toMatchObject([{ reason: 'system_changed', changed: 4 }])
  })

  test('to another model', () => {
    const house = new House()
    house.turn(['t', 's', 'u1'], 0)
    house.turn(['t', 's', 'u1', 'a1'], 0, { model: 'other' })
    expect(house.last()?.miss?.reason).toBe('model_changed')
  })
})

test('what the cache lost, there or by going elsewhere', () => {
  const house = new House()
  house.turn(['t', 's', 'u1', 'a1'], 0)
  house.turn(['t', 's', 'u1', 'a1', 'u2'], 0)
  expect(house.last()?.miss).toMatchObject({ reason: 'evicted', missedTokens: 768 })
  house.turn(['t', 's', 'u1', 'a1', 'u2', 'a2'], 0, { on: 'b' })
  expect(house.last()?.miss?.reason).toBe('other_backend')
})

test('a backend that does not count is not guessed about', () => {
  const house = new House()
  house.turn(['u1', 'a1'], undefined)
  house.turn(['u1', 'a1', 'u2'], undefined)
  expect(house.last()?.cache).toBeUndefined()
  expect(house.last()?.miss).toBeUndefined()
})

test('a request that another backend answers is one turn', () => {
  const house = new House()
  const query = house.query(['u1', 'a1'])
  house.router.sent(query, placed('a'))
  house.router.settled({ query, member: 'a', predictedHitTokens: 0, failed: true })
  house.router.sent(query, placed('b'))
  house.router.settled({ query, member: 'b', predictedHitTokens: 0, failed: false, promptTokens: 400, cachedTokens: 0 })
  expect(house.turns.turns(me, 's')).toMatchObject([{ turn: 1, backend: 'b', status: 'done' }])
  expect(house.heard).toEqual(['sent r1', 'settled r1 true', 'sent r1', 'settled r1 false'])
})

test('a request whose process died has failed', () => {
  const house = new House()
  const query = house.query(['u1', 'a1'])
  house.router.sent(query, placed('a'))
  house.turns.lost(query.id)
  house.router.settled({ query, member: 'a', predictedHitTokens: 0, failed: false, promptTokens: 400, cachedTokens: 0 })
  expect(house.turns.turns(me, 's')).toMatchObject([{ turn: 1, status: 'failed' }])
})

test('requests whose end is never told do not gather', () => {
  const house = new House()
  const first = house.query(['u1'])
  house.router.sent(first, placed('a'))
  for (let i = 0; i < 20_000; i++) house.router.sent(house.query(['u1'], { session: 'others' }), placed('a'))
  expect(house.turns.turns(me, 's')).toMatchObject([{ turn: 1, status: 'failed' }])
})

test('side requests are turns, and nobody is compared with them', () => {
  const house = new House()
  house.turn(['t', 's', 'u1', 'a1'], 0)
  house.turn(['s', 'other'], 0, { requestClass: 'auxiliary' })
  house.turn(['t', 's', 'u1', 'a1', 'u2'], 800)
  expect(house.turns.turns(me, 's')?.map(({ miss }) => miss?.reason)).toEqual([
    'first_seen',
    'tools_changed',
    undefined,
  ])
})

test('sessions without a key are followed by what they say, and two with one head are two', () => {
  const house = new House()
  const anonymous = (segments: string[], cached: number) => {
    const { session: _, ...query } = house.query(segments)
    house.router.sent(query, placed('a'))
    const counts = { promptTokens: segments.length * TOKENS, cachedTokens: cached }
    house.router.settled({ query, member: 'a', predictedHitTokens: 0, failed: false, ...counts })
  }
  anonymous(['t', 's', 'u1'], 0)
  anonymous(['t', 's', 'v1'], 400)
  anonymous(['t', 's', 'u1', 'a1', 'u2'], 600)
  anonymous(['t', 's', 'u1', 'a1', 'u2', 'a2', 'u3'], 1000)
  const sessions = house.turns.sessions(me)
  expect(sessions.map(({ turns, byContent }) => [turns, byContent]).sort()).toEqual([
    [1, true],
    [3, true],
  ])
})

test('tenants see their own, admins all; what is kept is bounded', () => {
  const house = new House()
  house.turn(['u1'], 0, { tenant: 'other' })
  expect(house.turns.sessions(me)).toEqual([])
  expect(house.turns.turns(me, 's')).toBeUndefined()
  expect(house.turns.turns(me, 's', 'other')).toBeUndefined()
  expect(house.turns.turns({ name: 'x', admin: true }, 's')).toHaveLength(1)
  for (let i = 0; i < 50; i++) house.turn(['u1'], 0, { session: `s${i}` })
  expect(house.turns.sessions(me)).toHaveLength(20)
  for (let i = 0; i < 50; i++) house.turn(['u1', `u${i}`], 0, { session: 's49' })
  expect(house.turns.sessions(me).length).toBeGreaterThan(15)
  expect(house.turns.turns(me, 's49')).toHaveLength(8)
  expect(house.turns.session(me, 's49')?.turns).toBe(51)
})

test('what is kept of a tenant is bounded in bytes, and that of another stays', () => {
  const house = new House()
  house.turn(['u1'], 0, { session: 'theirs', tenant: 'other' })
  const long = Array.from({ length: 400 }, (_, i) => `u${i}`)
  for (let i = 0; i < 10; i++) house.turn(long, 0, { session: `s${i}` })
  // 17,800 bytes each, about: two fit into 40,000.
  expect(
    house.turns
      .sessions(me)
      .map(({ session }) => session)
      .sort(),
  ).toEqual(['s8', 's9'])
  expect(house.turns.sessions({ name: 'other', admin: false })).toHaveLength(1)
  // One that is too large by itself is kept all the same: it runs.
  house.turn([...long, ...long, ...long], 0, { session: 'large' })
  expect(house.turns.sessions(me).map(({ session }) => session)).toEqual(['large'])
})

test('compares two answers by their ids', () => {
  const house = new House()
  const first = house.turn(['t', 's', 'u1'], 0)
  const second = house.turn(['t', 's2', 'u1', 'a1'], 200)
  const third = house.turn(['t', 's2', 'u1', 'a1', 'u2'], 800)
  const compare = (id: string, previousId: string) => house.turns.compare('default', { id, previousId })
  expect(compare(second.id, first.id)).toMatchObject({ reason: 'system_changed' })
  expect(compare(third.id, second.id)).toBe('none')
  expect(compare(third.id, first.id)).toBe('unknown')
  expect(compare(third.id, 'nobody')).toBe('previous_not_found')
})

test('a fleet that listens answers why a turn missed', async () => {
  const house = await fleetHouse({ stubs: [{}] })
  try {
    const system = (i: number) => ({ role: 'system', content: `It is ${i} o'clock.` })
    const said = { role: 'user', content: 'hi' }
    for (let i = 0; i < 5; i++) {
      house.stubs[0]!.answer = saying(['hi'], 0)
      await (await house.chat({ messages: [system(i), said] }, { 'x-session-id': 's1' })).text()
    }
    const get = async (path: string) => (await (await fetch(house.url + path)).json()) as { data: Listed[] } & Listed
    const listed = await get('/v1/sessions/s1/turns')
    expect(listed.data).toHaveLength(5)
    expect(listed.data[0]).toMatchObject({ turn: 1, backend: house.stubs[0]!.url, miss: { reason: 'first_seen' } })
    // Ten tokens are less than a block: nothing was there to be reused.
    expect(listed.data[4]?.miss).toBeNull()
    expect((await get('/v1/explain/sessions')).data).toMatchObject([{ session: 's1', turns: 5 }])

    // Clients that send no session: two of them are two.
    const tool = (name: string) => ({ type: 'function', function: { name, parameters: {} } })
    const long = { role: 'user', content: 'so many words '.repeat(50) }
    const counted = (cached: number): StubUpstream['answer'] => {
      const usage = { prompt_tokens: 1000, completion_tokens: 1, prompt_tokens_details: { cached_tokens: cached } }
      const choices = [{ index: 0, message: { role: 'assistant', content: 'a' }, finish_reason: 'stop' }]
      return (_request, response) => {
        response.writeHead(200, { 'content-type': 'application/json' })
        response.end(JSON.stringify({ id: 'c', object: 'chat.completion', choices, usage }))
      }
    }
    const ask = async (name: string, messages: object[], cached: number, headers = {}) => {
      house.stubs[0]!.answer = counted(cached)
      await (await house.chat({ tools: [tool(name)], messages }, headers)).text()
    }
    await ask('one', [long, said], 0)
    await ask('one', [said, long], 0)
    await ask('one', [long, said, said], 960)
    const others = (await get('/v1/explain/sessions')).data.filter(({ session }) => session !== 's1')
    expect(others.map(({ turns }) => turns).sort()).toEqual([1, 2])

    const named = { 'x-session-id': 's2' }
    await ask('one', [long, said], 0, named)
    await ask('one', [said, long, said], 0, named)
    await ask('two', [said, long, said, said], 0, named)
    expect((await get('/v1/sessions/s2/turns')).data.map(({ miss }) => miss?.sentence)).toEqual([
      expect.any(String),
      expect.stringMatching(/: message 0$/),
      expect.stringMatching(/: the tools$/),
    ])
  } finally {
    await house.close()
  }
})

interface Listed {
  readonly session: string
  readonly turns: number
  readonly miss: { readonly reason: string; readonly sentence: string } | null
}
