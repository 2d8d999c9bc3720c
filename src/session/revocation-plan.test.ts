// What a revocation takes along, over random sessions: with the compiler, no later context holds a byte of what rests on the
// source, while all that does not rest on it is still there.

import fc from 'fast-check'
import { expect, test } from 'vitest'
import { CURRENT_COMPILER, compileContext } from './compile/compilers.js'
import type { EventBody, NewEvent, PolicySnapshot, SessionEvent } from './log/event.js'
import { newSessionId } from './log/ids.js'
import { createMemoryLog } from './log/memory.js'
import { planRevocation } from './revocation-plan.js'

const limits = { sessionEvents: 1000, sessionBytes: 2 ** 24, sources: 100 }
const open: PolicySnapshot = { retention: 'keep', revoked: [], shared: {} }

async function logged(events: readonly NewEvent[]): Promise<readonly SessionEvent[]> {
  const log = createMemoryLog({ limits, maxBytes: 2 ** 26 })
  const { id } = await log.create({ id: newSessionId(), tenant: 'acme', model: 'toy' }, [])
  for (const event of events) await log.append({ tenant: 'acme', session: id, events: [event] })
  return log.read('acme', id, { from: 1, limit: 1000 })
}

test('names events with their other half, results, summaries, turns, memory and the layer to go back to', async () => {
  const turn = { kind: 'turn', turn: 1, requestId: 'r', compiler: 1, digest: '', verdicts: {}, rendering: '' } as const
  const summary = { step: 'summary', to: 4, text: 's', generation: 1, added: [], requests: [] } as const
  const bodies: NewEvent[] = [
    { body: { kind: 'layer', id: 'clean', sources: [] } },
    { body: { kind: 'user', content: 'q' } },
    { body: { ...turn, upTo: 2, promptDigest: '' } },
    { body: { kind: 'tool_call', id: 'c', name: 'read', arguments: '{}' } },
    {
      body: { kind: 'tool_result', callId: 'c', content: 'stub', spilled: { locator: 'res_1', chars: 9 } },
      sources: ['crm'],
    },
    { body: { kind: 'layer', id: 'stained', parent: 'clean', sources: [] } },
    { body: { ...turn, turn: 2, upTo: 6, promptDigest: '' } },
    { body: { kind: 'assistant', content: 'a' } },
    { body: { kind: 'compaction', trigger: 'api', steps: [summary], charsBefore: 9, charsAfter: 1 } },
    { body: { kind: 'user', content: 'on' } },
  ]
  const events = await logged(bodies)
  const memory = { id: 'm', label: 'M', value: 'v' }
  expect(planRevocation(events, new Set(['crm']), [memory, { ...memory, id: 'n', sources: ['crm'] }])).toEqual({
    ...{ positions: [4, 5, 6, 7, 8, 9], locators: ['res_1'], compactions: [9], turns: [2], shared: ['n'] },
    cleanLayer: 'clean',
  })
  expect(planRevocation(events, new Set(['web']), [memory])).toEqual({
    ...{ positions: [], locators: [], compactions: [], turns: [], shared: [] },
    cleanLayer: 'stained',
  })
})

const SOURCES = ['crm', 'web', 'mail']

/** One step of a session; what it says is told apart by its number. */
const step = fc.record({
  what: fc.constantFrom('user', 'answer', 'call', 'note', 'plan', 'memory', 'layer', 'summary', 'reset', 'policy'),
  source: fc.option(fc.constantFrom(...SOURCES), { nil: undefined, freq: 2 }),
  parallel: fc.integer({ min: 1, max: 3 }),
})
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never

/** Every content holds `<position>`. */
function eventsOf(steps: readonly Step[]): NewEvent[] {
  const events: NewEvent[] = []
  const text = () => `<${events.length + 1}>`
  const add = (body: EventBody, source?: string) => events.push({ body, ...(source && { sources: [source] }) })
  for (const { what, source, parallel } of steps) {
    if (what === 'user') add({ kind: 'user', content: text() }, source)
    if (what === 'answer') add({ kind: 'assistant', content: text(), reasoning: text() })
    if (what === 'note') add({ kind: 'note', tail: 'kept', label: 'n', content: text() }, source)
    if (what === 'plan') add({ kind: 'note', tail: 'ephemeral', label: 'plan', content: text() }, source)
    if (what === 'memory') add({ kind: 'memory', label: `m${parallel}`, value: text() }, source)
    if (what === 'layer') add({ kind: 'layer', id: `l${events.length}`, sources: source ? [source] : [] })
    if (what === 'reset') add({ kind: 'reset', artifacts: [] })
    if (what === 'policy') add({ kind: 'policy', snapshot: { ...open, revoked: source ? [source] : [] } })
    if (what === 'summary' && events.length > 0) {
      const summary = {
        step: 'summary',
        to: events.length,
        text: text(),
        generation: 1,
        added: [],
        requests: [],
      } as const
      add({ kind: 'compaction', trigger: 'api', steps: [summary], charsBefore: 9, charsAfter: 1 })
    }
    if (what !== 'call') continue
    add({ kind: 'assistant', content: text() })
    const ids = Array.from({ length: parallel }, (_, i) => `call${events.length}-${i}`)
    for (const id of ids) add({ kind: 'tool_call', id, name: 'read', arguments: `{"at":"${text()}"}` })
    for (const [i, id] of ids.entries())
      add({ kind: 'tool_result', callId: id, content: text() }, i === 0 ? source : undefined)
  }
  return events
}

/** Positions of the events whose words a context shows. */
function shown(events: readonly SessionEvent[], policy: PolicySnapshot): ReadonlySet<number> {
  const { messages, tail } = compileContext(events, policy, CURRENT_COMPILER)
  const text = JSON.stringify([messages, tail])
  return new Set([...text.matchAll(/<(\d+)>/g)].map(([, position]) => Number(position)))
}

test('no later context holds a tainted byte, and what is shown is marked with all that it rests on', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(step, { minLength: 3, maxLength: 14 }),
      fc.array(step, { maxLength: 6 }),
      fc.constantFrom(...SOURCES),
      async (before, after, source) => {
        const first = eventsOf(before)
        const revocation: NewEvent = { body: { kind: 'revocation', sources: [source] } }
        const all = eventsOf([...before, ...after])
        const events = await logged([...first, revocation, ...all.slice(first.length)])
        const at = first.length + 1
        const plan = planRevocation(events.slice(0, at), new Set([source]))
        const gone = new Set(plan.positions)
        // From the revocation on, as it goes on and as the log alone says.
        for (let upTo = at; upTo <= events.length; upTo++) {
          const seen = shown(events.slice(0, upTo), open)
          // Words of a summary name its own place; later events are numbered without the revocation.
          for (const position of seen) expect(gone.has(position), `<${position}> at ${upTo}`).toBe(false)
        }
        // Whoever wrote something had seen what was shown then: its mark holds the marks of all of it.
        for (const { body, position, sources } of events) {
          if (body.kind !== 'assistant' && body.kind !== 'compaction') continue
          const policy = events.slice(0, position - 1).findLast((event) => event.body.kind === 'policy')?.body
          const snapshot = policy?.kind === 'policy' ? policy.snapshot : open
          const context = compileContext(events.slice(0, position - 1), snapshot, CURRENT_COMPILER)
          for (const each of context.sources) expect(sources, `event ${position}`).toContain(each)
        }
      },
    ),
    { numRuns: 150 },
  )
})
