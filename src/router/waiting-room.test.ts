// Waiting for a backend: who is let in first, who gives up, and that nobody passes the queue.

import { beforeEach, describe, expect, test } from 'vitest'
import { RefrainError } from '../core/errors.js'
import type { Priority } from '../core/request.js'
import { ManualClock } from '../testing/manual-clock.js'
import type { MemberPlacement, RouteQuery } from './contract.js'
import { createWaitingRoom } from './waiting-room.js'

let free: Record<string, number>
let clock: ManualClock
let placed: string[]
beforeEach(() => {
  free = { a: 0, b: 0 }
  clock = new ManualClock()
  placed = []
})

const router = {
  place({ id, model }: RouteQuery): MemberPlacement {
    if (free[model] === undefined) throw new RefrainError('model_not_found', `no backend has the model '${model}'`)
    if (free[model] === 0) throw new RefrainError('queue_full', 'full')
    free[model]--
    placed.push(id)
    return { reason: id } as MemberPlacement
  },
}
const roomOf = (queuedRequests = 10) =>
  createWaitingRoom({ router, queuedRequests, queueMs: 1000, sideRequestMs: 100, clock })
const query = (id: string, priority: Priority = 'interactive', model = 'a') => ({ id, priority, model }) as RouteQuery
const signal = new AbortController().signal
const codeOf = (promise: Promise<unknown>) => promise.then(String, (error: RefrainError) => error.code ?? error)

describe('a request', () => {
  test('that fits is placed at once', async () => {
    free['a'] = 1
    const room = roomOf()
    expect((await room.place(query('1'), signal)).reason).toBe('1')
    expect([room.waiting, clock.waiting]).toEqual([0, 0])
  })

  test('waits by priority, then by age, and is told of in the order of placing', async () => {
    const room = roomOf()
    const all = [query('1', 'background'), query('2', 'auxiliary'), query('3'), query('4')].map((each) =>
      room.place(each, signal),
    )
    expect(room.waiting).toBe(4)
    free['a'] = 1
    room.look()
    clock.advance(0)
    expect(placed).toEqual(['3'])
    free['a'] = 3
    room.look()
    clock.advance(0)
    await Promise.all(all)
    expect(placed).toEqual(['3', '4', '2', '1'])
    expect(room.waiting).toBe(0)
  })

  test('lets others by that wait for something else, and is not passed by a newcomer', async () => {
    const room = roomOf()
    const first = room.place(query('1'), signal)
    free['b'] = 1
    const other = room.place(query('2', 'interactive', 'b'), signal)
    clock.advance(0)
    await other
    expect(placed).toEqual(['2'])
    free['a'] = 1
    const late = room.place(query('3'), signal)
    clock.advance(0)
    await first
    expect([placed, room.waiting]).toEqual([['2', '1'], 1])
    free['a'] = 1
    // A member that came back tells nobody.
    clock.advance(250)
    await late
    expect([room.waiting, clock.waiting]).toEqual([0, 0])
  })

  test('gives up at its deadline; a side request sooner', async () => {
    const room = roomOf()
    const both = [room.place(query('1'), signal), room.place(query('2', 'auxiliary'), signal)]
    const codes = both.map(codeOf)
    clock.advance(100)
    expect(room.waiting).toBe(1)
    clock.advance(899)
    expect(room.waiting).toBe(1)
    clock.advance(1)
    expect([await Promise.all(codes), room.waiting, clock.waiting]).toEqual([['queue_timeout', 'queue_timeout'], 0, 0])
    free['a'] = 2
    room.look()
    clock.advance(500)
    expect(placed).toEqual([])
  })

  test('whose client leaves leaves the queue', async () => {
    const room = roomOf()
    const client = new AbortController()
    const gone = codeOf(room.place(query('1'), client.signal))
    client.abort(new Error('left'))
    expect(String(await gone)).toBe('Error: left')
    clock.advance(250)
    expect([room.waiting, clock.waiting]).toEqual([0, 0])
  })

  test('is refused where too many wait, and fails as placing fails', async () => {
    const room = roomOf(1)
    const first = codeOf(room.place(query('1'), signal))
    expect(await codeOf(room.place(query('2'), signal))).toBe('queue_full')
    expect(await codeOf(roomOf().place(query('3', 'interactive', 'c'), signal))).toBe('model_not_found')
    delete free['a']
    room.look()
    clock.advance(0)
    expect([await first, room.waiting, clock.waiting]).toEqual(['model_not_found', 0, 0])
  })
})
