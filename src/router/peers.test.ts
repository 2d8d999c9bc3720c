// Routers that share their books: what one was told the others know, what is lost on the way costs hits only, and whoever
// is no more leaves nothing under way.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { ManualClock } from '../testing/manual-clock.js'
import type { Member, MemberPlacement, RouteOutcome, RouteQuery } from './contract.js'
import { createFleetRouter, type SharedRouter } from './fleet-router.js'
import { newsText, readNews } from './news.js'
import { ROUTER_DEFAULTS, type RouterOptions } from './options.js'
import { BEAT_MS, Peers, SHARE_MS } from './peers.js'
import type { SessionRecord } from './session-store.js'
import { createTenantLimits, type OpenLimits } from './tenant-limits.js'

interface Node {
  readonly router: SharedRouter
  readonly peers: Peers
  readonly limits: OpenLimits
  readonly kept: SessionRecord[]
  /** Circuits of which others told. */
  readonly turned: [string, number][]
}

interface House {
  readonly clock: ManualClock
  readonly nodes: Node[]
  /** Batches that were sent. */
  readonly texts: string[]
  /** Batches of these never arrive. */
  readonly cut: Set<number>
  add(): Node
}

function memberOf(id: string): Member {
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

function house(count: number, options: Partial<RouterOptions> = {}): House {
  const clock = new ManualClock()
  const members = ['a', 'b', 'c', 'd'].map(memberOf)
  const made: House = { clock, nodes: [], texts: [], cut: new Set(), add }
  function add(): Node {
    const place = made.nodes.length
    const wire = {
      send(text: string) {
        made.texts.push(text)
        if (made.cut.has(place)) return
        for (const [i, other] of made.nodes.entries()) if (i !== place && !made.cut.has(i)) other.peers.hear(text)
      },
    }
    const peers: Peers = new Peers({
      wire,
      clock,
      origin: `router-${place}`,
      books: () => router.books,
      limits: () => limits.shared,
      circuits: { circuits: () => [], turnCircuit: (member, nth) => void turned.push([member, nth]) },
      kept: (record) => kept.push(record),
    })
    const router = createFleetRouter(
      { ...ROUTER_DEFAULTS, ...options },
      {
        members: () => members,
        clock,
        peers,
        store: { records: () => [], put: (record) => peers.keep(record), remove: () => undefined },
      },
    )
    const all = { requestsPerMinute: 6, tokensPerMinute: 0 }
    const limits = createTenantLimits({ all, own: new Map(), clock, told: (...took) => peers.took(...took) })
    const kept: SessionRecord[] = []
    const turned: [string, number][] = []
    const node = { router, peers, limits, kept, turned }
    made.nodes.push(node)
    peers.start()
    clock.advance(2 * SHARE_MS)
    return node
  }
  for (let i = 0; i < count; i++) add()
  return made
}

let count = 0

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

/** Sends it and leaves it under way. */
function send({ router }: Node, query: RouteQuery): MemberPlacement {
  const placement = router.place(query)
  router.sent(query, placement)
  return placement
}

function settle({ router }: Node, query: RouteQuery, placement: MemberPlacement, more: Partial<RouteOutcome> = {}) {
  const { predictedHitTokens } = placement
  router.settled({ query, member: placement.member.id, predictedHitTokens, failed: false, ...more })
}

/** From its placing to its end; what the member counts as cached is what it was sent before, as `truth` has it. */
function run(place: House, node: Node, query: RouteQuery, truth?: Truth): MemberPlacement {
  const placement = send(node, query)
  const member = placement.member.id
  place.clock.advance(((query.promptTokens - placement.predictedHitTokens) / 2000) * 1000)
  node.router.started(query, member)
  const counts = truth && { cachedTokens: truth.cached(member, query), promptTokens: query.promptTokens }
  settle(node, query, placement, counts)
  place.clock.advance(2 * SHARE_MS)
  return placement
}

class Truth {
  readonly #held = new Set<string>()

  cached(member: string, { segments }: RouteQuery): number {
    const { hashes, tokens } = segments
    const last = hashes.findLastIndex((hash) => this.#held.has(`${member} ${hash}`))
    for (const hash of hashes) this.#held.add(`${member} ${hash}`)
    return last < 0 ? 0 : Math.min(tokens[last]!, tokens.at(-1)! - 1)
  }
}

describe('a session', () => {
  test.each([
    ['by its name', { session: 's' }],
    ['by its prompt', {}],
  ])('goes home from wherever it is asked for, %s', (_, more) => {
    const place = house(3)
    const messages: string[] = []
    const homes = new Set<string>()
    for (let turn = 0; turn < 9; turn++) {
      messages.push(`turn ${turn}`)
      const query = ask('x', messages, more)
      const placement = run(place, place.nodes[turn % 3]!, query)
      homes.add(placement.member.id)
      if (turn > 0) {
        expect(placement.reason).toBe('session')
        expect(placement.predictedHitTokens).toBe(query.promptTokens - 300)
      }
    }
    expect(homes.size).toBe(1)
    for (const { router } of place.nodes) {
      const sessions = ['a', 'b', 'c', 'd'].map((id) => router.view(memberOf(id)).sessions)
      expect(sessions.reduce((sum, each) => sum + each, 0)).toBe(1)
    }
  })

  test('is forgotten everywhere when it is released anywhere', () => {
    const place = house(2)
    run(place, place.nodes[0]!, ask('x', ['1'], { session: 's' }))
    expect(place.nodes[1]!.router.release('default', 's')).toBe(true)
    place.clock.advance(2 * SHARE_MS)
    expect(place.nodes[0]!.router.place(ask('x', ['1', '2'], { session: 's' })).reason).not.toBe('session')
    expect(place.nodes[0]!.router.release('default', 's')).toBe(false)
  })

  test('is kept by whoever keeps sessions, and known to those that come later', () => {
    const place = house(2)
    const { member } = run(place, place.nodes[0]!, ask('x', ['1'], { session: 's' }))
    const [record] = place.nodes[1]!.kept
    expect(record).toMatchObject({ member: member.id, tokens: 4300, headTokens: 4000 })
    const late = place.add()
    late.peers.hear(newsText('somebody', [JSON.stringify(['k', ...Object.values(record!)])]))
    expect(late.router.place(ask('x', ['1', '2'], { session: 's' }))).toMatchObject({
      reason: 'session',
      predictedHitTokens: 4300,
    })
  })

  test('whatever is asked of whichever router goes where one router alone would send it', () => {
    fc.assert(
      fc.property(
        fc.array(fc.record({ who: fc.nat(7), at: fc.nat(2), rewrites: fc.boolean() }), { minLength: 1, maxLength: 60 }),
        (turns) => {
          const [alone, shared] = [house(1), house(3)]
          const truths = [new Truth(), new Truth()] as const
          const sessions = Array.from({ length: 8 }, () => [] as string[])
          for (const [i, { who, at, rewrites }] of turns.entries()) {
            const messages = sessions[who]!
            // Clients rewrite their last message now and then.
            if (rewrites) messages.pop()
            messages.push(`${who}.${i}`)
            const query = () => ask(`head ${who % 3}`, messages, who < 4 ? { session: `s${who}` } : {})
            const one = run(alone, alone.nodes[0]!, query(), truths[0])
            const other = run(shared, shared.nodes[at]!, query(), truths[1])
            expect([other.member.id, other.predictedHitTokens]).toEqual([one.member.id, one.predictedHitTokens])
          }
        },
      ),
      { numRuns: 60 },
    )
  })
})

describe('what is under way', () => {
  const queued = ({ router }: Node, id: string) => router.view(memberOf(id)).load

  test('counts at all of them, until it is over', () => {
    const place = house(2)
    const [one, two] = place.nodes as [Node, Node]
    const query = ask('x', ['1'])
    const placement = send(one, query)
    const member = placement.member.id
    place.clock.advance(SHARE_MS)
    expect(queued(two, member)).toMatchObject({ inFlight: 1, decoding: 0 })
    expect(queued(two, member).queuedPrefillTokens).toBeGreaterThan(4200)
    // Nobody sends another new head into that queue.
    expect(two.router.place(ask('y', ['1'])).member.id).not.toBe(member)
    one.router.started(query, member)
    place.clock.advance(SHARE_MS)
    expect(queued(two, member)).toMatchObject({ inFlight: 1, decoding: 1, queuedPrefillTokens: 0 })
    settle(one, query, placement)
    place.clock.advance(SHARE_MS)
    expect(queued(two, member)).toMatchObject({ inFlight: 0, decoding: 0 })
  })

  test('fills members up to router.maxInFlight together', () => {
    const place = house(2, { maxInFlight: 1 })
    for (let i = 0; i < 4; i++) {
      send(place.nodes[i % 2]!, ask(`${i}`, ['1']))
      place.clock.advance(SHARE_MS)
    }
    for (const { router } of place.nodes) expect(() => router.place(ask('z', ['1']))).toThrow(/1 requests already/)
  })

  test('is over with the router that sent it: told, found silent, or gone by its own word', () => {
    for (const how of ['told', 'silent', 'closed'] as const) {
      const place = house(3)
      const [one, two, three] = place.nodes as [Node, Node, Node]
      const { member } = send(one, ask('x', ['1']))
      place.clock.advance(SHARE_MS)
      expect(queued(two, member.id).inFlight).toBe(1)
      if (how === 'told') two.peers.gone('router-0')
      else if (how === 'closed') one.peers.close()
      else {
        place.cut.add(0)
        place.clock.advance(5 * BEAT_MS)
        expect(queued(three, member.id).inFlight).toBe(0)
      }
      expect(queued(two, member.id).inFlight).toBe(0)
    }
  })

  test('what was lost on the way is made up for by the next beat', () => {
    const place = house(2)
    const [one, two] = place.nodes as [Node, Node]
    const query = ask('x', ['1'])
    place.cut.add(1)
    const placement = send(one, query)
    place.clock.advance(SHARE_MS)
    place.cut.clear()
    expect(queued(two, placement.member.id).inFlight).toBe(0)
    place.clock.advance(BEAT_MS + SHARE_MS)
    expect(queued(two, placement.member.id).inFlight).toBe(1)
    place.cut.add(1)
    settle(one, query, placement)
    place.clock.advance(SHARE_MS)
    place.cut.clear()
    expect(queued(two, placement.member.id).inFlight).toBe(1)
    place.clock.advance(BEAT_MS + SHARE_MS)
    expect(queued(two, placement.member.id).inFlight).toBe(0)
  })

  test('whoever comes later learns of it at once', () => {
    const place = house(1)
    const { member } = send(place.nodes[0]!, ask('x', ['1']))
    place.clock.advance(SHARE_MS)
    expect(queued(place.add(), member.id).inFlight).toBe(1)
  })

  test('a member whose process was gone is empty for all', () => {
    const place = house(2)
    const [one, two] = place.nodes as [Node, Node]
    const { member } = run(place, one, ask('x', ['1'], { session: 's' }))
    two.router.emptied(member.id)
    two.peers.emptied(member.id)
    place.clock.advance(SHARE_MS)
    expect(one.router.place(ask('x', ['1', '2'], { session: 's' })).predictedHitTokens).toBe(0)
  })
})

test('who waits for a seat is under way everywhere, and the wait says nothing of how fast its member is', () => {
  const place = house(2)
  const node = place.nodes[0]!
  const views = () => place.nodes.map(({ router }) => router.view(memberOf(member)))
  const query = ask('x', ['1'])
  const placement = send(node, query)
  const member = placement.member.id
  place.clock.advance(60_000)
  expect(views().map(({ load }) => load.inFlight)).toEqual([1, 1])
  node.router.seated(query, member)
  place.clock.advance(2 * SHARE_MS)
  place.clock.advance((query.promptTokens / 4000) * 1000 - 2 * SHARE_MS)
  node.router.started(query, member)
  place.clock.advance(2 * SHARE_MS)
  for (const { prefillTokensPerSecond } of views()) {
    expect(prefillTokensPerSecond).toBeGreaterThan(3900)
    expect(prefillTokensPerSecond).toBeLessThan(4100)
  }
})

describe('batches', () => {
  test('many things are told at once', () => {
    const place = house(2)
    const before = place.texts.length
    for (let i = 0; i < 50; i++) send(place.nodes[0]!, ask(`${i}`, ['1']))
    expect(place.texts.length).toBe(before)
    place.clock.advance(SHARE_MS)
    expect(place.texts.length).toBe(before + 1)
  })

  test('a turn that is over sooner is told at once', () => {
    const place = house(2)
    const query = ask('x', ['1'], { session: 's' })
    settle(place.nodes[0]!, query, send(place.nodes[0]!, query))
    expect(place.nodes[1]!.router.place(ask('x', ['1', '2'], { session: 's' })).reason).toBe('session')
  })

  test('a turn tells what is new of it only', () => {
    const place = house(2)
    const messages = Array.from({ length: 500 }, (_, i) => `${i}`)
    run(place, place.nodes[0]!, ask('x', messages, { session: 's' }))
    const before = place.texts.length
    run(place, place.nodes[1]!, ask('x', [...messages, 'more'], { session: 's' }))
    const sent = place.texts.slice(before).find((text) => text.includes('["s",'))
    const [item] = readNews(sent as string)!.items
    expect(item).toMatchObject({ kind: 'sent', turn: { depth: 2, chain: { head: 1 } } })
    expect(item?.kind === 'sent' && item.turn.chain.hashes).toHaveLength(3)
  })

  test('what makes no sense is left out, what does is taken', () => {
    const place = house(2)
    const [one, two] = place.nodes as [Node, Node]
    const { member } = send(one, ask('x', ['1']))
    one.peers.flush()
    const sent = place.texts.at(-1) as string
    const item = sent.slice(sent.indexOf('["s"'), -2)
    const late = place.add()
    late.peers.hear(newsText('elsewhere', ['["s",-1]', '7', '["?"]', item, '["e","x",1]']))
    expect(late.router.view(member).load.inFlight).toBe(2)
    expect(late.peers.counts.bad).toBe(4)
    late.peers.hear(
      newsText('elsewhere', ['["o","a",1.5]', '["o","a",1e9]', '["o","a",-1]', '["o",1,1]', '["o","a",2]']),
    )
    expect(late.turned).toEqual([['a', 2]])
    expect(late.peers.counts.bad).toBe(8)
    for (const text of ['', '{', 'null', '[]', '["2","x",[]]', '["1",5,[]]', '["1","x",{}]']) two.peers.hear(text)
    expect(two.peers.counts.bad).toBe(7)
  })

  test('nothing that can be sent makes a router throw', () => {
    const place = house(1)
    const [one] = place.nodes as [Node]
    const kinds = fc.constantFrom('s', 'f', 'e', 'r', 'x', 't', 'k', 'b', 'l', 'h', 'o', 'g', 'zz')
    const simple = fc.oneof(fc.constantFrom('a', 'b', '', 'scope'), fc.integer(), fc.double(), fc.constant(null))
    const part = fc.oneof(simple, fc.array(simple, { maxLength: 5 }), fc.array(fc.array(simple), { maxLength: 3 }))
    fc.assert(
      fc.property(fc.array(fc.tuple(kinds, fc.array(part, { maxLength: 15 })), { maxLength: 8 }), (items) => {
        one.peers.hear(
          newsText(
            'fuzz',
            items.map(([kind, parts]) => JSON.stringify([kind, ...parts])),
          ),
        )
        one.router.place(ask('x', ['1']))
      }),
      { numRuns: 300 },
    )
    place.clock.advance(5 * BEAT_MS)
    expect(one.router.view(memberOf('a')).load.inFlight).toBe(0)
  })
})

describe("tenants' limits", () => {
  const isLetIn = ({ limits }: Node) => {
    try {
      limits.take('default', 1)
      return true
    } catch {
      return false
    }
  }

  test('hold over all routers together', () => {
    const place = house(3)
    let passed = 0
    for (let i = 0; i < 30; i++) {
      if (isLetIn(place.nodes[i % 3]!)) passed++
      place.clock.advance(SHARE_MS)
    }
    expect(passed).toBe(6)
    // One more each ten seconds.
    place.clock.advance(10_000)
    expect(place.nodes.map(isLetIn)).toContain(true)
    place.clock.advance(SHARE_MS)
    expect(place.nodes.map(isLetIn)).toEqual([false, false, false])
  })

  test('what passes too much between two batches is waited for later', () => {
    const place = house(3)
    const passed = Array.from({ length: 30 }, (_, i) => isLetIn(place.nodes[i % 3]!)).filter(Boolean).length
    expect(passed).toBe(18)
    let more = 0
    // Twelve were too many, at one each ten seconds.
    for (let second = 0; second < 180; second++) {
      place.clock.advance(1000)
      if (isLetIn(place.nodes[second % 3]!)) more++
    }
    expect(more).toBeGreaterThanOrEqual(5)
    expect(more).toBeLessThanOrEqual(6)
  })

  test('a newcomer does not begin with full buckets', () => {
    const place = house(2)
    for (let i = 0; i < 6; i++) isLetIn(place.nodes[0]!)
    place.clock.advance(SHARE_MS)
    expect(isLetIn(place.add())).toBe(false)
  })
})
