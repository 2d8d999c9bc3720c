// Questions that run as a job of their own: whatever becomes of them, the answer beside them is whole.

import { describe, expect, test } from 'vitest'
import { RefrainError } from '../core/errors.js'
import type { GenerateEvent } from '../core/events.js'
import type { BranchPlan } from '../core/quick.js'
import { withResults } from './answers.js'
import { besides } from './beside.js'
import type { Fork } from './fork-plan.js'

const cache = { working: 0, memory: 0, disk: 0, computed: 3 }
const start: GenerateEvent = { type: 'start', promptTokens: 3, cache, committedTokens: 0 }
const token: GenerateEvent = { type: 'token', choice: 0, ids: [1], text: 'a' }
const finish: GenerateEvent = { type: 'finish', promptTokens: 3, completionTokens: 1, cache, committedTokens: 0 }

async function* told(...events: readonly GenerateEvent[]): AsyncGenerator<GenerateEvent> {
  yield* events
}

const plan: BranchPlan = {
  ...{ shares: 3, suffix: Int32Array.of(1, 2), path: 'quick.tasks[0]' },
  form: { kind: 'text', maxTokens: 4, stop: [], ignoreEos: false },
}
const forks: Fork[] = [{ task: { task: 'title', path: 'quick.tasks[0]' }, form: 'instruction', plan }]

async function collect(events: AsyncIterable<GenerateEvent>): Promise<GenerateEvent[]> {
  const all: GenerateEvent[] = []
  for await (const event of events) all.push(event)
  return all
}

const never = new AbortController().signal

describe('questions beside an answer', () => {
  test('are answered before its finish, however late', async () => {
    const late = async function* (): AsyncGenerator<GenerateEvent> {
      yield start
      await new Promise((resolve) => setImmediate(resolve))
      yield { type: 'quick', answers: [{ kind: 'text', text: 'T', reason: 'stop', suffixTokens: 2, answerTokens: 1 }] }
      yield finish
    }
    const events = await collect(
      withResults(besides(told(start, token, finish), { plans: [plan], ask: late }, never), forks),
    )
    expect(events.map(({ type }) => type)).toEqual(['start', 'token', 'quick', 'finish'])
    expect(events[2]).toMatchObject({ results: [{ task: 'title', text: 'T' }] })
  })

  test.each([
    [new RefrainError('no_room', 'there is none'), 'no_room', 'there is none'],
    [new TypeError('secret'), 'internal', 'it failed for a reason of the server'],
  ])('that fail leave it whole: %s', async (fault, code, message) => {
    const ask = async function* (): AsyncGenerator<GenerateEvent> {
      yield start
      throw fault
    }
    const events = await collect(withResults(besides(told(start, token, finish), { plans: [plan], ask }, never), forks))
    expect(events.map(({ type }) => type)).toEqual(['start', 'token', 'quick', 'finish'])
    expect(events[2]).toMatchObject({ results: [{ error: { code, message } }] })
  })

  test('end with it', async () => {
    const seen: unknown[] = []
    const ask = async function* (signal: AbortSignal): AsyncGenerator<GenerateEvent> {
      yield start
      await new Promise((resolve) => signal.addEventListener('abort', resolve))
      seen.push(signal.reason)
      throw signal.reason
    }
    const failing = async function* (): AsyncGenerator<GenerateEvent> {
      yield start
      throw new RefrainError('out_of_memory', 'full')
    }
    await expect(collect(besides(failing(), { plans: [plan], ask }, never))).rejects.toThrow('full')
    await new Promise((resolve) => setImmediate(resolve))
    expect(seen.length).toBe(1)
  })
})

test('a backend that knows no branches says so in every result', async () => {
  const events = await collect(withResults(told(start, token, finish), forks))
  expect(events[2]).toMatchObject({ type: 'quick', results: [{ error: { code: 'unsupported_parameter' } }] })
})
