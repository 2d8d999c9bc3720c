// The decoder of the Messages API: what each form of a body becomes, and what is refused by its path.

import { describe, expect, test } from 'vitest'
import { RefrainError } from '../../core/errors.js'
import type { GenerateRequest } from '../../core/request.js'
import { readBody } from '../body.js'
import { CLEARED } from './anthropic-context.js'
import { anthropicMessages } from './anthropic-messages.js'
import { sealThinking } from './anthropic-shape.js'
import type { Envelope } from './contract.js'

const limits = { n: 16, prompts: 64, stopStrings: 4, stopChars: 32, logitBias: 1024, jsonDepth: 16 }
const tenant = { name: 'default', salt: 'default', admin: true }
const envelope: Envelope = { id: '0123', tenant, session: undefined, priority: 'interactive', limits }

const hello = { max_tokens: 10, messages: [{ role: 'user', content: 'Hello' }] }

function decodeText(text: string) {
  const decoded = anthropicMessages.decode(readBody(Buffer.from(text)), envelope)
  const { prompt } = decoded.requests[0]
  if (prompt.kind !== 'chat') throw new Error('a message is a chat')
  return { ...decoded, request: decoded.requests[0] as GenerateRequest, prompt }
}
const decode = (more: object = {}) => decodeText(JSON.stringify({ ...hello, ...more }))
const messagesOf = (messages: unknown, more: object = {}) => decode({ messages, ...more }).prompt.messages
function refusal(more: object): RefrainError {
  try {
    decode(more)
  } catch (error) {
    if (error instanceof RefrainError) return error
    throw error
  }
  throw new Error('it was taken')
}
const mark = (ttl?: string) => ({ cache_control: { type: 'ephemeral', ...(ttl && { ttl }) } })

describe('messages', () => {
  test('the smallest body', () => {
    const { request, stream, ignored } = decode()
    expect(request).toMatchObject({ id: '0123', model: '', maxTokens: 10, n: 1, stop: [], echo: false })
    expect(request.prompt).toEqual({ kind: 'chat', messages: [{ role: 'user', content: 'Hello' }], tools: [] })
    expect({ stream, ignored }).toEqual({ stream: false, ignored: [] })
  })

  test('system text is one message in front; blocks begin on a line each', () => {
    expect(messagesOf(hello.messages, { system: 'Be brief.' })[0]).toEqual({ role: 'system', content: 'Be brief.' })
    const blocks = ['x-anthropic-billing-header: cch=1;', '', 'You are.'].map((text) => ({ type: 'text', text }))
    const [system] = messagesOf(hello.messages, { system: blocks })
    expect(system).toEqual({ role: 'system', content: 'x-anthropic-billing-header: cch=1;\nYou are.' })
    expect(messagesOf(hello.messages, { system: '' })).toHaveLength(1)
  })

  test('system messages in mid-conversation stay where they are', () => {
    const sent = [
      { role: 'user', content: 'a' },
      { role: 'system', content: [{ type: 'text', text: 'Soon out of context.', ...mark() }] },
      { role: 'assistant', content: 'b' },
      { role: 'user', content: 'c' },
    ]
    expect(messagesOf(sent, { system: 's' }).map(({ role }) => role)).toEqual([
      'system',
      'user',
      'system',
      'assistant',
      'user',
    ])
    expect(decode({ messages: sent, system: 's' }).request.checkpoints).toEqual([{ after: 2, ttlMs: 300_000 }])
  })

  test("calls' input is the raw text, results are tool messages in order, text behind them the user's", () => {
    const input = '{ "limit": 20.0,  "path": "\\/a",\n "n": 1e3, "city": "caf\\u00e9" }'
    const { prompt } = decodeText(`{"max_tokens": 1, "messages": [
      {"role": "user", "content": "Go"},
      {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm\\n", "signature": "whatever"},
        {"type": "text", "text": "Let me "}, {"type": "text", "text": "look.\\n\\n"},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": ${input}},
        {"type": "tool_use", "id": "toolu_2", "name": "stop"}
      ]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}]},
        {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": true},
        {"type": "text", "text": "And"}, {"type": "text", "text": "now?"}
      ]}
    ]}`)
    expect(prompt.messages.slice(1)).toEqual([
      {
        role: 'assistant',
        content: 'Let me look.\n\n',
        reasoning: 'hm\n',
        toolCalls: [
          { id: 'toolu_1', name: 'look', arguments: input },
          { id: 'toolu_2', name: 'stop', arguments: '{}' },
        ],
      },
      { role: 'tool', content: '1\n2', toolCallId: 'toolu_1' },
      { role: 'tool', content: 'error', toolCallId: 'toolu_2' },
      { role: 'user', content: 'And\nnow?' },
    ])
  })

  test('one turn of the assistant is one message, however many it is sent in; an empty one is none', () => {
    const messages = messagesOf([
      { role: 'user', content: 'a' },
      { role: 'assistant', content: [{ type: 'thinking', thinking: 'hm', signature: '' }] },
      { role: 'assistant', content: [{ type: 'tool_use', id: 't', name: 'f', input: {} }] },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: 't', content: 'r' }] },
      { role: 'assistant', content: [] },
      { role: 'user', content: 'b' },
    ])
    expect(messages.map(({ role }) => role)).toEqual(['user', 'assistant', 'tool', 'user'])
    expect(messages[1]).toEqual({
      role: 'assistant',
      content: '',
      reasoning: 'hm',
      toolCalls: [{ id: 't', name: 'f', arguments: '{}' }],
    })
  })

  test('reasoning that was not shown comes back in its signature; what another server redacted is skipped', () => {
    const of = (block: object) => {
      const sent = [...hello.messages, { role: 'assistant', content: [block, { type: 'text', text: 'x' }] }]
      const { prompt, ignored } = decode({ messages: [...sent, { role: 'user', content: 'b' }] })
      return [prompt.messages[1]?.reasoning, ignored]
    }
    expect(of({ type: 'thinking', thinking: '', signature: sealThinking('hm é\n') })).toEqual(['hm é\n', []])
    expect(of({ type: 'redacted_thinking', data: sealThinking('hm') })).toEqual(['hm', []])
    const foreign = of({ type: 'redacted_thinking', data: 'EmwKAhgB' })
    expect(foreign).toEqual([undefined, ['messages[].content[redacted_thinking]']])
  })

  test('a final message of the assistant is continued, trailing space and all', () => {
    const prefilled = [...hello.messages, { role: 'assistant', content: 'It is ' }]
    expect(decode({ messages: prefilled }).prompt).toMatchObject({ continueFinal: true })
    expect(decode({ messages: prefilled }).prompt.messages.at(-1)?.content).toBe('It is ')
    expect(decode().prompt.continueFinal).toBeUndefined()
    const called = [...hello.messages, { role: 'assistant', content: [{ type: 'tool_use', id: 'toolu_9', name: 'f' }] }]
    expect(refusal({ messages: called }).message).toMatch(/tool_result blocks for the tool_use ids toolu_9/)
  })

  test('documents and search results are text where they are text', () => {
    const content = [
      { type: 'document', title: 'T', context: 'C', source: { type: 'text', media_type: 'text/plain', data: 'D' } },
      { type: 'document', source: { type: 'content', content: [{ type: 'text', text: 'E' }] } },
      { type: 'search_result', title: 'S', source: 'https://a', content: [{ type: 'text', text: 'F' }] },
    ]
    expect(messagesOf([{ role: 'user', content }])[0]?.content).toBe('T\nC\nD\nE\nS\nhttps://a\nF')
  })

  test("blocks of tools that another server ran are left out and named; the user's text around them stays", () => {
    const content = [
      { type: 'text', text: 'a' },
      { type: 'server_tool_use', id: 's', name: 'web_search', input: {} },
      { type: 'web_search_tool_result', tool_use_id: 's', content: [] },
      { type: 'text', text: 'b' },
    ]
    const { prompt, ignored } = decode({ messages: [...hello.messages, { role: 'assistant', content }] })
    expect(prompt.messages.at(-1)?.content).toBe('ab')
    expect(ignored).toEqual(['messages[].content[server_tool_use]', 'messages[].content[web_search_tool_result]'])
  })

  test.each([
    [{ messages: undefined }, 'messages', /is required/],
    [{ messages: [] }, 'messages', /must not be empty/],
    [{ max_tokens: undefined }, 'max_tokens', /is required/],
    [{ max_tokens: -1 }, 'max_tokens', /integer from 0/],
    [{ messages: [{ role: 'tool', content: 'a' }] }, 'messages[0].role', /'user', 'assistant' or 'system'/],
    [{ messages: [{ role: 'user' }] }, 'messages[0].content', /is required/],
    [{ messages: [{ role: 'user', content: 7 }] }, 'messages[0].content', /not number 7/],
    [{ messages: [{ role: 'user', content: [{ text: 'a' }] }] }, 'messages[0].content[0].type', /must be a string/],
    [
      { messages: [{ role: 'user', content: [{ type: 'image', source: { type: 'url', url: 'x' } }] }] },
      'messages[0].content[0].type',
      /'image' cannot be honoured: this model reads text only/,
    ],
    [
      { messages: [{ role: 'user', content: [{ type: 'document', source: { type: 'base64', data: 'x' } }] }] },
      'messages[0].content[0].source.type',
      /'base64' cannot be honoured/,
    ],
    [
      {
        messages: [
          { role: 'user', content: [{ type: 'tool_result', tool_use_id: 't', content: [{ type: 'image' }] }] },
        ],
      },
      'messages[0].content[0].content[0].type',
      /'image'/,
    ],
    [
      { messages: [{ role: 'assistant', content: [{ type: 'tool_use', id: 't', name: 'f', input: 7 }] }] },
      'messages[0].content[0].input',
      /must be an object/,
    ],
    [{ system: [{ type: 'image' }] }, 'system[0].type', /'image'/],
    [{ mcp_servers: [{ url: 'https://a' }] }, 'mcp_servers', /calls no tools/],
    [{ container: 'c1' }, 'container', /no containers/],
    [{ thread: { id: 't' } }, 'thread.type', /is required/],
    [{ stop_sequences: ['a', ''] }, 'stop_sequences[1]', /must not be empty/],
    [{ stop_sequences: ['1', '2', '3', '4', '5'] }, 'stop_sequences', /limits.stopStrings/],
    [{ stop_sequences: ['x'.repeat(33)] }, 'stop_sequences[0]', /limits.stopChars/],
    [{ thinking: { type: 'maybe' } }, 'thinking.type', /one of/],
    [{ output_config: { format: { type: 'json_schema' } } }, 'output_config.format.schema', /is required/],
    [{ cache_control: { type: 'forever' } }, 'cache_control.type', /'ephemeral'/],
    [{ cache_control: { type: 'ephemeral', ttl: '2h' } }, 'cache_control.ttl', /'5m', '1h'/],
  ])('%j is refused', (more, param, message) => {
    const error = refusal(more)
    expect([error.param, error.status]).toEqual([param, 400])
    expect(error.message).toMatch(message)
  })
})

describe('tools', () => {
  const schema = '{"type": "object",  "properties": {"z": {"type": "number", "maximum": 1e3}, "a": {}}}'

  test('keep their own text in the form of Chat Completions, whatever is marked', () => {
    const { prompt, request } = decodeText(`{"max_tokens": 1, "messages": [{"role": "user", "content": "a"}], "tools": [
      {"input_schema": ${schema}, "description": "Loo\\u006bs.", "name": "look", "cache_control": {"type": "ephemeral", "ttl": "1h"}, "eager_input_streaming": true},
      {"type": "custom", "name": "f", "input_schema": {}, "strict": true}]}`)
    expect(prompt.tools).toEqual([
      {
        name: 'look',
        json: `{"type":"function","function":{"name":"look","description":"Loo\\u006bs.","parameters":${schema}}}`,
      },
      { name: 'f', json: '{"type":"function","function":{"name":"f","parameters":{},"strict":true}}' },
    ])
    expect(request.checkpoints).toEqual([{ after: 'head', ttlMs: 3_600_000 }])
  })

  test("tools that a server runs are left out and named; what isn't known is refused", () => {
    const { prompt, ignored } = decode({
      tools: [
        { type: 'web_search_20260318', name: 'web_search' },
        { type: 'mcp_toolset', mcp_server_name: 'a' },
        { name: 'f', input_schema: {}, defer_loading: true },
      ],
    })
    expect(prompt.tools.map(({ name }) => name)).toEqual(['f'])
    expect(ignored).toEqual(['tools[web_search_20260318]', 'tools[mcp_toolset]', 'tools[].defer_loading'])
    expect(refusal({ tools: [{ type: 'function', function: { name: 'f' } }] })).toMatchObject({
      param: 'tools[0].type',
    })
    expect(refusal({ tools: [{ input_schema: {} }] })).toMatchObject({ param: 'tools[0].name' })
  })

  test.each([
    [undefined, undefined],
    [{ type: 'auto' }, undefined],
    [
      { type: 'auto', disable_parallel_tool_use: true },
      { mode: 'auto', parallel: false },
    ],
    [{ type: 'any' }, { mode: 'required' }],
    [{ type: 'none' }, { mode: 'none' }],
    [
      { type: 'tool', name: 'f', disable_parallel_tool_use: true },
      { mode: 'required', allowed: ['f'], parallel: false },
    ],
  ])('choice %j', (choice, expected) => {
    const tools = [{ name: 'f', input_schema: {} }]
    expect(decode({ tools, tool_choice: choice }).request.toolChoice).toEqual(expected)
  })

  test('a choice of what is not there is refused; refrain.allowed_tools narrows', () => {
    const tools = ['browser_go', 'browser_look', 'run'].map((name) => ({ name, input_schema: {} }))
    expect(refusal({ tools, tool_choice: { type: 'tool', name: 'g' } })).toMatchObject({ param: 'tool_choice.name' })
    expect(refusal({ tool_choice: { type: 'any' } })).toMatchObject({ param: 'tool_choice' })
    const { request } = decode({ tools, refrain: { allowed_tools: ['browser_*'] } })
    expect(request.toolChoice).toEqual({ mode: 'auto', allowed: ['browser_*'] })
    expect(request.prompt).toMatchObject({ tools: decode({ tools }).prompt.tools })
  })
})

describe('cache marks', () => {
  test('become checkpoints behind what they stand on, the longest time where there are several', () => {
    const { request, prompt } = decode({
      system: [{ type: 'text', text: 's', ...mark('1h') }],
      tools: [{ name: 'f', input_schema: {}, ...mark() }],
      messages: [
        { role: 'user', content: [{ type: 'text', text: 'a', ...mark() }] },
        { role: 'assistant', content: [{ type: 'tool_use', id: 't', name: 'f', input: {} }] },
        { role: 'user', content: [{ type: 'tool_result', tool_use_id: 't', content: 'r', ...mark() }] },
      ],
    })
    expect(prompt.messages.map(({ role }) => role)).toEqual(['system', 'user', 'assistant', 'tool'])
    expect(request.checkpoints).toEqual([
      { after: 'head', ttlMs: 3_600_000 },
      { after: 1, ttlMs: 300_000 },
      { after: 3, ttlMs: 300_000 },
    ])
    expect(JSON.stringify(prompt)).not.toContain('cache_control')
  })

  test('one for the whole body stands behind the last message', () => {
    expect(decode({ system: 's', ...mark('1h') }).request.checkpoints).toEqual([{ after: 1, ttlMs: 3_600_000 }])
  })

  test('a mark on a message that is none is one on the message before', () => {
    const messages = [...hello.messages, { role: 'assistant', content: [{ type: 'text', text: '', ...mark() }] }]
    expect(decode({ messages }).request.checkpoints).toEqual([{ after: 0, ttlMs: 300_000 }])
  })

  test('five are too many', () => {
    const blocks = Array.from({ length: 5 }, () => ({ type: 'text', text: 'a', ...mark() }))
    expect(decode({ system: blocks.slice(1) }).request.checkpoints).toHaveLength(1)
    expect(refusal({ system: blocks })).toMatchObject({ param: 'cache_control', message: /at most 4 .* not in 5/ })
  })

  test('moving them changes nothing that is rendered', () => {
    const at = (marked: number) => ({
      messages: ['a', 'b', 'c'].map((text, i) => ({
        role: i === 1 ? 'assistant' : 'user',
        content: [{ type: 'text', text, ...(i === marked && mark()) }],
      })),
    })
    expect(decode(at(0)).prompt).toEqual(decode(at(2)).prompt)
    expect(decode(at(0)).prompt).toEqual(decode(at(9)).prompt)
  })
})

describe('options', () => {
  test.each([
    [{}, undefined],
    [{ thinking: { type: 'enabled', budget_tokens: 4096 } }, { enabled: true }],
    [{ thinking: { type: 'disabled' }, output_config: { effort: 'high' } }, { enabled: false }],
    [{ thinking: { type: 'adaptive' } }, undefined],
    [{ thinking: { type: 'adaptive' }, output_config: { effort: 'xhigh' } }, { effort: 'xhigh' }],
    [
      { thinking: { type: 'enabled' }, output_config: { effort: 'low' } },
      { enabled: true, effort: 'low' },
    ],
  ])('thinking of %j', (more, thinking) => {
    expect(decode(more).prompt.thinking).toEqual(thinking)
  })

  test('sampling and ends', () => {
    const { request } = decode({ temperature: 0, top_p: 0.5, top_k: 40, stop_sequences: ['\n\nHuman:'] })
    expect(request.sampling).toMatchObject({ temperature: 0, topP: 0.5, topK: 40 })
    expect(request.stop).toEqual(['\n\nHuman:'])
  })

  test('a schema of the answer is its raw text, in both places that the API had for it', () => {
    const schema = '{"type": "object",  "properties": {}}'
    const of = (member: string) =>
      decodeText(`{"max_tokens": 1, "messages": [{"role": "user", "content": "a"}], ${member}}`).request.constraint
    const format = `{"type": "json_schema", "schema": ${schema}}`
    expect(of(`"output_config": {"format": ${format}}`)).toEqual({ kind: 'json-schema', schema })
    expect(of(`"output_format": ${format}`)).toEqual({ kind: 'json-schema', schema })
    const both = { type: 'json_schema', schema: {} }
    expect(refusal({ output_format: both, output_config: { format: both } })).toMatchObject({ param: 'output_format' })
  })

  test('what is known and changes nothing is silent, what could have done something is named', () => {
    const { ignored } = decode({
      metadata: { user_id: 'u' },
      service_tier: 'auto',
      container: null,
      mcp_servers: [],
      speed: 'fast',
      thinking: { type: 'enabled', budget_tokens: 2000 },
      output_config: { effort: 'low', task_budget: { type: 'tokens', total: 1 } },
      context_management: { edits: [{ type: 'compact_20260112' }] },
      from_next_year: true,
    })
    expect(ignored).toEqual([
      'speed',
      'thinking.budget_tokens',
      'output_config.task_budget',
      'context_management.edits[compact_20260112]',
      'from_next_year',
    ])
  })
})

test('context edits are applied to the messages, counted by the envelope, and told', () => {
  const loop = [1, 2, 3].flatMap((i) => [
    { role: 'assistant', content: [{ type: 'tool_use', id: `t${i}`, name: 'f', input: { i } }] },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: `t${i}`, content: `${i} `.repeat(100) }] },
  ])
  const edits = [
    {
      type: 'clear_tool_uses_20250919',
      trigger: { type: 'input_tokens', value: 250 },
      keep: { type: 'tool_uses', value: 1 },
    },
  ]
  const body = { ...hello, messages: [...hello.messages, ...loop], context_management: { edits } }
  const asked: (string | undefined)[] = []
  const counting: Envelope = {
    ...envelope,
    countTokens: (model, text) => {
      asked.push(model)
      return text.split(' ').length
    },
  }
  const raw = readBody(Buffer.from(JSON.stringify({ ...body, model: 'm' })))
  const { requests, bodyEncoder } = anthropicMessages.decode(raw, counting)
  const { prompt } = requests[0]
  const results = prompt.kind === 'chat' ? prompt.messages.filter(({ role }) => role === 'tool') : []
  expect(results.map(({ content }) => content === CLEARED)).toEqual([true, true, false])
  expect(new Set(asked)).toEqual(new Set(['m']))
  const encoder = bodyEncoder({ id: 'msg_1', model: 'm', created: 0, forceUsage: false })
  const cache = { working: 0, memory: 0, disk: 0, computed: 9 }
  encoder.event({ type: 'finish', promptTokens: 9, completionTokens: 0, cache, committedTokens: 0 })
  expect(JSON.parse(encoder.body()).context_management).toEqual({
    applied_edits: [{ type: 'clear_tool_uses_20250919', cleared_tool_uses: 2, cleared_input_tokens: 186 }],
  })
})
