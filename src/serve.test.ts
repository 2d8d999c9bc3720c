import { describe, expect, test, vi } from 'vitest'
import type { Backend } from './backend/backend.js'
import { createScriptedTemplate } from './backend/scripted-template.js'
import { createScriptedTokenizer } from './backend/scripted-tokenizer.js'
import { chainOf } from './cache/chain.js'
import type { Root } from './core/block.js'
import type { GenerateEvent } from './core/events.js'
import type { ChatMessage, GenerateRequest, Job } from './core/request.js'
import { billingHeader } from './prompt/hygiene/billing-header.js'
import { limitsIn, type TenantLimits } from './router/tenant-limits.js'
import { createService, type ModelParts, type ServeParts } from './serve.js'
import { createMemoryReplies } from './session/replies.js'
import { ManualClock } from './testing/manual-clock.js'

const root = '0123456789abcdef0123456789abcdef' as Root
const never = new AbortController().signal
const cache = { working: 0, memory: 0, disk: 0, computed: 1 }

function house(aliases: Record<string, string> = {}, more: Partial<ServeParts> = {}) {
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
    ...more,
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

describe('a quota', () => {
  const limit = (requestsPerMinute: number, tokensPerMinute: number) =>
    limitsIn({ limits: { requestsPerMinute, tokensPerMinute }, tenants: [] }, new ManualClock()) as TenantLimits

  test('refuses what is over it before a backend is asked, and counts the answer when it is over', async () => {
    const { service, jobs } = house({}, { quotas: limit(2, 0) })
    for (let i = 0; i < 2; i++) await eventsOf(service.generate(request({}), never))
    await expect(eventsOf(service.generate(request({}), never))).rejects.toMatchObject({ code: 'rate_limited' })
    expect(jobs).toHaveLength(2)

    const tokens = limit(0, 100)
    const settled = vi.spyOn(tokens, 'settle')
    await eventsOf(house({}, { quotas: tokens }).service.generate(request({}), never))
    expect(settled.mock.calls).toEqual([[request({}).tenant.name, 1]])
  })

  test('is none where nobody has one', () => {
    const limits = { requestsPerMinute: 0, tokensPerMinute: 0 }
    expect(limitsIn({ limits, tenants: [{ name: 'a' }] }, new ManualClock())).toBeUndefined()
    expect(limitsIn({ limits, tenants: [{ name: 'a', tokensPerMinute: 5 }] }, new ManualClock())).toBeDefined()
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

describe('checkpoints', () => {
  const chat = (messages: readonly ChatMessage[], checkpoints: GenerateRequest['checkpoints']) =>
    request({ prompt: { kind: 'chat', messages, tools: [] }, ...(checkpoints && { checkpoints }) })
  const messages: ChatMessage[] = [
    { role: 'system', content: 'be brief' },
    { role: 'user', content: 'first question' },
    { role: 'assistant', content: 'Yes.' },
    { role: 'user', content: 'second' },
  ]
  const textAt = (job: Job | undefined, i: number) => {
    const { tokens } = job?.pins?.[i] ?? { tokens: -1 }
    return createScriptedTokenizer().decode(job!.tokens.subarray(0, tokens))
  }
  // The scripted tokenizer's tokens are three bytes: a place is the last one in front of what was meant.
  const whole = (text: string) => text.slice(0, 3 * Math.floor(text.length / 3))

  test('are places in the tokens: behind a message, behind the head', async () => {
    const { service, jobs } = house()
    const asked = chat(messages, [
      { after: 'head', ttlMs: 1 },
      { after: 1, ttlMs: 2 },
      { after: 3, ttlMs: 3 },
    ])
    await eventsOf(service.generate(asked, never))
    expect(jobs[0]?.pins?.map(({ ttlMs }) => ttlMs)).toEqual([1, 2, 3])
    const lines = ['system: be brief\n', 'user: first question\n', 'assistant: Yes.\n', 'user: second\n']
    expect(textAt(jobs[0], 0)).toBe(whole(lines[0]!))
    expect(textAt(jobs[0], 1)).toBe(whole(lines.slice(0, 2).join('')))
    expect(textAt(jobs[0], 2)).toBe(whole(lines.join('')))
    await eventsOf(service.generate(chat(messages, undefined), never))
    expect(jobs[1]?.pins).toBeUndefined()
  })

  test('stay where they were meant when messages are taken out or put together', async () => {
    const replies = createMemoryReplies({ memoryBytes: 1e6 })
    const jobs: Job[] = []
    const answer = [...createScriptedTokenizer().encode('out', { special: 'text', bos: 'none' })]
    const backend: Backend = {
      name: 'says out',
      model: 'first',
      async *generate(job): AsyncGenerator<GenerateEvent> {
        jobs.push(job)
        yield { type: 'token', choice: 0, ids: answer, text: 'out' }
        yield { type: 'end', choice: 0, reason: 'stop' }
        yield { type: 'finish', promptTokens: 1, completionTokens: 1, cache, committedTokens: 0 }
      },
      health: () => ({ ready: true, notes: [], running: 0, waiting: 0 }),
      close: async () => undefined,
    }
    const hygiene = [billingHeader.create({}, undefined)]
    const { service } = house({}, { replies, hygiene, fleet: [backend] })
    const header: ChatMessage = { role: 'system', content: 'x-anthropic-billing-header: cch=1;' }
    const first = [{ role: 'user', content: 'hi' }] as const
    await eventsOf(service.generate(chat(first, undefined), never))
    const parts: ChatMessage[] = [
      header,
      ...first,
      { role: 'assistant', content: 'o' },
      { role: 'assistant', content: 'ut' },
      { role: 'user', content: 'again' },
    ]
    const checkpoints = [1, 2, 3, 4].map((after) => ({ after, ttlMs: 1 }))
    await eventsOf(service.generate(chat(parts, checkpoints), never))
    expect([0, 1, 2, 3].map((i) => textAt(jobs[1], i))).toEqual([
      whole('user: hi\n'),
      'user: hi\nassistant: out',
      'user: hi\nassistant: out',
      expect.stringMatching(/^user: hi\nassistant: out\nuser: agai?n?$/),
    ])
    expect(jobs[1]?.request.prompt).toMatchObject({ messages: [...first, { content: 'out' }, { content: 'again' }] })
  })
})
