import { describe, expect, test } from 'vitest'
import { call, compaction, head, logOf, memory, PLAIN_POLICY, result, says, user } from '../../testing/random-log.js'
import { compileContext, createIncrementalCompiler } from '../compile/compilers.js'
import type { EventBody, SessionEvent } from '../log/event.js'
import { fewestSteps, forkOutcome } from './fewest-steps.js'
import { parseLifecycle } from './lifecycle.js'
import { eventBehind } from './on-trial.js'
import { isToolDue, isUnderPressure, ttlBoundary } from './triggers.js'

describe('pressure', () => {
  const standard = parseLifecycle(undefined)
  const at = (usedTokens: number, window: number, chars = 0) => ({ usedTokens, window, chars })

  test('begins at 80 % of the window', () => {
    expect(isUnderPressure(standard, at(80_000, 100_000))).toBe(false)
    expect(isUnderPressure(standard, at(80_001, 100_000))).toBe(true)
  })

  test('or where the next result and the answer would not fit', () => {
    expect(isUnderPressure(standard, at(5500, 8000))).toBe(false)
    expect(isUnderPressure(standard, at(5501, 8000))).toBe(true)
    // A small window keeps 40 % free at most.
    expect(isUnderPressure(standard, at(1200, 2000))).toBe(false)
    expect(isUnderPressure(standard, at(1201, 2000))).toBe(true)
  })

  test('or from a number of characters on', () => {
    const s08 = parseLifecycle({ preset: 's08' })
    expect(isUnderPressure(s08, at(0, 1_000_000, 50_000))).toBe(false)
    expect(isUnderPressure(s08, at(0, 1_000_000, 50_001))).toBe(true)
  })
})

describe('the tool', () => {
  const batch = [user('go'), says(''), call('a'), call('k', '{}', 'compact'), call('b')]
  const due = (...more: EventBody[]) => isToolDue(logOf([...batch, ...more]))

  test('takes effect once every call of its batch has a result, its own included', () => {
    expect(due()).toBe(false)
    expect(due(result('k', 'soon'))).toBe(false)
    expect(due(result('k', 'soon'), result('a', 'A'))).toBe(false)
    expect(due(result('k', 'soon'), result('a', 'A'), result('b', 'B'))).toBe(true)
    expect(due(result('a', 'A'), result('b', 'B'))).toBe(false)
  })

  test('once', () => {
    expect(due(result('k', ''), result('a', ''), result('b', ''), compaction([]))).toBe(false)
    expect(isToolDue(logOf([user('go'), says(''), call('a'), result('a', 'A')]))).toBe(false)
  })
})

describe('a lapsed prefix', () => {
  const log = logOf([head('sys'), memory('m', '1'), user('go'), says('done')])
  const boundaryOf = (events: readonly SessionEvent[]) => {
    const compiled = createIncrementalCompiler()
    compiled.append(events)
    return ttlBoundary(compiled, PLAIN_POLICY)
  }

  test('lets what waits take effect', () => {
    for (const waiting of [memory('m', '2'), head('new'), head('sys\nmore', 'append')]) {
      const events = [...log, eventBehind(log, waiting)]
      const event = boundaryOf(events)
      const after = compileContext([...events, eventBehind(events, event!)], PLAIN_POLICY, 1)
      expect([after.tail, after.chars, after.series]).toEqual([[], event!.charsAfter, 2])
      expect(after.messages[0]?.content).not.toBe(compileContext(log, PLAIN_POLICY, 1).messages[0]?.content)
    }
  })

  test('is no boundary where nothing waits', () => {
    expect(boundaryOf(log)).toBeUndefined()
  })
})

describe('of forks', () => {
  test('the one that came to an end in the fewest steps is taken', () => {
    const fork = (id: string, steps: number, finished = true, tokens = 9) => ({ id, steps, finished, tokens })
    expect(fewestSteps([fork('a', 5), fork('b', 3), fork('c', 2, false)])?.id).toBe('b')
    expect(fewestSteps([fork('a', 3), fork('b', 3, true, 8), fork('c', 3)])?.id).toBe('b')
    expect(fewestSteps([fork('a', 3), fork('b', 3)])?.id).toBe('a')
    expect(fewestSteps([fork('a', 3, false)])).toBeUndefined()
  })

  test('what came of one is in its log', () => {
    const usage: EventBody = {
      ...{
        kind: 'usage',
        turn: 1,
        promptTokens: 10,
        completionTokens: 2,
        cachedTokens: 0,
        stableTokens: 1,
        backend: 'b',
      },
    }
    const log = logOf([user('go'), says('parent'), says(''), call('a'), result('a', 'A'), usage, says('done'), usage])
    expect(forkOutcome('f', log, 2)).toEqual({ id: 'f', finished: true, steps: 2, tokens: 24 })
    expect(forkOutcome('f', log.slice(0, 5), 2).finished).toBe(false)
  })
})
