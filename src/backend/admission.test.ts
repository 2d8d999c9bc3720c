import { expect, test } from 'vitest'
import { ManualClock } from '../testing/manual-clock.js'
import { createAdmission } from './admission.js'

const never = new AbortController().signal
const turn = () => new Promise((resolve) => setImmediate(resolve))

test('the most urgent class first, the oldest first within it', async () => {
  const admission = createAdmission({ maxRunning: 1, queuedRequests: 9, queueMs: 1000, clock: new ManualClock() })
  const leave = await admission.enter('background', never)
  const order: string[] = []
  const queue = (['background', 'auxiliary', 'interactive', 'background', 'interactive'] as const).map((priority, i) =>
    admission.enter(priority, never).then((left) => {
      order.push(`${priority}${i}`)
      return left
    }),
  )
  expect([admission.running, admission.waiting]).toEqual([1, 5])
  leave()
  leave()
  for (let i = 0; i < 5; i++) {
    await turn()
    expect(order).toHaveLength(i + 1)
    const entered = order.at(-1)!
    ;(await queue[Number(entered.at(-1))])!()
  }
  expect(order).toEqual(['interactive2', 'interactive4', 'auxiliary1', 'background0', 'background3'])
  expect([admission.running, admission.waiting]).toEqual([0, 0])
})

test('who gives up, or waits too long, leaves no trace', async () => {
  const clock = new ManualClock()
  const admission = createAdmission({ maxRunning: 1, queuedRequests: 2, queueMs: 1000, clock })
  const leave = await admission.enter('interactive', never)
  const stop = new AbortController()
  const gone = admission.enter('interactive', stop.signal)
  const late = admission.enter('interactive', never)
  await expect(admission.enter('interactive', never)).rejects.toMatchObject({ code: 'queue_full' })
  stop.abort(new Error('gone'))
  await expect(gone).rejects.toThrow('gone')
  clock.advance(1000)
  await expect(late).rejects.toMatchObject({ code: 'queue_timeout' })
  expect([admission.running, admission.waiting, clock.waiting]).toEqual([1, 0, 0])
  leave()
  expect(admission.running).toBe(0)
  await expect(admission.enter('interactive', stop.signal)).rejects.toThrow('gone')
})
