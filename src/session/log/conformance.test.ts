// What every log of sessions promises, asked of each kind in turn: order, all or none, conflicts that lose nothing, forks,
// sources, erasure, and that tenants do not see each other.

import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { RefrainError } from '../../core/errors.js'
import { type LogHouse, openLogHouse } from '../../testing/log-house.js'
import type { SessionLog } from './contract.js'
import type { EventBody, NewEvent } from './event.js'
import { NO_DIGEST } from './event-digest.js'
import { newSessionId } from './ids.js'
import { createMemoryLog } from './memory.js'

const limits = { sessionEvents: 50, sessionBytes: 20_000, sources: 8 }

const kinds: Readonly<Record<string, { open(maxBytes: number): Promise<SessionLog> }>> = {
  memory: { open: async (maxBytes) => createMemoryLog({ limits, maxBytes }) },
  'sqlite, process': { open: (maxBytes) => house.open(house.folder(), { limits, maxBytes }) },
  'sqlite, power': { open: (maxBytes) => house.open(house.folder(), { limits, maxBytes, durability: 'power' }) },
}

let house: LogHouse
beforeAll(async () => {
  house = await openLogHouse()
})
afterAll(() => house.close())

const user = (content: string): NewEvent => ({ body: { kind: 'user', content } })
const call = (id: string): NewEvent => ({ body: { kind: 'tool_call', id, name: 'read', arguments: '{}' } })
const result = (callId: string, sources?: string[], more: Partial<NewEvent> = {}): NewEvent => ({
  body: { kind: 'tool_result', callId, content: `what ${callId} gave` },
  ...(sources && { sources }),
  ...more,
})
const said: NewEvent = { body: { kind: 'assistant', content: 'so be it' } }
const codeOf = (promise: Promise<unknown>) =>
  promise.then(
    () => 'none',
    (error: RefrainError) => error.code,
  )

describe.each(Object.entries(kinds))('the log %s', (_, kind) => {
  const session = async (log: SessionLog, tenant = acme, events: NewEvent[] = []) =>
    (await log.create({ id: newSessionId(), tenant, model: 'toy' }, events)).id
  const all = (log: SessionLog, id: string, tenant = acme) => log.read(tenant, id, { from: 1, limit: 1000 })

  // One log for all of the tests, each with tenants of its own.
  let log: SessionLog
  let [acme, other, count] = ['', '', 0]
  beforeAll(async () => {
    log = await kind.open(2 ** 30)
  })
  afterAll(() => log.close())

  function using(run: (log: SessionLog) => Promise<void>): Promise<void> {
    count++
    acme = `acme ${count}`
    other = `other ${count}`
    return run(log)
  }

  test('gives positions from 1, times that do not go back and a chain of digests', () =>
    using(async (log) => {
      const id = await session(log, acme, [user('a'), user('b')])
      const [third] = await log.append({ tenant: acme, session: id, expected: 2, events: [user('c')] })
      const events = await all(log, id)
      expect(events.map(({ position }) => position)).toEqual([1, 2, 3])
      expect(events[2]).toEqual(third)
      expect(events.map(({ previous }) => previous)).toEqual([NO_DIGEST, events[0]!.digest, events[1]!.digest])
      expect(new Set(events.map(({ digest }) => digest)).size).toBe(3)
      expect(new Set(events.map((each) => each.id)).size).toBe(3)
      expect(events.every(({ at }, i) => i === 0 || at >= events[i - 1]!.at)).toBe(true)
      expect(events.map(({ body }) => body)).toEqual(
        ['a', 'b', 'c'].map((content) => ({ kind: 'user', content }) satisfies EventBody),
      )
      expect(await log.read(acme, id, { from: 2, limit: 1 })).toEqual([events[1]])
      expect(await log.read(acme, id, { from: 4, limit: 9 })).toEqual([])
    }))

  test('refuses an append that expects another position, says where it stands and keeps nothing of it', () =>
    using(async (log) => {
      const id = await session(log, acme, [user('a')])
      const late = log.append({ tenant: acme, session: id, expected: 0, events: [user('lost?')] })
      await expect(late).rejects.toMatchObject({ code: 'conflict', message: expect.stringContaining('position 1') })
      expect(await all(log, id)).toHaveLength(1)
    }))

  test('of appends that race for a place one wins', () =>
    using(async (log) => {
      const id = await session(log)
      const racing = ['a', 'b', 'c', 'd'].map((content) =>
        codeOf(log.append({ tenant: acme, session: id, expected: 0, events: [user(content), user(content)] })),
      )
      expect((await Promise.all(racing)).sort()).toEqual(['conflict', 'conflict', 'conflict', 'none'])
      const events = await all(log, id)
      expect(events).toHaveLength(2)
      expect(events[0]!.body).toEqual(events[1]!.body)
    }))

  test('keeps all of an append or nothing, also where its last event is the fault', () =>
    using(async (log) => {
      const id = await session(log)
      const bad = { tenant: acme, session: id, events: [user('a'), result('x', undefined, { layer: 'unheard' })] }
      await expect(log.append(bad)).rejects.toMatchObject({ code: 'invalid_request', param: 'events[1].layer' })
      expect(await all(log, id)).toEqual([])
      const tooMany = Array.from({ length: 51 }, () => user('a'))
      expect(await codeOf(log.append({ tenant: acme, session: id, events: tooMany }))).toBe('session_limit')
      const tooLong = [user('a'.repeat(20_001))]
      expect(await codeOf(log.append({ tenant: acme, session: id, events: tooLong }))).toBe('session_limit')
      const nine = [result('x', [...'abcdefghi'])]
      expect(await codeOf(log.append({ tenant: acme, session: id, events: nine }))).toBe('session_limit')
      expect(await all(log, id)).toEqual([])
      expect(await log.append({ tenant: acme, session: id, expected: 0, events: [user('a')] })).toHaveLength(1)
    }))

  test('what was derived carries the sources of all that it was derived from', () =>
    using(async (log) => {
      const id = await session(log, acme, [user('q'), said, call('1'), call('2'), result('1', ['wiki'])])
      await log.append({ tenant: acme, session: id, events: [result('2', ['crm', 'crm']), user('and?')] })
      await log.append({ tenant: acme, session: id, events: [said, call('3'), result('3')] })
      const sources = (await all(log, id)).map((event) => event.sources)
      expect(sources.slice(0, 4)).toEqual([[], [], [], []])
      // Both calls were asked for before either result was seen.
      expect(sources.slice(4, 7)).toEqual([['wiki'], ['crm'], []])
      expect(sources.slice(7)).toEqual([
        ['crm', 'wiki'],
        ['crm', 'wiki'],
        ['crm', 'wiki'],
      ])
      const [revoked, after] = await log.append({
        tenant: acme,
        session: id,
        events: [{ body: { kind: 'revocation', sources: ['crm'] } }, said],
      })
      expect(revoked!.sources).toEqual([])
      // The turn that had read both is gone with crm; the result of the wiki alone is still there.
      expect(after!.sources).toEqual(['wiki'])
      // It comes again, is not shown, and so marks nothing.
      const [, later] = await log.append({ tenant: acme, session: id, events: [result('9', ['crm']), said] })
      expect(later!.sources).toEqual(['wiki'])
    }))

  test('a layer hands its sources to its children and to what is read from them', () =>
    using(async (log) => {
      const layer = (layerId: string, sources: string[], parent?: string): NewEvent => ({
        body: { kind: 'layer', id: layerId, sources, ...(parent && { parent }) },
      })
      const id = await session(log, acme, [layer('base', []), layer('l1', ['mail'], 'base'), layer('l2', [], 'l1')])
      await log.append({
        tenant: acme,
        session: id,
        events: [result('x', ['web'], { layer: 'l2' }), layer('l3', [])],
      })
      const sources = (await all(log, id)).map((event) => event.sources)
      expect(sources).toEqual([[], ['mail'], ['mail'], ['mail', 'web'], ['mail', 'web']])
      const twice = log.append({ tenant: acme, session: id, events: [layer('l2', [])] })
      await expect(twice).rejects.toMatchObject({ code: 'invalid_request', param: 'events[0].id' })
    }))

  test('forks read their parent up to where they forked, go on from there and know what it rests on', () =>
    using(async (log) => {
      const id = await session(log, acme, [user('q'), result('x', ['wiki']), user('on'), result('y', ['crm'])])
      const fork = async (at: number) => {
        const body: EventBody = { kind: 'fork', parent: id, at, of: 1, index: 0 }
        const parent = { session: id, at }
        return (await log.create({ id: newSessionId(), tenant: acme, model: 'toy', parent }, [{ body }])).id
      }
      const early = await fork(1)
      const middle = await fork(3)
      await log.append({ tenant: acme, session: id, events: [user('of the parent')] })
      await log.append({ tenant: acme, session: middle, expected: 4, events: [said] })
      await log.append({ tenant: acme, session: early, events: [said] })
      const parents = await all(log, id)
      const forks = await all(log, middle)
      expect(forks.map(({ position }) => position)).toEqual([1, 2, 3, 4, 5])
      expect(forks.slice(0, 3)).toEqual(parents.slice(0, 3))
      expect(forks[3]).toMatchObject({ session: middle, previous: parents[2]!.digest })
      expect(forks[4]!.sources).toEqual(['wiki'])
      expect((await all(log, early))[2]!.sources).toEqual([])
      expect(await log.read(acme, middle, { from: 3, limit: 2 })).toEqual(forks.slice(2, 4))
      const deeper = await log.create(
        { id: newSessionId(), tenant: acme, model: 'toy', parent: { session: middle, at: 4 } },
        [user('deeper')],
      )
      expect((await all(log, deeper.id)).map(({ session: of }) => of)).toEqual([id, id, id, middle, deeper.id])
      expect(await log.forksOf(acme, id)).toEqual([early, middle].sort())
      expect(await codeOf(fork(9))).toBe('invalid_request')
      const orphan = { id: newSessionId(), tenant: acme, model: 'toy', parent: { session: newSessionId(), at: 0 } }
      expect(await codeOf(log.create(orphan, []))).toBe('not_found')
    }))

  test("another tenant's session is one that does not exist", () =>
    using(async (log) => {
      const id = await session(log, acme, [user('secret')])
      expect(await log.session(other, id)).toBeUndefined()
      expect(await log.sessions(other, { limit: 9 })).toEqual([])
      expect(await codeOf(all(log, id, other))).toBe('not_found')
      expect(await codeOf(log.append({ tenant: other, session: id, events: [user('x')] }))).toBe('not_found')
      expect(await codeOf(log.erase({ tenant: other, session: id }))).toBe('not_found')
      expect(await codeOf(log.result({ tenant: other, session: id }, 'l'))).toBe('not_found')
      expect(await codeOf(log.create({ id, tenant: other, model: 'toy' }, []))).toBe('conflict')
      expect(await all(log, id)).toHaveLength(1)
    }))

  test('lists a tenant’s sessions, the latest first, in pages', () =>
    using(async (log) => {
      const ids = [await session(log), await session(log), await session(log)]
      await session(log, other)
      const first = await log.sessions(acme, { limit: 2 })
      expect(first.map(({ id }) => id)).toEqual([ids[2], ids[1]])
      const rest = await log.sessions(acme, { before: first[1]!.createdAt, limit: 2 })
      expect(rest.map(({ id }) => id)).toEqual([ids[0]])
      const metadata = '{"a": 1}'
      const made = await log.create({ id: newSessionId(), tenant: acme, model: 'toy', metadata }, [user('a')])
      await log.append({ tenant: acme, session: made.id, events: [user('b')] })
      expect(await log.session(acme, made.id)).toMatchObject({ model: 'toy', metadata, position: 2 })
    }))

  test('keeps results for the session and its forks', () =>
    using(async (log) => {
      const id = await session(log, acme, [user('q')])
      const kept = { locator: 'res_1', text: 'long '.repeat(500), sources: ['wiki'] }
      await log.keepResult({ tenant: acme, session: id }, kept)
      const fork = await log.create(
        { id: newSessionId(), tenant: acme, model: 'toy', parent: { session: id, at: 1 } },
        [],
      )
      expect(await log.result({ tenant: acme, session: id }, 'res_1')).toEqual(kept)
      expect(await log.result({ tenant: acme, session: fork.id }, 'res_1')).toEqual(kept)
      expect(await log.result({ tenant: acme, session: id }, 'res_2')).toBeUndefined()
    }))

  test('says which blocks nobody else needs', () =>
    using(async (log) => {
      const [a, b] = [await session(log), await session(log)]
      const [one, two, three] = [1, 2, 3].map((n) => new Uint8Array(32).fill(n)) as [Uint8Array, Uint8Array, Uint8Array]
      await log.noteBlocks({ tenant: acme, session: a }, [one, two])
      await log.noteBlocks({ tenant: acme, session: a }, [two])
      await log.noteBlocks({ tenant: acme, session: b }, [two, three])
      const blocks = async (whose: Parameters<SessionLog['blocksOf']>[0]) =>
        (await log.blocksOf(whose)).map((hash) => hash[0]).sort()
      expect(await blocks({ tenant: acme, session: a })).toEqual([1])
      expect(await blocks({ tenant: acme, session: a, which: 'all' })).toEqual([1, 2])
      expect(await blocks({ tenant: acme })).toEqual([1, 2, 3])
      expect(await blocks({ tenant: other })).toEqual([])
      await log.erase({ tenant: acme, session: a })
      expect(await blocks({ tenant: acme, session: b })).toEqual([2, 3])
    }))

  test('remembers grants and says which sessions rest on a source, forks by what they took over', () =>
    using(async (log) => {
      const touched = await session(log, acme, [user('q'), result('x', ['wiki']), said])
      const clean = await session(log, acme, [user('q')])
      const make = async (at: number) =>
        (await log.create({ id: newSessionId(), tenant: acme, model: 'toy', parent: { session: touched, at } }, [])).id
      const [before, after] = [await make(1), await make(2)]
      const grant = { source: 'wiki', state: 'revoked', at: 5 } as const
      expect(await log.setGrant(acme, grant)).toEqual([touched, after].sort())
      expect(await log.setGrant(other, grant)).toEqual([])
      expect([clean, before]).not.toContain(touched)
      await log.setGrant(acme, { ...grant, source: 'crm' })
      const granted = { ...grant, state: 'granted', at: 6 } as const
      await log.setGrant(acme, granted)
      expect(await log.grants(acme)).toEqual([{ ...grant, source: 'crm' }, granted])
    }))

  test('shares memory within a tenant', () =>
    using(async (log) => {
      const block = { id: 'team', label: 'Team', value: 'x', limitTokens: 5, sources: ['wiki'] }
      await log.setSharedMemory(acme, block)
      await log.setSharedMemory(acme, { ...block, value: 'y' })
      await log.setSharedMemory(acme, { id: 'a', label: 'A', value: '' })
      expect(await log.sharedMemory(acme)).toEqual([
        { id: 'a', label: 'A', value: '' },
        { ...block, value: 'y' },
      ])
      expect(await log.sharedMemory(other)).toEqual([])
    }))

  test('a session is erased for good, its parts too, and not under its forks', () =>
    using(async (log) => {
      const before = await log.status()
      const id = await session(log, acme, [user('q')])
      await log.keepResult({ tenant: acme, session: id }, { locator: 'l', text: 'x', sources: [] })
      const fork = await log.create(
        { id: newSessionId(), tenant: acme, model: 'toy', parent: { session: id, at: 1 } },
        [],
      )
      expect(await codeOf(log.erase({ tenant: acme, session: id }))).toBe('conflict')
      await log.erase({ tenant: acme, session: fork.id })
      expect(await log.forksOf(acme, id)).toEqual([])
      await log.erase({ tenant: acme, session: id })
      expect(await codeOf(all(log, id))).toBe('erased')
      expect(await codeOf(log.append({ tenant: acme, session: id, events: [user('x')] }))).toBe('erased')
      expect(await codeOf(log.result({ tenant: acme, session: id }, 'l'))).toBe('erased')
      expect(await codeOf(all(log, id, other))).toBe('not_found')
      expect(await codeOf(log.create({ id, tenant: acme, model: 'toy' }, []))).toBe('conflict')
      expect(await log.session(acme, id)).toBeUndefined()
      expect(await log.sessions(acme, { limit: 9 })).toEqual([])
      const { sessions, events } = await log.status()
      expect({ sessions, events }).toEqual({ sessions: before.sessions, events: before.events })
    }))

  test('a tenant is erased with all that it has, and may begin anew', () =>
    using(async (log) => {
      const id = await session(log, acme, [user('q')])
      const others = await session(log, other, [user('q')])
      await log.setGrant(acme, { source: 'wiki', state: 'granted', at: 1 })
      await log.setSharedMemory(acme, { id: 'a', label: 'A', value: 'x' })
      const gone = await session(log, acme, [user('q')])
      await log.erase({ tenant: acme, session: gone })
      expect(await codeOf(all(log, gone))).toBe('erased')
      await log.erase({ tenant: acme })
      expect(await codeOf(all(log, gone))).toBe('not_found')
      expect(await codeOf(all(log, id))).toBe('not_found')
      expect(await log.grants(acme)).toEqual([])
      expect(await log.sharedMemory(acme)).toEqual([])
      expect(await all(log, others, other)).toHaveLength(1)
      const anew = await session(log, acme, [user('again')])
      expect(await all(log, anew)).toHaveLength(1)
      expect(await codeOf(all(log, gone))).toBe('not_found')
      await log.erase({ tenant: 'nobody' })
    }))

  test('contents of single events go, their places, digests and sources stay', () =>
    using(async (log) => {
      const id = await session(log, acme, [user('q'), call('c1'), result('c1', ['wiki']), user('on')])
      const fork = await log.create(
        { id: newSessionId(), tenant: acme, model: 'toy', parent: { session: id, at: 3 } },
        [user('forked')],
      )
      await log.keepResult({ tenant: acme, session: id }, { locator: 'l', text: 'x', sources: ['wiki'] })
      const before = await all(log, id)
      await log.eraseEvents({ tenant: acme, session: fork.id }, { positions: [3, 4], locators: ['l'] })
      const after = await all(log, id)
      expect(after[2]).toEqual({
        ...before[2],
        body: { kind: 'tool_result', callId: 'c1', content: '' },
        erased: true,
      })
      expect([after[0], after[1], after[3]]).toEqual([before[0], before[1], before[3]])
      expect((await all(log, fork.id))[3]).toMatchObject({ body: { kind: 'user', content: '' }, erased: true })
      expect(await log.result({ tenant: acme, session: id }, 'l')).toBeUndefined()
      const [next] = await log.append({ tenant: acme, session: id, events: [said] })
      expect(next).toMatchObject({ previous: before[3]!.digest, sources: ['wiki'] })
    }))

  test('is full with an error that keeps nothing, and is not full for good', () =>
    using(async () => {
      const log = await kind.open(500_000)
      const text = 'x'.repeat(15_000)
      const ids: string[] = []
      let code = 'none'
      while (code === 'none' && ids.length < 100) {
        const id = await session(log)
        code = await codeOf(log.append({ tenant: acme, session: id, events: [user(text)] }))
        if (code === 'none') ids.push(id)
      }
      expect(code).toBe('storage_failed')
      expect(ids.length).toBeGreaterThan(2)
      for (const id of ids) expect(await all(log, id)).toHaveLength(1)
      await log.erase({ tenant: acme, session: ids[0]! })
      const again = await session(log)
      expect(await codeOf(log.append({ tenant: acme, session: again, events: [user(text)] }))).toBe('none')
      await log.close()
    }))
})
