import { expect, test } from 'vitest'
import type { GenerateEvent } from '../core/events.js'
import { merge } from './merge.js'

const cache = { working: 1, memory: 2, disk: 3, computed: 4 }
const start: GenerateEvent = { type: 'start', promptTokens: 10, cache, committedTokens: 64 }
const finish: GenerateEvent = { type: 'finish', promptTokens: 10, completionTokens: 1, cache, committedTokens: 5 }
const never = new AbortController().signal

test('one start first, one finish last, sums in both, choices counted through', async () => {
  let release = () => {}
  const held = new Promise<void>((resolve) => {
    release = resolve
  })
  async function* quick(): AsyncGenerator<GenerateEvent> {
    yield start
    yield { type: 'token', choice: 1, ids: [1], text: 'q' }
    yield finish
    release()
  }
  async function* slow(): AsyncGenerator<GenerateEvent> {
    await held
    yield start
    yield { type: 'end', choice: 0, reason: 'stop' }
    yield finish
  }
  const events: GenerateEvent[] = []
  for await (const event of merge([quick, slow], 2, never)) events.push(event)
  expect(events).toEqual([
    { type: 'start', promptTokens: 20, cache: { working: 2, memory: 4, disk: 6, computed: 8 }, committedTokens: 128 },
    { type: 'token', choice: 1, ids: [1], text: 'q' },
    { type: 'end', choice: 2, reason: 'stop' },
    {
      type: 'finish',
      promptTokens: 20,
      completionTokens: 2,
      cache: { working: 2, memory: 4, disk: 6, computed: 8 },
      committedTokens: 10,
    },
  ])
})

test('the first failure ends all, and leaving early does too', async () => {
  const signals: AbortSignal[] = []
  const waiting = (signal: AbortSignal) =>
    (async function* (): AsyncGenerator<GenerateEvent> {
      signals.push(signal)
      yield start
      await new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
    })()
  const failing = () =>
    (async function* (): AsyncGenerator<GenerateEvent> {
      yield start
      throw new Error('broken')
    })()
  await expect(async () => {
    for await (const _ of merge([waiting, failing], 1, never));
  }).rejects.toThrow('broken')
  for await (const _ of merge([waiting, waiting], 1, never)) break
  expect(signals).toHaveLength(3)
  expect(signals.every((signal) => signal.aborted)).toBe(true)
})
