import { describe, expect, test, vi } from 'vitest'
import type { Backend } from './backend/backend.js'
import { createScriptedTemplate } from './backend/scripted-template.js'
import { createScriptedTokenizer } from './backend/scripted-tokenizer.js'
import { chainOf } from './cache/chain.js'
import type { Root } from './core/block.js'
import type { GenerateEvent } from './core/events.js'
import type { GenerateRequest, Job } from './core/request.js'
import { createService, type ModelParts } from './serve.js'

const root = '0123456789abcdef0123456789abcdef' as Root
const never = new AbortController().signal
const cache = { working: 0, memory: 0, disk: 0, computed: 1 }

function house(aliases: Record<string, string> = {}) {
  const tokenizer = createScriptedTokenizer()
  const template = createScriptedTemplate()
  const encode = vi.spyOn(tokenizer, 'encode')
  const render = vi.spyOn(template, 'render')
  const jobs: Job[] = []
  const model = (name: string): ModelParts => ({
    name,
    contextLength: 1000,
    created: 0,
    formats: { specials: [] },
    visibleSpecials: [],
    tokenizer,
    template,
    root: () => root,
  })
  const backend = (name: string): Backend => ({
    name: `backend of ${name}`,
    model: name,
    async *generate(job): AsyncGenerator<GenerateEvent> {
      jobs.push(job)
      yield { type: 'start', promptTokens: job.tokens.length, cache, committedTokens: 0 }
      yield { type: 'token', choice: 0, ids: [1], text: 'out' }
      yield { type: 'finish', promptTokens: job.tokens.length, completionTokens: 1, cache, committedTokens: 0 }
    },
    health: () => ({ ready: true, notes: [], running: 0, waiting: 0 }),
    close: async () => undefined,
  })
  const service = createService({
    models: [model('first'), model('second')],
    aliases,
    fleet: [backend('first'), backend('second')],
    limits: { queuedRequests: 1 },
  })
  return { service, jobs, encode, render }
}

const neutral = {
  temperature: 1,
  topP: 1,
  topK: 0,
  minP: 0,
  repetitionPenalty: 1,
  presencePenalty: 0,
  frequencyPenalty: 0,
  logitBias: {},
}
const request = (more: Partial<GenerateRequest> = {}): GenerateRequest => ({
  id: 'r',
  model: '',
  tenant: { name: 'default', salt: 'default', admin: true },
  prompt: { kind: 'chat', messages: [{ role: 'user', content: 'x'.repeat(600) }], tools: [] },
  sampling: neutral,
  stop: [],
  stopTokenIds: [],
  ignoreEos: false,
  n: 1,
  echo: false,
  priority: 'interactive',
  ...more,
})

async function eventsOf(events: AsyncIterable<GenerateEvent>): Promise<GenerateEvent[]> {
  const all: GenerateEvent[] = []
  for await (const event of events) all.push(event)
  return all
}

describe('the path', () => {
  test('a prompt is rendered once, tokenized once, and travels on as a frozen job with its chain', async () => {
    const { service, jobs, encode, render } = house()
    await eventsOf(service.generate(request(), never))
    expect([render.mock.calls.length, encode.mock.calls.length]).toEqual([1, 1])
    const [job] = jobs
    expect(Object.isFrozen(job)).toBe(true)
    expect(job).toMatchObject({ model: 'first', maxTokens: 1000 - job!.tokens.length })
    expect(job?.chain).toEqual(chainOf(root, job!.tokens))
    expect(job?.chain.hashes).toHaveLength(3)
  })

  test('a chat is parsed for special tokens, a text is not and gets BOS, token ids stay as they are', async () => {
    const { service, jobs, encode } = house()
    await eventsOf(service.generate(request(), never))
    await eventsOf(service.generate(request({ prompt: { kind: 'text', text: 'abc' } }), never))
    await eventsOf(service.generate(request({ prompt: { kind: 'tokens', ids: [5, 6] } }), never))
    expect(encode.mock.calls.map(([, options]) => options)).toEqual([
      { special: 'parse', bos: 'none' },
      { special: 'text', bos: 'add' },
    ])
    expect([...jobs[2]!.tokens]).toEqual([5, 6])
  })

  test('echo puts the prompt in front of each choice, and counts no tokens for it', async () => {
    const { service } = house()
    const events = await eventsOf(
      service.generate(request({ echo: true, n: 2, prompt: { kind: 'text', text: 'abc' } }), never),
    )
    expect(events.slice(1, 4)).toEqual([
      { type: 'token', choice: 0, ids: [], text: 'abc' },
      { type: 'token', choice: 1, ids: [], text: 'abc' },
      { type: 'token', choice: 0, ids: [1], text: 'out' },
    ])
    const ids = await eventsOf(
      service.generate(request({ echo: true, prompt: { kind: 'tokens', ids: [70, 71] } }), never),
    )
    expect(ids[1]).toMatchObject({ text: 'EF' })
  })

  test('what needs no backend is refused before one is asked', async () => {
    const { service, jobs } = house()
    const refused = (more: Partial<GenerateRequest>) => eventsOf(service.generate(request(more), never))
    await expect(refused({ model: 'third' })).rejects.toMatchObject({ code: 'model_not_found', param: 'model' })
    await expect(refused({ prompt: { kind: 'text', text: '' } })).rejects.toMatchObject({ param: 'prompt' })
    await expect(refused({ prompt: { kind: 'text', text: 'x'.repeat(3000) } })).rejects.toMatchObject({
      code: 'context_length_exceeded',
    })
    expect(jobs).toEqual([])
  })
})

describe('names of models', () => {
  const resolve = (aliases: Record<string, string>, name: string | undefined) =>
    house(aliases).service.resolve(name).name

  test('none is the first, an own name is itself, patterns come in order', () => {
    const aliases = { 'gpt-4*': 'second', 'gpt-*': 'first', '?x[1]': 'second', first: 'second' }
    expect(resolve(aliases, undefined)).toBe('first')
    expect(resolve(aliases, 'second')).toBe('second')
    expect(resolve(aliases, 'gpt-4o-mini')).toBe('second')
    expect(resolve(aliases, 'GPT-3')).toBe('first')
    expect(resolve(aliases, 'ax[1]')).toBe('second')
    expect(resolve(aliases, 'first')).toBe('first')
    expect(() => resolve(aliases, 'axx1]')).toThrow(expect.objectContaining({ code: 'model_not_found' }))
    expect(() => resolve({}, 'gpt-4')).toThrow(expect.objectContaining({ code: 'model_not_found' }))
  })

  test('a pattern that is dear to match is not tried on a long name', () => {
    const started = performance.now()
    expect(() => resolve({ 'a*a*a*a*a*a*a*b': 'first' }, 'a'.repeat(1_000_000))).toThrow()
    expect(performance.now() - started).toBeLessThan(2000)
  })
})
