// A publisher that loses, repeats, restarts and overtakes, with and without a replay: what is applied is always a run of one
// process's batches from some point on, and it is complete only where it is.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { ManualClock } from '../../testing/manual-clock.js'
import { EventStream, type ReplaySource } from './event-stream.js'

/** Numbers its batches; a new process begins at 0. */
class Publisher implements ReplaySource {
  process = 0
  next = 0
  isAnswering = true
  /** Batches that one answer can take before the socket drops the rest. */
  room = Number.POSITIVE_INFINITY
  asked = 0
  readonly buffer: { seq: number; payload: Uint8Array }[] = []
  readonly steps: number

  constructor(steps = 1000) {
    this.steps = steps
  }

  publish(text = ''): { seq: number; payload: Uint8Array } {
    const seq = this.next++
    const message = { seq, payload: Buffer.from(`${this.process}:${seq}${text}`) }
    this.buffer.push(message)
    if (this.buffer.length > this.steps) this.buffer.shift()
    return message
  }

  restart(): void {
    this.process++
    this.next = 0
    this.buffer.length = 0
  }

  async ask(from: number, take: (seq: number, payload: Uint8Array) => boolean): Promise<'end' | 'stopped' | 'failed'> {
    this.asked++
    await Promise.resolve()
    if (!this.isAnswering) return 'failed'
    const answer = this.buffer.filter(({ seq }) => seq >= from)
    const isFull = answer.length > this.room
    // What does not fit is lost in the middle: the last one arrives.
    const sent = isFull ? [...answer.slice(0, this.room), ...answer.slice(-1)] : answer
    for (const { seq, payload } of sent) {
      if (!take(seq, payload)) return 'stopped'
      await Promise.resolve()
    }
    return 'end'
  }
}

function follow(publisher: Publisher, offersReplay: boolean) {
  const clock = new ManualClock()
  let applied: string[] = []
  const told: string[] = []
  const stream: EventStream = new EventStream({
    clock,
    replay: offersReplay ? publisher : undefined,
    apply(payload) {
      const text = Buffer.from(payload).toString()
      if (text.endsWith('!')) applied = []
      applied.push(text)
      return text.endsWith('!')
    },
    drop: () => {
      applied = []
    },
    tell: (what) => what !== undefined && told.push(what),
  })
  return {
    stream,
    clock,
    told,
    get applied() {
      return applied
    },
    hear: (...messages: { seq: number; payload: Uint8Array }[]) => {
      for (const { seq, payload } of messages) stream.receive(seq, payload)
    },
  }
}

/** Lets answers arrive. */
const settle = async () => {
  for (let i = 0; i < 5000; i++) await Promise.resolve()
}

const run = (process: number, from: number, to: number) =>
  Array.from({ length: to - from }, (_, i) => `${process}:${from + i}`)

describe('with a replay', () => {
  const started = async (batches: number, steps?: number) => {
    const publisher = new Publisher(steps)
    for (let i = 0; i < batches; i++) publisher.publish()
    const heard = follow(publisher, true)
    heard.stream.connected()
    await settle()
    return { publisher, heard }
  }

  test('a late joiner has all of it', async () => {
    const { publisher, heard } = await started(5)
    heard.hear(publisher.publish())
    expect(heard.applied).toEqual(run(0, 0, 6))
    expect(heard.stream.complete).toBe(true)
  })

  test('one that joins later than the buffer reaches has what there is, as incomplete, and keeps it over a gap', async () => {
    const { publisher, heard } = await started(20, 10)
    expect(heard.applied).toEqual(run(0, 10, 20))
    expect(heard.stream.complete).toBe(false)
    for (let i = 0; i < 5; i++) heard.hear(publisher.publish())
    publisher.publish()
    heard.hear(publisher.publish())
    await settle()
    expect(heard.applied).toEqual(run(0, 10, 27))
    expect(heard.told).toEqual(['late-join', 'replayed', 'gap', 'replayed'])
  })

  test('it is complete from a clear on', async () => {
    const { publisher, heard } = await started(20, 10)
    heard.hear(publisher.publish('!'), publisher.publish())
    expect(heard.applied).toEqual(['0:20!', '0:21'])
    expect(heard.stream.complete).toBe(true)
  })

  test('a gap is filled, and what came meanwhile waits its turn', async () => {
    const { publisher, heard } = await started(3)
    publisher.publish()
    heard.hear(publisher.publish())
    heard.hear(publisher.publish(), publisher.publish())
    expect(heard.applied).toEqual(run(0, 0, 3))
    await settle()
    expect(heard.applied).toEqual(run(0, 0, 7))
    expect(heard.told).toEqual(['replayed', 'gap', 'replayed'])
  })

  test('a gap that the buffer has passed drops everything', async () => {
    const { publisher, heard } = await started(3, 5)
    for (let i = 0; i < 20; i++) publisher.publish()
    heard.hear(publisher.publish())
    await settle()
    expect(heard.applied).toEqual(run(0, 19, 24))
    expect(heard.stream.complete).toBe(false)
  })

  test('a restart drops everything and has all of the new process', async () => {
    const { publisher, heard } = await started(8)
    publisher.restart()
    heard.hear(publisher.publish(), publisher.publish())
    await settle()
    expect(heard.applied).toEqual(run(1, 0, 2))
    expect(heard.stream.complete).toBe(true)
    expect(heard.told).toContain('restart')
  })

  test.each([
    ['to the next number', 3],
    ['beyond it', 7],
  ])('a new process that got %s before it is heard is found out', async (_, batches) => {
    const { publisher, heard } = await started(3)
    publisher.restart()
    for (let i = 0; i < batches; i++) publisher.publish()
    heard.stream.connected()
    heard.hear(publisher.publish())
    await settle()
    expect(heard.applied).toEqual(run(1, 0, batches + 1))
  })

  test('a new process that overtook without a break of the connection is found out by the gap', async () => {
    const { publisher, heard } = await started(3)
    publisher.restart()
    for (let i = 0; i < 7; i++) publisher.publish()
    heard.hear(publisher.publish())
    await settle()
    expect(heard.applied).toEqual(run(1, 0, 8))
  })

  test('a restart into silence is found out by the connection', async () => {
    const { publisher, heard } = await started(3)
    publisher.restart()
    heard.stream.connected()
    await settle()
    expect(heard.applied).toEqual([])
    heard.hear(publisher.publish())
    expect(heard.applied).toEqual(['1:0'])
    expect(heard.stream.complete).toBe(true)
  })

  test('a break of the connection costs nothing where nothing was lost', async () => {
    const { publisher, heard } = await started(3)
    heard.stream.connected()
    await settle()
    heard.hear(publisher.publish())
    expect(heard.applied).toEqual(run(0, 0, 4))
    expect(heard.told).not.toContain('restart')
  })

  test('repetitions are left out', async () => {
    const { publisher, heard } = await started(0)
    const message = publisher.publish()
    heard.hear(message, message, publisher.publish(), message)
    expect(heard.applied).toEqual(run(0, 0, 2))
  })

  test('an answer with holes is asked for again from there', async () => {
    const publisher = new Publisher()
    for (let i = 0; i < 50; i++) publisher.publish()
    publisher.room = 10
    const heard = follow(publisher, true)
    heard.stream.connected()
    await settle()
    expect(heard.applied).toEqual(run(0, 0, 50))
    expect(publisher.asked).toBeGreaterThan(4)
  })

  test('one that never gets further is given up', async () => {
    const publisher = new Publisher()
    for (let i = 0; i < 50; i++) publisher.publish()
    publisher.room = 0
    const heard = follow(publisher, true)
    heard.stream.connected()
    await settle()
    expect(heard.told).toContain('late-join')
    expect(publisher.asked).toBeLessThan(10)
  })

  test('without an answer live batches count as incomplete, until it answers', async () => {
    const { publisher, heard } = await started(3)
    publisher.isAnswering = false
    publisher.publish()
    heard.hear(publisher.publish())
    await settle()
    expect(heard.applied).toEqual(['0:4'])
    expect(heard.stream.complete).toBe(false)
    heard.hear(publisher.publish())
    expect(heard.applied).toEqual(run(0, 4, 6))
    publisher.isAnswering = true
    heard.clock.advance(1000)
    await settle()
    expect(heard.applied).toEqual(run(0, 0, 6))
    expect(heard.stream.complete).toBe(true)
  })
})

describe('without a replay', () => {
  test('from the first batch on it is complete', () => {
    const publisher = new Publisher()
    const heard = follow(publisher, false)
    heard.stream.connected()
    heard.hear(publisher.publish(), publisher.publish())
    expect(heard.applied).toEqual(run(0, 0, 2))
    expect(heard.stream.complete).toBe(true)
  })

  test('a late join, a gap, a restart and a break of the connection drop what was known', () => {
    const publisher = new Publisher()
    publisher.publish()
    const heard = follow(publisher, false)
    heard.stream.connected()
    heard.hear(publisher.publish(), publisher.publish())
    expect([heard.applied, heard.stream.complete]).toEqual([run(0, 1, 3), false])
    publisher.publish()
    heard.hear(publisher.publish())
    expect([heard.applied, heard.stream.complete]).toEqual([run(0, 4, 5), false])
    heard.stream.connected()
    heard.hear(publisher.publish())
    expect([heard.applied, heard.stream.complete]).toEqual([run(0, 5, 6), false])
    publisher.restart()
    heard.hear(publisher.publish())
    expect([heard.applied, heard.stream.complete]).toEqual([run(1, 0, 1), true])
    expect(heard.told).toEqual(['late-join', 'gap', 'reconnect', 'restart'])
  })
})

test('what waited when the connection broke is not taken for the next process’s', async () => {
  const publisher = new Publisher(1)
  const heard = follow(publisher, true)
  heard.stream.connected()
  publisher.publish()
  heard.hear(publisher.publish())
  publisher.restart()
  heard.stream.connected()
  heard.hear(publisher.publish())
  await settleBriefly(heard.clock)
  expect(heard.applied).toEqual(['1:0'])
  heard.hear(publisher.publish())
  expect(heard.applied).toEqual(['1:0', '1:1'])
  expect(heard.stream.complete).toBe(true)
})

describe('whatever happens', () => {
  const step = fc.constantFrom('heard', 'heard', 'heard', 'lost', 'repeated', 'restart', 'mute', 'speak', 'settle')

  test.each([true, false])('what is applied is one process, without holes (replay: %s)', async (offersReplay) => {
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 60 }), fc.integer({ min: 1, max: 12 }), async (steps, buffered) => {
        const publisher = new Publisher(buffered)
        const heard = follow(publisher, offersReplay)
        heard.stream.connected()
        let last: { seq: number; payload: Uint8Array } | undefined
        for (const what of steps) {
          if (what === 'heard') {
            last = publisher.publish()
            heard.hear(last)
          } else if (what === 'lost') publisher.publish()
          else if (what === 'repeated' && last !== undefined) heard.hear(last)
          else if (what === 'mute') publisher.isAnswering = false
          else if (what === 'speak') publisher.isAnswering = true
          else if (what === 'settle') await settleBriefly(heard.clock)
          else if (what === 'restart') {
            publisher.restart()
            last = undefined
            heard.stream.connected()
          }
          expectOneRun(heard.applied)
        }
        publisher.isAnswering = true
        for (let i = 0; i < 3; i++) await settleBriefly(heard.clock)
        const message = publisher.publish()
        heard.hear(message)
        await settleBriefly(heard.clock)
        expectOneRun(heard.applied)
        expect(heard.applied.at(-1)).toBe(Buffer.from(message.payload).toString())
        const isWhole = heard.applied[0]?.endsWith(':0') === true
        if (heard.stream.complete) expect(isWhole).toBe(true)
        if (offersReplay && message.seq < buffered) expect(heard.stream.complete).toBe(true)
      }),
      { numRuns: 150 },
    )
  })
})

async function settleBriefly(clock: ManualClock): Promise<void> {
  for (let i = 0; i < 150; i++) await Promise.resolve()
  clock.advance(60_000)
  for (let i = 0; i < 150; i++) await Promise.resolve()
}

function expectOneRun(applied: readonly string[]): void {
  const batches = applied.map((text) => text.split(':').map(Number))
  for (const [i, [process, seq]] of batches.entries()) {
    expect([process, seq]).toEqual([batches[0]?.[0], (batches[0]?.[1] as number) + i])
  }
}
