// The official client against a real socket: what it accepts is what an agent accepts.

import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Program } from '../compose.js'
import { scriptedProgram } from '../testing/scripted-program.js'

const ANSWER = 'Prefixes come again — and again.'
let program: Program
let client: OpenAI

beforeAll(async () => {
  program = await scriptedProgram(
    { 'model.aliases': { 'gpt-*': 'smollm2-135m-instruct' }, 'limits.queuedRequests': 4 },
    { script: (_job, choice) => (choice === 0 ? ANSWER : `${ANSWER} (${choice})`) },
  )
  client = new OpenAI({ baseURL: `${await program.start()}/v1`, apiKey: 'unused', maxRetries: 0 })
})
afterAll(() => program.stop(0))

const question = { model: 'gpt-4o', messages: [{ role: 'user' as const, content: 'What is a refrain? '.repeat(40) }] }

describe('chat', () => {
  test('an answer at once, with usage and the cache header', async () => {
    const first = await client.chat.completions.create(question)
    const { data, response } = await client.chat.completions.create(question).withResponse()
    expect(first.choices[0]?.message.content).toBe(ANSWER)
    expect(data.model).toBe('smollm2-135m-instruct')
    expect(data.choices[0]?.finish_reason).toBe('stop')
    expect(first.usage?.prompt_tokens_details?.cached_tokens).toBe(0)
    const cached = Math.floor(((data.usage?.prompt_tokens ?? 0) - 1) / 64) * 64
    expect(cached).toBeGreaterThan(64)
    expect(data.usage).toMatchObject({
      prompt_tokens_details: { cached_tokens: cached },
      prompt_cache_hit_tokens: cached,
      prompt_cache_miss_tokens: data.usage!.prompt_tokens - cached,
      total_tokens: data.usage!.prompt_tokens + data.usage!.completion_tokens,
    })
    expect(response.headers.get('x-refrain-cache')).toBe(
      `working=0, memory=${cached}, disk=0, computed=${data.usage!.prompt_tokens - cached}`,
    )
  })

  test('a stream: one id, the role once, usage once and last', async () => {
    const stream = await client.chat.completions.create({
      ...question,
      stream: true,
      stream_options: { include_usage: true },
    })
    const chunks = []
    for await (const chunk of stream) chunks.push(chunk)
    expect(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join('')).toBe(ANSWER)
    expect(new Set(chunks.map((chunk) => chunk.id)).size).toBe(1)
    expect(chunks.filter((chunk) => chunk.choices[0]?.delta.role !== undefined)).toHaveLength(1)
    expect(chunks.filter((chunk) => chunk.choices[0]?.finish_reason)).toHaveLength(1)
    expect(chunks.filter((chunk) => chunk.usage)).toHaveLength(1)
    expect(chunks.at(-1)).toMatchObject({ choices: [], usage: { completion_tokens: expect.any(Number) } })
  })

  test('no usage in a stream that did not ask for it', async () => {
    const stream = await client.chat.completions.create({ ...question, stream: true })
    for await (const chunk of stream) expect(chunk.usage).toBeUndefined()
  })

  test('the .stream() helper gathers n choices', async () => {
    const stream = client.chat.completions.stream({ ...question, n: 3 })
    const final = await stream.finalChatCompletion()
    expect(final.choices.map((choice) => choice.message.content)).toEqual([ANSWER, `${ANSWER} (1)`, `${ANSWER} (2)`])
    expect(final.choices.every((choice) => choice.finish_reason === 'stop')).toBe(true)
  })

  test('n choices at once', async () => {
    const answer = await client.chat.completions.create({ ...question, n: 2 })
    expect(answer.choices.map((choice) => choice.index)).toEqual([0, 1])
    expect(answer.choices[1]?.message.content).toBe(`${ANSWER} (1)`)
  })

  test('stop strings are cut off, also where they begin in one token and end in another', async () => {
    for (const stream of [false, true]) {
      const body = { ...question, stop: [' again', 'and'] }
      const answer = stream
        ? await client.chat.completions.stream(body).finalChatCompletion()
        : await client.chat.completions.create(body)
      expect(answer.choices[0]).toMatchObject({ finish_reason: 'stop', message: { content: 'Prefixes come' } })
    }
  })

  test('max_tokens ends with length, whole characters only', async () => {
    const answer = await client.chat.completions.create({ ...question, max_completion_tokens: 5 })
    expect(answer.choices[0]).toMatchObject({ finish_reason: 'length', message: { content: 'Prefixes come a' } })
    expect(answer.usage?.completion_tokens).toBe(5)
  })

  test('log probabilities', async () => {
    const answer = await client.chat.completions.create({
      ...question,
      max_tokens: 3,
      logprobs: true,
      top_logprobs: 2,
    })
    const content = answer.choices[0]?.logprobs?.content ?? []
    expect(content.map((entry) => entry.token)).toEqual(['Pre', 'fix', 'es '])
    expect(content[0]).toMatchObject({ logprob: 0, bytes: [80, 114, 101], top_logprobs: [{ token: 'Pre' }] })
  })

  test('errors keep their status, code and param', async () => {
    const failing = (body: object) => client.chat.completions.create({ ...question, ...body } as never)
    await expect(failing({ model: 'unknown' })).rejects.toMatchObject({ status: 404, code: 'model_not_found' })
    await expect(failing({ temperature: 3 })).rejects.toMatchObject({ status: 400, param: 'temperature' })
    await expect(failing({ functions: [{ name: 'f' }] })).rejects.toMatchObject({
      status: 400,
      code: 'unsupported_parameter',
      param: 'functions',
    })
  })
})

describe('completions', () => {
  test('text in, text out, with echo', async () => {
    const answer = await client.completions.create({ model: 'gpt-x', prompt: 'Say: ', max_tokens: 100, echo: true })
    expect(answer.choices[0]).toMatchObject({ text: `Say: ${ANSWER}`, finish_reason: 'stop', index: 0 })
  })

  test('several prompts, n each, counted through; usage is the sum', async () => {
    const answer = await client.completions.create({
      model: 'gpt-x',
      prompt: ['one', 'two and more'],
      n: 2,
      max_tokens: 100,
    })
    expect(answer.choices.map(({ index, text }) => [index, text])).toEqual([
      [0, ANSWER],
      [1, `${ANSWER} (1)`],
      [2, ANSWER],
      [3, `${ANSWER} (1)`],
    ])
    expect(answer.usage?.prompt_tokens).toBe(1 + 4)
  })

  test('a stream of several prompts', async () => {
    const stream = await client.completions.create({
      model: 'gpt-x',
      prompt: ['one', 'two'],
      max_tokens: 100,
      stream: true,
      stream_options: { include_usage: true },
    })
    const texts = ['', '']
    let usage: unknown
    for await (const chunk of stream) {
      for (const choice of chunk.choices) texts[choice.index] += choice.text
      usage = chunk.usage ?? usage
    }
    expect(texts).toEqual([ANSWER, ANSWER])
    expect(usage).toMatchObject({ prompt_tokens: 2 })
  })

  test('token ids as the prompt, legacy log probabilities', async () => {
    const answer = await client.completions.create({ model: 'gpt-x', prompt: [70, 71], max_tokens: 2, logprobs: 1 })
    expect(answer.usage?.prompt_tokens).toBe(2)
    expect(answer.choices[0]?.logprobs).toMatchObject({
      tokens: ['Pre', 'fix'],
      token_logprobs: [0, 0],
      top_logprobs: [{ Pre: 0 }, { fix: 0 }],
      text_offset: [0, 3],
    })
  })
})

test('models: a list, one by name and one by alias', async () => {
  const list = await client.models.list()
  expect(list.data.map((model) => model.id)).toEqual(['smollm2-135m-instruct'])
  expect(await client.models.retrieve('gpt-4')).toMatchObject({ id: 'smollm2-135m-instruct', context_length: 262144 })
  await expect(client.models.retrieve('nothing')).rejects.toMatchObject({ status: 404 })
})
