// Vercel's `ai` with its Anthropic provider: text, streams, loops of several steps with tools, cache marks and numbers,
// objects by schema, failures. Its provider speaks Messages.

import { createAnthropic } from '@ai-sdk/anthropic'
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

const model = () => createAnthropic({ baseURL: server.url, apiKey: 'unused' })('m')

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
    inputSchema: z.object({}),
    execute: async () => {
      used.push('clock')
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
  { reasoning: 'Now the time.\n', calls: [{ id: 'call_2', name: 'clock', arguments: '' }] },
  { content: 'It is noon.' },
]

const question = () => ({
  model: model(),
  system: 'You are a guide.',
  prompt: 'Look the city and the time up.',
  tools,
  maxRetries: 0,
  maxOutputTokens: 100,
  stopWhen: stepCountIs(5),
})

interface Step {
  readonly finishReason: string
  readonly reasoningText: string | undefined
}

const ways: Readonly<Record<string, () => Promise<{ text: string; steps: readonly Step[]; cached: unknown }>>> = {
  generateText: async () => {
    const { text, steps, totalUsage } = await generateText(question())
    return { text, steps, cached: totalUsage.cachedInputTokens }
  },
  streamText: async () => {
    const stream = streamText(question())
    let text = ''
    for await (const delta of stream.textStream) text += delta
    expect(text).toBe('Let me look.\n\nIt is noon.')
    return { text: await stream.text, steps: await stream.steps, cached: (await stream.totalUsage).cachedInputTokens }
  },
}

describe.each(Object.keys(ways))('%s', (way) => {
  test('a loop of two tools over three steps', async () => {
    tell(...LOOP)
    used.length = 0
    const { text, steps, cached } = await ways[way]!()
    expect([text, cached]).toEqual(['It is noon.', 3 * 64])
    expect(steps.map((step) => step.finishReason)).toEqual(['tool-calls', 'tool-calls', 'stop'])
    expect(steps.map((step) => step.reasoningText)).toEqual(['First the city.\n', 'Now the time.\n', undefined])
    expect(used).toEqual(['lookup café 20', 'clock'])
    const turns = server.requests.map(messagesOf)
    expect(turns[1]!.slice(0, turns[0]!.length)).toEqual(turns[0])
    expect(turns[2]!.slice(0, turns[1]!.length)).toEqual(turns[1])
    expect(turns[2]!.slice(2)).toEqual([
      {
        role: 'assistant',
        content: 'Let me look.\n\n',
        reasoning: 'First the city.\n',
        // This library parses the input and writes it again, in the order of the schema.
        toolCalls: [{ id: 'call_1', name: 'lookup', arguments: '{"city":"café","limit":20}' }],
      },
      { role: 'tool', content: 'found café', toolCallId: 'call_1' },
      {
        role: 'assistant',
        content: '',
        reasoning: 'Now the time.\n',
        toolCalls: [{ id: 'call_2', name: 'clock', arguments: '{}' }],
      },
      { role: 'tool', content: '12:00', toolCallId: 'call_2' },
    ])
  })
})

test('two calls in one step are told apart', async () => {
  tell({
    calls: [
      { id: 'call_1', name: 'lookup', arguments: '{"city":"Bern","limit":1}' },
      { id: 'call_2', name: 'clock', arguments: '{}' },
    ],
  })
  const stream = streamText(question())
  expect(await stream.text).toBe('Done.')
  const [first] = await stream.steps
  expect(first?.toolCalls.map(({ toolCallId, input }) => [toolCallId, input])).toEqual([
    ['call_1', { city: 'Bern', limit: 1 }],
    ['call_2', {}],
  ])
})

test('marks are checkpoints, and the numbers of the cache come back', async () => {
  tell({ content: 'Yes.' })
  const marked = { anthropic: { cacheControl: { type: 'ephemeral', ttl: '1h' } } } as const
  const { usage, providerMetadata } = await generateText({
    model: model(),
    messages: [
      { role: 'system', content: 'You are a guide.', providerOptions: marked },
      { role: 'user', content: [{ type: 'text', text: 'Hello', providerOptions: marked }] },
    ],
    providerOptions: { anthropic: { thinking: { type: 'enabled', budgetTokens: 2048 } } },
    allowSystemInMessages: true,
    maxRetries: 0,
    maxOutputTokens: 100,
  })
  expect(server.requests[0]).toMatchObject({
    checkpoints: [
      { after: 'head', ttlMs: 3_600_000 },
      { after: 1, ttlMs: 3_600_000 },
    ],
    prompt: { thinking: { enabled: true } },
  })
  expect(usage.inputTokenDetails).toMatchObject({ noCacheTokens: 0, cacheReadTokens: 64, cacheWriteTokens: 36 })
  expect(usage.inputTokens).toBe(100)
  expect(providerMetadata?.['anthropic']?.['usage']).toMatchObject({
    cache_creation: { ephemeral_5m_input_tokens: 0, ephemeral_1h_input_tokens: 36 },
  })
})

test('edits of the context are asked for and told', async () => {
  tell({ content: 'Yes.' })
  const edits = [{ type: 'clear_thinking_20251015', keep: { type: 'thinking_turns', value: 1 } }] as never
  const { providerMetadata } = await generateText({
    model: model(),
    messages: [
      { role: 'user', content: 'a' },
      {
        role: 'assistant',
        content: [
          { type: 'reasoning', text: 'one', providerOptions: { anthropic: { signature: 's' } } },
          { type: 'text', text: 'A' },
        ],
      },
      { role: 'user', content: 'b' },
      {
        role: 'assistant',
        content: [
          { type: 'reasoning', text: 'two', providerOptions: { anthropic: { signature: 's' } } },
          { type: 'text', text: 'B' },
        ],
      },
      { role: 'user', content: 'c' },
    ],
    providerOptions: {
      anthropic: { thinking: { type: 'enabled', budgetTokens: 2048 }, contextManagement: { edits } },
    },
    maxRetries: 0,
    maxOutputTokens: 100,
  })
  const messages = messagesOf(server.requests[0]!)
  expect(messages.map(({ reasoning }) => reasoning)).toEqual([undefined, undefined, undefined, 'two', undefined])
  expect(providerMetadata?.['anthropic']?.['contextManagement']).toMatchObject({
    appliedEdits: [{ type: 'clear_thinking_20251015', clearedThinkingTurns: 1 }],
  })
})

test('an object by schema', async () => {
  tell({ content: '{"city":"Bern","bridges":18}' })
  const schema = z.object({ city: z.string(), bridges: z.number() })
  const { object } = await generateObject({
    model: model(),
    schema,
    prompt: 'Bern?',
    maxRetries: 0,
    maxOutputTokens: 100,
    providerOptions: { anthropic: { structuredOutputMode: 'outputFormat' } },
  })
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
  const stream = streamText({ ...question(), onError: ({ error }) => void errors.push(error) })
  await stream.consumeStream()
  expect(JSON.stringify(errors)).toContain('the engine failed')
  expect(await stream.finishReason).toBe('error')
  expect(server.requests).toHaveLength(1)
})

test('a refusal in front of the first byte is retried as its header says', async () => {
  tell(new RefrainError('queue_full', 'later', { retryAfterMs: 10 }), { content: 'Now.' })
  const { text } = await generateText({ model: model(), prompt: 'a', maxOutputTokens: 9, maxRetries: 1 })
  expect(text).toBe('Now.')
  expect(server.requests).toHaveLength(2)
})
