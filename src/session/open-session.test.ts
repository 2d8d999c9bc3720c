// Who holds a session: a turn alone, appends one behind the other, and whoever must have it takes it over.

import { beforeEach, expect, test } from 'vitest'
import { RefrainError } from '../core/errors.js'
import { createMemoryLog } from './log/memory.js'
import { OpenSession } from './open-session.js'

let open: OpenSession
beforeEach(async () => {
  const limits = { sessionEvents: 100, sessionBytes: 1e6, sources: 100 }
  const log = createMemoryLog({ limits, maxBytes: 1e6 })
  const record = await log.create({ id: `ses_${'0'.repeat(32)}`, tenant: 't', model: 'm' }, [
    { body: { kind: 'head', apply: 'now', system: '' } },
  ])
  open = new OpenSession(record, log)
  await open.load()
})

const conflict = { code: 'conflict' }

test('a turn holds it alone', async () => {
  const turn = await open.take()
  await expect(open.take()).rejects.toMatchObject(conflict)
  await expect(open.take(undefined, 'brief')).rejects.toMatchObject(conflict)
  turn.release()
  ;(await open.take()).release()
  expect(open.isHeld).toBe(false)
})

test('appends, and a turn behind them, wait for each other in their order', async () => {
  const order: string[] = []
  const brief = async (name: string) => {
    const hold = await open.take(undefined, 'brief')
    await new Promise((resolve) => setImmediate(resolve))
    order.push(name)
    hold.release()
  }
  const turn = async () => {
    const hold = await open.take()
    order.push('turn')
    hold.release()
  }
  await Promise.all([brief('a'), brief('b'), turn()])
  expect(order[0]).toBe('a')
  expect(order.toSorted()).toEqual(['a', 'b', 'turn'])
})

test('whoever takes it over has it, whoever else waits', async () => {
  const turn = await open.take()
  turn.signal.addEventListener('abort', () => setImmediate(() => turn.release()))
  const why = new RefrainError('source_revoked', 'revoked')
  const hold = await open.takeOver(why)
  expect(turn.signal.reason).toBe(why)
  hold.release()
  const first = await open.take(undefined, 'brief')
  const brief = async () => (await open.take(undefined, 'brief')).release()
  const others = Promise.allSettled([brief(), brief()])
  const taking = open.takeOver(why)
  first.release()
  const own = await taking
  await others
  expect(open.isHeld).toBe(true)
  own.release()
})
