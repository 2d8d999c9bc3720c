// Golden transcripts: the very bytes that a dialect makes of given events. A change here is a change of the wire API.

import { readFileSync } from 'node:fs'
import { describe, expect, test } from 'vitest'
import { RefrainError } from '../../core/errors.js'
import type { GenerateEvent } from '../../core/events.js'
import type { GenerateRequest } from '../../core/request.js'
import type { ModelFormats } from '../../prompt/contract.js'
import { think } from '../../prompt/reasoning/index.js'
import { splitEvents } from '../../prompt/split-events.js'
import { hermes } from '../../prompt/tool-calls/index.js'
import { readBody } from '../body.js'
import type { About, Dialect, Envelope } from './contract.js'
import { openaiChat } from './openai-chat.js'
import { openaiCompletions } from './openai-completions.js'

const limits = { n: 16, prompts: 64, stopStrings: 16, stopChars: 512, logitBias: 1024, jsonDepth: 64 }
const tenant = { name: 'default', salt: 'default', admin: true }
const envelope: Envelope = { id: '0123', tenant, session: undefined, priority: 'interactive', limits }

const cache = { working: 64, memory: 128, disk: 64, computed: 44 }
const token = (choice: number, text: string): GenerateEvent => ({ type: 'token', choice, ids: [text.length], text })
const end = (choice: number, reason: 'stop' | 'length'): GenerateEvent => ({ type: 'end', choice, reason })
const around = (...events: GenerateEvent[]): GenerateEvent[] => [
  { type: 'start', promptTokens: 300, cache, committedTokens: 0 },
  ...events,
  {
    type: 'finish',
    promptTokens: 300,
    completionTokens: events.filter((event) => event.type === 'token').length,
    cache,
    committedTokens: 0,
  },
]

const withLogprobs = (choice: number, text: string, logprob: number): GenerateEvent => {
  const entry = { id: text.length, text, bytes: [...Buffer.from(text)], logprob }
  return {
    ...token(choice, text),
    logprobs: [{ ...entry, top: [entry, { ...entry, text: '~', logprob: -Infinity }] }],
  } as GenerateEvent
}

const formats: ModelFormats = {
  reasoning: (prompt) => think.create({}, { prompt }),
  toolCalls: (given) => hermes.create({}, { tools: given }),
  specials: [],
}
const call = (args: string) => `<tool_call>\n{"name": "look", "arguments": ${args}}\n</tool_call>`
const about: About = { id: 'chatcmpl-0123', model: 'toy', created: 1_790_000_000, forceUsage: false }

const chat = { messages: [{ role: 'user', content: 'a' }] }
const tools = [{ type: 'function', function: { name: 'look' } }]
const usage = { stream_options: { include_usage: true } }

const CASES: readonly {
  name: string
  dialect: Dialect
  body: object
  events: GenerateEvent[]
  about?: Partial<About>
  formats?: ModelFormats
}[] = [
  {
    name: 'chat',
    dialect: openaiChat,
    body: { ...chat, ...usage },
    events: around(token(0, 'Hé'), token(0, ''), token(0, 'llo\n'), end(0, 'stop')),
  },
  {
    name: 'chat-two-choices-logprobs',
    dialect: openaiChat,
    body: { ...chat, n: 2, logprobs: true, top_logprobs: 2 },
    events: around(
      withLogprobs(0, 'a', -0.5),
      withLogprobs(1, 'b', -1),
      end(0, 'length'),
      withLogprobs(1, '', -2),
      end(1, 'stop'),
    ),
  },
  {
    name: 'chat-reasoning-and-call',
    dialect: openaiChat,
    body: { ...chat, ...usage, tools },
    events: around(
      token(0, '<think>hm'),
      token(0, '</think>'),
      token(0, 'Looking.'),
      token(0, `\n${call('{"a": 1.0}').slice(0, 30)}`),
      token(0, call('{"a": 1.0}').slice(30)),
      token(0, `\n${call('{}')}`),
      end(0, 'stop'),
    ),
    formats,
  },
  {
    name: 'chat-call-not-looked-for',
    dialect: openaiChat,
    body: { ...chat, tools, tool_choice: 'none' },
    events: around(token(0, call('{}')), end(0, 'stop')),
    formats: { toolCalls: formats.toolCalls!, specials: [] },
  },
  {
    name: 'chat-prefill-only',
    dialect: openaiChat,
    body: { ...chat, ...usage, max_tokens: 0 },
    events: around(),
  },
  {
    name: 'completions',
    dialect: openaiCompletions,
    body: { prompt: 'a', ...usage },
    events: around(token(0, 'Hé'), token(0, ''), token(0, 'llo'), end(0, 'length')),
    about: { id: 'cmpl-0123' },
  },
  {
    name: 'completions-logprobs',
    dialect: openaiCompletions,
    body: { prompt: 'a', logprobs: 1, n: 2 },
    events: around(
      withLogprobs(0, 'aa', -0.5),
      withLogprobs(1, 'b', -1),
      withLogprobs(0, 'c', -2),
      end(0, 'stop'),
      end(1, 'stop'),
    ),
    about: { id: 'cmpl-0123' },
  },
]

async function told(events: readonly GenerateEvent[], request: GenerateRequest, own: ModelFormats | undefined) {
  const out: GenerateEvent[] = []
  async function* source() {
    yield* events
  }
  for await (const event of splitEvents(source(), request, { formats: own ?? { specials: [] }, tail: '' }))
    out.push(event)
  return out
}

describe.each(CASES)('$name', ({ name, dialect, body, events, about: more, formats: own }) => {
  const decoded = dialect.decode(readBody(Buffer.from(JSON.stringify(body))), envelope)

  test('stream', async () => {
    const encoder = decoded.streamEncoder({ ...about, ...more })
    const split = await told(events, decoded.requests[0], own)
    const stream = split.map((event) => encoder.event(event)).join('') + encoder.ending
    await expect(stream).toMatchFileSnapshot(`golden/${name}.sse`)
  })

  test('body', async () => {
    const encoder = decoded.bodyEncoder({ ...about, ...more })
    for (const event of await told(events, decoded.requests[0], own)) encoder.event(event)
    await expect(`${JSON.stringify(JSON.parse(encoder.body()), null, 2)}\n`).toMatchFileSnapshot(`golden/${name}.body`)
  })
})

test.each([openaiChat, openaiCompletions])('$name: a failure after the head is one error event', async (dialect) => {
  const body = dialect.name === 'openai-chat' ? chat : { prompt: 'a' }
  const decoded = dialect.decode(readBody(Buffer.from(JSON.stringify(body))), envelope)
  const failure = decoded.streamEncoder(about).failure(new RefrainError('engine_failed', 'it is gone'))
  expect(failure).toBe(
    'data: {"error":{"message":"it is gone","type":"server_error","param":null,"code":"engine_failed"}}\n\n',
  )
})

test('the golden files say what the contract says: one id, one role and one finish per choice, usage last', () => {
  const chunks = readFileSync(new URL('golden/chat-two-choices-logprobs.sse', import.meta.url), 'utf8')
    .split('\n\n')
    .filter((event) => event.startsWith('data: {'))
    .map((event) => JSON.parse(event.slice(6)))
  for (const choice of [0, 1]) {
    const own = chunks.filter((chunk) => chunk.choices[0]?.index === choice)
    expect(own.map((chunk) => chunk.choices[0].delta.role).filter(Boolean)).toEqual(['assistant'])
    expect(own[0].choices[0].delta.role).toBe('assistant')
    expect(own.filter((chunk) => chunk.choices[0].finish_reason !== null)).toHaveLength(1)
    expect(own.at(-1).choices[0].finish_reason).not.toBeNull()
  }
})
