// Every reason that is no mutation of a prompt, what repeats, who may see what, Anthropic's diagnostics, and the bounds. Through
// the whole server, with the scripted backend.

import { afterEach, describe, expect, test } from 'vitest'
import { scriptedTemplate } from '../backend/scripted-template.js'
import { createScriptedTokenizer, scriptedPieces } from '../backend/scripted-tokenizer.js'
import { chainOf } from '../cache/chain.js'
import type { ComposeOptions, Program } from '../compose.js'
import type { Root } from '../core/block.js'
import type { GenerateEvent } from '../core/events.js'
import type { GenerateRequest } from '../core/request.js'
import { ManualClock } from '../testing/manual-clock.js'
import { post, scriptedProgram } from '../testing/scripted-program.js'
import { causesOf, keptTokens, lossReason } from './costs.js'
import { createExplainer, type Explainer } from './explainer.js'
import { explainReport } from './report.js'

// biome-ignore lint/suspicious/noExplicitAny: bodies and answers are plain JSON
type Json = any

const programs: Program[] = []
afterEach(async () => {
  for (const program of programs.splice(0)) await program.stop(0)
})

async function open(flags: object = {}, options: ComposeOptions = {}): Promise<Program> {
  const own = { template: 'chatml', answer: 'fine', ...(flags as Json)['backend.options'] }
  const program = await scriptedProgram({ ...flags, 'backend.options': own }, options)
  programs.push(program)
  return program
}

const user = (content: string) => ({ role: 'user', content })
const assistant = (content: string, more: object = {}) => ({ role: 'assistant', content, ...more })
const text = (name: string, count = 60) => Array.from({ length: count }, (_, i) => `${name}${i}`).join(' ')

interface Ask {
  readonly session?: string
  readonly key?: string
  readonly headers?: Readonly<Record<string, string>>
  readonly more?: object
}

async function ask(
  program: Program,
  messages: readonly object[],
  { session, key, headers, more }: Ask = {},
): Promise<Json> {
  const reply = await post(
    program,
    '/v1/chat/completions',
    { messages, ...more },
    {
      ...(session !== undefined && { 'x-refrain-session': session }),
      ...(key !== undefined && { authorization: `Bearer ${key}` }),
      ...headers,
    },
  )
  expect(reply.status, reply.text).toBe(200)
  return reply.json()
}

async function get(program: Program, url: string, key?: string): Promise<{ status: number; body: Json }> {
  const headers = key === undefined ? {} : { authorization: `Bearer ${key}` }
  const reply = await program.server.app.inject({ method: 'GET', url, headers })
  return { status: reply.statusCode, body: reply.json() }
}

const missOf = async (program: Program, session: string, turn: number): Promise<Json> =>
  (await get(program, `/v1/sessions/${session}/turns/${turn}/explain`)).body.miss

describe('an answer that comes back', () => {
  const question = user(text('question'))
  const answer = text('answer')
  const turns = (back: object) => [[question], [question, back, user('and now?')]] as const

  test('in other tokens is retokenized, where nobody kept the sampled ones', async () => {
    const flags = { 'replies.memoryBytes': 0, 'replies.diskBytes': 0 }
    const program = await open(flags, { script: () => scriptedPieces(answer) })
    for (const messages of turns(assistant(answer))) await ask(program, messages, { session: 's' })
    const miss = await missOf(program, 's', 2)
    expect(miss).toMatchObject({
      reason: 'retokenized',
      difference: { message: { index: 1, change: 'edited' } },
    })
  })

  test('in other tokens misses nothing where they were kept', async () => {
    const program = await open({}, { script: () => scriptedPieces(answer) })
    for (const messages of turns(assistant(answer))) await ask(program, messages, { session: 's' })
    expect(await missOf(program, 's', 2)).toBeNull()
  })

  test('edited is a changed message', async () => {
    const program = await open({ 'explain.keepText': true }, { script: () => answer })
    const edited = answer.replace('answer3 ', 'ANSWER3 ')
    for (const messages of turns(assistant(edited))) await ask(program, messages, { session: 's' })
    const { reason, difference } = await missOf(program, 's', 2)
    expect([reason, difference.message]).toEqual([
      'messages_changed',
      { index: 1, role: 'assistant', part: 'content', byte: edited.indexOf('ANSWER3'), change: 'edited' },
    ])
    expect(difference.before).toContain('answer2 answer3 answer4')
    expect(difference.after).toContain('answer2 ANSWER3 answer4')
  })

  test('without its reasoning has dropped it', async () => {
    const options = { 'backend.options': { reasoning: 'think' }, 'replies.memoryBytes': 0, 'replies.diskBytes': 0 }
    const program = await open(options, { script: () => `<think>\n${text('thought')}\n</think>\n\n${answer}` })
    for (const messages of turns(assistant(answer))) await ask(program, messages, { session: 's' })
    expect(await missOf(program, 's', 2)).toMatchObject({
      reason: 'reasoning_dropped',
      difference: { message: { index: 1 } },
    })
  })
})

describe('what a session shows', () => {
  test('a clock is named as such, with how often and where', async () => {
    const program = await open()
    const told: Json[] = []
    for (let turn = 0; turn < 15; turn++) {
      const system = { role: 'system', content: `You help. ${text('rule', 20)} The time is 10:${10 + turn}:07.` }
      await ask(program, [system, user(text('question', 40))], { session: 'clock' })
      told.push(await missOf(program, 'clock', turn + 1))
    }
    const byte = `You help. ${text('rule', 20)} The time is 10:`.length
    expect(told[1].repeats).toBeUndefined()
    expect(told[14]).toMatchObject({
      reason: 'system_changed',
      repeats: {
        changed: 14,
        compared: 14,
        sentence: `the system prompt contains a clock or a counter: it changed in 14 of 14 turns at byte ${byte}`,
      },
    })
    const { body } = await get(program, '/v1/sessions/clock/turns')
    expect(body.repeats).toHaveLength(1)
    expect(body.data).toHaveLength(15)
  })

  test('no text, unless it may be kept', async () => {
    const program = await open()
    for (const word of ['alpha', 'beta']) await ask(program, [user(`${word} ${text('secret')}`)], { session: 's' })
    const { body } = await get(program, '/v1/sessions/s/turns/2/explain')
    expect(body.miss.reason).toBe('messages_changed')
    expect(JSON.stringify(body)).not.toMatch(/secret|alpha|beta/)
  })

  test('a session without a key is followed by what it says, and told from others with the same head', async () => {
    const program = await open()
    const system = { role: 'system', content: text('head', 80) }
    const first = [system, user('one')]
    await ask(program, first)
    await ask(program, [system, user('two')])
    await ask(program, [...first, assistant('fine'), user(text('more'))])
    await ask(program, [...first, assistant('fine'), user(text('less'))])
    const { body } = await get(program, '/v1/explain/sessions')
    expect(body.data.map((each: Json) => [each.by_content, each.turns]).sort()).toEqual([
      [true, 1],
      [true, 3],
    ])
    const { session } = body.data.find((each: Json) => each.turns === 3)
    expect((await missOf(program, session, 3)).difference.message).toMatchObject({ index: 3, byte: 0 })
  })

  test('is bounded: turns of a session, sessions of a tenant, bytes', async () => {
    const program = await open({ 'explain.turns': 2, 'explain.sessions': 2 })
    for (const session of ['a', 'b', 'c', 'c', 'c']) await ask(program, [user(text(session))], { session })
    expect((await get(program, '/v1/sessions/a/turns')).status).toBe(404)
    const { body } = await get(program, '/v1/sessions/c/turns')
    expect([body.turns, body.data.map((each: Json) => each.turn)]).toEqual([3, [2, 3]])
    expect((await get(program, '/v1/sessions/c/turns/1/explain')).body.error.message).toContain('explain.turns')
    expect((await get(program, '/v1/sessions/c/turns/0/explain')).body.error.param).toBe('n')

    const small = await open({ 'explain.memoryBytes': 4000 })
    for (const session of ['a', 'b', 'c']) await ask(small, [user(text(session, 200))], { session })
    expect((await get(small, '/v1/explain/sessions')).body.data.length).toBeLessThan(3)
  })

  test('nothing where it is off', async () => {
    const program = await open({ 'explain.turns': 0 })
    await ask(program, [user('hello')], { session: 's' })
    expect((await get(program, '/v1/sessions/s/turns')).status).toBe(404)
  })
})

describe('the cache', () => {
  test('that had to let go of blocks has evicted them', async () => {
    const program = await open({ 'backend.options': { cacheBlocks: 6 } })
    const history = [user(text('long', 100))]
    await ask(program, history, { session: 's' })
    await ask(program, [user(text('other', 150))], { session: 'other' })
    await ask(program, [...history, assistant('fine'), user('go on')], { session: 's' })
    const miss = await missOf(program, 's', 2)
    expect(miss.reason).toBe('evicted')
    expect(miss.difference).toBeUndefined()
  })

  const usage = { working: 0, memory: 0, disk: 0, computed: 640 }
  const loss = {
    ...{ isElsewhere: false, idleMs: 1000, expiresMs: 0, usage },
    since: { memoryEvicted: 0, diskEvicted: 0, diskWritten: 0 },
  }
  test.each([
    ['evicted', {}],
    ['other_backend', { isElsewhere: true }],
    ['expired', { expiresMs: 500 }],
    ['evicted', { expiresMs: 5000 }],
    ['restored_slower_than_recomputed', { since: { memoryEvicted: 9, diskEvicted: 0, diskWritten: 9 } }],
    ['evicted', { since: { memoryEvicted: 9, diskEvicted: 9, diskWritten: 9 } }],
  ])('says %s for %o', (reason, more) => expect(lossReason({ ...loss, ...more })).toBe(reason))

  test('and the prompt share what was missed, the dearest first', () => {
    const reasons = { prompt: 'system_changed', cache: 'evicted' } as const
    const spending = { kept: 1000, promptTokens: 1200, shared: 500 }
    const told = (computed: number) => causesOf({ ...spending, usage: { ...usage, computed } }, reasons)
    expect(told(1200 - 960)).toEqual([])
    expect(told(1200 - 448)).toEqual([{ reason: 'system_changed', missedTokens: 512 }])
    expect(told(1200)).toEqual([
      { reason: 'system_changed', missedTokens: 512 },
      { reason: 'evicted', missedTokens: 448 },
    ])
  })

  test('that keeps nothing is not expected to', () => {
    const turn = { promptTokens: 640, committedTokens: 0, lineTokens: undefined }
    expect(keptTokens({ ...turn, usage })).toBe(0)
    expect(keptTokens({ ...turn, usage: undefined })).toBe(0)
    expect(keptTokens({ ...turn, usage, committedTokens: 640, lineTokens: 700 })).toBe(699)
  })
})

describe('side requests and rewrites', () => {
  const history = [user(text('long')), assistant(text('answer')), user(text('next'))]

  test('a side request leaves the session where it was', async () => {
    const program = await open()
    await ask(program, history, { session: 's' })
    await ask(program, [user(text('a title for this'))], {
      session: 's',
      headers: { 'x-refrain-request-class': 'auxiliary' },
    })
    await ask(program, [...history, assistant('fine'), user('go on')], { session: 's' })
    const { body } = await get(program, '/v1/sessions/s/turns')
    expect(body.data.map((each: Json) => [each.class, each.miss?.reason ?? null])).toEqual([
      ['main', 'first_seen'],
      ['auxiliary', 'messages_changed'],
      ['main', null],
    ])
  })

  test('what comes behind a summary is a compaction', async () => {
    const program = await open()
    await ask(program, history, { session: 's' })
    await ask(program, [...history, user('Summarize.')], {
      session: 's',
      headers: { 'x-refrain-request-class': 'compaction' },
    })
    await ask(program, [user(text('summary')), user('go on')], { session: 's' })
    expect(await missOf(program, 's', 3)).toMatchObject({ reason: 'compaction', compared_with: 1 })
  })
})

describe('whose it is', () => {
  const tenants = [
    { name: 'one', key: 'key-of-one' },
    { name: 'two', key: 'key-of-two' },
    { name: 'boss', key: 'key-of-boss', admin: true },
  ]

  test('a tenant sees its own, an admin all, and that somebody else had the same prompt', async () => {
    const program = await open({ tenants })
    for (const key of ['key-of-one', 'key-of-two']) await ask(program, [user(text('same'))], { session: 's', key })
    const reasonFor = async (key: string, query = '') =>
      (await get(program, `/v1/sessions/s/turns/1/explain${query}`, key)).body.miss?.reason
    expect(await reasonFor('key-of-two')).toBe('first_seen')
    expect(await reasonFor('key-of-boss', '?tenant=two')).toBe('tenant')
    expect(await reasonFor('key-of-boss', '?tenant=one')).toBe('first_seen')
    expect((await get(program, '/v1/sessions/s/turns?tenant=one', 'key-of-two')).status).toBe(404)
    const count = async (key: string) => (await get(program, '/v1/explain/sessions', key)).body.data.length
    expect([await count('key-of-one'), await count('key-of-boss')]).toEqual([1, 2])
    expect((await get(program, '/v1/explain/sessions')).status).toBe(401)
  })
})

describe('revocation and erasure', () => {
  const tokenizer = createScriptedTokenizer({ end: '<|im_end|>', specials: ['<|im_start|>'] })
  const { template } = scriptedTemplate({ template: 'chatml', end: '', specials: [] })
  const root = 'ab'.repeat(16) as Root
  const viewer = { name: 't', admin: false }

  async function turn(explainer: Explainer, id: string, content: string): Promise<void> {
    const messages = [{ role: 'user' as const, content }]
    const rendered = template.render(messages, { tools: [], addGenerationPrompt: true })
    const tokens = tokenizer.encode(rendered.text, { special: 'parse', bos: 'none' })
    const request = {
      ...{
        id,
        session: 's',
        tenant: { name: 't', salt: 't', admin: false },
        prompt: { kind: 'chat', messages, tools: [] },
      },
      ...{ n: 1, maxTokens: 1 },
    } as unknown as GenerateRequest
    const facts = {
      request,
      model: 'm',
      backend: 'b',
      tokenizer,
      template,
      rendered,
      tokens,
      chain: chainOf(root, tokens),
    }
    const cache = { working: 0, memory: 0, disk: 0, computed: tokens.length }
    const counts = { promptTokens: tokens.length, cache, committedTokens: tokens.length }
    async function* events(): AsyncGenerator<GenerateEvent> {
      yield { type: 'start', ...counts }
      yield { type: 'finish', ...counts, completionTokens: 0 }
    }
    for await (const event of explainer.record(facts)?.(events()) ?? []) expect(event.type).toMatch(/start|finish/)
  }

  test('drop texts, name the next change, and forget', async () => {
    const options = { turns: 9, sessions: 9, memoryBytes: 1e6, keepText: true }
    const explainer = createExplainer(options, { clock: new ManualClock() })
    for (const [i, word] of ['one', 'two'].entries()) await turn(explainer, `${i}`, text(word))
    const missOf = (number: number) => explainer.turn(viewer, 's', { turn: number })?.turn.miss
    expect(missOf(2)).toMatchObject({
      reason: 'messages_changed',
      difference: { after: expect.stringContaining('two0') },
    })
    explainer.revoked({ tenant: 't', session: 's' })
    expect(missOf(2)?.difference).not.toHaveProperty('after')
    await turn(explainer, '2', text('three'))
    expect(missOf(3)?.reason).toBe('revocation')
    expect(missOf(3)).not.toHaveProperty('difference')
    explainer.forget({ tenant: 't', session: 's' })
    expect(explainer.turns(viewer, 's')).toBeUndefined()
    explainer.close()
  })
})

describe("Anthropic's diagnostics", () => {
  const message = async (program: Program, body: object, previous?: string | null): Promise<Json> => {
    const diagnostics = previous === undefined ? {} : { diagnostics: { previous_message_id: previous } }
    const reply = await post(
      program,
      '/v1/messages',
      { model: 'x', max_tokens: 4, ...diagnostics, ...body },
      {
        'anthropic-version': '2023-06-01',
      },
    )
    expect(reply.status, reply.text).toBe(200)
    return reply.json()
  }

  test('say what changed since the message that is named', async () => {
    const program = await open({ 'model.aliases': { '*': 'smollm2-135m-instruct' } })
    const body = (more: object = {}) => ({
      system: text('system'),
      messages: [user(text('question')), assistant(text('answer')), user('go on')],
      metadata: { user_id: 'u_session_12345678' },
      ...more,
    })
    const first = await message(program, body(), null)
    expect(first.diagnostics).toBeNull()
    const same = await message(program, body(), first.id)
    expect(same.diagnostics).toBeNull()
    const system = await message(program, body({ system: `Now. ${text('system')}` }), same.id)
    expect(system.diagnostics.cache_miss_reason).toMatchObject({ type: 'system_changed' })
    expect(system.diagnostics.cache_miss_reason.cache_missed_input_tokens).toBeGreaterThan(0)
    const lost = await message(program, body(), 'msg_00000000')
    expect(lost.diagnostics).toEqual({ cache_miss_reason: { type: 'previous_message_not_found' } })
    // Not the turn before: by digests.
    const edited = [user(text('question', 30)), assistant(text('answer')), user('go on')]
    const far = await message(program, body({ system: text('system'), messages: edited }), first.id)
    expect(far.diagnostics.cache_miss_reason).toMatchObject({ type: 'messages_changed' })
  })
})

test('the command prints sessions, turns and a turn', async () => {
  const program = await open()
  const url = await program.start()
  await ask(program, [user(text('alpha'))], { session: 'my/session' })
  await ask(program, [user(text('beta'))], { session: 'my/session' })
  expect(await explainReport({ url })).toMatch(/my\/session +default +2/)
  expect(await explainReport({ url, session: 'my/session' })).toMatch(/messages_changed +earlier messages/)
  const turn = await explainReport({ url: `${url}/v1`, session: 'my/session', turn: 2 })
  expect(turn).toMatch(/message 0 \(user\) was edited, at byte 0 of its content/)
  await expect(explainReport({ url, session: 'none' })).rejects.toThrow(/404 no turns of a session 'none'/)
  await expect(explainReport({ url: 'http://127.0.0.1:1' })).rejects.toThrow(/cannot be asked/)
})

describe('side questions as requests of their own', () => {
  const history = [user(text('long', 200)), assistant(text('answer')), user(text('next'))]
  const words = user('Please generate a four to five word title summarizing our conversation, nothing else.')

  test('behind the chat: the prefix is reused, and a quick task would have paid for the words alone', async () => {
    const program = await open()
    await ask(program, history, { session: 's' })
    const side = await ask(program, [...history, assistant('fine'), words], { session: 's' })
    expect(side.usage.prompt_tokens_details.cached_tokens).toBeGreaterThan(400)
    const { body } = await get(program, '/v1/sessions/s/turns')
    const [main, title] = body.data
    expect(main).not.toHaveProperty('quick_tokens')
    expect(title.class).toBe('auxiliary')
    expect(title.quick_tokens).toBeGreaterThan(10)
    expect(title.quick_tokens).toBeLessThanOrEqual(title.cache.computed)
    expect(body.side).toEqual({
      requests: 1,
      prompt_tokens: title.prompt_tokens,
      computed_tokens: title.cache.computed,
      quick_tokens: title.quick_tokens,
      sentence: expect.stringMatching(/^1 side request \(a title, tags, suggestions\) computed \d+ tokens/),
    })
  })

  test('in front of it: nothing is reused, and the report says what quick tasks would save', async () => {
    const program = await open()
    await ask(program, history, { session: 's' })
    for (const task of ['Generate 1-3 broad tags', 'Suggest 3-5 relevant follow-up questions']) {
      await ask(program, [user(`### Task:\n${task} ...\n<chat_history>\n${text('long', 200)}</chat_history>`)], {
        session: 's',
      })
    }
    // A client that names no session: each is a session of its own.
    await ask(program, [
      user(`### Task:\nGenerate a concise title\n<chat_history>\n${text('other', 200)}</chat_history>`),
    ])
    const { body } = await get(program, '/v1/sessions/s/turns')
    const { requests, computed_tokens: computed, quick_tokens: quick, sentence } = body.side
    expect([requests, quick]).toEqual([2, 48])
    expect(computed).toBeGreaterThan(400)
    expect(sentence).toBe(
      `2 side requests (titles, tags, suggestions) computed ${computed} tokens; as quick tasks on the prefix that is there they would have computed about 48 (docs/quick.md)`,
    )
    const url = await program.start()
    expect(await explainReport({ url, session: 's' })).toContain(`! ${sentence}\n`)
    expect(await explainReport({ url, session: 's', turn: 2 })).toContain(
      'as a quick task it would have computed about 24',
    )
    expect(await explainReport({ url })).toMatch(/\n! 3 side requests .* about 72 \(docs\/quick\.md\)\n$/)
  })

  test('what is asked as a quick task already is none', async () => {
    const program = await open()
    await ask(program, history, { session: 's' })
    const headers = { 'x-refrain-session': 's' }
    const reply = await post(program, '/v1/quick', { messages: history, tasks: [{ task: 'title' }] }, headers)
    expect(reply.status).toBe(200)
    const { body } = await get(program, '/v1/sessions/s/turns')
    expect(body.data).toHaveLength(2)
    expect(body).not.toHaveProperty('side')
  })
})
