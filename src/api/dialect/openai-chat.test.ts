import { describe, expect, test } from 'vitest'
import type { Constraint } from '../../core/request.js'
import { readBody } from '../body.js'
import type { Envelope } from './contract.js'
import { openaiChat } from './openai-chat.js'
import { openaiCompletions } from './openai-completions.js'

const limits = { n: 16, prompts: 64, stopStrings: 16, stopChars: 512, logitBias: 1024, jsonDepth: 64 }
const tenant = { name: 'default', salt: 'default', admin: true }
const envelope: Envelope = { id: 'id', tenant, session: undefined, priority: 'interactive', limits }
const messages = [{ role: 'user', content: 'a' }]

const oneTool = [{ type: 'function', function: { name: 'f' } }]
const oneCall = { tool_calls: [{ id: 'c', type: 'function', function: { name: 'f', arguments: '{}' } }] }
const named = (name: string) => ({ type: 'function', function: { name } })

const decode = (body: object | string) => {
  const text = typeof body === 'string' ? body : JSON.stringify({ messages, ...body })
  return openaiChat.decode(readBody(Buffer.from(text)), envelope)
}
const request = (body: object | string) => decode(body).requests[0]
const refusal = (body: object): object => {
  try {
    decode(body)
  } catch (error) {
    const { code, param, message } = error as { code: string; param: string; message: string }
    return { code, param, message }
  }
  throw new Error('it was taken')
}

describe('what is honoured', () => {
  test('sampling, ends and choices', () => {
    const body = {
      temperature: 0.5,
      top_p: 0.9,
      top_k: 40,
      min_p: 0.1,
      repetition_penalty: 1.1,
      presence_penalty: 1,
      frequency_penalty: -1,
      logit_bias: { 7: -100, 8: 0.5 },
      seed: -3,
      stop: 'x',
      stop_token_ids: [3],
      ignore_eos: true,
      n: 2,
      max_tokens: 9,
      max_completion_tokens: 5,
      logprobs: true,
      top_logprobs: 4,
      cache_salt: 's',
    }
    expect(request(body)).toMatchObject({
      sampling: {
        temperature: 0.5,
        topP: 0.9,
        topK: 40,
        minP: 0.1,
        repetitionPenalty: 1.1,
        presencePenalty: 1,
        frequencyPenalty: -1,
        logitBias: { 7: -100, 8: 0.5 },
        seed: -3,
      },
      stop: ['x'],
      stopTokenIds: [3],
      ignoreEos: true,
      n: 2,
      maxTokens: 5,
      logprobs: 4,
      cacheSalt: 's',
    })
  })

  test('absent means neutral, null means absent', () => {
    const nulls = { temperature: null, stop: null, n: null, tools: null, max_tokens: null, response_format: null }
    for (const body of [{}, nulls]) {
      const read = request(body)
      expect(read.sampling).toMatchObject({ temperature: 1, topP: 1, topK: 0, minP: 0, repetitionPenalty: 1 })
      expect(read).toMatchObject({ stop: [], n: 1, model: '', echo: false })
      expect(read.maxTokens).toBeUndefined()
      expect(read.logprobs).toBeUndefined()
      expect(read.constraint).toBeUndefined()
    }
  })

  test.each<[object, Constraint]>([
    [{ response_format: { type: 'json_object' } }, { kind: 'json' }],
    [{ response_format: { type: 'json_object', schema: { a: 1 } } }, { kind: 'json-schema', schema: '{"a":1}' }],
    [{ guided_json: '{"type": "object"}' }, { kind: 'json-schema', schema: '{"type": "object"}' }],
    [{ guided_regex: '[0-9]+' }, { kind: 'regex', regex: '[0-9]+' }],
    [{ guided_choice: ['a.b', 'c|d'] }, { kind: 'regex', regex: '(a\\.b|c\\|d)' }],
    [{ structured_outputs: { json: { b: 2 } } }, { kind: 'json-schema', schema: '{"b":2}' }],
    [{ structured_outputs: { regex: 'x' } }, { kind: 'regex', regex: 'x' }],
    [{ structured_outputs: { choice: ['yes', 'no'] } }, { kind: 'regex', regex: '(yes|no)' }],
    [{ structured_outputs: { json_object: true } }, { kind: 'json' }],
  ])('%j constrains the answer', (body, constraint) => {
    expect(request(body).constraint).toEqual(constraint)
  })
})

describe('calls', () => {
  test('the choice, with what is narrowed beside it, and the definitions as they were', () => {
    const { toolChoice, prompt } = request({ tools: oneTool, tool_choice: named('f'), parallel_tool_calls: false })
    expect(toolChoice).toEqual({ mode: 'required', allowed: ['f'], parallel: false })
    expect(prompt).toEqual(request({ tools: oneTool }).prompt)
    expect(request({ tools: oneTool, refrain: { allowed_tools: ['f*'] } }).toolChoice).toEqual({
      mode: 'auto',
      allowed: ['f*'],
    })
    expect(request({ tools: oneTool }).toolChoice).toBeUndefined()
    expect(request({ tools: oneTool, tool_choice: 'none' }).toolChoice).toEqual({ mode: 'none' })
  })
})

describe('a final message of the assistant', () => {
  const started = [...messages, { role: 'assistant', content: 'So' }]
  const marked = (mark: object) => [...messages, { role: 'assistant', content: 'So', ...mark }]

  test.each([
    { messages: marked({ prefix: true }) },
    { messages: marked({ partial: true }) },
    { messages: started, continue_final_message: true },
    { messages: started, continue_final_message: true, add_generation_prompt: false },
  ])('is continued: %j', (body) => {
    expect(request(body).prompt).toMatchObject({ continueFinal: true, messages: [{}, { content: 'So' }] })
  })

  test.each([
    { messages: started },
    { messages: marked({ prefix: false }) },
    { messages: started, continue_final_message: false, add_generation_prompt: true },
  ])('is a turn like others: %j', (body) => {
    expect(request(body).prompt).not.toHaveProperty('continueFinal')
  })
})

describe('reasoning', () => {
  test.each<[object, object]>([
    [{ reasoning_effort: 'high' }, { thinking: { effort: 'high' } }],
    [{ reasoning_effort: 'none' }, { thinking: { enabled: false } }],
    [{ reasoning_effort: 'ultra' }, { thinking: { effort: 'max' } }],
    [{ reasoning_effort: 'default' }, {}],
    [{ thinking: { type: 'enabled' } }, { thinking: { enabled: true } }],
    [{ thinking: { type: 'disabled' }, reasoning_effort: 'low' }, { thinking: { enabled: false, effort: 'low' } }],
    [{ thinking: { type: 'adaptive' } }, {}],
    [{ reasoning: { enabled: true, effort: 'minimal' } }, { thinking: { enabled: true, effort: 'minimal' } }],
    [{ reasoning: { effort: 'none' } }, { thinking: { enabled: false } }],
    [{ enable_thinking: false }, { thinking: { enabled: false } }],
    [{ chat_template_kwargs: {} }, {}],
    [
      { chat_template_kwargs: { enable_thinking: false } },
      { thinking: { enabled: false }, templateValues: '{"enable_thinking":false}' },
    ],
    [
      { chat_template_kwargs: { thinking: true, style: [1] } },
      { thinking: { enabled: true }, templateValues: '{"thinking":true,"style":[1]}' },
    ],
    [{ preserve_thinking: true }, { templateValues: '{"preserve_thinking": true}' }],
    [
      { preserve_thinking: true, chat_template_kwargs: { preserve_thinking: false } },
      { templateValues: '{"preserve_thinking": true, "preserve_thinking":false}' },
    ],
  ])('%j', (body, expected) => {
    const { prompt } = request(body)
    if (prompt.kind !== 'chat') throw new Error('no chat')
    const { messages: _, tools: __, kind: ___, ...rest } = prompt
    expect(rest).toEqual(expected)
  })

  test('budgets are named as without effect', () => {
    expect(decode({ thinking: { type: 'enabled', budget_tokens: 5 }, thinking_budget: 7 }).ignored).toEqual([
      'thinking.budget_tokens',
      'thinking_budget',
    ])
  })
})

describe('raw text travels on as it was sent', () => {
  test('tools, a schema and arguments keep order, spacing, escapes and number forms', () => {
    const tool = '{ "type":"function",  "function":{"parameters":{"2":1.0,"1":1e3,"é":"\\u00e9"},"name":"f"} }'
    const schema = '{"type":"object", "properties":{"b":{"minimum":1.0},"10":{},"9":{}}}'
    const call = '{"id":"c","type":"function","function":{"name":"f","arguments":{"z": 20.0,  "a":"\\/"}}}'
    const sentString = '{"id":"d","type":"function","function":{"name":"f","arguments":"{\\"z\\": 20.0}"}}'
    const read = request(
      `{"tools":[${tool}],"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[${call},${sentString}]}],` +
        `"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":${schema}}}}`,
    )
    if (read.prompt.kind !== 'chat') throw new Error('no chat')
    expect(read.prompt.tools).toEqual([{ name: 'f', json: tool }])
    expect(read.prompt.messages[1]?.toolCalls?.map((each) => each.arguments)).toEqual([
      '{"z": 20.0,  "a":"\\/"}',
      '{"z": 20.0}',
    ])
    expect(read.constraint).toEqual({ kind: 'json-schema', schema })
  })

  test('a cache mark on a tool is no part of its definition: it moves from request to request', () => {
    const plain = '{"type":"function","function":{"name":"f"}}'
    const marked = '{"type":"function","cache_control":{"type":"ephemeral"},"function":{"name":"f"}}'
    const { prompt } = request(`{"messages":[{"role":"user","content":"a"}],"tools":[${marked}]}`)
    expect(prompt.kind === 'chat' && prompt.tools).toEqual([{ name: 'f', json: plain }])
  })
})

describe('messages', () => {
  const read = (...sent: object[]) => {
    const { prompt } = request({ messages: sent })
    return prompt.kind === 'chat' ? prompt.messages : []
  }

  test('text parts are joined by a line break, system messages stay where they are', () => {
    const sent = [
      { role: 'developer', content: 'rules' },
      {
        role: 'user',
        content: [
          { type: 'text', text: 'a', cache_control: { type: 'ephemeral' } },
          { type: 'text', text: 'b' },
        ],
      },
      { role: 'system', content: 'in the middle' },
    ]
    expect(read(...sent)).toEqual([
      { role: 'system', content: 'rules' },
      { role: 'user', content: 'a\nb' },
      { role: 'system', content: 'in the middle' },
    ])
  })

  test('reasoning comes back under each of its names', () => {
    for (const name of ['reasoning_content', 'reasoning', 'reasoning_text']) {
      expect(read({ role: 'assistant', content: 'a', [name]: 'hm\n' })).toEqual([
        { role: 'assistant', content: 'a', reasoning: 'hm\n' },
      ])
    }
  })

  test('content may be absent, null or empty where there are calls', () => {
    const call = { id: 'c', type: 'function', function: { name: 'f', arguments: '{}' } }
    const toolCalls = [{ id: 'c', name: 'f', arguments: '{}' }]
    for (const content of [{}, { content: null }, { content: '' }]) {
      expect(read({ role: 'assistant', tool_calls: [call], ...content })).toEqual([
        { role: 'assistant', content: '', toolCalls },
      ])
    }
    expect(read({ role: 'tool', tool_call_id: 'c', content: [{ type: 'text', text: 'r' }] })).toEqual([
      { role: 'tool', content: 'r', toolCallId: 'c' },
    ])
  })

  test('lone surrogates become U+FFFD', () => {
    expect(read({ role: 'user', content: 'a\ud800b' })[0]?.content).toBe('a\ufffdb')
  })
})

describe('what is refused names its field', () => {
  test.each([
    [{ messages: [] }, 'invalid_request', 'messages'],
    [{ messages: undefined }, 'invalid_request', 'messages'],
    [{ messages: ['a'] }, 'invalid_request', 'messages[0]'],
    [{ messages: [{ content: 'a' }] }, 'invalid_request', 'messages[0].role'],
    [{ messages: [{ role: 'user' }] }, 'invalid_request', 'messages[0].content'],
    [{ messages: [{ role: 'user', content: [{ text: 'a' }] }] }, 'invalid_request', 'messages[0].content[0].type'],
    [
      { messages: [{ role: 'user', content: [{ type: 'image_url', image_url: {} }] }] },
      'unsupported_parameter',
      'messages[0].content[0].type',
    ],
    [{ messages: [{ role: 'tool', content: 'a' }] }, 'invalid_request', 'messages[0].tool_call_id'],
    [
      { messages: [{ role: 'user', content: 'a', tool_calls: [{ id: 'a', function: { name: 'f' } }] }] },
      'invalid_request',
      'messages[0].tool_calls',
    ],
    [
      { messages: [{ role: 'assistant', tool_calls: [{ id: 'a' }] }] },
      'invalid_request',
      'messages[0].tool_calls[0].function',
    ],
    [{ messages: [{ role: 'user', content: 'a', prefix: true }] }, 'invalid_request', 'messages[0].prefix'],
    [
      { messages: [{ role: 'assistant', content: 'a', partial: true }, ...messages] },
      'invalid_request',
      'messages[0].partial',
    ],
    [{ messages: [{ role: 'assistant', prefix: true, ...oneCall }] }, 'invalid_request', 'messages[0].prefix'],
    [{ messages: [{ role: 'assistant', content: 'a', prefix: 'yes' }] }, 'invalid_request', 'messages[0].prefix'],
    [
      { messages: [{ role: 'assistant', function_call: { name: 'f' } }] },
      'unsupported_parameter',
      'messages[0].function_call',
    ],
    [{ tools: [{ type: 'web_search' }] }, 'invalid_request', 'tools[0].type'],
    [{ tools: [{ type: 'function', function: {} }] }, 'invalid_request', 'tools[0].function.name'],
    [{ tool_choice: 'required' }, 'invalid_request', 'tool_choice'],
    [{ tool_choice: { type: 'function', function: { name: 'f' } } }, 'invalid_request', 'tool_choice'],
    [{ tool_choice: named('g'), tools: oneTool }, 'invalid_request', 'tool_choice.function.name'],
    [{ refrain: { allowed_tools: ['g*'] }, tools: oneTool }, 'invalid_request', 'refrain.allowed_tools'],
    [{ tool_choice: 5 }, 'invalid_request', 'tool_choice'],
    [{ parallel_tool_calls: 'no' }, 'invalid_request', 'parallel_tool_calls'],
    [{ reasoning_effort: 'huge' }, 'invalid_request', 'reasoning_effort'],
    [{ thinking: { type: 'on' } }, 'invalid_request', 'thinking.type'],
    [{ reasoning: { effort: 3 } }, 'invalid_request', 'reasoning.effort'],
    [{ chat_template_kwargs: [] }, 'invalid_request', 'chat_template_kwargs'],
    [{ functions: [{ name: 'f' }] }, 'unsupported_parameter', 'functions'],
    [{ modalities: ['text', 'audio'] }, 'unsupported_parameter', 'modalities'],
    [{ audio: { voice: 'x' } }, 'unsupported_parameter', 'audio'],
    [{ top_logprobs: 3 }, 'invalid_request', 'top_logprobs'],
    [{ logprobs: true, top_logprobs: 21 }, 'invalid_request', 'top_logprobs'],
    [{ temperature: 'hot' }, 'invalid_request', 'temperature'],
    [{ temperature: -0.1 }, 'invalid_request', 'temperature'],
    [{ top_p: 1.1 }, 'invalid_request', 'top_p'],
    [{ n: 0 }, 'invalid_request', 'n'],
    [{ n: 1.5 }, 'invalid_request', 'n'],
    [{ stop: [''] }, 'invalid_request', 'stop[0]'],
    [{ stop: 5 }, 'invalid_request', 'stop'],
    [{ logit_bias: { a: 1 } }, 'invalid_request', 'logit_bias'],
    [{ logit_bias: { 1: 101 } }, 'invalid_request', 'logit_bias.1'],
    [{ stop_token_ids: [-1] }, 'invalid_request', 'stop_token_ids[0]'],
    [{ response_format: { type: 'grammar' } }, 'unsupported_parameter', 'response_format.type'],
    [{ response_format: { type: 'json_schema' } }, 'invalid_request', 'response_format.json_schema.schema'],
    [{ guided_json: 'no json' }, 'invalid_request', 'guided_json'],
    [{ guided_regex: 'a', response_format: { type: 'json_object' } }, 'invalid_request', 'guided_regex'],
    [{ guided_grammar: 'root ::= x' }, 'unsupported_parameter', 'guided_grammar'],
    [{ structured_outputs: { grammar: 'x' } }, 'unsupported_parameter', 'structured_outputs.grammar'],
    [{ use_beam_search: true }, 'unsupported_parameter', 'use_beam_search'],
    [{ min_tokens: 3 }, 'unsupported_parameter', 'min_tokens'],
    [{ best_of: 2 }, 'unsupported_parameter', 'best_of'],
    [{ continue_final_message: true }, 'invalid_request', 'continue_final_message'],
    [{ continue_final_message: true, add_generation_prompt: true }, 'invalid_request', 'add_generation_prompt'],
    [{ add_generation_prompt: false }, 'unsupported_parameter', 'add_generation_prompt'],
    [{ stream: 'yes' }, 'invalid_request', 'stream'],
    [{ stream_options: [] }, 'invalid_request', 'stream_options'],
  ])('%j', (body, code, param) => {
    expect(refusal(body)).toMatchObject({ code, param, message: expect.stringContaining(`'${param}'`) })
  })

  test('neutral values of the same fields are taken', () => {
    const neutral = { tool_choice: 'auto', best_of: 1, min_tokens: 0, use_beam_search: false, chat_template_kwargs: {} }
    expect(request({ ...neutral, functions: [], modalities: ['text'], logit_bias: {}, stop: [] })).toBeDefined()
  })
})

describe('what has no effect', () => {
  test('unknown fields are named once each, without indices, those of SDKs that mean nothing are not', () => {
    const body = {
      strange: 1,
      verbosity: 'high',
      user: 'u',
      metadata: {},
      store: true,
      prompt_cache_key: 'k',
      messages: [
        { role: 'user', content: [{ type: 'text', text: 'a', odd: 1 }] },
        { role: 'assistant', content: 'b', parsed: null, refusal: null, extra: true },
        { role: 'user', content: [{ type: 'text', text: 'a', odd: 2 }] },
      ],
    }
    expect([...decode(body).ignored].sort()).toEqual([
      'messages[].content[].odd',
      'messages[].extra',
      'strange',
      'verbosity',
    ])
  })
})

describe('completions', () => {
  const read = (body: object) => openaiCompletions.decode(readBody(Buffer.from(JSON.stringify(body))), envelope)

  test('every form of a prompt', () => {
    const prompts = (prompt: unknown) => read({ prompt }).requests.map((each) => each.prompt)
    expect(prompts('a')).toEqual([{ kind: 'text', text: 'a' }])
    expect(prompts(['a', 'b'])).toEqual([
      { kind: 'text', text: 'a' },
      { kind: 'text', text: 'b' },
    ])
    expect(prompts([1, 2])).toEqual([{ kind: 'tokens', ids: [1, 2] }])
    expect(prompts([[1], [2, 3]])).toEqual([
      { kind: 'tokens', ids: [1] },
      { kind: 'tokens', ids: [2, 3] },
    ])
    expect(read({ prompt: ['a', 'b'] }).requests.map((each) => each.id)).toEqual(['id', 'id.1'])
    expect(read({ prompt: 'a' }).requests[0].maxTokens).toBe(16)
  })

  test.each([
    [{}, 'prompt'],
    [{ prompt: [] }, 'prompt'],
    [{ prompt: [[]] }, 'prompt[0]'],
    [{ prompt: ['a', 5] }, 'prompt[1]'],
    [{ prompt: [1, 'a'] }, 'prompt[1]'],
    [{ prompt: 'a', suffix: 'b' }, 'suffix'],
    [{ prompt: 'a', n: 2, best_of: 3 }, 'best_of'],
    [{ prompt: 'a', echo: true, logprobs: 1 }, 'logprobs'],
  ])('%j is refused by name', (body, param) => {
    expect(() => read(body)).toThrow(expect.objectContaining({ param }))
  })
})
