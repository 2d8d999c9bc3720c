// Every kind of log against a plain model of it, over random histories: appends with and without an expected position, forks of
// forks, erasures, and for what is kept in files being closed and opened again. The model says what an event rests on by
// looking at all events before it, as the rule of contributing.ts reads.

import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { RefrainError } from '../../core/errors.js'
import { type LogHouse, openLogHouse } from '../../testing/log-house.js'
import { HOUSE_LIMITS } from '../../testing/log-limits.js'
import type { SessionLog } from './contract.js'
import { erasedBody } from './erased-body.js'
import type { EventBody, NewEvent } from './event.js'
import { newSessionId } from './ids.js'
import { createMemoryLog } from './memory.js'

// --- the model ----------------------------------------------------------------------------------------------------------

interface Plain {
  readonly body: EventBody
  readonly sources: readonly string[]
  readonly erased?: true
}

/** Events by position, from 1; those of a fork's parent are copies, as they never change but by erasure. */
interface PlainSession {
  readonly id: string
  readonly parent: string | undefined
  readonly events: { event: Plain }[]
}

const DERIVED = ['assistant', 'tool_call', 'note', 'memory', 'compaction', 'attempt', 'turn', 'layer']
const KEPT = ['head', 'memory', 'policy']
const SEEN = [...KEPT, 'user', 'assistant', 'tool_call', 'tool_result', 'note', 'compaction']

/** By definition: of all events before. */
function restsOn(before: readonly Plain[], { body, sources = [], layer }: NewEvent): readonly string[] {
  const layerSources = (id: string | undefined) =>
    before.find((each) => each.body.kind === 'layer' && each.body.id === id)?.sources ?? []
  const own = [...sources, ...layerSources(layer)]
  if (body.kind === 'layer') own.push(...body.sources, ...layerSources(body.parent))
  const context = (events: readonly Plain[]) => {
    const policy = events.findLast((each) => each.body.kind === 'policy')?.body
    const revocations = events.flatMap((each) => (each.body.kind === 'revocation' ? each.body.sources : []))
    const out = [...(policy?.kind === 'policy' ? policy.snapshot.revoked : []), ...revocations]
    const reset = events.findLastIndex((each) => each.body.kind === 'reset')
    return events
      .filter((each, i) => SEEN.includes(each.body.kind) && (i > reset || KEPT.includes(each.body.kind)))
      .filter((each) => !each.sources.some((source) => out.includes(source)))
      .flatMap((each) => each.sources)
  }
  if (DERIVED.includes(body.kind)) own.push(...context(before))
  if (body.kind === 'tool_result') {
    const call = before.findLast((each) => each.body.kind === 'tool_call' && each.body.id === body.callId)
    own.push(...(call === undefined ? context(before) : call.sources))
  }
  return [...new Set(own)].sort()
}

// --- random histories ---------------------------------------------------------------------------------------------------

const source = fc.constantFrom('crm', 'mail', 'web')
const sources = fc.option(fc.uniqueArray(source, { maxLength: 2 }), { nil: undefined })
const name = fc.constantFrom('a', 'b', 'c')
const text = fc.string({ maxLength: 30, unit: 'grapheme' })

const body: fc.Arbitrary<EventBody> = fc.oneof(
  text.map((content): EventBody => ({ kind: 'user', content })),
  text.map((content): EventBody => ({ kind: 'assistant', content })),
  name.map((id): EventBody => ({ kind: 'tool_call', id, name: 'read', arguments: '{}' })),
  fc.tuple(name, text).map(([callId, content]): EventBody => ({ kind: 'tool_result', callId, content })),
  text.map((value): EventBody => ({ kind: 'memory', label: 'm', value })),
  text.map((system): EventBody => ({ kind: 'head', apply: 'now', system })),
  source.map((one): EventBody => ({ kind: 'revocation', sources: [one] })),
  fc.constant<EventBody>({ kind: 'reset', artifacts: [] }),
  fc.uniqueArray(source, { maxLength: 2 }).map(
    (revoked): EventBody => ({
      kind: 'policy',
      snapshot: { retention: 'keep', revoked: revoked.sort(), shared: {} },
    }),
  ),
  fc.uniqueArray(source, { maxLength: 1 }).map((own): EventBody => ({ kind: 'layer', id: '', sources: own })),
)
const event = fc.record({ body, sources, fromLayer: fc.boolean() })

const operation = fc.oneof(
  {
    weight: 8,
    arbitrary: fc.record({
      do: fc.constant('append' as const),
      whose: fc.nat(9),
      events: fc.array(event, { maxLength: 3 }),
      expects: fc.constantFrom('right', 'nothing', 'wrong'),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({ do: fc.constant('create' as const), events: fc.array(event, { maxLength: 2 }) }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      do: fc.constant('fork' as const),
      whose: fc.nat(9),
      at: fc.nat(20),
      events: fc.array(event, { maxLength: 2 }),
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('erase' as const), whose: fc.nat(9) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('eraseEvent' as const), whose: fc.nat(9), at: fc.nat(20) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('reopen' as const) }) },
)
type Operation = typeof operation extends fc.Arbitrary<infer T> ? T : never
type RandomEvent = typeof event extends fc.Arbitrary<infer T> ? T : never

/** One log with one tenant, beside its model. */
class Twin {
  readonly #tenant: string
  readonly #reopen: (log: SessionLog) => Promise<SessionLog>
  readonly #sessions: PlainSession[] = []
  #layers = 0
  log: SessionLog

  constructor(tenant: string, log: SessionLog, reopen: (log: SessionLog) => Promise<SessionLog>) {
    this.#tenant = tenant
    this.#reopen = reopen
    this.log = log
  }

  async run(operation: Operation): Promise<void> {
    if (operation.do === 'reopen') {
      this.log = await this.#reopen(this.log)
      return
    }
    if (operation.do === 'create') return this.#create(undefined, 0, operation.events)
    const session = this.#sessions[operation.whose % this.#sessions.length]
    if (session === undefined) return
    if (operation.do === 'append') await this.#append(session, operation)
    if (operation.do === 'fork')
      await this.#create(session, operation.at % (session.events.length + 1), operation.events)
    if (operation.do === 'erase') await this.#erase(session)
    if (operation.do === 'eraseEvent') await this.#eraseEvent(session, operation.at)
  }

  async check(): Promise<void> {
    for (const { id, events, parent } of this.#sessions) {
      const read = await this.log.read(this.#tenant, id, { from: 1, limit: 1000 })
      const content = read.map(({ body, sources, erased }) => ({ body, sources, ...(erased && { erased }) }))
      expect(content).toEqual(events.map((each) => each.event))
      expect(read.map(({ position }) => position)).toEqual(events.map((_, i) => i + 1))
      for (const [i, { previous }] of read.entries()) if (i > 0) expect(previous).toBe(read[i - 1]?.digest)
      const from = Math.ceil(events.length / 2)
      expect(await this.log.read(this.#tenant, id, { from, limit: 2 })).toEqual(
        read.slice(Math.max(0, from - 1), from + 1),
      )
      expect(await this.log.session(this.#tenant, id)).toMatchObject({ position: events.length })
      if (parent !== undefined) expect(await this.log.forksOf(this.#tenant, parent)).toContain(id)
    }
    for (const one of ['crm', 'mail', 'web']) {
      const touched = await this.log.setGrant(this.#tenant, { source: one, state: 'granted', at: 0 })
      const expected = this.#sessions.filter(({ events }) => events.some(({ event }) => event.sources.includes(one)))
      expect(touched).toEqual(expected.map(({ id }) => id).sort())
    }
  }

  async #create(parent: PlainSession | undefined, at: number, random: readonly RandomEvent[]): Promise<void> {
    const id = newSessionId()
    const taken = parent?.events.slice(0, at) ?? []
    const session: PlainSession = { id, parent: parent?.id, events: [...taken] }
    const events = this.#eventsOf(session, random)
    const from = parent && { parent: { session: parent.id, at } }
    await this.log.create({ id, tenant: this.#tenant, model: 'toy', ...from }, events)
    this.#add(session, events)
    this.#sessions.push(session)
  }

  async #append(
    session: PlainSession,
    { events: random, expects }: Extract<Operation, { do: 'append' }>,
  ): Promise<void> {
    const { length } = session.events
    const expected = { right: { expected: length }, nothing: {}, wrong: { expected: length + 1 } }[expects]
    const events = this.#eventsOf(session, random)
    const append = this.log.append({ tenant: this.#tenant, session: session.id, events, ...expected })
    if (expects === 'wrong') {
      await expect(append).rejects.toMatchObject({ code: 'conflict' })
      return
    }
    expect(await append).toHaveLength(events.length)
    this.#add(session, events)
  }

  async #erase(session: PlainSession): Promise<void> {
    const hasForks = this.#sessions.some(({ parent }) => parent === session.id)
    const outcome = await this.log.erase({ tenant: this.#tenant, session: session.id }).then(
      () => 'erased',
      (error: RefrainError) => error.code,
    )
    expect(outcome).toBe(hasForks ? 'conflict' : 'erased')
    if (hasForks) return
    this.#sessions.splice(this.#sessions.indexOf(session), 1)
    await expect(this.log.read(this.#tenant, session.id, { from: 1, limit: 1 })).rejects.toMatchObject({
      code: 'erased',
    })
  }

  async #eraseEvent({ id, events }: PlainSession, at: number): Promise<void> {
    await this.log.eraseEvents({ tenant: this.#tenant, session: id }, { positions: [at], locators: [] })
    const there = events[at - 1]
    // The same event stands in forks, so it is the same object.
    if (there !== undefined) there.event = { ...there.event, body: erasedBody(there.event.body), erased: true }
  }

  /** Layers get names of their own; what is read from one is read from the last. */
  #eventsOf(session: PlainSession, random: readonly RandomEvent[]): NewEvent[] {
    const layers = session.events.flatMap(({ event }) => (event.body.kind === 'layer' ? [event.body.id] : []))
    return random.map(({ body: random, sources: own, fromLayer }) => {
      const layer = fromLayer ? layers.at(-1) : undefined
      let body = random
      if (body.kind === 'layer') {
        const parent = layers.at(-1)
        body = { ...body, id: `layer ${this.#layers++}`, ...(parent !== undefined && { parent }) }
        layers.push(body.id)
      }
      return { body, ...(own && { sources: own }), ...(layer !== undefined && { layer }) }
    })
  }

  #add(session: PlainSession, events: readonly NewEvent[]): void {
    for (const each of events) {
      const before = session.events.map(({ event }) => event)
      session.events.push({ event: { body: each.body, sources: restsOn(before, each) } })
    }
  }
}

// --- each kind ----------------------------------------------------------------------------------------------------------

let house: LogHouse
beforeAll(async () => {
  house = await openLogHouse()
})
afterAll(() => house.close())

describe('against the model', () => {
  let tenants = 0

  test('memory', () =>
    fc.assert(
      fc.asyncProperty(fc.array(operation, { maxLength: 30 }), async (operations) => {
        const log = createMemoryLog({ limits: HOUSE_LIMITS, maxBytes: 2 ** 30 })
        const twin = new Twin('acme', log, async (same) => same)
        for (const operation of operations) await twin.run(operation)
        await twin.check()
      }),
      { numRuns: 200 },
    ))

  test('sqlite, opened again between any two calls', async () => {
    const folder = house.folder()
    let log = await house.open(folder)
    await fc.assert(
      fc.asyncProperty(fc.array(operation, { minLength: 5, maxLength: 30 }), async (operations) => {
        let reopened = 0
        const twin = new Twin(`acme ${tenants++}`, log, async (open) => {
          // Once a history, as a start takes its time.
          if (reopened++ > 0) return open
          await open.close()
          return house.open(folder)
        })
        try {
          for (const operation of operations) await twin.run(operation)
          await twin.check()
        } finally {
          log = twin.log
        }
      }),
      { numRuns: 15 },
    )
    await log.close()
  })
})
