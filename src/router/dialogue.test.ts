// Two ends of one channel: order, questions, refusals, giving up, and an end in the middle.

import { describe, expect, test } from 'vitest'
import { RefrainError } from '../core/errors.js'
import { joinedPorts } from '../testing/joined-ports.js'
import { Dialogue } from './dialogue.js'

function joined() {
  const [a, b] = joinedPorts()
  return [new Dialogue(a), new Dialogue(b)] as const
}

const soon = () => new Promise((resolve) => setTimeout(resolve, 0))

describe('what is told', () => {
  test('arrives in order, also where it came before anybody listened', async () => {
    const [one, two] = joined()
    const heard: unknown[] = []
    one.tell('n', 1)
    one.tell('unknown')
    one.tell('n', { keys: new Uint32Array([1, 2]) })
    await soon()
    two.hears('n', (body) => heard.push(body))
    two.listen()
    one.tell('n', 3)
    await soon()
    expect(heard).toEqual([1, { keys: new Uint32Array([1, 2]) }, 3])
  })

  test('and may be lost is lost where the other side does not keep up', async () => {
    const stuck = new Dialogue({ post: () => undefined, onMessage: () => undefined })
    for (let i = 0; i < 1500; i++) stuck.mention('news', 'text')
    expect(stuck.lost).toBe(500)
  })

  test('messages of others on the channel are passed over', async () => {
    const [a, b] = joinedPorts()
    const two = new Dialogue(b)
    two.listen()
    for (const message of [null, 'text', { cmd: 'NODE' }, ['other', 'tell', 'n', 1]]) a.post(message, () => undefined)
    await soon()
  })
})

describe('a question', () => {
  test('is answered, also before the asker listens to anything', async () => {
    const [one, two] = joined()
    two.answers<number>('double', async (n) => 2 * n)
    two.listen()
    expect(await one.ask('double', 21)).toBe(42)
  })

  test('is refused with an error of ours as it was, and any other by its message', async () => {
    const [one, two] = joined()
    two.answers('seat', async () => {
      throw new RefrainError('queue_timeout', 'too long', { retryAfterMs: 7 })
    })
    two.answers('bad', async () => {
      throw new TypeError('broken')
    })
    two.listen()
    const refusal = await one.ask('seat').catch((error) => error)
    expect(refusal).toBeInstanceOf(RefrainError)
    expect(refusal).toMatchObject({ code: 'queue_timeout', message: 'too long', retryAfterMs: 7 })
    await expect(one.ask('bad')).rejects.toThrow('broken')
    await expect(one.ask('nothing')).rejects.toThrow("nobody answers 'nothing'")
  })

  test('that is given up ends on both sides', async () => {
    const [one, two] = joined()
    let given: AbortSignal | undefined
    two.answers('wait', (_body, signal) => {
      given = signal
      return new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
    })
    two.listen()
    const stop = new AbortController()
    const asked = one.ask('wait', undefined, stop.signal)
    await soon()
    stop.abort(new Error('the client left'))
    await expect(asked).rejects.toThrow('the client left')
    await soon()
    expect(given?.aborted).toBe(true)
    await expect(one.ask('wait', undefined, stop.signal)).rejects.toThrow('the client left')
  })

  test('ends with the channel', async () => {
    const [one, two] = joined()
    let given: AbortSignal | undefined
    two.answers('wait', (_body, signal) => {
      given = signal
      return new Promise(() => undefined)
    })
    two.listen()
    const asked = one.ask('wait')
    await soon()
    one.close()
    two.close()
    await expect(asked).rejects.toThrow('gone')
    await expect(one.ask('wait')).rejects.toThrow('gone')
    expect(given?.aborted).toBe(true)
  })
})
