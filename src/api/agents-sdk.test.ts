// The agents SDK's run() over both of OpenAI's APIs, streamed and not: a loop of two tools, a typed answer, and what it
// sends back is what it was told.

import { Agent, OpenAIProvider, Runner, tool } from '@openai/agents'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { z } from 'zod'
import { messagesOf, type ToldAnswer, type ToldServer, toldServer } from '../testing/told-server.js'

let answers: readonly ToldAnswer[] = []
let server: ToldServer

beforeAll(async () => {
  server = await toldServer((_, turn) => answers[turn] ?? { content: 'Done.' })
})
afterAll(() => server.close())

function tell(...told: ToldAnswer[]): void {
  answers = told
  server.requests.length = 0
}

// biome-ignore lint/suspicious/noExplicitAny: agents differ by the type of their answer
type AnyAgent = Agent<any, any>

const used: string[] = []
const tools = [
  tool({
    name: 'lookup',
    description: 'Looks a city up.',
    parameters: z.object({ city: z.string(), limit: z.number() }),
    execute: ({ city, limit }) => {
      used.push(`lookup ${city} ${limit}`)
      return `found ${city}`
    },
  }),
  tool({
    name: 'clock',
    description: 'Tells the time.',
    parameters: z.object({ zone: z.string() }),
    execute: ({ zone }) => {
      used.push(`clock ${zone}`)
      return '12:00'
    },
  }),
]

const LOOK = '{"limit": 20.0,  "city": "caf\\u00e9"}'
const LOOP: readonly ToldAnswer[] = [
  {
    reasoning: 'First the city.\n',
    content: 'Let me look.\n\n',
    calls: [{ id: 'call_1', name: 'lookup', arguments: LOOK }],
  },
  { reasoning: 'Now the time.\n', calls: [{ id: 'call_2', name: 'clock', arguments: '{"zone": "UTC"}' }] },
  { content: 'It is noon in café.' },
]

describe.each([
  ['chat_completions', false],
  ['chat_completions', true],
  ['responses', false],
  ['responses', true],
] as const)('%s, streamed: %s', (api, stream) => {
  const runner = () => {
    const modelProvider = new OpenAIProvider({
      apiKey: 'unused',
      baseURL: server.url,
      useResponses: api === 'responses',
    })
    return new Runner({ modelProvider, tracingDisabled: true })
  }
  const run = async (agent: AnyAgent, prompt: string) => {
    if (!stream) return runner().run(agent, prompt)
    const result = await runner().run(agent, prompt, { stream: true })
    await result.completed
    return result
  }

  test('a loop of two tools', async () => {
    tell(...LOOP)
    used.length = 0
    const agent = new Agent({ name: 'guide', instructions: 'You are a guide.', model: 'm', tools })
    const result = await run(agent, 'Look the city and the time up.')
    expect(result.finalOutput).toBe('It is noon in café.')
    expect(used).toEqual(['lookup café 20', 'clock UTC'])
    expect(server.requests).toHaveLength(3)
    const turns = server.requests.map(messagesOf)
    expect(turns[2]!.slice(0, turns[1]!.length)).toEqual(turns[1])
    expect(turns[1]!.slice(0, turns[0]!.length)).toEqual(turns[0])
    const [system, user, assistant, result1] = turns[2]!
    expect([system, user]).toEqual([
      { role: 'system', content: 'You are a guide.' },
      { role: 'user', content: 'Look the city and the time up.' },
    ])
    expect(assistant).toMatchObject({
      content: 'Let me look.\n\n',
      toolCalls: [{ id: 'call_1', name: 'lookup', arguments: LOOK }],
      // The chat API's side of this SDK drops what was thought.
      ...(api === 'responses' ? { reasoning: 'First the city.\n' } : {}),
    })
    expect(result1).toEqual({ role: 'tool', content: 'found café', toolCallId: 'call_1' })
  })

  test('tools say the same to the model, whichever API they came by', async () => {
    tell({ content: 'Hi.' })
    const agent = new Agent({ name: 'guide', instructions: 'a', model: 'm', tools })
    await run(agent, 'Hi.')
    const { prompt } = server.requests[0]!
    const defined = prompt.kind === 'chat' ? prompt.tools.map(({ json }) => JSON.parse(json)) : []
    expect(defined).toMatchObject([
      { type: 'function', function: { name: 'lookup', parameters: { required: ['city', 'limit'] }, strict: true } },
      { type: 'function', function: { name: 'clock', description: 'Tells the time.' } },
    ])
  })

  test('two calls at once', async () => {
    tell({
      calls: [
        { id: 'call_1', name: 'lookup', arguments: '{"city":"Bern","limit":1}' },
        { id: 'call_2', name: 'clock', arguments: '{"zone":"CET"}' },
      ],
    })
    used.length = 0
    const agent = new Agent({ name: 'guide', instructions: 'a', model: 'm', tools })
    const result = await run(agent, 'Both.')
    expect(result.finalOutput).toBe('Done.')
    expect([...used].sort()).toEqual(['clock CET', 'lookup Bern 1'])
    expect(messagesOf(server.requests[1]!).map(({ role }) => role)).toEqual([
      'system',
      'user',
      'assistant',
      'tool',
      'tool',
    ])
  })

  test('a typed answer', async () => {
    tell({ content: '{"city":"Bern","bridges":18}' })
    const outputType = z.object({ city: z.string(), bridges: z.number() })
    const agent = new Agent({ name: 'guide', instructions: 'a', model: 'm', outputType })
    const result = await run(agent, 'Bern?')
    expect(result.finalOutput).toEqual({ city: 'Bern', bridges: 18 })
    expect(server.requests[0]?.constraint).toMatchObject({ kind: 'json-schema' })
  })
})
