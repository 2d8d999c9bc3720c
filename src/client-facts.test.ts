// What recordings and reports of real agent clients taught, a test each, through the whole server: what changes without
// meaning anything, whose a request is, what side requests may cost, and what errors must look like for clients to come back.

import { afterEach, describe, expect, test, vi } from 'vitest'
import * as dialects from './api/dialect/index.js'
import type { Program } from './compose.js'
import type { Job } from './core/request.js'
import { type RequestSettled, requestSettled } from './core/signals.js'
import { payloadsOf, post, scriptedProgram } from './testing/scripted-program.js'

const programs: Program[] = []
const stops: (() => void)[] = []
afterEach(async () => {
  for (const stop of stops.splice(0)) stop()
  for (const program of programs.splice(0)) await program.stop(0)
})

const CHATML = { template: 'chatml', toolCalls: 'hermes', reasoning: 'think' }

async function open(options: Record<string, unknown> = {}, flags: Record<string, unknown> = {}) {
  const jobs: Job[] = []
  const settled: RequestSettled[] = []
  const script = (job: Job) => {
    jobs.push(job)
    return 'Well.'
  }
  const all = {
    'backend.options': { ...CHATML, ...options },
    'model.aliases': { '*': 'smollm2-135m-instruct' },
    ...flags,
  }
  const program = await scriptedProgram(all, { script })
  programs.push(program)
  stops.push(requestSettled.subscribe((each) => settled.push(each)))
  const ask = async (path: string, body: unknown, headers: Record<string, string> = {}) => {
    const reply = await post(program, path, body, headers)
    expect([reply.status, reply.text.slice(0, 200)]).toEqual([200, expect.anything()])
    const { working, memory, disk } = settled.at(-1) as RequestSettled
    return { reply, job: jobs.at(-1) as Job, hits: working + memory + disk, session: settled.at(-1)?.session }
  }
  return { program, jobs, settled, ask }
}

const CHAT = '/v1/chat/completions'
const RESPONSES = '/v1/responses'
const MESSAGES = '/v1/messages'
const long = (name: string, chars = 3000) => `${name} `.repeat(Math.ceil(chars / (name.length + 1)))

const served = new Set<string>(Object.values(dialects).map(({ path }) => path))
/** The smallest body of each API that agents speak. */
const BODIES: readonly (readonly [string, (text: string) => Record<string, unknown>])[] = [
  [CHAT, (text: string) => ({ model: 'm', messages: [{ role: 'user', content: text }] })],
  [RESPONSES, (text: string) => ({ model: 'm', input: [{ role: 'user', content: text }] })],
  [MESSAGES, (text: string) => ({ model: 'm', max_tokens: 900, messages: [{ role: 'user', content: text }] })],
].filter(([path]) => served.has(path as string)) as never

const functionTool = (name: string) => ({
  type: 'function',
  function: { name, description: long(name, 300), parameters: { type: 'object', properties: {} } },
})

describe('what changes and means nothing', () => {
  const item = (id: string, role: string, text: string) => ({
    ...{ type: 'message', id, role },
    content: [{ type: 'input_text', text }],
  })
  const codex = (turn: string, metadata: object, order: 'first' | 'last') => {
    const tools = [
      { type: 'function', name: 'shell', description: 'Runs.', strict: false, parameters: { type: 'object' } },
    ]
    const input = [item(`msg_${turn}1`, 'developer', long('rules')), item(`msg_${turn}2`, 'user', 'Hello')]
    const rest = { model: 'm', store: false, prompt_cache_key: 'key', client_metadata: metadata }
    return order === 'first' ? { tools, input, ...rest } : { ...rest, input, tools }
  }

  test.skipIf(!served.has(RESPONSES))('Codex: order of metadata and of the body, ids of items', async () => {
    const { ask } = await open()
    const first = await ask(RESPONSES, codex('a', { session_id: 's', turn_id: '1' }, 'first'))
    const second = await ask(RESPONSES, codex('b', { turn_id: '2', session_id: 's' }, 'last'))
    expect(second.job.tokens).toEqual(first.job.tokens)
    expect(second.hits).toBe(Math.floor((first.job.tokens.length - 1) / 64) * 64)
    expect([first.session, second.session]).toEqual(['s', 's'])
  })

  test('marks of cache_control that move on', async () => {
    const { ask } = await open()
    const mark = { cache_control: { type: 'ephemeral' } }
    const part = (text: string, marked: boolean) => [{ type: 'text', text, ...(marked ? mark : {}) }]
    const body = (at: number) => ({
      messages: [
        { role: 'system', content: part(long('rules'), at === 0) },
        { role: 'user', content: part('Hello', at === 1) },
        { role: 'user', content: part('Go on', at === 2) },
      ],
    })
    const tokens = []
    for (const at of [0, 1, 2, 3]) tokens.push((await ask(CHAT, body(at))).job.tokens)
    for (const each of tokens) expect(each).toEqual(tokens[0])
  })

  test.each(BODIES.map(([path]) => path))('%s: a billing header that is another one every time', async (path) => {
    const { ask } = await open()
    const text = (cch: string) => `x-anthropic-billing-header: cc_version=2.1; cch=${cch};`
    const of = (cch: string): Record<string, unknown> => {
      const user = { role: 'user', content: 'Hello' }
      if (path === MESSAGES) {
        const system = [
          { type: 'text', text: text(cch) },
          { type: 'text', text: long('rules') },
        ]
        return { model: 'm', max_tokens: 9, system, messages: [user] }
      }
      const system = { role: 'system', content: `${text(cch)}\n${long('rules')}` }
      return path === CHAT ? { messages: [system, user] } : { input: [system, user] }
    }
    const [first, second] = [await ask(path, of('36ee5')), await ask(path, of('0aaa9'))]
    expect(second.job.tokens).toEqual(first.job.tokens)
    expect(second.hits).toBeGreaterThan(900)
  })

  test('x-client-request-id, which is a thread: answers have ids of their own, and it is no session', async () => {
    const { ask } = await open()
    const headers = { 'x-client-request-id': 'thread' }
    const replies = [await ask(CHAT, BODIES[0]?.[1]('Hi'), headers), await ask(CHAT, BODIES[0]?.[1]('Hi'), headers)]
    const ids = replies.map(({ reply }) => reply.json().id as string)
    expect(new Set(ids).size).toBe(2)
    expect(ids.join()).not.toContain('thread')
    expect(replies.map(({ session }) => session)).toEqual([undefined, undefined])
  })
})

describe('whose a request is', () => {
  const rules = { role: 'system', content: long('rules') }

  test('a client without any signal is known by content', async () => {
    const { ask } = await open()
    const messages = [rules, { role: 'user', content: 'Hello' }]
    const first = await ask(CHAT, { messages })
    const more = [...messages, { role: 'assistant', content: 'Well.' }, { role: 'user', content: 'Go on' }]
    const second = await ask(CHAT, { messages: more })
    expect([first.session, second.session]).toEqual([undefined, undefined])
    expect(second.hits).toBeGreaterThanOrEqual(Math.floor((first.job.tokens.length - 16) / 64) * 64)
  })

  test('a sub-agent has a session of its own, a parent, and all of the parent’s prefix', async () => {
    const { ask } = await open()
    const tools = [functionTool('read'), functionTool('task')]
    await ask(CHAT, { tools, messages: [rules, { role: 'user', content: 'Hello' }] }, { 'x-session-id': 'main' })
    const child = { 'x-session-id': 'child', 'x-parent-session-id': 'main' }
    const same = await ask(CHAT, { tools, messages: [rules, { role: 'user', content: 'Look' }] }, child)
    expect(same.job.request).toMatchObject({ session: 'child', parentSession: 'main', requestClass: 'subagent' })
    expect(same.job.request.priority).toBe('interactive')
    expect(same.job.transient).toBeUndefined()
    expect(same.hits).toBeGreaterThan(1000)
    // One tool less: what stands in front of the tools is still the same.
    const fewer = await ask(
      CHAT,
      { tools: tools.slice(0, 1), messages: [rules, { role: 'user', content: 'Look' }] },
      child,
    )
    expect(fewer.hits).toBeGreaterThan(1000)
  })

  test('a session that crosses midnight keeps its template’s date', async () => {
    const template =
      "{{ strftime_now('%d %B %Y') }}\n{% for m in messages %}{{ m.role }}: {{ m.content }}<end>\n{% endfor %}assistant: "
    const { ask } = await open({ template, toolCalls: 'none', reasoning: 'none' })
    const messages = [rules, { role: 'user', content: 'Hello' }, { role: 'assistant', content: 'Well.' }, rules]
    const session = { 'x-session-id': 's' }
    vi.useFakeTimers({ toFake: ['Date'] })
    try {
      vi.setSystemTime('2026-11-30T23:59:00')
      const before = await ask(CHAT, { messages }, session)
      vi.setSystemTime('2026-12-01T00:01:00')
      const after = await ask(CHAT, { messages }, session)
      const fresh = await ask(CHAT, { messages }, { 'x-session-id': 'new' })
      expect(after.job.tokens).toEqual(before.job.tokens)
      expect(after.hits).toBeGreaterThan(900)
      expect(fresh.job.tokens).not.toEqual(before.job.tokens)
    } finally {
      vi.useRealTimers()
    }
  })

  test('keys of two tenants are two sessions', async () => {
    const tenants = ['a', 'b'].map((name) => ({ name, key: `key-of-${name}`, admin: false }))
    const { ask } = await open({}, { tenants })
    const body = { messages: [rules, { role: 'user', content: 'Hello' }] }
    await ask(CHAT, body, { authorization: 'Bearer key-of-a', 'x-session-id': 's' })
    const other = await ask(CHAT, body, { authorization: 'Bearer key-of-b', 'x-session-id': 's' })
    expect(other.hits).toBe(0)
  })
})

describe('side requests', () => {
  const session = { 'x-session-id': 'ses', 'x-session-affinity': 'ses' }
  const history = (turns: number) => [
    { role: 'system', content: long('rules') },
    ...Array.from({ length: turns }, (_, i) => ({
      role: i % 2 === 0 ? 'user' : 'assistant',
      content: long(`turn${i}`, 400),
    })),
  ]
  const title = {
    reasoning_effort: 'low',
    messages: [
      { role: 'system', content: long('You are a title generator.', 6000) },
      { role: 'user', content: 'Generate a title for this conversation:\n' },
      { role: 'user', content: 'Hello' },
    ],
  }

  test('a title under the session’s own id takes nothing from it', async () => {
    // Room for the session, and for little else.
    const { ask } = await open({ cacheBlocks: 30 })
    await ask(CHAT, { tools: [functionTool('read')], messages: history(3) }, session)
    const asked = await ask(CHAT, title, session)
    expect(asked.job.request).toMatchObject({ session: 'ses', requestClass: 'auxiliary', priority: 'auxiliary' })
    expect(asked.job.transient).toBe(true)
    const next = await ask(CHAT, { tools: [functionTool('read')], messages: history(5) }, session)
    expect(next.hits).toBeGreaterThanOrEqual(1400)
  })

  test('a summary uses what the session has, and keeps nothing', async () => {
    const { ask, program } = await open({ cacheBlocks: 60 })
    const tools = [functionTool('read')]
    const main = await ask(CHAT, { tools, messages: history(5) }, session)
    const summary = [...history(5), { role: 'user', content: `Now give a <state_snapshot>. ${long('please', 9000)}` }]
    const asked = await ask(CHAT, { tools, messages: summary }, session)
    expect(asked.job.request.requestClass).toBe('compaction')
    expect(asked.hits).toBeGreaterThanOrEqual(Math.floor((main.job.tokens.length - 16) / 64) * 64)
    await ask(CHAT, { messages: [{ role: 'user', content: long('other', 3000) }] }, { 'x-session-id': 'other' })
    const again = await ask(CHAT, { tools, messages: history(5) }, session)
    expect(again.hits).toBe(Math.floor((main.job.tokens.length - 1) / 64) * 64)
    expect(program.model).toBeDefined()
  })

  test('a summary that is sent without the tools is shown the session’s, which it cannot call', async () => {
    const { ask } = await open()
    const main = await ask(CHAT, { tools: [functionTool('read')], messages: history(5) }, session)
    const summary = [...history(5), { role: 'user', content: 'Now give a <state_snapshot>.' }]
    const asked = await ask(CHAT, { tools: [], messages: summary }, session)
    expect(asked.hits).toBeGreaterThanOrEqual(Math.floor((main.job.tokens.length - 16) / 64) * 64)
    expect(JSON.stringify(asked.job.constraint)).toContain('{"kind":"free","without":["<tool_call>"]}')
    // Another conversation's summary has nothing of it.
    const elsewhere = await ask(CHAT, { tools: [], messages: summary }, { 'x-session-id': 'elsewhere' })
    expect(elsewhere.job.tokens.length).toBeLessThan(asked.job.tokens.length)
  })

  test('a context that was rewritten leaves its old branch behind', async () => {
    const { ask } = await open()
    const old = await ask(CHAT, { messages: history(7) }, { 'x-claude-code-session-id': 's' })
    const messages = [...history(0), { role: 'user', content: 'The summary.' }]
    const headers = { 'x-claude-code-session-id': 's', 'x-claude-code-context-compacted': '1' }
    const { job } = await ask(CHAT, { messages }, headers)
    const shared = old.job.chain.hashes.filter((hash, i) => hash === job.chain.hashes[i]).length
    expect(job.deadBranch).toEqual(old.job.chain.hashes.slice(shared))
    expect(job.deadBranch?.length).toBeGreaterThan(5)
  })

  test('a class that a client names goes before the shape, a priority that it names before the class', async () => {
    const { ask } = await open()
    const main = await ask(CHAT, title, { 'x-refrain-request-class': 'main' })
    expect([main.job.transient, main.job.request.priority]).toEqual([undefined, 'interactive'])
    const urgent = await ask(CHAT, title, { 'x-refrain-priority': 'interactive' })
    expect([urgent.job.transient, urgent.job.request.priority]).toEqual([true, 'interactive'])
  })

  test('warming is no side request, whatever it warms', async () => {
    const tenants = [{ name: 'a', key: 'key-of-a', admin: true }]
    const { ask } = await open({}, { tenants })
    const { job } = await ask('/v1/cache/warm', title, { authorization: 'Bearer key-of-a' })
    expect(job.transient).toBeUndefined()
  })
})

describe('errors that clients live by', () => {
  const slow = { maxRunning: 1, decodeTokensPerSecond: 50 }

  test.each(BODIES)('%s: 429 and 503 say when to come again', async (path, body) => {
    for (const [flags, status] of [
      [{ 'limits.queuedRequests': 0 }, 429],
      [{ 'limits.queueMs': 20 }, 503],
    ] as const) {
      const { program } = await open(slow, flags)
      const running = post(program, CHAT, {
        messages: [{ role: 'user', content: 'Hi' }],
        ignore_eos: true,
        max_tokens: 25,
      })
      await new Promise((resolve) => setTimeout(resolve, 30))
      const reply = await post(program, path, body('Hi'))
      expect([reply.status, reply.headers['retry-after'], reply.headers['x-should-retry']]).toEqual([
        status,
        expect.stringMatching(/^[1-9]\d*$/),
        'true',
      ])
      await running
    }
  })

  test.each(BODIES)('%s: a context overflow uses the words that clients compact at', async (path, body) => {
    const { program } = await open({}, { 'model.contextLength': 500 })
    const reply = await post(program, path, body(long('much', 5000)))
    expect(reply.status).toBe(400)
    expect(reply.text).toMatch(/maximum context length is 500 tokens/)
    expect(reply.headers['x-should-retry']).toBe('false')
  })

  test.each(BODIES)('%s: a broken stream has an error in it and no clean end', async (path, body) => {
    const { program } = await open({ decodeTokensPerSecond: 20 })
    const url = await program.start()
    const response = await fetch(url + path, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ ...body('Hi'), stream: true, ignore_eos: true }),
    })
    const reader = (response.body as ReadableStream<Uint8Array>).getReader()
    let text = Buffer.from((await reader.read()).value ?? []).toString()
    expect(response.status).toBe(200)
    const stopped = program.stop(0)
    try {
      for (;;) {
        const { done, value } = await reader.read()
        if (done) break
        text += Buffer.from(value).toString()
      }
    } catch {
      // The connection was cut: that is no clean end either.
      text += '\n(cut)'
    }
    await stopped
    programs.pop()
    expect(text).toMatch(/"error"|\(cut\)/)
    expect(text).not.toMatch(/\[DONE\]|"finish_reason":"|response\.completed|message_stop/)
  })

  test('a whole chat stream ends in a finish reason, one chunk of usage and [DONE]', async () => {
    const { program } = await open()
    const body = { messages: [{ role: 'user', content: 'Hi' }], stream: true, stream_options: { include_usage: true } }
    const chunks = payloadsOf((await post(program, CHAT, body)).text)
    expect(chunks.at(-1)).toBe('[DONE]')
    expect(chunks.at(-2)).toMatchObject({ choices: [], usage: { prompt_tokens: expect.any(Number) } })
    expect(chunks.filter((chunk) => chunk?.choices?.[0]?.finish_reason).length).toBe(1)
    expect(chunks.filter((chunk) => chunk?.usage).length).toBe(1)
  })
})
