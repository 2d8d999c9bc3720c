// The compiler's promises over logs at random: from scratch and event by event give the same bytes, calls and results stay
// together, what is revoked is nowhere, and what was shown stays shown until a boundary.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import type { ChatMessage } from '../../core/request.js'
import { PLAIN_POLICY, randomLog, randomPolicy } from '../../testing/random-log.js'
import type { PolicySnapshot, SessionEvent } from '../log/event.js'
import { COMPILERS, CURRENT_COMPILER, compileContext, createIncrementalCompiler } from './compilers.js'
import type { CompiledContext } from './contract.js'

const runs = { numRuns: 100, seed: 7 }
const compile = (events: readonly SessionEvent[], policy: PolicySnapshot = PLAIN_POLICY) =>
  compileContext(events, policy, CURRENT_COMPILER)
const shownTo = (context: CompiledContext): readonly ChatMessage[] => [...context.messages, ...context.tail]

describe.each(Object.keys(COMPILERS).map(Number))('compiler %i', (version) => {
  test('gives the same bytes event by event as from scratch, whatever is appended and asked between', () => {
    fc.assert(
      fc.property(
        randomLog,
        fc.array(randomPolicy, { minLength: 1, maxLength: 4 }),
        fc.infiniteStream(fc.nat(4)),
        (log, policies, sizes) => {
          const compiler = createIncrementalCompiler(version)
          for (let at = 0, turn = 0; at <= log.length; turn++) {
            const policy = policies[turn % policies.length]!
            expect(compiler.compile(policy)).toEqual(compileContext(structuredClone(log.slice(0, at)), policy, version))
            if (at === log.length) break
            const more = log.slice(at, at + 1 + sizes.next().value!)
            compiler.append(more)
            at += more.length
            expect(compiler.position).toBe(at)
          }
        },
      ),
      runs,
    )
  })

  test('says on trial what logging would give, and is as it was afterwards', () => {
    fc.assert(
      fc.property(randomLog, randomPolicy, fc.nat(60), (log, policy, at) => {
        const plain = log.map((event) => ({ ...event, sources: [], id: '', session: '', tenant: '', at: 0 }))
        const [before, behind] = [plain.slice(0, at), plain.slice(at)]
        const compiler = createIncrementalCompiler(version)
        compiler.append(before)
        const now = compiler.compile(policy)
        // A verdict of the log's own takes effect when it is logged.
        const isLogged = behind.some(({ body }) => body.kind === 'revocation' || body.kind === 'policy')
        const bodies = behind.map(({ body }) => body)
        if (!isLogged) expect(compiler.trial(bodies, policy)).toEqual(compileContext(plain, policy, version))
        expect(compiler.compile(policy)).toEqual(now)
        compiler.append(behind)
        expect(compiler.compile(policy)).toEqual(compileContext(plain, policy, version))
      }),
      runs,
    )
  })

  test('leaves contexts that it gave out as they were', () => {
    fc.assert(
      fc.property(randomLog, (log) => {
        const compiler = createIncrementalCompiler(version)
        const given: [CompiledContext, CompiledContext][] = []
        for (const event of log) {
          compiler.append([event])
          const context = compiler.compile(PLAIN_POLICY)
          given.push([context, structuredClone(context)])
        }
        for (const [context, copy] of given) expect(context).toEqual(copy)
      }),
      { ...runs, numRuns: 50 },
    )
  })
})

describe('a context', () => {
  test('has each call with its result right behind its answer, in the order of the calls', () => {
    fc.assert(
      fc.property(randomLog, randomPolicy, (log, policy) => {
        const shown = shownTo(compile(log, policy))
        for (let i = 0; i < shown.length; i++) {
          const { role, toolCalls } = shown[i]!
          if (role === 'tool') expect.unreachable(`message ${i} is a result without its call`)
          const calls = toolCalls ?? []
          const results = shown.slice(i + 1, i + 1 + calls.length)
          expect(results.map((message) => [message.role, message.toolCallId])).toEqual(
            calls.map(({ id }) => ['tool', id]),
          )
          i += calls.length
        }
      }),
      runs,
    )
  })

  test('has nothing in it that rests on a revoked source', () => {
    fc.assert(
      fc.property(randomLog, randomPolicy, (log, policy) => {
        const context = compile(log, policy)
        const all = JSON.stringify([context.messages, context.tail])
        const revoked = [
          ...policy.revoked,
          ...log.flatMap(({ body }) => (body.kind === 'revocation' ? body.sources : [])),
        ]
        for (const source of revoked) {
          expect(all).not.toContain(`${source}!`)
          expect(context.sources).not.toContain(source)
        }
      }),
      runs,
    )
  })

  test('grows at its end only, while nothing was logged that ends its series', () => {
    fc.assert(
      fc.property(randomLog, (log) => {
        const compiler = createIncrementalCompiler()
        let before = compiler.compile(PLAIN_POLICY)
        for (const event of log) {
          compiler.append([event])
          const now = compiler.compile(PLAIN_POLICY)
          // A call joins the answer before it; what may not be seen takes its call along.
          const isLate = event.body.kind === 'tool_call' || now.withheld.length > before.withheld.length
          const begins =
            before.messages.length <= 1 && before.origins.every(({ made }) => made === 'head' || made === 'artifacts')
          if (now.series === before.series && !isLate && !begins) {
            expect(now.segments.map(({ digest }) => digest)).toEqual(
              expect.arrayContaining(before.segments.flatMap(({ kind, digest }) => (kind === 'tail' ? [] : [digest]))),
            )
            expect(now.messages.slice(0, before.messages.length)).toEqual(before.messages)
          }
          before = now
        }
      }),
      runs,
    )
  })

  test('has digests that name it: another byte is another digest, the same bytes are the same', () => {
    fc.assert(
      fc.property(randomLog, randomLog, (one, other) => {
        const [a, b] = [compile(one), compile(other)]
        const isSame = JSON.stringify([a.tools, a.messages, a.tail]) === JSON.stringify([b.tools, b.messages, b.tail])
        if (a.digest === b.digest) expect(isSame).toBe(true)
        expect(compile(structuredClone(one)).digest).toBe(a.digest)
      }),
      { ...runs, numRuns: 100 },
    )
  })

  test('tells where its messages come from', () => {
    fc.assert(
      fc.property(randomLog, randomPolicy, (log, policy) => {
        const { messages, origins, segments, tail, withheld, chars } = compile(log, policy)
        expect(origins.length).toBe(messages.length)
        for (const { from, to } of origins) {
          expect(from).toBeGreaterThan(0)
          expect(to).toBeGreaterThanOrEqual(from)
        }
        expect(segments.flatMap(({ message }) => (message === undefined ? [] : [message]))).toEqual(
          messages.flatMap((_, i) => (origins[i]?.made === 'head' ? [] : [i])),
        )
        expect(segments.filter(({ kind }) => kind === 'tail').length).toBe(tail.length)
        expect(withheld).toEqual([...new Set(withheld)].sort((a, b) => a - b))
        const calls = messages.flatMap(({ toolCalls }) => toolCalls ?? [])
        expect(chars).toBe(
          messages.reduce((sum, { content }) => sum + content.length, 0) +
            calls.reduce((sum, { name, arguments: json }) => sum + name.length + json.length, 0),
        )
      }),
      runs,
    )
  })
})
