// Quick instructions on graphs: a toy that has native tokens, and the real model where its weights were pulled. Greedy
// answers equal those of the same suffix as a request of its own, cold and warm; what is computed is counted.

import { existsSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { GenerateEvent } from '../core/events.js'
import type { QuickAsk, QuickResult, QuickTask } from '../core/quick.js'
import type { ChatMessage, GenerateRequest } from '../core/request.js'
import { pulledSmolLm2 } from '../testing/imported-model.js'
import { type ModelHouse, openModelHouse } from '../testing/model-house.js'
import { sharesImports } from '../testing/shared-imports.js'
import { writeToyModel } from '../testing/toy-model.js'

const NATIVE = ['<|action|>', '<|title|>', '<|query|>', '<|read_url|>'] as const

let folder: string
let house: ModelHouse

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'refrain-quick-'))
  await writeToyModel(join(folder, 'toy.gguf'), { architecture: 'llama', quantization: 'Q8_0', specials: NATIVE })
  house = await openModelHouse({
    path: join(folder, 'toy.gguf'),
    dataDir: folder,
    quick: {
      action: { token: '<|action|>', at: 'header' },
      title: { token: '<|title|>', at: 'reply' },
      query: { token: '<|query|>', at: 'user', maxTokens: 12 },
      read_url: { token: '<|read_url|>', at: 'user', before: '{url}' },
    },
  })
})

afterAll(async () => {
  await house.close()
  await rm(folder, { recursive: true })
})

let requests = 0
const request = (more: Partial<GenerateRequest>): GenerateRequest => ({
  ...{ id: `r${requests++}`, model: '', tenant: { name: 't', salt: 't', admin: false }, priority: 'interactive' },
  prompt: { kind: 'tokens', ids: [1] },
  sampling: {
    ...{ temperature: 0, topP: 1, topK: 0, minP: 0, repetitionPenalty: 1, presencePenalty: 0, frequencyPenalty: 0 },
    logitBias: {},
  },
  ...{ stop: [], stopTokenIds: [], ignoreEos: false, n: 1, echo: false },
  ...more,
})

const chat = (messages: readonly ChatMessage[], more: Partial<GenerateRequest> = {}) =>
  request({ prompt: { kind: 'chat', messages, tools: [] }, ...more })

const tasksOf = (tasks: readonly Omit<QuickTask, 'path'>[], at: QuickAsk['at'] = 'user'): QuickAsk => ({
  tasks: tasks.map((task, i) => ({ ...task, path: `tasks[${i}]` })),
  at,
})

const resultsOf = (events: readonly GenerateEvent[]): readonly QuickResult[] => {
  const told = events.find((event) => event.type === 'quick')
  if (told?.results === undefined) throw new Error('no results')
  return told.results
}

/** What the branch at `index` of the last job says as a request of its own: its text, or its best choice. */
async function alone(at: ModelHouse, index: number, salt: string, answer: readonly number[] = []): Promise<string> {
  const job = at.jobs.findLast(({ branches }) => branches !== undefined)
  const plan = job?.branches?.[index]
  if (job === undefined || plan === undefined) throw new Error('no such branch')
  const { form, suffix, shares } = plan
  const before = shares === 'reply' ? [...job.tokens, ...answer] : [...job.tokens.subarray(0, shares)]
  const tenant = { name: salt, salt, admin: false }
  const prompt = { kind: 'tokens', ids: [...before, ...suffix] } as const
  if (form.kind === 'choice') {
    // The bias leaves nothing but the choices, and what their logits say among themselves.
    const logitBias = Object.fromEntries(form.trie.paths.map(([edge]) => [edge?.id, 100]))
    const events = await at.ask(
      request({ prompt, tenant, maxTokens: 1, sampling: { ...request({}).sampling, logitBias } }),
    )
    return textOf(events).trim()
  }
  const { maxTokens, stop, ignoreEos } = form
  return textOf(await at.ask(request({ prompt, tenant, maxTokens, stop, ignoreEos }))).trim()
}

const textOf = (events: readonly GenerateEvent[]) =>
  events.map((event) => (event.type === 'token' ? event.text : '')).join('')

const conversation: ChatMessage[] = [
  { role: 'system', content: 'You are on a ship in the north sea. '.repeat(6) },
  { role: 'user', content: 'What is the tide like in the harbour today, and where is it on the chart?' },
]

describe('a toy with native tokens', () => {
  test('is asked by them where they fit, in words where they do not', async () => {
    const asked = tasksOf([{ task: 'action' }, { task: 'title' }, { task: 'query' }, { task: 'authority' }])
    const results = resultsOf(await house.ask(chat(conversation, { maxTokens: 0, quick: asked })))
    expect(results.map(({ form }) => form)).toEqual(['native', 'instruction', 'native', 'instruction'])
    const { branches = [], tokens } = house.jobs.at(-1)!
    const { specialId } = house.tokenizer
    expect([...branches[0]!.suffix]).toEqual([specialId('<|action|>')])
    expect([...branches[2]!.suffix]).toEqual([specialId('<|query|>')])
    expect(house.tokenizer.decode(tokens, { special: 'keep' })).toMatch(/<\|im_start\|>assistant\n$/)
    expect(branches[0]!.shares).toBe(tokens.length)
    expect(branches[2]!.shares).toBeLessThan(tokens.length)
  })

  test('answers as requests of their own do, cold and warm', async () => {
    const asked = tasksOf([
      { task: 'query' },
      { task: 'title', maxTokens: 10, ignoreEos: true },
      { task: 'custom', instruction: 'Which?', choices: ['a', 'b', 'c'] },
      { task: 'read_url', urls: ['x.example', 'y.example/z'] },
    ])
    for (const salt of ['cold', 'warm', 'warm']) {
      const tenant = { name: salt, salt, admin: false }
      const results = resultsOf(await house.ask(chat(conversation, { maxTokens: 0, quick: asked, tenant })))
      for (const [i, { text, choice }] of results.entries()) {
        // The choices of read_url have tokens that they share; the others are one token each.
        if (i < 3) expect(text ?? choice).toBe(await alone(house, i, `alone-${salt}`))
      }
      expect(results[3]?.form).toBe('native')
      expect(results.map(({ error }) => error)).toEqual([undefined, undefined, undefined, undefined, undefined])
    }
  })

  test('computes suffixes and answers alone on a warm prefix; one run for choices', async () => {
    const tenant = { name: 'counted', salt: 'counted', admin: false }
    await house.ask(chat(conversation, { maxTokens: 1, tenant }))
    house.runs.length = 0
    const asked = tasksOf(['a', 'b', 'c'].map((word) => ({ task: 'custom', instruction: word, choices: ['x', 'y'] })))
    const events = await house.ask(chat(conversation, { maxTokens: 0, quick: asked, tenant }))
    const results = resultsOf(events)
    const suffixes = results.reduce((sum, { usage }) => sum + usage.promptTokens, 0)
    expect(house.runs).toEqual([['tree', suffixes]])
    for (const { probabilities = [] } of results) {
      expect(probabilities.reduce((sum, { probability }) => sum + probability, 0)).toBeCloseTo(1)
    }
  })

  test('asks behind the answer that is given, beside it', async () => {
    const tenant = { name: 'reply', salt: 'reply', admin: false }
    const asked = tasksOf([{ task: 'title', maxTokens: 9, ignoreEos: true }, { task: 'action' }], 'reply')
    const events = await house.ask(chat(conversation, { maxTokens: 12, ignoreEos: true, quick: asked, tenant }))
    const answer = events.flatMap((event) => (event.type === 'token' ? event.ids : []))
    const results = resultsOf(events)
    expect(results.map(({ form }) => form)).toEqual(['native', 'instruction'])
    expect(results[0]?.text).toBe(await alone(house, 0, 'reply-alone', answer))
    expect(results[1]?.choice).toMatch(/^(search|answer)$/)
  })

  test('gives JSON and what a regex asks for; a schema that is none is the fault of one task', async () => {
    const schema = '{"type":"object","properties":{"a":{"enum":[1,2]}},"required":["a"],"additionalProperties":false}'
    const asked = tasksOf([
      { task: 'custom', instruction: 'One or two?', schema },
      { task: 'custom', instruction: 'A year?', regex: '[12][0-9]{3}' },
      { task: 'custom', instruction: 'Broken?', regex: '(' },
      { task: 'custom', instruction: 'Cut?', schema, maxTokens: 2 },
    ])
    const results = resultsOf(await house.ask(chat(conversation, { maxTokens: 0, quick: asked })))
    expect(results[0]?.json?.replace(/\s/g, '')).toMatch(/^\{"a":[12]\}$/)
    expect(results[1]?.text).toMatch(/^[12][0-9]{3}$/)
    expect(results[2]?.error?.code).toBe('invalid_grammar')
    expect(results[3]?.error?.code).toBe('incomplete')
  })

  test('the window ends a task that does not fit, and leaves the others', async () => {
    const small = await openModelHouse({ path: join(folder, 'toy.gguf'), dataDir: folder, contextLength: 512 })
    const asked = tasksOf([
      { task: 'custom', instruction: 'and on '.repeat(120) },
      { task: 'custom', instruction: 'Yes?', choices: ['y', 'n'] },
    ])
    const results = resultsOf(await small.ask(chat(conversation, { maxTokens: 0, quick: asked })))
    expect(results[0]?.error?.code).toBe('context_length_exceeded')
    expect(results[1]?.choice).toMatch(/^[yn]$/)
    await small.close()
  })
})

describe('a template that writes the past otherwise once the user speaks again', () => {
  const FORGETFUL = [
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n",
    "{% if m['reasoning_content'] is defined and loop.index0 > messages | length - 3 %}({{ m['reasoning_content'] }}){% endif %}",
    "{{ m['content'] }}<|im_end|>\n{% endfor %}",
    '{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}',
  ].join('')

  test('shares what is left in common, or asks apart; the answers are those of the same suffixes', async () => {
    const forgetful = await openModelHouse({ path: join(folder, 'toy.gguf'), dataDir: folder, template: FORGETFUL })
    const messages: ChatMessage[] = [
      ...conversation,
      { role: 'assistant', content: 'High. '.repeat(30), reasoning: 'I look at the table.' },
      { role: 'user', content: 'And tomorrow?' },
    ]
    const asked = tasksOf([
      { task: 'query', maxTokens: 8 },
      { task: 'custom', instruction: 'Well?', choices: ['a', 'b'] },
    ])
    const plain = textOf(await forgetful.ask(chat(messages, { maxTokens: 16 })))
    const tenant = { name: 'both', salt: 'both', admin: false }
    const both = await forgetful.ask(chat(messages, { maxTokens: 16, quick: asked, tenant }))
    expect(textOf(both)).toBe(plain)
    expect(forgetful.jobs.map(({ transient = false }) => transient)).toEqual([false, false, true])
    const results = resultsOf(both)
    expect(results.map(({ error }) => error)).toEqual([undefined, undefined])
    expect(results[0]?.text).toBe(await alone(forgetful, 0, 'forgetful-alone'))
    expect(results[1]?.choice).toBe(await alone(forgetful, 1, 'forgetful-alone'))
    await forgetful.close()
  })
})

const weights = pulledSmolLm2() ?? ''

describe.skipIf(!existsSync(weights))('SmolLM2-135M (needs `refrain pull smollm2-135m-instruct`)', () => {
  test('gives every task the answer that it gives to the same suffix alone', async () => {
    const real = await openModelHouse({ path: weights, dataDir: await sharesImports(join(folder, 'real')) })
    const messages: ChatMessage[] = [
      { role: 'system', content: 'You are a helpful assistant on a ship.' },
      {
        role: 'user',
        content: `${'The harbour of Cuxhaven has tides of about three metres. '.repeat(8)}When is high water?`,
      },
    ]
    const asked = tasksOf([
      ...(['action', 'title', 'query', 'authority', 'domain'] as const).map((task) => ({ task })),
      { task: 'read_url', urls: ['https://tides.example/cuxhaven'] },
    ])
    const results = resultsOf(await real.ask(chat(messages, { maxTokens: 0, quick: asked })))
    const isSingle = results.map(
      ({ choice }) => choice === undefined || real.tokenizer.encode(choice, TEXT).length === 1,
    )
    expect(isSingle).toEqual([true, true, true, true, true, true])
    for (const [i, { text, choice }] of results.entries()) expect(text ?? choice).toBe(await alone(real, i, 'alone'))
    await real.close()
  }, 300_000)
})

const TEXT = { special: 'text', bos: 'none' } as const
