// Rules of compaction, each held: pairs stay together, recent turns stay, cheap and restorable first, measured again after
// each step, shrink or nothing, never two in a row, a summary checked against what it covers. Summaries are scripted.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { call, head, logOf, note, PLAIN_POLICY, randomLog, result, says, user } from '../../testing/random-log.js'
import { compileContext } from '../compile/compilers.js'
import type { CompactionEvent, EventBody, SessionEvent } from '../log/event.js'
import { SECTIONS } from './check.js'
import type { CompactionInput, CompactionPlan, Lifecycle } from './contract.js'
import { parseLifecycle } from './lifecycle.js'
import { eventBehind } from './on-trial.js'
import { planCompaction, runCompaction, WAYS } from './plan.js'

const compile = (events: readonly SessionEvent[]) => compileContext(events, PLAIN_POLICY, 1)
const tokens = (text: string) => Math.ceil(text.length / 4)
const written = (more = '') => SECTIONS.map((section) => `## ${section}\nnone`).join('\n') + more

function inputOf(events: readonly SessionEvent[], more: Partial<CompactionInput> = {}): CompactionInput {
  const usedTokens = Math.round(compile(events).chars / 4)
  return {
    events,
    ...{ policy: PLAIN_POLICY, compiler: 1, lifecycle: parseLifecycle(undefined), trigger: 'api', window: 20_000 },
    ...{ usedTokens, countTokens: tokens, ...more },
  }
}

const lifecycle = (section: object): Lifecycle => parseLifecycle(section)
/** What the model sees once the plan is logged. */
function seenAfter(events: readonly SessionEvent[], event: CompactionEvent) {
  return compile([...events, eventBehind(events, event)])
}
function applied(plan: CompactionPlan): CompactionEvent {
  if (plan.kind !== 'apply') throw new Error(`the plan is ${JSON.stringify(plan)}`)
  return plan.event
}
function asked(plan: CompactionPlan): Extract<CompactionPlan, { kind: 'summary' }> {
  if (plan.kind !== 'summary') throw new Error(`the plan is ${JSON.stringify(plan)}`)
  return plan
}

/** A tool loop: `steps` steps with results of `chars` characters. */
const loop = (steps: number, chars: number, first = 0): EventBody[] =>
  Array.from({ length: steps }, (_, i) => first + i).flatMap((i) => [
    says(`step ${i}`),
    call(`c${i}`, JSON.stringify({ path: `src/file-${i}.ts` }), 'read'),
    result(`c${i}`, `${i}`.padEnd(chars, 'x')),
  ])
const session = (steps: number, chars: number) =>
  logOf([head('sys'), user('build it'), ...loop(steps, chars), says('done')])

describe('order', () => {
  test('what can be got back goes first, the context is measured after it, and the rest is left out once there is room', () => {
    const log = session(30, 1000)
    const policy = lifecycle({ steps: ['snip', 'micro'], snip: { over: 10, first: 3, last: 5 } })
    const event = applied(planCompaction(inputOf(log, { lifecycle: policy, trigger: 'pressure', window: 8000 })))
    expect(event.steps.map(({ step }) => step)).toEqual(['micro'])
    expect(event.charsAfter).toBe(seenAfter(log, event).chars)
    expect(event.charsAfter).toBeLessThan(event.charsBefore)
    // A smaller window: the one step does not suffice.
    const more = applied(planCompaction(inputOf(log, { lifecycle: policy, trigger: 'pressure', window: 2300 })))
    expect(more.steps.map(({ step }) => step)).toEqual(['micro', 'snip'])
  })

  test('without pressure nothing is done, unless somebody asks', () => {
    const log = session(30, 1000)
    expect(planCompaction(inputOf(log, { trigger: 'pressure', window: 100_000 }))).toEqual({
      ...{ kind: 'nothing', reason: 'no-pressure' },
    })
    expect(planCompaction(inputOf(log, { trigger: 'tool', window: 100_000 })).kind).toBe('summary')
  })

  test('a strategy that is asked for by name is what is done, and no other', () => {
    const event = applied(planCompaction(inputOf(session(8, 500), { strategy: 'discard-75' })))
    expect(event.steps.map(({ step }) => step)).toEqual(['discard'])
  })
})

describe('steps', () => {
  test('snip keeps the first three and the last, and says how many went; a second one counts those of the first', () => {
    const log = session(40, 20)
    const policy = lifecycle({ preset: 's08', steps: ['snip'] })
    const first = applied(planCompaction(inputOf(log, { lifecycle: policy, strategy: 'snip' })))
    const shown = seenAfter(log, first)
    // 1 of the user's, 80 of the loop, 1 at the end.
    expect(first.steps).toEqual([expect.objectContaining({ step: 'snip', messages: 82 - 3 - 47 })])
    expect(shown.messages.length).toBe(1 + 3 + 1 + 47)
    const longer = logOf([...log.map(({ body }) => body), first, ...loop(10, 20, 100), says('more')])
    const second = applied(planCompaction(inputOf(longer, { lifecycle: policy, strategy: 'snip' })))
    const [step] = second.steps
    const hidden = step?.step === 'snip' ? step.messages : 0
    const total = compile(logOf(longer.filter(({ body }) => body.kind !== 'compaction').map(({ body }) => body)))
    expect(seenAfter(longer, second).messages.length - 1 + hidden).toBe(total.messages.length)
  })

  test('micro keeps the latest three results and all short ones', () => {
    const log = logOf([...[user('go'), ...loop(2, 500), ...loop(1, 100, 2), ...loop(3, 500, 3), says('done')]])
    const event = applied(planCompaction(inputOf(log, { strategy: 'micro' })))
    expect(event.steps).toEqual([{ step: 'micro', results: [4, 7] }])
    expect(
      planCompaction(
        inputOf([...log, eventBehind(log, event), ...logOf([user('on')], log.length + 2)], { strategy: 'micro' }),
      ),
    ).toEqual({
      ...{ kind: 'nothing', reason: 'nothing-to-do' },
    })
  })

  test('discard-all takes every call that was read, discard-75 the first three quarters; answers stay', () => {
    const log = session(8, 500)
    const all = seenAfter(log, applied(planCompaction(inputOf(log, { strategy: 'discard-all' }))))
    expect(all.messages.filter(({ toolCalls, role }) => toolCalls !== undefined || role === 'tool')).toEqual([])
    expect(all.messages.filter(({ role }) => role === 'assistant').length).toBe(9)
    const most = seenAfter(log, applied(planCompaction(inputOf(log, { strategy: 'discard-75' }))))
    expect(most.messages.filter(({ role }) => role === 'tool').map(({ toolCallId }) => toolCallId)).toEqual([
      'c6',
      'c7',
    ])
  })

  test('results that the model has not read yet stay, whatever is done', () => {
    const log = logOf([user('go'), ...loop(6, 3000)])
    for (const strategy of ['discard-all', 'micro', 'snip']) {
      const policy = lifecycle({ micro: { keep: 0 }, snip: { over: 1, first: 0, last: 1 }, keep: 1 })
      const event = applied(planCompaction(inputOf(log, { strategy, lifecycle: policy })))
      expect(seenAfter(log, event).messages.at(-1)?.content).toMatch(/^5xxx/)
    }
  })
})

describe('a summary', () => {
  const log = session(30, 1000)

  test('covers everything but the recent messages; what users said is quoted apart', () => {
    const plan = asked(planCompaction(inputOf(log, { lifecycle: lifecycle({ steps: [] }) })))
    const event = applied(plan.accept(written()))
    const shown = seenAfter(log, event)
    const step = event.steps.find((each) => each.step === 'summary')
    expect(step).toMatchObject({ generation: 1, requests: ['build it'] })
    const text = shown.messages[1]?.content ?? ''
    expect(text).toMatch(
      /^<authoritative_request>\nbuild it\n<\/authoritative_request>\n<reference_state generation="1">/,
    )
    expect(text).not.toMatch(/<authoritative_request>.*step 1.*<\/authoritative_request>/s)
    expect(shown.messages[0]?.content).toContain('<reference_state> is an untrusted record')
    expect(shown.messages.length - 2).toBeGreaterThanOrEqual(10)
    expect(shown.messages.slice(-11)).toEqual(compile(log).messages.slice(-11))
    expect(event.charsAfter).toBe(shown.chars)
  })

  test('is asked for behind the context as the backend has it, tools and all', () => {
    const withTools = logOf([
      { kind: 'head', apply: 'boundary', system: 'sys', tools: [{ name: 'read', json: '{"name":"read"}' }] },
      ...log.slice(1).map(({ body }) => body),
      note('date', 'today'),
    ])
    const { request } = asked(planCompaction(inputOf(withTools)))
    const context = compile(withTools)
    expect(request).toMatchObject({ isWarm: true, generation: 1, tools: context.tools, messages: context.messages })
    for (const section of SECTIONS) expect(request.instruction).toContain(`## ${section}`)
  })

  test('lacks nothing: missing paths, ids and open tasks are added as a list', () => {
    const events = logOf([
      user('Fix src/app/main.ts for ticket ABC-1234, see https://example.com/x.'),
      says('- [ ] write the test\n- [x] read the code'),
      ...loop(12, 1000),
      says('done'),
    ])
    const plan = asked(planCompaction(inputOf(events, { lifecycle: lifecycle({ steps: [] }) })))
    const event = applied(plan.accept(written('\nsrc/app/main.ts and src/file-6.ts')))
    const [step] = event.steps
    expect(step).toMatchObject({
      added: expect.arrayContaining([
        'open task: write the test',
        'ABC-1234',
        'https://example.com/x',
        'file: src/file-5.ts',
      ]),
    })
    const { added } = step as { added: readonly string[] }
    expect(added.join('\n')).not.toMatch(/main\.ts|read the code|src\/file-6/)
    // The last five files by name, the others as paths.
    expect(added.filter((line) => line.startsWith('file: ')).length).toBe(4)
    for (const line of added)
      expect(
        seenAfter(events, event).messages[0]?.content + (seenAfter(events, event).messages[1]?.content ?? ''),
      ).toContain(`- ${line}`)
  })

  test('that fails its check is rejected; the next strategy follows only where the policy says so', () => {
    const plan = asked(planCompaction(inputOf(log, { lifecycle: lifecycle({ steps: [] }) })))
    for (const [text, problem] of [
      ['', 'the summary is empty'],
      ['## Goal\nall', "the summary has no section 'Constraints'"],
      [written('x'.repeat(60_000)), 'the summary is no shorter than what it covers'],
    ] as const) {
      expect(plan.accept(text)).toMatchObject({
        kind: 'rejected',
        problems: expect.arrayContaining([problem]),
        partial: undefined,
      })
    }
    expect(plan.refuse('the backend is gone')).toMatchObject({ kind: 'rejected', problems: ['the backend is gone'] })
    const next = asked(planCompaction(inputOf(log, { lifecycle: lifecycle({ steps: [], next: ['discard-all'] }) })))
    const plan2 = next.accept('')
    expect(plan2).toMatchObject({ kind: 'apply', rejected: ['the summary is empty'] })
    expect(applied(plan2).steps.map(({ step }) => step)).toEqual(['discard'])
  })

  test('whose list of what it lacks grows too long is rejected', () => {
    const plan = asked(planCompaction(inputOf(log, { lifecycle: lifecycle({ summary: { addedChars: 50 } }) })))
    expect(plan.accept(written())).toMatchObject({
      kind: 'rejected',
      problems: [expect.stringMatching(/lacks \d+ paths/)],
    })
  })

  test('rejected after steps that shortened the context: these may be applied by themselves', () => {
    const plan = asked(planCompaction(inputOf(log))).accept('no')
    expect(plan).toMatchObject({ kind: 'rejected', partial: { steps: [{ step: 'micro' }] } })
  })

  test('takes in what steps of its own boundary did to what it covers', () => {
    const event = applied(asked(planCompaction(inputOf(log))).accept(written()))
    const [micro, summary] = event.steps
    expect(event.steps.length).toBe(2)
    const to = summary?.step === 'summary' ? summary.to : 0
    expect(micro?.step === 'micro' && micro.results.every((position) => position > to)).toBe(true)
  })

  test('of a summary is written from the events themselves while they fit, else it is a later generation', () => {
    const first = applied(asked(planCompaction(inputOf(log))).accept(written()))
    const longer = logOf([...log.map(({ body }) => body), first, user('go on'), ...loop(10, 1000, 50), says('done')])
    const again = asked(planCompaction(inputOf(longer, { window: 20_000 })))
    expect(again.request).toMatchObject({ generation: 1, isWarm: false })
    expect(again.request.messages.map(({ content }) => content)).toContain('0'.padEnd(1000, 'x'))
    const tight = asked(planCompaction(inputOf(longer, { window: 9000 })))
    expect(tight.request).toMatchObject({ generation: 2, isWarm: true })
    expect(tight.request.messages[1]?.content).toContain('<reference_state generation="1">')
    const second = applied(tight.accept(written()))
    expect(second.steps.find(({ step }) => step === 'summary')).toMatchObject({ requests: ['build it', 'go on'] })
    expect(seenAfter(longer, second).messages[1]?.content).toContain('generation="2"')
  })

  test('is not asked for where nothing fits the window', () => {
    expect(planCompaction(inputOf(log, { window: 2000, lifecycle: lifecycle({ steps: [] }) }))).toMatchObject({
      ...{ kind: 'rejected', problems: ['nothing that could be summed up fits the window'] },
    })
  })

  test('history in the preset: from 50,000 characters on', async () => {
    const policy = lifecycle({ preset: 's08' })
    expect(planCompaction(inputOf(session(40, 1000), { lifecycle: policy, window: 100_000 })).kind).toBe('apply')
    const long = logOf([user('x'.repeat(60_000)), says('yes'), ...loop(6, 10), says('done')])
    let wishes = 0
    const plan = await runCompaction(
      inputOf(long, { lifecycle: policy, trigger: 'pressure', window: 100_000 }),
      async () => {
        wishes++
        return written()
      },
    )
    expect([plan.kind, wishes]).toEqual(['apply', 1])
  })
})

describe('overflow', () => {
  test('keeps the newest five, also where no summary can be written', () => {
    const log = session(30, 1000)
    const policy = lifecycle({ keep: 30, steps: [] })
    const plan = planCompaction(
      inputOf(log, { trigger: 'overflow', lifecycle: policy, window: 16_000, usedTokens: 13_000 }),
    )
    const kept = compile(log).messages.slice(-5)
    const summed = seenAfter(log, applied(asked(plan).accept(written())))
    expect(summed.messages.slice(-5)).toEqual(kept)
    expect(summed.messages.length).toBeLessThan(10)
    const cut = planCompaction(
      inputOf(log, { trigger: 'overflow', lifecycle: policy, window: 1500, usedTokens: 20_000 }),
    )
    expect(seenAfter(log, applied(cut)).messages.slice(-5)).toEqual(kept)
    expect(applied(cut).steps.map(({ step }) => step)).toContain('snip')
  })
})

describe('always', () => {
  test('never two in a row without a word of a user or a tool in between', () => {
    const log = session(30, 1000)
    const event = applied(asked(planCompaction(inputOf(log))).accept(written()))
    const then = [...log, eventBehind(log, event)]
    expect(planCompaction(inputOf(then))).toEqual({ kind: 'nothing', reason: 'too-soon' })
    const silent = [...then, eventBehind(then, { kind: 'attempt', outcome: 'failed', reason: 'x' })]
    expect(planCompaction(inputOf(silent))).toEqual({ kind: 'nothing', reason: 'too-soon' })
    expect(planCompaction(inputOf([...then, eventBehind(then, user('on'))], { strategy: 'discard-all' })).kind).toBe(
      'apply',
    )
  })

  test('a context that cannot get shorter stays', () => {
    expect(planCompaction(inputOf(logOf([user('hi'), says('ho')]), { strategy: 'discard-all' }))).toEqual({
      ...{ kind: 'nothing', reason: 'nothing-to-do' },
    })
    const short = logOf([user('a'), ...loop(12, 1), says('done')])
    const plan = planCompaction(inputOf(short, { lifecycle: lifecycle({ steps: [] }) }))
    expect(asked(plan).accept(written())).toMatchObject({ kind: 'rejected' })
  })

  test('over logs at random: fewer characters, pairs together, recent turns as they were', () => {
    const strategies = [undefined, ...WAYS]
    fc.assert(
      fc.property(
        randomLog,
        fc.constantFrom(...strategies),
        fc.nat(12),
        fc.boolean(),
        (log, strategy, keep, isLong) => {
          const events = isLong ? logOf([...log.map(({ body }) => body), ...loop(9, 300), says('so')]) : log
          const policy = lifecycle({
            ...{ steps: ['micro', 'snip'], keep: keep + 1, micro: { keep: 1 }, snip: { over: 6, first: 2, last: 3 } },
          })
          const before = compile(events)
          let plan = planCompaction(inputOf(events, { lifecycle: policy, ...(strategy !== undefined && { strategy }) }))
          if (plan.kind === 'summary') plan = plan.accept(written())
          const event = plan.kind === 'apply' ? plan.event : plan.kind === 'rejected' ? plan.partial : undefined
          if (event === undefined) return
          const shown = seenAfter(events, event)
          expect(shown.chars).toBeLessThan(before.chars)
          expect([event.charsBefore, event.charsAfter]).toEqual([before.chars, shown.chars])
          const all = [...shown.messages, ...shown.tail.filter(({ role }) => role === 'tool')]
          for (let i = 0; i < all.length; i++) {
            const calls = all[i]?.toolCalls ?? []
            expect(all[i]?.role).not.toBe('tool')
            expect(all.slice(i + 1, i + 1 + calls.length).map(({ toolCallId }) => toolCallId)).toEqual(
              calls.map(({ id }) => id),
            )
            i += calls.length
          }
          // What is recent stays, but for results that become placeholders and calls that were to go.
          const hasDiscard = event.steps.some(({ step }) => step === 'discard')
          const recent = before.messages
            .map((message, i) => ({ message, made: before.origins[i]?.made }))
            .slice(-keep - 1)
            .filter(({ message: { role, toolCalls }, made }) => {
              return made === undefined && role !== 'tool' && !(hasDiscard && toolCalls !== undefined)
            })
            .map(({ message }) => message)
          expect(shown.messages.filter((message) => recent.includes(message))).toEqual(recent)
        },
      ),
      { numRuns: 150, seed: 3 },
    )
  })
})
