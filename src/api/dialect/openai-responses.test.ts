// What the Responses decoder makes of a body: messages, tools with their own text, choices, refusals that name the field.

import { describe, expect, test } from 'vitest'
import type { GenerateRequest } from '../../core/request.js'
import { readBody } from '../body.js'
import type { Decoded, Envelope } from './contract.js'
import { openaiResponses } from './openai-responses.js'
import { openReasoning, sealReasoning } from './openai-responses-shape.js'

const limits = { n: 16, prompts: 64, stopStrings: 16, stopChars: 512, logitBias: 1024, jsonDepth: 64 }
const tenant = { name: 'default', salt: 'default', admin: true }
const envelope: Envelope = { id: '0123', tenant, session: undefined, priority: 'interactive', limits }

function decode(body: object | string): Decoded {
  const text = typeof body === 'string' ? body : JSON.stringify(body)
  return openaiResponses.decode(readBody(Buffer.from(text)), envelope)
}

function requestOf(body: object | string): GenerateRequest {
  return decode(body).requests[0]
}

function chatOf(body: object | string) {
  const { prompt } = requestOf(body)
  if (prompt.kind !== 'chat') throw new Error('a response is a chat')
  return prompt
}

function refusal(body: object) {
  try {
    decode(body)
  } catch (error) {
    const { code, param, message } = error as { code: string; param?: string; message: string }
    return { code, param, message }
  }
  throw new Error('it was taken')
}

const user = { role: 'user', content: 'Look it up.' }
const reasoning = (text: string, more: object = {}) => ({
  type: 'reasoning',
  id: 'rs_1',
  summary: [],
  content: [{ type: 'reasoning_text', text }],
  ...more,
})
const said = (text: string, more: object = {}) => ({
  type: 'message',
  role: 'assistant',
  content: [{ type: 'output_text', text, annotations: [] }],
  ...more,
})
const call = (id: string, more: object = {}) => ({
  type: 'function_call',
  call_id: id,
  name: 'look',
  arguments: '{"limit": 20.0,  "q": "caf\\u00e9"}',
  ...more,
})
const result = (id: string, output: unknown = '42') => ({ type: 'function_call_output', call_id: id, output })

describe('input', () => {
  test('a string is the user, instructions are the system in front', () => {
    expect(chatOf({ input: 'Hi', instructions: 'Be short.' }).messages).toEqual([
      { role: 'system', content: 'Be short.' },
      { role: 'user', content: 'Hi' },
    ])
  })

  test('developer and system are one role; parts are joined by a line break; a type may be absent', () => {
    const parts = [
      { type: 'input_text', text: 'a' },
      { type: 'input_text', text: 'b' },
    ]
    const input = [{ role: 'developer', content: parts }, { type: 'message', role: 'system', content: 'c' }, user]
    expect(chatOf({ input }).messages).toEqual([
      { role: 'system', content: 'a\nb' },
      { role: 'system', content: 'c' },
      { role: 'user', content: 'Look it up.' },
    ])
  })

  test('reasoning, text and calls of one answer are one message; arguments are kept as sent', () => {
    const input = [user, reasoning('hm\n'), said('Let me.\n\n'), call('c1'), call('c2'), result('c1'), result('c2')]
    const text = '{"limit": 20.0,  "q": "caf\\u00e9"}'
    expect(chatOf({ input }).messages).toEqual([
      { role: 'user', content: 'Look it up.' },
      {
        role: 'assistant',
        content: 'Let me.\n\n',
        reasoning: 'hm\n',
        toolCalls: [
          { id: 'c1', name: 'look', arguments: text },
          { id: 'c2', name: 'look', arguments: text },
        ],
      },
      { role: 'tool', content: '42', toolCallId: 'c1' },
      { role: 'tool', content: '42', toolCallId: 'c2' },
    ])
  })

  test('two answers in a row stay two; text behind a call is of the same answer', () => {
    const input = [user, said('a'), said('b'), call('c1'), said('c'), result('c1')]
    expect(chatOf({ input }).messages.slice(1)).toEqual([
      { role: 'assistant', content: 'a' },
      {
        role: 'assistant',
        content: 'bc',
        toolCalls: [{ id: 'c1', name: 'look', arguments: call('c1').arguments }],
      },
      { role: 'tool', content: '42', toolCallId: 'c1' },
    ])
  })

  test('reasoning of answers that broke off is left out, so that a retry has the first try as its prefix', () => {
    const first = chatOf({ input: [user] }).messages
    expect(chatOf({ input: [user, reasoning('cut')] }).messages).toEqual(first)
    expect(chatOf({ input: [user, reasoning('cut'), reasoning('cut again')] }).messages).toEqual(first)
    const then = [user, reasoning('cut'), reasoning('whole'), said('Done.')]
    expect(chatOf({ input: then }).messages.at(-1)).toEqual({ role: 'assistant', content: 'Done.', reasoning: 'whole' })
  })

  test('ids, status and what libraries add change nothing', () => {
    const bare = [user, reasoning('hm'), said('a'), call('c1'), result('c1')]
    const dressed = [
      { type: 'message', id: 'msg_9', ...user },
      reasoning('hm', { id: 'rs_9', status: null, encrypted_content: null }),
      { ...said('a', { id: 'msg_8', status: 'completed', phase: 'commentary' }) },
      call('c1', { id: 'fc_9', status: 'completed', parsed_arguments: null }),
      { id: 'fco_9', ...result('c1', [{ type: 'input_text', text: '42' }]) },
    ]
    expect(chatOf({ input: dressed })).toEqual(chatOf({ input: bare }))
    expect(decode({ input: dressed }).ignored).toEqual([])
  })

  test('reasoning comes back sealed, or as a summary; what another server sealed is noted', () => {
    const of = (item: object) => chatOf({ input: [user, { type: 'reasoning', ...item }, said('a')] }).messages.at(-1)
    expect(of({ summary: [], encrypted_content: sealReasoning('hé\n') })).toMatchObject({ reasoning: 'hé\n' })
    expect(of({ summary: [{ type: 'summary_text', text: 'short' }] })).toMatchObject({ reasoning: 'short' })
    const foreign = { type: 'reasoning', id: 'rs_1', summary: [], encrypted_content: 'gAAAA' }
    const decoded = decode({ input: [user, foreign, said('a')] })
    expect(decoded.ignored).toEqual(['input[].encrypted_content'])
    expect(openReasoning('gAAAA')).toBeUndefined()
  })

  test.each([
    [{}, 'input'],
    [{ input: [] }, 'input'],
    [{ input: 7 }, 'input'],
    [{ input: [7] }, 'input[0]'],
    [{ input: [{ type: 'message', role: 'tool', content: 'a' }] }, 'input[0].role'],
    [{ input: [user, { ...user, content: [{ type: 'input_image', image_url: 'x' }] }] }, 'input[1].content[0].type'],
    [{ input: [{ type: 'function_call', name: 'a' }] }, 'input[0].call_id'],
    [{ input: [{ type: 'function_call_output', call_id: 'a' }] }, 'input[0].output'],
    [{ input: [{ type: 'computer_call' }] }, 'input[0].type'],
    [{ input: [{ type: 'item_reference', id: 'msg_1' }] }, 'input[0].id'],
    [{ input: [{ id: 'msg_1' }] }, 'input[0].id'],
  ])('%j is refused by its path', (body, param) => {
    expect(refusal(body)).toMatchObject({ param, message: expect.stringContaining(`'${param}'`) })
  })

  test('references to reasoning and calls that servers ran are left out and noted', () => {
    const input = [user, { type: 'item_reference', id: 'rs_1' }, { type: 'web_search_call', id: 'ws_1' }]
    const decoded = decode({ input })
    expect(decoded.ignored).toEqual(['input[item_reference]', 'input[web_search_call]'])
    expect(chatOf({ input }).messages).toHaveLength(1)
  })
})

test('a reference to an item that is there itself is left out', () => {
  const input = [user, said('a', { id: 'msg_1' }), { type: 'item_reference', id: 'msg_1' }, { id: 'msg_1' }]
  expect(chatOf({ input }).messages).toEqual(chatOf({ input: input.slice(0, 2) }).messages)
  expect(decode({ input }).ignored).toEqual(['input[item_reference]'])
})

describe('tools', () => {
  const look = '{"type":"function","name":"look","strict":false,  "parameters": {"b":{"maximum":1e3}, "a":20.0}}'
  const agents = `{"type":"namespace","name":"agents","description":"d","tools":[${look.replace('look', 'spawn')}]}`

  test('the definition keeps its own text in the form of Chat Completions', () => {
    const { tools } = chatOf(`{"input":"a","tools":[${look},${agents}]}`)
    const inner = (name: string) => `{"name":"${name}","strict":false,  "parameters": {"b":{"maximum":1e3}, "a":20.0}}`
    expect(tools).toEqual([
      { name: 'look', json: `{"type":"function","function":${inner('look')}}` },
      { name: 'spawn', json: `{"type":"function","function":${inner('spawn')}}` },
    ])
  })

  test('names that collide get their namespace in front, in definitions, choices and old calls', () => {
    const body = `{"tools":[${look},${agents.replace('spawn', 'look')}],
      "tool_choice":{"type":"function","name":"look","namespace":"agents"},
      "input":[{"type":"function_call","call_id":"c","name":"look","namespace":"agents","arguments":"{}"}]}`
    const request = requestOf(body)
    const { tools, messages } = chatOf(body)
    expect(tools.map((tool) => tool.name)).toEqual(['look', 'agents__look'])
    expect(JSON.parse(tools[1]!.json).function.name).toBe('agents__look')
    expect(messages[0]?.toolCalls?.[0]?.name).toBe('agents__look')
    expect(request.toolChoice).toEqual({ mode: 'required', allowed: ['agents__look'] })
  })

  test('tools that a server runs are named as ignored, with their type', () => {
    const tools = [
      { type: 'web_search', external_web_access: true },
      { type: 'mcp', server_label: 'x' },
    ]
    const decoded = decode({ input: 'a', tools })
    expect(decoded.ignored).toEqual(['tools[web_search]', 'tools[mcp]'])
    expect(chatOf({ input: 'a', tools }).tools).toEqual([])
  })

  test('a custom tool is a function of one text, and so are its old calls', () => {
    const tools = [{ type: 'custom', name: 'patch', description: 'Patches.', format: { type: 'grammar' } }]
    const input = [
      user,
      { type: 'custom_tool_call', call_id: 'c', name: 'patch', input: 'a\n"b"' },
      { type: 'custom_tool_call_output', call_id: 'c', output: 'ok' },
    ]
    const prompt = chatOf({ input, tools })
    expect(JSON.parse(prompt.tools[0]!.json).function).toMatchObject({ name: 'patch', parameters: { type: 'object' } })
    expect(JSON.parse(prompt.messages[1]!.toolCalls![0]!.arguments)).toEqual({ input: 'a\n"b"' })
    expect(decode({ input, tools }).ignored).toEqual(['tools[].format'])
  })

  test('the form of Chat Completions is taken, too', () => {
    const { tools } = chatOf('{"input":"a","tools":[{"type":"function","function":{"name":"f", "parameters":{}}}]}')
    expect(tools).toEqual([{ name: 'f', json: '{"type":"function","function":{"name":"f", "parameters":{}}}' }])
  })

  const tools = [
    { type: 'function', name: 'a' },
    { type: 'function', name: 'b' },
  ]
  test.each([
    ['auto', { mode: 'auto' }],
    ['none', { mode: 'none' }],
    ['required', { mode: 'required' }],
    [
      { type: 'function', name: 'b' },
      { mode: 'required', allowed: ['b'] },
    ],
    [
      { type: 'allowed_tools', mode: 'auto', tools: [{ type: 'function', name: 'a' }, { type: 'web_search' }] },
      { mode: 'auto', allowed: ['a'] },
    ],
    [
      { type: 'allowed_tools', mode: 'required', tools },
      { mode: 'required', allowed: ['a', 'b'] },
    ],
    [{ type: 'allowed_tools', mode: 'auto', tools: [{ type: 'web_search' }] }, { mode: 'none' }],
  ])('tool_choice %j', (choice, expected) => {
    expect(requestOf({ input: 'a', tools, tool_choice: choice }).toolChoice).toEqual(expected)
  })

  test('refrain.allowed_tools narrows any choice, and patterns may be named', () => {
    const narrowed = (body: object) => requestOf({ input: 'a', tools, ...body }).toolChoice
    expect(narrowed({ refrain: { allowed_tools: ['a'] } })).toEqual({ mode: 'auto', allowed: ['a'] })
    const both = { type: 'allowed_tools', mode: 'required', tools: [{ type: 'function', name: '*' }] }
    expect(narrowed({ tool_choice: both })).toEqual({ mode: 'required', allowed: ['*'] })
    expect(narrowed({ tool_choice: both, refrain: { allowed_tools: ['b*'] } })).toEqual({
      mode: 'required',
      allowed: ['b'],
    })
    expect(refusal({ input: 'a', tools, refrain: { allowed_tools: ['c'] } })).toMatchObject({
      param: 'refrain.allowed_tools[0]',
    })
  })

  test('parallel_tool_calls: false goes with any choice', () => {
    expect(requestOf({ input: 'a', tools, parallel_tool_calls: false }).toolChoice).toEqual({
      mode: 'auto',
      parallel: false,
    })
    expect(requestOf({ input: 'a', tools, parallel_tool_calls: true }).toolChoice).toBeUndefined()
  })

  test.each([
    [{ tools, tool_choice: { type: 'function', name: 'c' } }, 'tool_choice.name'],
    [{ tools, tool_choice: { type: 'web_search' } }, 'tool_choice.type'],
    [{ tools, tool_choice: 'maybe' }, 'tool_choice'],
    [{ tool_choice: 'required' }, 'tool_choice'],
    [{ tools: [{ type: 'function' }] }, 'tools[0].name'],
    [{ tools: [{ type: 'namespace', name: 'n', tools: [{ type: 'function' }] }] }, 'tools[0].tools[0].name'],
    [{ tools: [{ type: 'function', name: 'a', parameters: 7 }] }, 'tools[0].parameters'],
  ])('%j is refused by its path', (body, param) => {
    expect(refusal({ input: 'a', ...body })).toMatchObject({ param })
  })
})

describe('the rest', () => {
  test('text.format becomes the constraint, with the schema as it was sent', () => {
    const body = '{"input":"a","text":{"format":{"type":"json_schema","name":"x","schema":{"b":1e0, "a":2.0}}}}'
    expect(requestOf(body).constraint).toEqual({ kind: 'json-schema', schema: '{"b":1e0, "a":2.0}' })
    expect(requestOf({ input: 'a', text: { format: { type: 'json_object' } } }).constraint).toEqual({ kind: 'json' })
    expect(requestOf({ input: 'a', text: { format: { type: 'text' } } }).constraint).toBeUndefined()
    expect(refusal({ input: 'a', text: { format: { type: 'grammar' } } })).toMatchObject({ param: 'text.format.type' })
  })

  test('reasoning.effort becomes the thinking of the prompt', () => {
    expect(chatOf({ input: 'a', reasoning: { effort: 'high' } }).thinking).toEqual({ enabled: true, effort: 'high' })
    expect(chatOf({ input: 'a', reasoning: { effort: 'none' } }).thinking).toEqual({ enabled: false })
    expect(chatOf({ input: 'a', reasoning: { summary: 'auto' } }).thinking).toBeUndefined()
    expect(refusal({ input: 'a', reasoning: { effort: 'huge' } })).toMatchObject({ param: 'reasoning.effort' })
  })

  test('sampling, length and log probabilities', () => {
    const body = { input: 'a', temperature: 0, top_p: 0.5, max_output_tokens: 9, top_logprobs: 2 }
    expect(requestOf(body)).toMatchObject({
      sampling: { temperature: 0, topP: 0.5 },
      maxTokens: 9,
      logprobs: 2,
      n: 1,
    })
    expect(requestOf({ input: 'a', include: ['message.output_text.logprobs'] }).logprobs).toBe(0)
    expect(requestOf({ input: 'a', include: [] }).logprobs).toBeUndefined()
  })

  test.each(['conversation', 'background', 'prompt', 'messages'])('%s is refused', (field) => {
    const value = field === 'background' ? true : field === 'prompt' ? { id: 'x' } : 'resp_1'
    expect(refusal({ input: 'a', [field]: value })).toMatchObject({ code: 'unsupported_parameter', param: field })
    expect(decode({ input: 'a', [field]: null }).ignored).toEqual([])
  })

  test('what has no effect is noted, what never has one is not', () => {
    const quiet = { store: false, client_metadata: { a: 'b' }, prompt_cache_key: 'k', user: 'u', metadata: { a: 'b' } }
    expect(decode({ input: 'a', ...quiet, truncation: 'disabled', service_tier: 'auto' }).ignored).toEqual([])
    const noted = {
      store: true,
      truncation: 'auto',
      include: ['file_search_call.results'],
      reasoning: { summary: 'auto' },
    }
    expect(decode({ input: 'a', ...noted, later_field: 1 }).ignored).toEqual([
      'truncation',
      'include.file_search_call.results',
      'reasoning.summary',
      'later_field',
      'store',
    ])
  })

  test('what is kept under an id says so, and what it goes on from', () => {
    const storing = (body: object) => {
      const text = JSON.stringify({ input: 'a', ...body })
      return openaiResponses.storing?.({ text, value: JSON.parse(text) })
    }
    expect(storing({})).toBeUndefined()
    expect(storing({ store: true })).toEqual({ keeps: true })
    expect(storing({ store: false, previous_response_id: null })).toEqual({ keeps: false })
    expect(storing({ previous_response_id: 'resp_1' })).toEqual({ keeps: true, previousId: 'resp_1' })
    expect(storing({ store: false, previous_response_id: 'resp_1' })).toEqual({ keeps: false, previousId: 'resp_1' })
    expect(() => storing({ store: 1 })).toThrow(/'store' must be a boolean/)
    expect(() => storing({ previous_response_id: 1 })).toThrow(/'previous_response_id' must be a string/)
  })
})
