// What is remembered of sessions: dates, tools, dead branches, clocks in system texts, and how it is bounded.

import { afterEach, describe, expect, test } from 'vitest'
import type { BlockHash, Chain, Root } from '../core/block.js'
import type { ToolDefinition } from '../core/request.js'
import { type Note, note } from '../core/signals.js'
import { ManualClock } from '../testing/manual-clock.js'
import { compareHead, type HeadMemory } from './head-changes.js'
import { createSessionFacts, type SessionTurn } from './session-facts.js'

const chainOf = (...hashes: string[]): Chain => ({ root: 'r' as Root, hashes: hashes as unknown as BlockHash[] })
const tool = (name: string): ToolDefinition => ({ name, json: `{"name":"${name}"}` })
const scope = (session: string, tenant = 't', model = 'm') => ({ tenant, model, session })
const turn = (more: Partial<SessionTurn> = {}): SessionTurn => ({
  request: {},
  chain: chainOf('a'),
  tools: [],
  system: '',
  ...more,
})

function open(more: Partial<Parameters<typeof createSessionFacts>[0]> = {}) {
  const clock = new ManualClock()
  let day = 1
  const dateNow = () => new Date(Date.UTC(2026, 0, day++))
  return { clock, facts: createSessionFacts({ max: 10, ttlMs: 1000, memoryBytes: 1e6, clock, dateNow, ...more }) }
}

const stops: (() => void)[] = []
afterEach(() => {
  for (const stop of stops.splice(0)) stop()
})

function notes(): Note[] {
  const seen: Note[] = []
  stops.push(note.subscribe((each) => seen.push(each)))
  return seen
}

describe('a session', () => {
  test('keeps the date of its first request, whoever else has the same key', () => {
    const { facts } = open()
    const first = facts.open(scope('s')).since
    expect(facts.open(scope('s')).since).toBe(first)
    expect(facts.open(scope('s', 'other')).since).not.toEqual(first)
    expect(facts.open(scope('s', 't', 'other')).since).not.toEqual(first)
  })

  test('begins anew with a turn that has no answer before it: keys are shared, and sessions go on for weeks', () => {
    const session = open().facts.open(scope('app'))
    const prompt = (...roles: ('system' | 'user' | 'assistant')[]) => ({
      ...{ kind: 'chat' as const, tools: [] },
      messages: roles.map((role) => ({ role, content: '' })),
    })
    const first = session.dateFor({ prompt: prompt('system', 'user') })
    session.settle(turn())
    expect(session.dateFor({ prompt: prompt('user', 'assistant', 'user') })).toBe(first)
    expect(session.dateFor({ requestClass: 'compaction', prompt: prompt('system', 'user') })).toBe(first)
    expect(session.dateFor({ prompt: prompt('system', 'user') })).not.toEqual(first)
  })

  test('of a sub-agent is of its parent’s day', () => {
    const { facts } = open()
    const { since } = facts.open(scope('main'))
    expect(facts.open({ ...scope('child'), parent: 'main' }).since).toBe(since)
    expect(facts.open({ ...scope('orphan'), parent: 'gone' }).since).not.toBe(since)
    expect(facts.open({ ...scope('child', 'other'), parent: 'main' }).since).not.toBe(since)
  })

  test('keeps the tools of its last turn that had any, and not the body that they were cut from', () => {
    const { facts } = open()
    const session = facts.open(scope('s'))
    session.settle(turn({ tools: [tool('a'), tool('b')] }))
    const kept = session.tools
    session.settle(turn({ tools: [] }))
    session.settle(turn({ tools: [tool('a'), tool('b')] }))
    expect(session.tools).toBe(kept)
    session.settle(turn({ tools: [tool('c')] }))
    expect(facts.open(scope('s')).tools).toEqual([tool('c')])
    expect(session.turns).toBe(4)
  })

  test('goes on from where it was after side requests', () => {
    const { facts } = open()
    const session = facts.open(scope('s'))
    session.settle(turn({ chain: chainOf('a', 'b') }))
    for (const requestClass of ['auxiliary', 'compaction'] as const) {
      session.settle(turn({ request: { requestClass, contextEpoch: 'new' }, chain: chainOf('x') }))
    }
    expect([session.turns, session.chain]).toEqual([1, chainOf('a', 'b')])
  })
})

describe('tools that a side request leaves out', () => {
  const asking = (more: object = {}) => ({
    requestClass: 'compaction' as const,
    prompt: { kind: 'chat' as const, messages: [], tools: [] as ToolDefinition[] },
    ...more,
  })

  test('are kept where it asks about the session’s own conversation', () => {
    const session = open().facts.open(scope('s'))
    expect(session.keepTools(asking(), 'rules')).toBeUndefined()
    session.settle(turn({ tools: [tool('f')], system: 'rules' }))
    expect(session.keepTools(asking(), 'rules')).toEqual([tool('f')])
    expect(session.keepTools(asking({ requestClass: 'auxiliary' }), 'rules')).toEqual([tool('f')])
    expect(session.keepTools(asking(), 'You are a title generator.')).toBeUndefined()
    expect(session.keepTools(asking({ requestClass: undefined }), 'rules')).toBeUndefined()
    expect(session.keepTools(asking({ prompt: { kind: 'text', text: '' } }), 'rules')).toBeUndefined()
    const own = { kind: 'chat' as const, messages: [], tools: [tool('g')] }
    expect(session.keepTools(asking({ prompt: own }), 'rules')).toBeUndefined()
  })
})

describe('a summary', () => {
  const compaction = { requestClass: 'compaction' } as const
  const before = turn({ chain: chainOf('a', 'b', 'c', 'd'), tools: [tool('f')] })

  test('that loses the prefix is told, and why', () => {
    const seen = notes()
    const { facts, clock } = open()
    const session = facts.open(scope('s'))
    session.settle(turn({ request: compaction, chain: chainOf('x') }))
    session.settle(before)
    session.settle(turn({ request: compaction, chain: chainOf('a', 'x') }))
    clock.advance(60_000)
    session.settle(turn({ request: compaction, chain: chainOf('x'), tools: [tool('f')] }))
    expect(seen.map(({ text }) => text)).toEqual([
      'a summary shares 64 tokens of the 256 that its session has cached: it is sent without the tools',
      'a summary shares 0 tokens of the 256 that its session has cached: its prompt is another one',
    ])
  })

  test('that keeps most of it is not', () => {
    const seen = notes()
    const session = open().facts.open(scope('s'))
    session.settle(before)
    session.settle(turn({ request: compaction, chain: chainOf('a', 'b', 'c', 'x') }))
    expect(seen).toEqual([])
  })
})

describe('a rewritten context', () => {
  test('leaves behind what the new prompt does not share, once', () => {
    const session = open().facts.open(scope('s'))
    expect(session.settle(turn({ request: { contextEpoch: 0 }, chain: chainOf('a', 'b', 'c') }))).toBeUndefined()
    expect(session.settle(turn({ request: { contextEpoch: 0 }, chain: chainOf('a', 'x') }))).toBeUndefined()
    expect(session.settle(turn({ request: { contextEpoch: 1 }, chain: chainOf('a', 'y', 'z') }))).toEqual(['x'])
    expect(session.settle(turn({ request: { contextEpoch: 1 }, chain: chainOf('a', 'q') }))).toBeUndefined()
    expect(session.settle(turn({ request: { contextEpoch: 'new' }, chain: chainOf('b') }))).toEqual(['a', 'q'])
  })

  test('is nothing where all of it lives on, or nothing is known of before', () => {
    const { facts } = open()
    const session = facts.open(scope('s'))
    session.settle(turn({ chain: chainOf('a') }))
    expect(session.settle(turn({ request: { contextEpoch: 'new' }, chain: chainOf('a', 'b') }))).toBeUndefined()
    expect(facts.open(scope('n')).settle(turn({ request: { contextEpoch: 7 } }))).toBeUndefined()
    expect(facts.open(scope('o')).settle(turn({ request: { contextEpoch: 'new' } }))).toBeUndefined()
  })
})

describe('the bounds', () => {
  test('by count: who came last stays', () => {
    const { facts } = open({ max: 2 })
    const first = facts.open(scope('1')).since
    facts.open(scope('2'))
    facts.open(scope('1'))
    facts.open(scope('3'))
    expect(facts.size).toBe(2)
    expect(facts.open(scope('1')).since).toBe(first)
  })

  test('by age since the last turn', () => {
    const { facts, clock } = open()
    const first = facts.open(scope('1')).since
    clock.advance(900)
    expect(facts.open(scope('1')).since).toBe(first)
    clock.advance(900)
    expect(facts.open(scope('1')).since).toBe(first)
    clock.advance(1000)
    expect(facts.open(scope('1')).since).not.toBe(first)
  })

  test('by bytes, and what was forgotten counts no more', () => {
    const { facts } = open({ memoryBytes: 20_000, max: 1000 })
    const old = facts.open(scope('old'))
    for (let i = 0; i < 50; i++) facts.open(scope(`${i}`)).settle(turn({ system: 'x'.repeat(1000) }))
    expect(facts.size).toBeLessThan(10)
    old.settle(turn({ system: 'x'.repeat(100_000) }))
    facts.open(scope('new')).settle(turn())
    expect(facts.size).toBeGreaterThan(1)
    facts.open(scope('huge')).settle(turn({ system: 'x'.repeat(100_000) }))
    expect(facts.size).toBe(0)
  })

  test('of 0 remember nothing', () => {
    const { facts } = open({ max: 0 })
    facts.open(scope('1')).settle(turn())
    expect(facts.size).toBe(0)
  })

  test('a session, or all of a tenant’s, can be forgotten', () => {
    const { facts } = open()
    for (const [session, tenant] of [['1'], ['2'], ['1', 'other']] as const) facts.open(scope(session, tenant))
    facts.forget({ tenant: 't', session: '1' })
    expect(facts.size).toBe(2)
    facts.forget({ tenant: 't' })
    expect(facts.size).toBe(1)
  })
})

describe('a clock in the system text', () => {
  const at = (i: number) => `You are ${'ä'.repeat(40)} at 12:0${i}:3${i}. Be brief.`

  test('is told with its place in bytes, three turns after the first, and never in between', () => {
    const seen = notes()
    const session = open().facts.open(scope('s'))
    for (let i = 0; i < 9; i++) session.settle(turn({ system: at(i) }))
    expect(seen.map(({ text }) => text)).toEqual([
      expect.stringContaining('contains a clock or a counter: it changed in 3 of 3 turns at byte 96'),
    ])
    expect(seen[0]?.detail).toMatchObject({ session: 's', tenant: 't', byte: 96 })
  })

  test('of many sessions is told now and then only', () => {
    const seen = notes()
    const { facts, clock } = open({ ttlMs: 1e9 })
    for (let i = 0; i < 9; i++)
      for (const key of ['1', '2', '3']) facts.open(scope(key)).settle(turn({ system: at(i) }))
    expect(seen.length).toBe(1)
    clock.advance(60_000)
    for (let i = 0; i < 9; i++) facts.open(scope('4')).settle(turn({ system: at(i) }))
    expect(seen.length).toBe(2)
  })

  const told = (texts: readonly string[]) => {
    let memory: HeadMemory | undefined
    return texts.flatMap((text) => {
      const next = compareHead(memory, text)
      memory = next.memory
      return next.change ?? []
    })
  }

  test('is not a text that changes now and then elsewhere, or is another one', () => {
    const line = (place: number, text: string) => `${'a'.repeat(place)}${text}${'b'.repeat(900 - place)}`
    expect(told(['same', 'same', 'same', 'same', 'same'])).toEqual([])
    expect(told([100, 300, 500, 700, 200].map((place) => line(place, 'X')))).toEqual([])
    expect(told(['one', 'x'.repeat(100), 'two', 'y'.repeat(100), 'three'])).toEqual([])
  })

  test('may be words, and stand far behind in a text', () => {
    const names = ['one', 'two', 'six', 'ten'].map((word) => `${'a'.repeat(5000)}${word}`)
    expect(told(names)).toEqual([{ changed: 3, compared: 3, byte: 5000, isNumber: false }])
    expect(told(['a1', 'a2', 'a2', 'a3', 'a4'])).toEqual([{ changed: 3, compared: 4, byte: 1, isNumber: true }])
  })
})
