// Vercel's `ai` with its OpenAI-compatible provider: text, streams, loops of several steps with tools, objects by schema,
// failures. Its provider speaks Chat Completions.

import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { generateObject, generateText, stepCountIs, streamText, tool } from 'ai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { z } from 'zod'
import { RefrainError } from '../core/errors.js'
import { messagesOf, type ToldAnswer, type ToldServer, toldServer } from '../testing/told-server.js'

let answers: readonly (ToldAnswer | Error)[] = []
let server: ToldServer

beforeAll(async () => {
  server = await toldServer((_, turn) => answers[turn] ?? { content: 'Done.' })
})
afterAll(() => server.close())

function tell(...told: (ToldAnswer | Error)[]): void {
  answers = told
  server.requests.length = 0
}

const model = () =>
  createOpenAICompatible({
    name: 'refrain',
    baseURL: server.url,
    apiKey: 'unused',
    includeUsage: true,
    supportsStructuredOutputs: true,
  })('m')

const used: string[] = []
const tools = {
  lookup: tool({
    description: 'Looks a city up.',
    inputSchema: z.object({ city: z.string(), limit: z.number() }),
    execute: async ({ city, limit }) => {
      used.push(`lookup ${city} ${limit}`)
      return `found ${city}`
    },
  }),
  clock: tool({
    description: 'Tells the time.',
    inputSchema: z.object({ zone: z.string() }),
    execute: async ({ zone }) => {
      used.push(`clock ${zone}`)
      return '12:00'
    },
  }),
}

const LOOP: readonly ToldAnswer[] = [
  {
    reasoning: 'First the city.\n',
    content: 'Let me look.\n\n',
    calls: [{ id: 'call_1', name: 'lookup', arguments: '{"limit": 20.0,  "city": "caf\\u00e9"}' }],
  },
  { reasoning: 'Now the time.\n', calls: [{ id: 'call_2', name: 'clock', arguments: '{"zone": "UTC"}' }] },
  { content: 'It is noon.' },
]

interface Looped {
  readonly text: string
  readonly reasons: readonly string[]
  readonly reasoning: readonly (string | undefined)[]
  readonly cached: number | undefined
}

const ways: Readonly<Record<string, () => Promise<Looped>>> = {
  generateText: async () => {
    const { text, steps, totalUsage } = await generateText({ ...question(), stopWhen: stepCountIs(5) })
    return looped(text, steps, totalUsage.cachedInputTokens)
  },
  streamText: async () => {
    const stream = streamText({ ...question(), stopWhen: stepCountIs(5) })
    let text = ''
    for await (const delta of stream.textStream) text += delta
    expect(text).toBe('Let me look.\n\nIt is noon.')
    return looped(await stream.text, await stream.steps, (await stream.totalUsage).cachedInputTokens)
  },
}

function question() {
  return { model: model(), system: 'You are a guide.', prompt: 'Look the city and the time up.', tools, maxRetries: 0 }
}

function looped(
  text: string,
  steps: readonly { readonly finishReason: string; readonly reasoningText: string | undefined }[],
  cached: number | undefined,
): Looped {
  const reasons = steps.map((step) => step.finishReason)
  return { text, reasons, reasoning: steps.map((step) => step.reasoningText), cached }
}

describe.each(Object.keys(ways))('%s', (way) => {
  test('a loop of two tools over three steps', async () => {
    tell(...LOOP)
    used.length = 0
    const result = await ways[way]!()
    expect(result).toEqual({
      text: 'It is noon.',
      reasons: ['tool-calls', 'tool-calls', 'stop'],
      reasoning: ['First the city.\n', 'Now the time.\n', undefined],
      cached: 3 * 64,
    })
    expect(used).toEqual(['lookup café 20', 'clock UTC'])
    const turns = server.requests.map(messagesOf)
    expect(turns[2]!.slice(0, turns[1]!.length)).toEqual(turns[1])
    expect(turns[2]!.slice(2, 5)).toEqual([
      {
        role: 'assistant',
        content: 'Let me look.\n\n',
        reasoning: 'First the city.\n',
        // This library parses arguments and writes them again.
        toolCalls: [{ id: 'call_1', name: 'lookup', arguments: expect.stringMatching(/^\{.*"city":"café".*\}$/) }],
      },
      { role: 'tool', content: 'found café', toolCallId: 'call_1' },
      expect.objectContaining({ role: 'assistant', content: '', reasoning: 'Now the time.\n' }),
    ])
  })
})

test('two calls in one step are told apart', async () => {
  tell({
    calls: [
      { id: 'call_1', name: 'lookup', arguments: '{"city":"Bern","limit":1}' },
      { id: 'call_2', name: 'clock', arguments: '{"zone":"CET"}' },
    ],
  })
  const stream = streamText({ ...question(), stopWhen: stepCountIs(3) })
  expect(await stream.text).toBe('Done.')
  const [first] = await stream.steps
  expect(first?.toolCalls.map(({ toolCallId, input }) => [toolCallId, input])).toEqual([
    ['call_1', { city: 'Bern', limit: 1 }],
    ['call_2', { zone: 'CET' }],
  ])
})

test('an object by schema', async () => {
  tell({ content: '{"city":"Bern","bridges":18}' })
  const schema = z.object({ city: z.string(), bridges: z.number() })
  const { object } = await generateObject({ model: model(), schema, prompt: 'Bern?', maxRetries: 0 })
  expect(object).toEqual({ city: 'Bern', bridges: 18 })
  expect(server.requests[0]?.constraint).toMatchObject({ kind: 'json-schema' })
})

test('an answer that was cut says length', async () => {
  tell({ content: 'It goes on and', reason: 'length' })
  const { finishReason, text } = await generateText({ model: model(), prompt: 'a', maxOutputTokens: 2 })
  expect([finishReason, text]).toEqual(['length', 'It goes on and'])
})

test('a stream that breaks is an error, and no step is taken from it', async () => {
  tell({ content: 'It goes', failure: new RefrainError('engine_failed', 'the engine failed') })
  const errors: unknown[] = []
  const stream = streamText({
    ...question(),
    stopWhen: stepCountIs(5),
    onError: ({ error }) => void errors.push(error),
  })
  await stream.consumeStream()
  expect(JSON.stringify(errors)).toContain('the engine failed')
  expect(await stream.finishReason).toBe('error')
  expect(server.requests).toHaveLength(1)
})

test('a refusal in front of the first byte is retried as its header says', async () => {
  tell(new RefrainError('queue_full', 'later', { retryAfterMs: 10 }), { content: 'Now.' })
  const { text } = await generateText({ model: model(), prompt: 'a', maxRetries: 1 })
  expect(text).toBe('Now.')
  expect(server.requests).toHaveLength(2)
})
