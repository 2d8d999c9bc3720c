// A request that is late is sent to a second backend: whichever is first answers, the other is ended and counts as nothing;
// and when none is sent. Stubs tell each other by their order of being asked, so that nothing depends on how long it takes.

import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { Forward } from './api/contract.js'
import { RefrainError } from './core/errors.js'
import { type HedgeSettled, hedgeSettled, type RequestSettled, requestSettled } from './core/signals.js'
import type { MemberPlacement, RouteQuery } from './router/contract.js'
import { Hedging } from './serve-hedge.js'
import { about, dataOf, type FleetHouse, fleetHouse, type HouseOptions, saidIn, until } from './testing/fleet-house.js'
import { ManualClock } from './testing/manual-clock.js'
import { beginStream, ROLE, type StubAnswer, type StubUpstream, saying } from './testing/stub-upstream.js'

const houses: FleetHouse[] = []
let hedges: HedgeSettled[]
let settled: RequestSettled[]
let stops: (() => void)[]
beforeEach(() => {
  hedges = []
  settled = []
  stops = [
    hedgeSettled.subscribe((hedge) => hedges.push(hedge)),
    requestSettled.subscribe((request) => settled.push(request)),
  ]
})
afterEach(async () => {
  for (const stop of stops) stop()
  await Promise.all(houses.splice(0).map((house) => house.close()))
})

async function house({ config, ...options }: HouseOptions = {}): Promise<FleetHouse> {
  const made = await fleetHouse({ ...options, config: { 'fleet.hedgeMs': 30, 'fleet.hedgeShare': 1, ...config } })
  houses.push(made)
  return made
}

/** Says nothing before it is let go, and then what `answer` says; where its client left, nothing at all. */
class Late {
  readonly #waiting: (() => void)[] = []

  saying(answer: StubAnswer): StubAnswer {
    return (request, response, socket) => {
      if (request.body['stream'] === true) {
        beginStream(response)
        response.write(ROLE)
        response.writeHead = () => response
        response.flushHeaders = () => undefined
      }
      this.#waiting.push(() => {
        if (!response.destroyed) answer(request, response, socket)
      })
    }
  }

  let(): void {
    for (const go of this.#waiting.splice(0)) go()
  }
}

/** Whoever is asked first answers as `first`, the other as `second`; tells who was which. */
function inOrder({ stubs }: FleetHouse, first: StubAnswer, second: StubAnswer): StubUpstream[] {
  const asked: StubUpstream[] = []
  for (const stub of stubs) {
    stub.answer = (request, response, socket) => {
      asked.push(stub)
      return (asked.length === 1 ? first : second)(request, response, socket)
    }
  }
  return asked
}

const silent: StubAnswer = ({ body }, response) => {
  if (body['stream'] === true) {
    beginStream(response)
    response.write(ROLE)
  }
}
const dying: StubAnswer = (_, __, socket) => void socket.resetAndDestroy()
const refusing =
  (status: number): StubAnswer =>
  (_, response) => {
    response.writeHead(status, { 'content-type': 'application/json' })
    response.end(`{"error":{"message":"no","type":"BadRequestError","code":${status}}}`)
  }

async function said(answer: Response): Promise<string> {
  const text = await answer.text()
  if (answer.headers.get('content-type')?.startsWith('text/event-stream') === true) {
    expect(dataOf(text).at(-1)).toBe('[DONE]')
    return saidIn(text)
  }
  return (JSON.parse(text) as { choices: { message: { content: string } }[] }).choices[0]!.message.content
}

/** Nothing is under way any more, in anybody's books. */
async function expectOver({ url }: FleetHouse): Promise<void> {
  const inFlight = async () => {
    const { data } = (await (await fetch(`${url}/v1/backends`)).json()) as { data: { in_flight: number }[] }
    return data.map((each) => each.in_flight)
  }
  for (let i = 0; i < 100 && (await inFlight()).some((count) => count > 0); i++) {
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
  expect(await inFlight()).toEqual([0, 0])
  const metrics = await (await fetch(`${url}/metrics`)).text()
  expect(metrics).toMatch(/^refrain_requests_running 0$/m)
}

const kinds = [
  ['a stream', { stream: true }],
  ['a whole answer', {}],
] as const

describe.each(kinds)('%s that is late', (_, body) => {
  test('is answered by the second backend, and the first one is ended', async () => {
    const made = await house()
    const asked = inOrder(made, silent, saying(['go', 'od']))
    const answer = await made.chat(body)
    const route = answer.headers.get('x-refrain-route')
    expect(await said(answer)).toBe('good')
    expect(asked).toHaveLength(2)
    expect(route).toBe(`${asked[1]!.url}; reason="hedge"; hit=0; of=1; hedged="won"`)
    await until(() => asked[0]!.aborted === 1)
    expect(asked[1]!.aborted).toBe(0)
    await expectOver(made)
    await until(() => settled.length > 0)
    expect(settled).toMatchObject([{ status: 200, hedged: 'won', completionTokens: 2 }])
    expect(hedges).toMatchObject([{ outcome: 'won' }])
    const metrics = await (await fetch(`${made.url}/metrics`)).text()
    expect(metrics).toContain('refrain_fleet_hedges_total{outcome="won",why=""} 1')
    expect(metrics).toContain(`refrain_backend_attempts_total{backend="${asked[0]!.url}",outcome="lost"} 1`)
    expect(metrics).toContain(`refrain_backend_attempts_total{backend="${asked[1]!.url}",outcome="answered"} 1`)
  })

  test('is answered by the first backend where that comes first after all, and the second one is ended', async () => {
    const made = await house()
    const late = new Late()
    const asked = inOrder(made, late.saying(saying(['late'])), () => late.let())
    const answer = await made.chat(body)
    expect(await said(answer)).toBe('late')
    expect(answer.headers.get('x-refrain-route')).toMatch(/^\S+; reason="[^"]+"; hit=0; of=2; hedged="lost"$/)
    expect(answer.headers.get('x-refrain-route')).toContain(asked[0]!.url)
    await until(() => asked[1]!.aborted === 1)
    expect(asked[0]!.aborted).toBe(0)
    await expectOver(made)
    await until(() => settled.length > 0)
    expect(settled[0]).toMatchObject({ hedged: 'lost' })
    expect(hedges).toMatchObject([{ outcome: 'lost' }])
  })

  test('is answered by the first one where the second one fails, or refuses for itself', async () => {
    const made = await house()
    for (const [i, bad] of [dying, refusing(500), refusing(429), refusing(401)].entries()) {
      const late = new Late()
      const asked = inOrder(made, late.saying(saying(['late'])), (...args) => {
        bad(...args)
        setTimeout(() => late.let(), 20)
      })
      expect(await said(await made.chat({ ...body, ...about(i) }))).toBe('late')
      expect(asked).toHaveLength(2)
    }
    await expectOver(made)
  })

  test('is answered by the second one where the first one fails meanwhile', async () => {
    // A stream whose head is out cannot answer 500.
    const made = await house()
    for (const bad of 'stream' in body ? [dying] : [dying, refusing(500)]) {
      const [first, second] = [new Late(), new Late()]
      const asked = inOrder(made, first.saying(bad), (...args) => {
        second.saying(saying(['good']))(...args)
        first.let()
        setTimeout(() => second.let(), 20)
      })
      expect(await said(await made.chat(body))).toBe('good')
      expect(asked).toHaveLength(2)
      expect(hedges.at(-1)?.outcome).toBe('won')
    }
    await expectOver(made)
  })

  test('is answered once where both answer at once', async () => {
    const made = await house()
    for (let i = 0; i < 5; i++) {
      const late = new Late()
      const asked = inOrder(made, late.saying(saying(['one'])), (...args) => {
        late.saying(saying(['two']))(...args)
        late.let()
      })
      const answer = await made.chat({ ...body, ...about(i) })
      const route = answer.headers.get('x-refrain-route')
      const winner = (await said(answer)) === 'one' ? 0 : 1
      expect(route).toContain(asked[winner]!.url)
      expect(route).toContain(winner === 0 ? 'hedged="lost"' : 'hedged="won"')
    }
    await expectOver(made)
  })

  test('of which both backends fail ends as an error, after no more attempts than there may be', async () => {
    const made = await house({ stubs: [{}, {}, {}], config: { 'fleet.attempts': 2 } })
    const late = new Late()
    const asked = inOrder(made, late.saying(dying), (...args) => {
      dying(...args)
      late.let()
    })
    const answer = await made.chat(body)
    expect(answer.status).toBe(500)
    expect(answer.headers.get('retry-after')).toBe('1')
    expect(await answer.json()).toMatchObject({ error: { code: 'engine_failed' } })
    expect(asked).toHaveLength(2)
    expect(hedges).toMatchObject([{ outcome: 'lost' }])
  })

  test('of which both backends fail is tried at a third one', async () => {
    const made = await house({ stubs: [{}, {}, {}] })
    const late = new Late()
    let count = 0
    const asked = inOrder(made, late.saying(dying), (...args) => {
      if (++count > 1) return saying(['third'])(...args)
      dying(...args)
      late.let()
    })
    expect(await said(await made.chat(body))).toBe('third')
    expect(new Set(asked).size).toBe(3)
  })

  test('a refusal of what was asked is final, whoever says it', async () => {
    const bySecond = await house()
    const first = inOrder(bySecond, silent, refusing(422))
    expect((await bySecond.chat(body)).status).toBe(422)
    await until(() => first[0]!.aborted === 1)
    const byFirst = await house()
    const late = new Late()
    const held: StubAnswer = (request, response, socket) =>
      late.saying(refusing(400))({ ...request, body: {} }, response, socket)
    const second = inOrder(byFirst, held, () => late.let())
    expect((await byFirst.chat(body)).status).toBe(400)
    await until(() => second[1]!.aborted === 1)
    await expectOver(byFirst)
  })

  test('ends at both backends where its client leaves', async () => {
    const made = await house()
    const asked = inOrder(made, silent, silent)
    const stop = new AbortController()
    const sent = fetch(`${made.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model: 'm', messages: [], ...body }),
      signal: stop.signal,
    })
    sent.catch(() => undefined)
    await until(() => asked.length === 2)
    stop.abort()
    await until(() => asked.every(({ aborted }) => aborted === 1))
    await expectOver(made)
    await until(() => settled.length > 0)
    expect(settled).toMatchObject([{ status: 499, error: 'client_gone', hedged: 'lost' }])
    expect(hedges).toMatchObject([{ outcome: 'lost' }])
  })

  test('leaves no connection open that is of no use', async () => {
    const made = await house()
    for (let i = 0; i < 8; i++) {
      inOrder(made, silent, saying(['good']))
      expect(await said(await made.chat({ ...body, ...about(i) }))).toBe('good')
    }
    expect(hedges).toHaveLength(8)
    // As many as there were for the first questions to it, which went out together.
    await until(() => made.stubs.every((stub) => stub.open() <= 3))
  })
})

describe('other dialects', () => {
  const asks = { model: 'm', max_tokens: 9, messages: [{ role: 'user', content: 'hi' }] }
  const lacks = ['/v1/messages']

  test.each([
    ['by both', [{ lacks }, { lacks }]],
    ['by one of them', [{ lacks }, {}]],
  ])('are translated where they are lacked %s', async (_, stubs) => {
    const made = await house({ stubs })
    // Where one has the dialect it is silent, whether it is asked first or not.
    const both = stubs.every((each) => 'lacks' in each)
    const ask = async (stream: boolean) => {
      if (both) inOrder(made, silent, saying(['go', 'od'], 4))
      else
        for (const [i, stub] of made.stubs.entries()) stub.answer = i === 0 ? saying(['go', 'od'], 4) : () => undefined
      return made.post('/v1/messages', { ...asks, stream })
    }
    for (let i = 0; i < 3; i++) {
      const text = await (await ask(true)).text()
      expect(dataOf(text).map((data) => JSON.parse(data).type)).toEqual([
        ...['message_start', 'content_block_start', 'content_block_delta', 'content_block_delta'],
        ...['content_block_stop', 'message_delta', 'message_stop'],
      ])
      const whole = await (await ask(false)).json()
      expect(whole).toMatchObject({ type: 'message', content: [{ type: 'text', text: 'good' }] })
    }
    if (both) expect(hedges.map(({ outcome }) => outcome)).toEqual(Array(6).fill('won'))
    await expectOver(made)
  })

  test('are told in their own shape where both fail, in-band once a sign of life is out', async () => {
    const made = await house({ stubs: [{ lacks }, { lacks }], config: { 'server.keepaliveMs': 15 } })
    for (const stream of [false, true]) {
      const late = new Late()
      inOrder(made, late.saying(dying), (...args) => {
        late.let()
        setTimeout(() => dying(...args), stream ? 40 : 0)
      })
      const answer = await made.post('/v1/messages', { ...asks, stream })
      if (!stream) {
        expect(answer.status).toBe(500)
        expect(await answer.json()).toMatchObject({ type: 'error', error: { type: 'api_error' } })
        continue
      }
      const last = (await answer.text()).trimEnd().split('\n\n').at(-1) as string
      expect(JSON.parse(dataOf(last)[0] as string)).toMatchObject({ type: 'error', error: { type: 'api_error' } })
    }
  })
})

describe('a session', () => {
  const headers = { 'x-session-id': 's' }
  const turn = (made: FleetHouse, i: number) =>
    made.chat(
      { messages: Array.from({ length: i }, (_, n) => ({ role: 'user', content: `${n} ${'x'.repeat(40)}` })) },
      headers,
    )

  test('lives at the backend that answered', async () => {
    for (const winner of [0, 1]) {
      const made = await house()
      const late = new Late()
      const asked = inOrder(
        made,
        winner === 1 ? silent : late.saying(saying(['late'])),
        winner === 1 ? saying(['good']) : () => late.let(),
      )
      await (await turn(made, 1)).text()
      await expectOver(made)
      for (const stub of made.stubs) stub.answer = saying(['again'])
      const route = (await turn(made, 2)).headers.get('x-refrain-route')
      expect(route).toContain(`${asked[winner]!.url}; reason="session"`)
      const { data } = (await (await fetch(`${made.url}/v1/sessions/s/turns`)).json()) as {
        data: { backend: string; status: string }[]
      }
      const home = { backend: asked[winner]!.url, status: 'done' }
      expect(data).toMatchObject([home, { backend: home.backend }])
    }
  })
})

test('nothing is sent twice unless the config says so, and no more than the share that it says', async () => {
  const off = await house({ config: { 'fleet.hedgeMs': 0 } })
  for (const stub of off.stubs) stub.answer = (...args) => void setTimeout(() => saying(['slow'])(...args), 80)
  expect(await said(await off.chat())).toBe('slow')
  expect(off.stubs.reduce((sum, { requests }) => sum + requests.length, 0)).toBe(1)

  const some = await house({ config: { 'fleet.hedgeShare': 0.25 } })
  const counts: number[] = []
  for (let i = 0; i < 5; i++) {
    const late = new Late()
    const before = hedges.length
    const asked = inOrder(some, late.saying(saying(['slow'])), () => late.let())
    const answer = some.chat(about(i))
    await until(() => hedges.length > before || asked.length > 1)
    late.let()
    expect(await said(await answer)).toBe('slow')
    counts.push(asked.length)
  }
  expect(counts).toEqual([2, 1, 1, 2, 1])
  const metrics = await (await fetch(`${some.url}/metrics`)).text()
  expect(metrics).toContain('refrain_fleet_hedges_total{outcome="refused",why="share"} 3')
})

// --- the choice ------------------------------------------------------------------------------------------------------

interface Expected {
  readonly ttftMs?: number
  readonly reportedQueue?: number
}

function placed(id: string, { ttftMs = 100, reportedQueue = 0 }: Expected = {}): MemberPlacement {
  const load = { inFlight: 0, queuedPrefillTokens: 0, decoding: 0, reportedQueue }
  const member = { id, load } as unknown as MemberPlacement['member']
  const scores = [{ member: id, ttftMs, overlapTokens: 0, parts: {} }]
  return { member, scores, reason: '', predictedHitTokens: 0 }
}

const query = { id: 'r', priority: 'interactive' } as RouteQuery

function hedging({ next = placed('b'), waiting = 0, slotted = [] as string[], share = 1 } = {}) {
  const excluded: (readonly string[] | undefined)[] = []
  const router = {
    place(asked: RouteQuery) {
      excluded.push(asked.excluded)
      if (asked.excluded?.includes(next.member.id) === true) throw new RefrainError('engine_failed', 'nobody')
      return next
    },
  }
  const clock = new ManualClock()
  const parts = { router, waiting: () => waiting, slotted: () => slotted, clock }
  return { made: new Hedging({ hedgeMs: 1000, hedgeShare: share }, parts), excluded, clock }
}

describe('whether and where', () => {
  test('the next best one, without those that may not', () => {
    const { made, excluded } = hedging({ slotted: ['slots'] })
    expect(made.choose({ ...query, excluded: ['x'] }, placed('a'))).toMatchObject({ member: { id: 'b' } })
    expect(excluded).toEqual([['x', 'a', 'slots']])
    expect(made.choose({ ...query, excluded: ['b'] }, placed('a'))).toBe('nobody')
  })

  test('nowhere while requests wait, or where others do', () => {
    expect(hedging({ waiting: 1 }).made.choose(query, placed('a'))).toBe('queue')
    expect(hedging({ next: placed('b', { reportedQueue: 1 }) }).made.choose(query, placed('a'))).toBe('busy')
  })

  test('nowhere where it would take longer than the first one is likely to take', () => {
    const next = placed('b', { ttftMs: 3000 })
    // Longer than twice what it has taken.
    expect(hedging({ next }).made.choose(query, placed('a', { ttftMs: 100 }))).toBe('busy')
    // Most of a long prompt is still to be computed.
    expect(hedging({ next }).made.choose(query, placed('a', { ttftMs: 5000 }))).toBe(next)
    const quick = placed('b', { ttftMs: 1900 })
    expect(hedging({ next: quick }).made.choose(query, placed('a', { ttftMs: 100 }))).toBe(quick)
  })

  test('a share of none is none, and a quiet time saves up for a few at most', () => {
    const none = hedging({ share: 0 }).made
    expect(none.admits(forward())).toBe(true)
    expect(none.choose(query, placed('a'))).toBe('share')
    const { made, clock } = hedging()
    for (let i = 0; i < 100; i++) made.admits(forward())
    let sent = 0
    const never = () => new Promise<never>(() => undefined)
    const second = () => {
      sent++
      return never
    }
    const heat = { placement: placed('a'), query: () => query, first: never, second, failed: () => undefined }
    for (let i = 0; i < 15; i++) void made.race({ ...heat, signal: new AbortController().signal })
    clock.advance(999)
    expect(sent).toBe(0)
    clock.advance(1)
    expect(sent).toBe(10)
    expect(hedges.filter(({ why }) => why === 'share')).toHaveLength(5)
  })

  test('nowhere where it cannot be put to the next one', () => {
    const { made, clock } = hedging()
    const never = () => new Promise<never>(() => undefined)
    const second = () => {
      throw new RefrainError('invalid_request', 'a chat cannot say it')
    }
    const { signal } = new AbortController()
    const heat = { placement: placed('a'), signal, query: () => query, first: never, second, failed: () => undefined }
    void made.race(heat)
    clock.advance(1000)
    expect(hedges).toMatchObject([{ outcome: 'refused', why: 'unfit' }])
    expect(made.choose(query, placed('a'))).toMatchObject({ member: { id: 'b' } })
  })

  test.each([
    ['a chat', forward(), true],
    ['what does not generate', forward({ path: '/v1/embeddings' }), false],
    ['a side question', forward({ aside: {} as never }), false],
    ['work that nobody waits for', forward({ query: { ...query, priority: 'background' } }), false],
    ['a logged session', forward({}, { session: '"ses_1"' }), false],
    ['what only a Refrain takes', forward({}, { quick: '[]' }), false],
    ['a chat that is kept', forward({}, { store: 'true' }), false],
    ['a response that is kept', forward({ path: '/v1/responses' }), false],
    ['a response that is not', forward({ path: '/v1/responses' }, { store: 'false' }), true],
    ['one that goes on from a kept one', forward({}, { previous_response_id: '"resp_1"' }), false],
    ['one that could', forward({}, { previous_response_id: 'null' }), true],
  ])('%s', (_, asked, may) => {
    expect(hedging().made.admits(asked)).toBe(may)
  })
})

function forward(more: Partial<Forward> = {}, members: Readonly<Record<string, string>> = {}): Forward {
  const body = { member: (key: string) => members[key], edited: () => Buffer.alloc(0) }
  return { query, method: 'POST', path: '/v1/chat/completions', body, ...more } as Forward
}
