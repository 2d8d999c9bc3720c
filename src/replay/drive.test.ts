// In which order requests are sent, how many at once, and when it ends: without a server and without waiting.

import { describe, expect, test } from 'vitest'
import { type DriveOptions, drive } from './drive.js'
import type { PlannedRequest } from './plan.js'

const request = (index: number, family: string, more: Partial<PlannedRequest> = {}): PlannedRequest => ({
  ...{ index, at: 0, session: family, parent: undefined, turn: 1, family, after: [], pause: 0 },
  ...{ promptTokens: 1, outputTokens: 1, idealShare: 0 },
  ...more,
})

const options = (more: Partial<DriveOptions> = {}): DriveOptions => ({
  ...{ sessions: 1, speed: 1, order: 'after', maxMs: Number.POSITIVE_INFINITY, giveUp: 3 },
  signal: new AbortController().signal,
  ...more,
})

/** What was sent, in order, and how many were under way at most. */
async function driven(
  targets: Record<string, PlannedRequest[]>,
  more: Partial<DriveOptions> = {},
  fine: (target: string, index: number) => boolean | Promise<boolean> = () => true,
) {
  const sent: string[] = []
  const underWay = new Map<string, number>()
  let most = 0
  const ended = await drive(new Map(Object.entries(targets)), options(more), {
    begun: () => undefined,
    async send(target, { index }, signal) {
      signal.throwIfAborted()
      sent.push(`${target}${index}`)
      underWay.set(target, (underWay.get(target) ?? 0) + 1)
      most = Math.max(
        most,
        [...underWay.values()].reduce((sum, each) => sum + each, 0),
      )
      await new Promise((resolve) => setImmediate(resolve))
      const isFine = await fine(target, index)
      underWay.set(target, underWay.get(target)! - 1)
      signal.throwIfAborted()
      return isFine
    },
  })
  return { sent, most, ended: Object.fromEntries(ended) }
}

const three = (family: string, from: number) => [
  request(from, family),
  request(from + 1, family, { after: [from] }),
  request(from + 2, family, { after: [from + 1] }),
]

describe('drive', () => {
  test('one session after the other, each in its order', async () => {
    const { sent, most, ended } = await driven({ a: [...three('x', 0), ...three('y', 3)] })
    expect([sent, most, ended]).toEqual([['a0', 'a1', 'a2', 'a3', 'a4', 'a5'], 1, { a: 'done' }])
  })

  test('as many sessions at once as asked for, and no more', async () => {
    const families = Array.from({ length: 9 }, (_, i) => three(`f${i}`, 3 * i)).flat()
    const { sent, most } = await driven({ a: families }, { sessions: 4 })
    expect([sent.length, most]).toEqual([27, 4])
    for (let i = 0; i < 27; i += 3) expect(sent.indexOf(`a${i}`)).toBeLessThan(sent.indexOf(`a${i + 2}`))
  })

  test('sub-agents of one family run beside each other', async () => {
    const family = [request(0, 'x'), request(1, 'x', { after: [0] }), request(2, 'x', { after: [0] })]
    const { most } = await driven({ a: [...family, request(3, 'x', { after: [1, 2] })] })
    expect(most).toBe(2)
  })

  test('targets one after the other, or by turns', async () => {
    const both = { a: [request(0, 'x'), request(1, 'y')], b: [request(0, 'x'), request(1, 'y')] }
    expect((await driven(both)).sent).toEqual(['a0', 'a1', 'b0', 'b1'])
    expect((await driven(both, { order: 'interleaved' })).sent).toEqual(['a0', 'b0', 'a1', 'b1'])
  })

  test('by time: in order of time, behind what it follows', async () => {
    const list = [
      request(0, 'x', { at: 5 }),
      request(1, 'y', { at: 5.001 }),
      request(2, 'x', { at: 5.002, after: [0] }),
    ]
    const { sent } = await driven({ a: list }, { sessions: undefined, speed: 1000 })
    expect(sent).toEqual(['a0', 'a1', 'a2'])
  })

  test('a target that only fails is given up, the others are not', async () => {
    const list = Array.from({ length: 8 }, (_, i) => request(i, `f${i}`))
    const { sent, ended } = await driven({ a: list, b: list }, {}, (target) => target === 'b')
    expect(sent.filter((each) => each.startsWith('a'))).toHaveLength(3)
    expect(ended).toEqual({ a: 'given up', b: 'done' })
  })

  test('failures with answers between them are no reason to give up', async () => {
    const list = Array.from({ length: 8 }, (_, i) => request(i, `f${i}`))
    const { sent, ended } = await driven({ a: list }, {}, (_, index) => index % 3 === 0)
    expect([sent.length, ended]).toEqual([8, { a: 'done' }])
  })

  test('nothing is sent after a stop, and what is under way counts as not sent', async () => {
    const stop = new AbortController()
    const { sent, ended } = await driven({ a: three('x', 0) }, { signal: stop.signal }, (_, index) => {
      if (index === 1) stop.abort()
      return true
    })
    expect([sent, ended]).toEqual([['a0', 'a1'], { a: 'stopped' }])
  })

  test('nothing is begun once the time is over', async () => {
    const { sent, ended } = await driven({ a: three('x', 0) }, { maxMs: 0 })
    expect([sent, ended]).toEqual([[], { a: 'time' }])
  })
})
