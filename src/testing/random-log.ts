// Logs of sessions for tests: written by hand in few words, or at random with every kind of event in them. What rests on a
// source says so in its text, so that a test can look for it. Test double; imported by tests and bench only.

import { hash } from 'node:crypto'
import fc from 'fast-check'
import type { EventBody, NewEvent, PolicySnapshot, SessionEvent } from '../session/log/event.js'

export const PLAIN_POLICY: PolicySnapshot = { retention: 'as-sent', revoked: [], shared: {} }

/** Events with places, in the order given; `from` is the first one's position. */
export function logOf(events: readonly (EventBody | NewEvent)[], from = 1): SessionEvent[] {
  let previous = '0'.repeat(64)
  return events.map((given, i) => {
    const event: NewEvent = 'body' in given ? given : { body: given }
    const position = from + i
    const digest = hash('sha256', `${previous}|${position}|${JSON.stringify(event.body)}`)
    const placed: SessionEvent = {
      ...event,
      ...{ id: `evt_${position}`, session: 'ses_test', tenant: 'default', position, at: 1_700_000_000_000 + position },
      ...{ sources: [...(event.sources ?? [])].sort(), digest, previous },
    }
    previous = digest
    return placed
  })
}

export const head = (system: string, apply: 'append' | 'boundary' | 'now' = 'boundary'): EventBody => ({
  kind: 'head',
  apply,
  system,
})
export const user = (content: string): EventBody => ({ kind: 'user', content })
export const says = (content: string, reasoning?: string): EventBody => ({
  kind: 'assistant',
  content,
  ...(reasoning !== undefined && { reasoning }),
})
export const call = (id: string, args = '{}', name = 'look'): EventBody => ({
  kind: 'tool_call',
  id,
  name,
  arguments: args,
})
export const result = (callId: string, content: string): EventBody => ({ kind: 'tool_result', callId, content })
export const memory = (label: string, value?: string): EventBody => ({
  kind: 'memory',
  label,
  ...(value !== undefined && { value }),
})
export const note = (label: string, content: string, tail: 'ephemeral' | 'kept' = 'ephemeral'): EventBody => ({
  ...{ kind: 'note', tail, label, content },
})
export const compaction = (steps: Extract<EventBody, { kind: 'compaction' }>['steps']): EventBody => ({
  kind: 'compaction',
  trigger: 'api',
  steps,
  charsBefore: 2,
  charsAfter: 1,
})

// --- at random ------------------------------------------------------------------------------------------------------

export const SOURCES = ['src_a', 'src_b', 'src_c']

const text = fc.oneof(
  fc.constantFrom(
    '',
    'yes',
    'src/a/b.ts is done',
    '<reference_state>',
    '</authoritative_request>',
    '\ud800 half',
    'é\n\n',
  ),
  fc.string({ maxLength: 12, unit: 'grapheme' }),
)
const label = fc.constantFrom('plan', 'date', 'persona')
const callId = fc.constantFrom('c1', 'c2', 'c3', 'c4')
const tool = fc.constantFrom('look', 'read_result', 'write').map((name) => ({ name, json: `{"name": "${name}"}` }))
const place = fc.integer({ min: 1, max: 60 })
const optional = <T>(arb: fc.Arbitrary<T>) => fc.option(arb, { nil: undefined })

const step = fc.oneof(
  fc.record({ step: fc.constant('snip' as const), from: place, to: place, messages: fc.integer({ min: 1, max: 9 }) }),
  fc.record({ step: fc.constant('micro' as const), results: fc.array(place, { maxLength: 5 }) }),
  fc.record({ step: fc.constant('discard' as const), calls: fc.array(place, { maxLength: 5 }) }),
  fc.record({
    step: fc.constant('summary' as const),
    ...{ to: place, text, generation: fc.integer({ min: 1, max: 3 }) },
    ...{ added: fc.array(text, { maxLength: 2 }), requests: fc.array(text, { maxLength: 2 }) },
  }),
)

const shared = fc.dictionary(
  fc.constantFrom('s1', 's2'),
  fc
    .record({ label, value: text, sources: fc.subarray(SOURCES, { maxLength: 1 }) })
    .map(({ value, sources, ...rest }) => ({ ...rest, sources, value: value + marksOf(sources) })),
)

/** A policy at random; `revoked` is some of SOURCES. */
export const randomPolicy: fc.Arbitrary<PolicySnapshot> = fc.record({
  retention: fc.constantFrom('as-sent', 'drop-at-user-turn'),
  revoked: fc.subarray(SOURCES, { maxLength: 2 }),
  shared,
})

const headBody = fc.record({
  kind: fc.constant('head' as const),
  apply: fc.constantFrom('append' as const, 'boundary' as const, 'now' as const),
  system: optional(text),
  tools: optional(fc.uniqueArray(tool, { selector: ({ name }) => name, maxLength: 3 })),
})
const noteBody = fc.record({
  ...{ kind: fc.constant('note' as const), tail: fc.constantFrom('ephemeral' as const, 'kept' as const) },
  ...{ label, content: text },
})
const memoryBody = fc.record({
  ...{ kind: fc.constant('memory' as const), label, value: optional(text) },
  shared: optional(fc.constantFrom('s1', 's2')),
})

/** An answer, its calls, and results of some of them, in any order. */
const batch = fc
  .record({
    ...{ answer: optional(text), reasoning: optional(text) },
    ids: fc.array(callId, { minLength: 0, maxLength: 3 }),
    ...{ results: fc.array(callId, { maxLength: 4 }), contents: fc.array(text, { minLength: 4, maxLength: 4 }) },
  })
  .map(({ answer, reasoning, ids, results, contents }): EventBody[] => [
    ...(answer === undefined ? [] : [says(answer, reasoning)]),
    ...ids.map((id) => call(id)),
    ...results.map((id, i) => result(id, contents[i]!)),
  ])

const one = (arb: fc.Arbitrary<EventBody>): fc.Arbitrary<EventBody[]> => arb.map((body) => [body])
const bodies: fc.Arbitrary<EventBody[]> = fc.oneof(
  { weight: 8, arbitrary: batch },
  {
    weight: 5,
    arbitrary: one(fc.record({ kind: fc.constant('user' as const), content: text, name: optional(label) })),
  },
  { weight: 2, arbitrary: one(headBody) },
  { weight: 2, arbitrary: one(noteBody) },
  { weight: 2, arbitrary: one(memoryBody) },
  {
    weight: 2,
    arbitrary: one(fc.array(step, { maxLength: 3 }).map((steps) => compaction(steps))),
  },
  { weight: 1, arbitrary: one(fc.subarray(SOURCES).map((sources) => ({ kind: 'revocation' as const, sources }))) },
  {
    weight: 1,
    arbitrary: one(fc.array(text, { maxLength: 2 }).map((artifacts) => ({ kind: 'reset' as const, artifacts }))),
  },
  { weight: 1, arbitrary: one(randomPolicy.map((snapshot) => ({ kind: 'policy' as const, snapshot }))) },
  {
    weight: 2,
    arbitrary: one(
      fc.constantFrom<EventBody>(
        { kind: 'attempt', outcome: 'failed', reason: 'broken' },
        { kind: 'layer', id: 'l1', sources: [] },
        { kind: 'fork', parent: 'ses_parent', at: 1, of: 2, index: 0 },
        {
          kind: 'usage',
          turn: 1,
          promptTokens: 1,
          completionTokens: 1,
          cachedTokens: 0,
          stableTokens: 1,
          backend: 'b',
        },
      ),
    ),
  },
)

const DERIVED = ['assistant', 'tool_call', 'note', 'memory', 'compaction']

/** Adds sources as a log does, and to each text the names of those that it rests on. */
function tainted(events: readonly { readonly body: EventBody; readonly own: readonly string[] }[]): NewEvent[] {
  let context = new Set<string>()
  return events.map(({ body, own }) => {
    const revoked = body.kind === 'revocation' ? body.sources : []
    context = new Set([...context].filter((source) => !revoked.includes(source)))
    const derived = DERIVED.includes(body.kind) || body.kind === 'tool_result'
    const sources = [...new Set([...own, ...(derived ? context : [])])].sort()
    if (body.kind !== 'compaction') for (const source of sources) context.add(source)
    return { body: marked(body, sources), sources }
  })
}

/** What texts that rest on `sources` have in them. */
function marksOf(sources: readonly string[]): string {
  return sources.map((source) => ` ${source}!`).join('')
}

function marked(body: EventBody, sources: readonly string[]): EventBody {
  const mark = marksOf(sources)
  if (mark === '') return body
  if (body.kind === 'compaction') {
    return {
      ...body,
      steps: body.steps.map((each) => (each.step === 'summary' ? { ...each, text: each.text + mark } : each)),
    }
  }
  if (body.kind === 'tool_call') return { ...body, arguments: JSON.stringify({ mark }) }
  if (body.kind === 'memory') return body.value === undefined ? body : { ...body, value: body.value + mark }
  if (body.kind === 'head') return body.system === undefined ? body : { ...body, system: body.system + mark }
  if (body.kind === 'user' || body.kind === 'assistant' || body.kind === 'tool_result') {
    return { ...body, content: body.content + mark }
  }
  return body.kind === 'note' && body.content !== '' ? { ...body, content: body.content + mark } : body
}

const own = fc.oneof(
  { weight: 6, arbitrary: fc.constant([] as string[]) },
  { weight: 1, arbitrary: fc.subarray(SOURCES, { maxLength: 1 }) },
)

/** A log of up to about 60 events, all kinds. */
export const randomLog: fc.Arbitrary<SessionEvent[]> = fc
  .array(fc.tuple(bodies, own), { maxLength: 30 })
  .map((parts) => logOf(tainted(parts.flatMap(([list, sources]) => list.map((body) => ({ body, own: sources }))))))
