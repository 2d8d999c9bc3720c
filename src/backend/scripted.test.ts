import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { chainOf } from '../cache/chain.js'
import type { Root } from '../core/block.js'
import type { GenerateEvent } from '../core/events.js'
import type { GenerateRequest, Job } from '../core/request.js'
import { ManualClock } from '../testing/manual-clock.js'
import { createScriptedBackend, type ScriptedDeps, type ScriptedOptions } from './scripted.js'
import { ScriptedCache } from './scripted-cache.js'
import { createScriptedTokenizer, END_ID, scriptedPieces } from './scripted-tokenizer.js'

const tokenizer = createScriptedTokenizer()
const root = '0123456789abcdef0123456789abcdef' as Root
const tenant = { name: 'default', salt: 'default', admin: true }
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
let count = 0

function jobOf(text: string, more: Partial<GenerateRequest> = {}, maxTokens = 1000): Job {
  const tokens = tokenizer.encode(text, { special: 'text', bos: 'none' })
  const request: GenerateRequest = {
    id: `r${count++}`,
    model: 'm',
    tenant,
    prompt: { kind: 'text', text },
    sampling: neutral,
    stop: [],
    stopTokenIds: [],
    ignoreEos: false,
    n: 1,
    echo: false,
    priority: 'interactive',
    ...more,
  }
  return { request, model: 'm', tokens, chain: chainOf(root, tokens), maxTokens }
}

function backendOf(options: Partial<ScriptedOptions> = {}, deps: Partial<ScriptedDeps> = {}) {
  const all = { answer: '', prefillTokensPerSecond: 0, decodeTokensPerSecond: 0, maxRunning: 4, cacheBlocks: 1000 }
  const limits = { queuedRequests: 8, queueMs: 1000 }
  return createScriptedBackend(
    { ...all, ...options },
    { model: 'm', tokenizer, clock: new ManualClock(), limits, ...deps },
  )
}

async function run(backend: ReturnType<typeof backendOf>, job: Job): Promise<GenerateEvent[]> {
  const events: GenerateEvent[] = []
  for await (const event of backend.generate(job, new AbortController().signal)) events.push(event)
  return events
}
const textOf = (events: GenerateEvent[], choice = 0) =>
  events.map((event) => (event.type === 'token' && event.choice === choice ? event.text : '')).join('')
const endOf = (events: GenerateEvent[], choice = 0) =>
  events.find((event) => event.type === 'end' && event.choice === choice)
const finishOf = (events: GenerateEvent[]) => events.at(-1) as Extract<GenerateEvent, { type: 'finish' }>

describe('the tokenizer', () => {
  test('decodes what it encoded, whole and piece by piece', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), (text) => {
        const clean = Buffer.from(text, 'utf8').toString('utf8')
        const ids = tokenizer.encode(clean, { special: 'text', bos: 'none' })
        const stream = tokenizer.stream()
        expect(tokenizer.decode(ids)).toBe(clean)
        expect([...ids].map((id) => stream.push(id)).join('') + stream.end()).toBe(clean)
        expect([...ids].every((id) => id >= 0 && id < tokenizer.vocabSize)).toBe(true)
      }),
    )
  })
})

describe('the tokenizer of a chat model', () => {
  const model = createScriptedTokenizer({ end: '<|im_end|>', specials: ['<|im_start|>'] })
  const text = '<|im_start|>user\nhi<|im_end|>\n<|im_start|>'

  test('spellings of special tokens are one token each in a rendered chat, and text elsewhere', () => {
    const parsed = model.encode(text, { special: 'parse', bos: 'none' })
    expect([...parsed].filter((id) => model.isSpecial(id)).map((id) => model.spellingOf(id))).toEqual([
      '<|im_start|>',
      '<|im_end|>',
      '<|im_start|>',
    ])
    expect(model.decode(parsed, { special: 'keep' })).toBe(text)
    expect(model.decode(parsed)).toBe('user\nhi\n')
    const plain = model.encode(text, { special: 'text', bos: 'none' })
    expect([...plain].some((id) => model.isSpecial(id))).toBe(false)
    expect(model.decode(plain)).toBe(text)
    expect(model.stream([model.specialId('<|im_start|>')!]).push(parsed[0]!)).toBe('<|im_start|>')
    expect([...parsed].every((id) => id < model.vocabSize)).toBe(true)
  })

  test('tokens count anew behind a special one', () => {
    const [head, all] = ['<|im_start|>u', '<|im_start|>user'].map((each) =>
      model.encode(each, { special: 'parse', bos: 'none' }),
    )
    expect(head!.length).toBe(2)
    const piece = model.encode('user', { special: 'parse', bos: 'none' })
    expect([...all!]).toEqual([model.specialId('<|im_start|>'), ...piece])
  })
})

describe('events', () => {
  test('a script may say its text in a tokenization of its own', async () => {
    const pieces = scriptedPieces('añb😀c')
    expect(pieces).not.toEqual([...tokenizer.encode('añb😀c', { special: 'text', bos: 'none' })])
    const events = await run(backendOf({}, { script: () => pieces }), jobOf('x'))
    expect(events.flatMap((event) => (event.type === 'token' ? event.ids : []))).toEqual([...pieces, END_ID])
    expect(textOf(events)).toBe('añb😀c')
  })

  test('start, tokens, end, finish; the end token counts', async () => {
    const events = await run(backendOf({ answer: 'abcdef' }), jobOf('xyz'))
    expect(events.map((event) => event.type)).toEqual(['start', 'token', 'token', 'token', 'end', 'finish'])
    expect(finishOf(events)).toMatchObject({ promptTokens: 1, completionTokens: 3 })
    expect(endOf(events)).toEqual({ type: 'end', choice: 0, reason: 'stop' })
  })

  test('without a script the prompt is said again', async () => {
    expect(textOf(await run(backendOf(), jobOf('say it again')))).toBe('say it again')
  })

  test('n choices, each with its own end', async () => {
    const backend = backendOf({}, { script: (_job, choice) => 'abc'.repeat(choice + 1) })
    const events = await run(backend, jobOf('x', { n: 3 }))
    expect([0, 1, 2].map((choice) => textOf(events, choice))).toEqual(['abc', 'abcabc', 'abcabcabc'])
    expect([0, 1, 2].every((choice) => endOf(events, choice) !== undefined)).toBe(true)
    expect(finishOf(events).completionTokens).toBe(2 + 3 + 4)
  })

  test('maxTokens, also 0, stop tokens and ignoreEos', async () => {
    const backend = backendOf({ answer: 'abcdefghi' })
    const cut = await run(backend, jobOf('x', {}, 2))
    expect([textOf(cut), endOf(cut)]).toEqual(['abcdef', { type: 'end', choice: 0, reason: 'length' }])
    const none = await run(backend, jobOf('x', {}, 0))
    expect(none.map((event) => event.type)).toEqual(['start', 'end', 'finish'])
    const [, second] = tokenizer.encode('abcdef', { special: 'text', bos: 'none' })
    const stopped = await run(backend, jobOf('x', { stopTokenIds: [second!] }))
    expect([textOf(stopped), endOf(stopped)]).toEqual(['abc', { type: 'end', choice: 0, reason: 'stop' }])
    expect(textOf(await run(backend, jobOf('x', { ignoreEos: true }, 5)))).toBe('abcdefghiabcdef')
  })

  test('nothing of a stop string or after it is shown, wherever the tokens are cut', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.string({ unit: fc.constantFrom('a', 'b', 'é', '😀') }),
        fc.array(fc.string({ unit: fc.constantFrom('a', 'b', 'é'), minLength: 1, maxLength: 4 }), { maxLength: 3 }),
        async (answer, stop) => {
          const events = await run(backendOf({}, { script: () => answer }), jobOf('x', { stop }))
          const at = stop.map((each) => answer.indexOf(each)).filter((found) => found >= 0)
          const expected = at.length === 0 ? answer : undefined
          const shown = textOf(events)
          if (expected !== undefined) expect(shown).toBe(expected)
          else {
            expect(answer.startsWith(shown)).toBe(true)
            expect(stop.some((each) => shown.includes(each))).toBe(false)
            expect(stop.some((each) => answer.slice(shown.length).startsWith(each))).toBe(true)
          }
        },
      ),
    )
  })

  test('an abort ends it with the reason, at any time', async () => {
    const clock = new ManualClock()
    const backend = backendOf({ answer: 'abc'.repeat(100), decodeTokensPerSecond: 10 }, { clock })
    const stop = new AbortController()
    const events = backend.generate(jobOf('x'), stop.signal)[Symbol.asyncIterator]()
    expect((await events.next()).value).toMatchObject({ type: 'start' })
    const next = events.next()
    stop.abort(new Error('gone'))
    await expect(next).rejects.toThrow('gone')
    expect(backend.health()).toMatchObject({ running: 0, waiting: 0 })
    expect(clock.waiting).toBe(0)
  })
})

describe('the cache', () => {
  const cachedOf = (events: GenerateEvent[]) => finishOf(events).cache.memory

  test('whole blocks of 64, never the last token, generated ones too', async () => {
    const backend = backendOf({ answer: 'abc'.repeat(200) })
    const prompt = 'p'.repeat(3 * 64 * 2)
    const first = await run(backend, jobOf(prompt))
    expect(finishOf(first)).toMatchObject({ cache: { memory: 0, computed: 128 }, committedTokens: 128 })
    // All 128 are there, but one token must be computed to have logits.
    expect(cachedOf(await run(backend, jobOf(prompt)))).toBe(64)
    expect(cachedOf(await run(backend, jobOf(`${prompt}q`)))).toBe(128)
    // 128 of the prompt and 200 generated and fed: 328 tokens, 5 whole blocks.
    expect(cachedOf(await run(backend, jobOf(`${prompt}${'abc'.repeat(200)}q`)))).toBe(320)
    expect(cachedOf(await run(backend, jobOf(`x${prompt}`)))).toBe(0)
  })

  test('bounded: leaves go before trunks, the least recently used first, pins stay', () => {
    const clock = new ManualClock()
    const cache = new ScriptedCache(4, clock)
    const chain = (name: string, length: number) => Array.from({ length }, (_, i) => `${name}${i}` as never)
    cache.commit(chain('a', 3), 0, 3)
    cache.commit(chain('b', 3), 0, 3)
    expect([cache.size, cache.evicted]).toEqual([4, 2])
    expect(cache.acquire(chain('a', 3), 9)).toBe(1)
    cache.pin('p', chain('a', 1), 1000)
    cache.commit(chain('c', 4), 0, 4)
    expect(cache.acquire(chain('a', 3), 9)).toBe(1)
    clock.advance(1000)
    cache.commit(chain('d', 4), 0, 4)
    expect(cache.acquire(chain('a', 3), 9)).toBe(0)
    expect(cache.size).toBe(4)
  })
})

test('the end token has no bytes', () => {
  expect(tokenizer.bytesOf(END_ID)).toHaveLength(0)
  expect(tokenizer.isSpecial(END_ID)).toBe(true)
  expect(tokenizer.decode([END_ID], { special: 'keep' })).toBe('<end>')
})
