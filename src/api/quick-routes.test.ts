// Quick instructions over HTTP: POST /v1/quick, the member `quick` of a chat, DeepSeek's `task`; on the scripted backend,
// which answers the same to the same question.

import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Program } from '../compose.js'
import { quickAnswered } from '../core/signals.js'
import { chat, payloadsOf, post, scriptedProgram } from '../testing/scripted-program.js'

let program: Program
beforeAll(async () => {
  program = await scriptedProgram({ 'backend.options': { template: 'chatml' }, 'limits.quickTasks': 8 })
})
afterAll(() => program.stop(0))

const conversation = [
  { role: 'user', content: `${'What is a refrain? '.repeat(40)}` },
  { role: 'assistant', content: 'A part of a song that comes again.' },
  { role: 'user', content: 'And who invented it?' },
]

const ask = (tasks: unknown, more: object = {}) =>
  post(program, '/v1/quick', { messages: conversation, tasks, ...more })

describe('POST /v1/quick', () => {
  test('answers all tasks, each with its form and its tokens, and the call as a whole', async () => {
    const reply = await ask([
      { task: 'action' },
      { task: 'title' },
      { task: 'read_url', urls: ['https://a.example/x', 'https://b.example/y'] },
      { task: 'custom', instruction: 'Is the user polite?', choices: ['yes', 'no', 'maybe'] },
      { task: 'custom', instruction: 'Extract.', schema: { type: 'object' } },
    ])
    expect(reply.status).toBe(200)
    const { object, model, results, usage } = reply.json()
    expect(object).toBe('quick')
    expect(model).toBe('smollm2-135m-instruct')
    expect(results.map(({ task }: { task: string }) => task)).toEqual([
      ...['action', 'title', 'read_url', 'read_url', 'custom', 'custom'],
    ])
    expect(results.every(({ form }: { form: string }) => form === 'instruction')).toBe(true)
    const [action, title, firstUrl, secondUrl, polite, extracted] = results
    expect(['search', 'answer']).toContain(action.choice)
    expect(Object.keys(action.probabilities)).toEqual(['search', 'answer'])
    expect(action.probabilities[action.choice]).toBeCloseTo(0.75)
    expect(title.text).toContain('Write a title')
    expect([firstUrl.url, secondUrl.url]).toEqual(['https://a.example/x', 'https://b.example/y'])
    const sum = Object.values<number>(polite.probabilities).reduce((a, b) => a + b, 0)
    expect(sum).toBeCloseTo(1)
    expect(extracted.json).toEqual({})
    const suffixes = results.reduce(
      (all: number, one: { usage: { prompt_tokens: number } }) => all + one.usage.prompt_tokens,
      0,
    )
    expect(action.usage.prompt_tokens).toBeLessThan(200)
    expect(usage.prompt_tokens).toBeGreaterThan(suffixes)
    expect(usage.total_tokens).toBe(usage.prompt_tokens + usage.completion_tokens)
  })

  test('reuses the prefix of the conversation, and says so', async () => {
    await post(program, '/v1/chat/completions', { messages: conversation })
    const reply = await ask([{ task: 'action' }, { task: 'domain' }])
    const { usage } = reply.json()
    const cached = usage.prompt_tokens_details.cached_tokens
    expect(cached).toBeGreaterThan(128)
    expect(cached % 64).toBe(0)
    expect(reply.headers['x-refrain-cache']).toBe(
      `working=0, memory=${cached}, disk=0, computed=${usage.prompt_tokens - cached}`,
    )
  })

  const long = Array.from({ length: 1000 }, () => ({ task: 'title' }))
  const custom = { task: 'custom', instruction: 'What?' }
  test.each([
    ['an unknown task', [{ task: 'dance' }], 'tasks[0].task', /'action', 'title'.*not 'dance'/],
    ['no task at all', [], 'tasks', /must not be empty/],
    ['tasks of another kind', 'title', 'tasks', /must be an array/],
    ['a task without a name', [{}], 'tasks[0].task', /required/],
    ['a thousand tasks', long, 'tasks', /limits\.quickTasks/],
    ['many urls', [{ task: 'read_url', urls: long.map((_, i) => `u${i}`) }], 'tasks', /each url being one/],
    ['no choices', [{ ...custom, choices: [] }], 'tasks[0].choices', /at least two/],
    ['one choice', [{ task: 'title' }, { ...custom, choices: ['yes'] }], 'tasks[1].choices', /at least two/],
    ['an empty choice', [{ ...custom, choices: ['yes', ' '] }], 'tasks[0].choices[1]', /must not be empty/],
    ['a choice twice', [{ ...custom, choices: ['yes', 'no', 'yes'] }], 'tasks[0].choices[2]', /beginning of another/],
    ['a choice in a choice', [{ ...custom, choices: ['note', 'no'] }], 'tasks[0].choices[1]', /beginning of another/],
    ['two forms', [{ ...custom, choices: ['a', 'b'], regex: 'a' }], 'tasks[0].regex', /cannot go with choices/],
    ['a schema that is none', [{ ...custom, schema: [] }], 'tasks[0].schema', /JSON Schema/],
    ['no instruction', [{ task: 'custom', choices: ['a', 'b'] }], 'tasks[0].instruction', /required/],
    ['an empty instruction', [{ task: 'title', instruction: ' ' }], 'tasks[0].instruction', /must not be empty/],
    ['urls elsewhere', [{ task: 'title', urls: ['u'] }], 'tasks[0].urls', /read_url/],
    ['no urls', [{ task: 'read_url' }], 'tasks[0].urls', /at least one/],
    ['a long answer', [{ task: 'title', max_tokens: 5000 }], 'tasks[0].max_tokens', /limits\.quickTokens/],
    ['no answer', [{ task: 'title', max_tokens: 0 }], 'tasks[0].max_tokens', /from 1|at least|must be an integer/],
  ])('refuses %s, by its field', async (_, tasks, param, message) => {
    const reply = await ask(tasks)
    expect(reply.status).toBe(400)
    const { error } = reply.json()
    expect(error.param).toBe(param)
    expect(error.message).toMatch(message)
  })

  test('refuses an empty conversation and what is no session, by their fields', async () => {
    const tasks = [{ task: 'title' }]
    expect((await post(program, '/v1/quick', { messages: [], tasks })).json().error.param).toBe('messages')
    expect((await post(program, '/v1/quick', { tasks })).json().error.param).toBe('messages')
    expect((await post(program, '/v1/quick', { messages: conversation })).json().error.param).toBe('tasks')
    expect((await ask(tasks, { session: 's1' })).json().error).toMatchObject({
      param: 'session',
      code: 'invalid_request',
    })
    expect((await ask(tasks, { model: 'nobody' })).status).toBe(404)
  })

  test('names what has no effect', async () => {
    const reply = await ask([{ task: 'title', colour: 'red' }], { temperature: 1 })
    expect(reply.headers['x-refrain-ignored']).toBe('tasks[].colour, temperature')
  })

  test('says what was asked to whoever counts', async () => {
    const told: unknown[] = []
    const stop = quickAnswered.subscribe((event) => told.push(event))
    await ask([{ task: 'title' }, { task: 'action' }])
    stop()
    expect(told).toMatchObject([
      { tenant: 'default', task: 'title', form: 'instruction', error: undefined },
      { tenant: 'default', task: 'action', form: 'instruction', error: undefined },
    ])
  })

  test('a model without a template says so', async () => {
    const template = "{{ raise_exception('this model has no chat template: use /v1/completions') }}"
    const plain = await scriptedProgram({ 'backend.options': { template } })
    const reply = await post(plain, '/v1/quick', { messages: conversation, tasks: [{ task: 'title' }] })
    expect(reply.status).toBe(400)
    expect(reply.json().error).toMatchObject({ code: 'template_failed', param: 'messages' })
    await plain.stop(0)
  })
})

describe('beside a chat', () => {
  const quick = { tasks: [{ task: 'action' }, { task: 'title' }] }

  test.each(['user', 'reply'])('at %s: in a member of the body, and the answer is what it is without', async (at) => {
    const plain = (await post(program, '/v1/chat/completions', chat('Hello'))).json()
    const both = (await post(program, '/v1/chat/completions', chat('Hello', { quick: { ...quick, at } }))).json()
    expect(both.choices).toEqual(plain.choices)
    expect(both.quick.results.map(({ task }: { task: string }) => task)).toEqual(['action', 'title'])
    expect(both.quick.usage.prompt_tokens).toBeGreaterThan(10)
    expect(both.usage.prompt_tokens).toBe(plain.usage.prompt_tokens)
  })

  test('in one chunk before the end of a stream', async () => {
    const body = chat('Hello', { quick, stream: true, stream_options: { include_usage: true } })
    const chunks = payloadsOf((await post(program, '/v1/chat/completions', body)).text)
    const at = chunks.findIndex((chunk) => chunk.quick !== undefined)
    expect(chunks.filter((chunk) => chunk.quick !== undefined).length).toBe(1)
    expect(chunks[at].choices).toEqual([])
    expect(at).toBe(chunks.length - 3)
    expect(chunks[at + 1].usage.prompt_tokens).toBeGreaterThan(0)
    expect(chunks[at + 2]).toBe('[DONE]')
  })

  test.each([
    [{ tasks: [{ task: 'x' }] }, 'quick.tasks[0].task'],
    [{}, 'quick.tasks'],
    [{ tasks: [{ task: 'title' }], at: 'once' }, 'quick.at'],
    [{ tasks: Array.from({ length: 9 }, () => ({ task: 'title' })) }, 'quick.tasks'],
  ])('refuses %j by its field', async (asked, param) => {
    const reply = await post(program, '/v1/chat/completions', chat('Hello', { quick: asked }))
    expect(reply.status).toBe(400)
    expect(reply.json().error.param).toBe(param)
  })

  test('the official client passes over it', async () => {
    const client = new OpenAI({ baseURL: `${await program.start()}/v1`, apiKey: 'unused', maxRetries: 0 })
    const body = { model: 'smollm2-135m-instruct', messages: [{ role: 'user' as const, content: 'Hello' }] }
    const stream = client.chat.completions.stream({ ...body, ...{ quick } })
    const final = await stream.finalChatCompletion()
    const plain = await client.chat.completions.create(body)
    expect(final.choices[0]?.message.content).toBe(plain.choices[0]?.message.content)
    const whole = await client.chat.completions.create({ ...body, ...{ quick } })
    expect((whole as unknown as { quick: { results: unknown[] } }).quick.results.length).toBe(2)
  })
})

describe("DeepSeek's form", () => {
  const tasked = (task: string, more: object = {}) => ({
    messages: [...conversation.slice(0, -1), { ...conversation[2], task }],
    ...more,
  })

  test('makes the call answer the task', async () => {
    const body = (await post(program, '/v1/chat/completions', tasked('action'))).json()
    const { message, finish_reason: reason } = body.choices[0]
    expect(['search', 'answer']).toContain(message.content)
    expect(reason).toBe('stop')
    expect(body.quick.results[0]).toMatchObject({ task: 'action', choice: message.content })
    expect(body.usage.completion_tokens).toBe(body.quick.usage.completion_tokens)
  })

  test('in a stream too', async () => {
    const chunks = payloadsOf((await post(program, '/v1/chat/completions', tasked('domain', { stream: true }))).text)
    const choices = chunks.flatMap((chunk) => chunk.choices ?? [])
    expect(choices.map(({ delta }) => delta.content ?? '').join('')).toMatch(/^[a-z]+$/)
    expect(choices.at(-1).finish_reason).toBe('stop')
    expect(choices.filter(({ finish_reason: reason }) => reason !== null).length).toBe(1)
  })

  test.each([
    [tasked('dance'), 'messages[2].task'],
    [tasked('custom'), 'messages[2].task'],
    [tasked('title', { quick: { tasks: [{ task: 'title' }] } }), 'quick'],
    [{ messages: [{ ...conversation[0], task: 'title' }, conversation[2]] }, 'messages[0].task'],
  ])('refuses %#', async (body, param) => {
    const reply = await post(program, '/v1/chat/completions', body)
    expect(reply.status).toBe(400)
    expect(reply.json().error.param).toBe(param)
  })
})

describe('beside the other dialects', () => {
  const quick = { tasks: [{ task: 'action' }], at: 'reply' }
  const input = { input: 'Hello', quick }
  const body = { messages: [{ role: 'user', content: 'Hello' }], max_tokens: 16, quick }

  test.each([
    ['/v1/responses', input],
    ['/v1/messages', body],
  ])('%s has the answers in a member of its body, and in the last of its events', async (path, asked) => {
    const whole = (await post(program, path, asked)).json()
    expect(whole.quick.results[0].choice).toMatch(/^(search|answer)$/)
    const stream = await post(program, path, { ...asked, stream: true })
    const events = stream.text.split('\n\n').flatMap((event) => /^data: (.*)$/m.exec(event)?.[1] ?? [])
    const told = events.map((event) => JSON.parse(event)).filter((event) => event.quick ?? event.response?.quick)
    expect(told.length).toBe(1)
    expect(['response.completed', 'response.incomplete', 'message_delta']).toContain(told[0].type)
    expect((told[0].quick ?? told[0].response.quick).results).toEqual(whole.quick.results)
  })

  test.each([
    ['/v1/responses', { ...input, quick: { tasks: [{ task: 'x' }] } }],
    ['/v1/messages', { ...body, quick: { tasks: [{ task: 'x' }] } }],
  ])('%s refuses what cannot be asked, by its field', async (path, asked) => {
    const reply = await post(program, path, asked)
    expect(reply.status).toBe(400)
    expect(reply.text).toContain('quick.tasks[0].task')
  })

  test('a message that is continued is asked about behind its end', async () => {
    const messages = [...conversation, { role: 'assistant', content: 'It was', prefix: true }]
    const at = async (place: string) =>
      post(program, '/v1/chat/completions', { messages, quick: { tasks: [{ task: 'title' }], at: place } })
    expect((await at('user')).json().error.param).toBe('quick.at')
    expect((await at('reply')).json().quick.results[0].text).toContain('Write a title')
  })
})
