// The life of logged sessions: contexts that are shortened, begun anew, brought up again, purged of a source, erased; after a
// restart every turn is what it was. On the scripted backend, summaries by script.

import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { createScriptedTokenizer } from './backend/scripted-tokenizer.js'
import type { Program } from './compose.js'
import { RefrainError } from './core/errors.js'
import type { Job } from './core/request.js'
import { SECTIONS } from './session/compaction/check.js'
import { type LogHouse, openLogHouse } from './testing/log-house.js'
import { post, scriptedProgram } from './testing/scripted-program.js'

const programs: Program[] = []
let logs: LogHouse
let folder: string
beforeAll(async () => {
  logs = await openLogHouse()
  folder = await mkdtemp(join(tmpdir(), 'refrain-life-'))
})
afterEach(async () => {
  for (const program of programs.splice(0)) await program.stop(0)
})
afterAll(async () => {
  logs.close()
  await rm(folder, { recursive: true, force: true })
})

const tokenizer = createScriptedTokenizer({ end: '<|im_end|>', specials: ['<|im_start|>'] })
const promptOf = (job: Job) => tokenizer.decode(job.tokens, { special: 'keep' })
const SUMMARY = SECTIONS.map((section) => `## ${section}\nnone`).join('\n')
const TOOLS = [
  {
    type: 'function',
    function: { name: 'look', parameters: { type: 'object', properties: { at: { type: 'string' } } } },
  },
]
const user = (content: string) => ({ role: 'user', content })
const call = (at: string) => `<tool_call>\n{"name": "look", "arguments": {"at": "${at}"}}\n</tool_call>`
const LETTERS = 'abcdefghijklmnopqrstuvwxyz'
/** Plain words, none of which looks like a name that a summary must have. */
const words = (seed: string, count: number) =>
  Array.from({ length: count }, (_, i) => `${seed}${LETTERS[i % 26]}${LETTERS[Math.floor(i / 26) % 26]}`).join(' ')

async function house(
  script: (job: Job) => string,
  flags: Record<string, unknown> = {},
  store: 'sqlite' | 'memory' = 'memory',
) {
  const seen: { session: string | undefined; kind: string; prompt: string; dead: number }[] = []
  const program = await scriptedProgram(
    {
      'backend.options': { template: 'chatml', toolCalls: 'hermes', reasoning: 'think' },
      'sessions.log.store': store,
      dataDir: folder,
      ...flags,
    },
    {
      logWorker: logs.workerUrl,
      script: (job) => {
        const { session, requestClass: kind = 'main' } = job.request
        seen.push({ session, kind, prompt: promptOf(job), dead: job.deadBranch?.length ?? 0 })
        return kind === 'compaction' ? SUMMARY : script(job)
      },
    },
  )
  programs.push(program)
  const ask = async (method: 'GET' | 'POST' | 'PUT' | 'DELETE', url: string, body?: object) => {
    const reply = await program.server.app.inject({
      method,
      url,
      ...(body && { headers: { 'content-type': 'application/json' }, payload: JSON.stringify(body) }),
    })
    return { status: reply.statusCode, json: JSON.parse(reply.body) }
  }
  const create = async (body: object = {}) => (await ask('POST', '/v1/sessions', body)).json.id as string
  const chat = (session: string, messages: object[], more: object = {}) =>
    post(program, '/v1/chat/completions', { session, messages, temperature: 0, ...more })
  const events = async (id: string) => (await ask('GET', `/v1/sessions/${id}/events?limit=1000`)).json.data
  const replay = async (id: string) => {
    const { turns } = (await ask('GET', `/v1/sessions/${id}`)).json
    const views = []
    for (let turn = 1; turn <= turns; turn++)
      views.push((await ask('GET', `/v1/sessions/${id}/context?at=${turn}`)).json)
    return views as { matches: boolean; prompt: string }[]
  }
  return { program, ask, create, chat, events, replay, seen }
}

type House = Awaited<ReturnType<typeof house>>

/** One turn with a call and its result, and the answer. */
async function step({ chat }: House, id: string, what: string) {
  const [made] = (await chat(id, [user(`Step ${what}`)])).json().choices[0].message.tool_calls
  return chat(id, [{ role: 'tool', tool_call_id: made.id, content: words(what, 150) }])
}

const stepping = (job: Job) =>
  promptOf(job).trimEnd().endsWith('</tool_response><|im_end|>\n<|im_start|>assistant')
    ? `Seen. ${words('said', 80)}`
    : call('x')

describe('a context that is shortened', () => {
  test('by the API: a summary of the model’s own on the warm prefix, one event, a new series; turns before replay as they were', async () => {
    const own = await house(stepping)
    const id = await own.create({ system: words('sys', 100), tools: TOOLS })
    for (const each of ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h']) expect((await step(own, id, each)).status).toBe(200)
    const before = (await own.ask('GET', `/v1/sessions/${id}/context`)).json
    const { status, json } = await own.ask('POST', `/v1/sessions/${id}/compact`, {})
    expect([status, json.steps]).toEqual([200, ['summary']])
    expect(json.chars_after).toBeLessThan(json.chars_before)
    const { prompt, kind } = own.seen.at(-1) ?? {}
    expect(kind).toBe('compaction')
    expect(prompt?.startsWith(before.prompt.slice(0, 2000))).toBe(true)
    const after = (await own.ask('GET', `/v1/sessions/${id}/context`)).json
    expect(after.series).toBe(before.series + 1)
    expect(after.prompt.length).toBeLessThan(before.prompt.length)
    const again = await own.ask('POST', `/v1/sessions/${id}/compact`, {})
    expect([again.status, again.json.error.code]).toEqual([422, 'compaction_rejected'])
    own.seen.length = 0
    expect((await step(own, id, 'i')).status).toBe(200)
    // What the old series left is the first to go.
    expect(own.seen.map(({ dead }) => dead > 0)).toEqual([true, false])
    expect((await own.replay(id)).every(({ matches }) => matches)).toBe(true)
    expect((await own.ask('POST', `/v1/sessions/${id}/compact`, { strategy: 'magic' })).json.error.param).toBe(
      'strategy',
    )
    const turns = (await own.ask('GET', `/v1/sessions/${id}/turns`)).json.data
    const reasons = turns.map(({ miss }: { miss: { reason: string } | null }) => miss?.reason)
    expect(reasons.at(-2)).toBe('compaction')
  })

  test('under pressure, by the backend’s own count, before the next turn', async () => {
    const own = await house(stepping, {
      'model.contextLength': 4000,
      'sessions.lifecycle': {
        summary: { maxTokens: 300 },
        headroom: { resultTokens: 100, outputTokens: 100 },
        keep: 4,
      },
    })
    const id = await own.create({ tools: TOOLS })
    for (let i = 0; i < 12; i++) expect((await step(own, id, `p${LETTERS[i]}`)).status).toBe(200)
    const compactions = (await own.events(id)).filter(({ type }: { type: string }) => type === 'compaction')
    expect(compactions.length).toBeGreaterThan(0)
    expect(compactions[0]).toMatchObject({ trigger: 'pressure' })
    expect((await own.replay(id)).every(({ matches }) => matches)).toBe(true)
  })

  test('when the backend says that it does not fit: once more, and the try that failed is in the log', async () => {
    let refusals = 1
    const own = await house(
      (job) => {
        if (promptOf(job).includes('Last words') && refusals-- > 0)
          throw new RefrainError('context_length_exceeded', 'too long for this backend')
        return stepping(job)
      },
      { 'sessions.lifecycle': { summary: { maxTokens: 300 } } },
    )
    const id = await own.create({ tools: TOOLS })
    for (const each of ['a', 'b', 'c', 'd', 'e', 'f']) await step(own, id, each)
    expect((await own.chat(id, [user('Last words')])).status).toBe(200)
    const log = (await own.events(id)) as { type: string }[]
    const [compaction, attempt, turn] = log.slice(log.findIndex(({ type }) => type === 'compaction'))
    expect(compaction).toMatchObject({ trigger: 'overflow' })
    expect(attempt).toMatchObject({ type: 'attempt', outcome: 'retried' })
    expect(turn).toMatchObject({ type: 'turn' })
    expect((await own.replay(id)).every(({ matches }) => matches)).toBe(true)
  })

  test('and where it cannot be shortened, the backend’s own word stands', async () => {
    const own = await house(() => {
      throw new RefrainError('context_length_exceeded', 'too long for this backend')
    })
    const id = await own.create()
    const { error } = (await own.chat(id, [user('Hi')])).json()
    expect(error).toMatchObject({
      code: 'context_length_exceeded',
      message: expect.stringMatching(/^too long for this backend .*reset/),
    })
    expect((await own.events(id)).at(-1)).toMatchObject({ type: 'attempt', outcome: 'failed' })
  })

  test('by the model’s own call, once all of its batch have results', async () => {
    const asked = `<tool_call>\n{"name": "compact", "arguments": {}}\n</tool_call>`
    const own = await house((job) =>
      promptOf(job).includes('Shorten now') && !promptOf(job).includes('will be shortened') ? asked : stepping(job),
    )
    const id = await own.create({ tools: TOOLS, built_in_tools: ['read_result', 'compact'] })
    for (const each of ['a', 'b', 'c', 'd', 'e', 'f']) await step(own, id, each)
    expect((await own.chat(id, [user('Shorten now')])).status).toBe(200)
    const log = await own.events(id)
    expect(log.filter(({ type }: { type: string }) => type === 'compaction')).toMatchObject([{ trigger: 'tool' }])
  })
})

describe('a session that goes on', () => {
  test('is begun anew with its memory and what is named', async () => {
    const own = await house(stepping, {
      'sessions.lifecycle': { results: { batchChars: 500, singleChars: 100, previewChars: 20 } },
    })
    const id = await own.create({
      system: 'Sys.',
      tools: TOOLS,
      events: [{ type: 'memory', label: 'plan', value: 'Plant the tree.' }],
    })
    await step(own, id, 'a')
    const stub = (await own.events(id)).find(({ spilled }: { spilled?: object }) => spilled)
    const { locator } = stub.spilled
    const { status, json } = await own.ask('POST', `/v1/sessions/${id}/reset`, { artifacts: [locator] })
    expect([status, json.type]).toEqual([200, 'reset'])
    const { prompt } = (await own.ask('GET', `/v1/sessions/${id}/context`)).json
    for (const text of ['Sys.', 'Plant the tree.', locator]) expect(prompt).toContain(text)
    expect(prompt).not.toContain('Step a')
    const wrong = await own.ask('POST', `/v1/sessions/${id}/reset`, { artifacts: ['none'] })
    expect(wrong.json.error.param).toBe('artifacts[0]')
    expect((await step(own, id, 'b')).status).toBe(200)
    expect((await own.replay(id)).every(({ matches }) => matches)).toBe(true)
  })

  test('has its blocks brought up', async () => {
    const own = await house(stepping)
    const id = await own.create({ system: words('sys', 200) })
    const first = (await own.ask('POST', `/v1/sessions/${id}/resume`)).json
    expect(first.prompt_tokens).toBeGreaterThan(300)
    expect(first.computed_tokens).toBe(first.prompt_tokens)
    const second = (await own.ask('POST', `/v1/sessions/${id}/resume`)).json
    expect(second.computed_tokens).toBeLessThan(64 + 1)
    expect((await own.events(id)).map(({ type }: { type: string }) => type)).toEqual(['head'])
  })

  test('answers quick questions about itself, and logs none of them', async () => {
    const own = await house(() => 'Yes.')
    const id = await own.create({ system: 'Sys.' })
    await own.chat(id, [user('Tell me of trees')])
    const before = (await own.events(id)).length
    const { status, json } = await own.ask('POST', '/v1/quick', { session: id, tasks: [{ task: 'title' }] })
    expect([status, json.results.length]).toEqual([200, 1])
    expect(json.usage.prompt_tokens).toBeGreaterThan(20)
    expect((await own.events(id)).length).toBe(before)
  })
})

describe('a source that is revoked', () => {
  test('takes what rests on it out of every session, and says where to roll back to', async () => {
    const own = await house(stepping)
    const id = await own.create({ tools: TOOLS })
    await step(own, id, 'clean')
    await own.ask('POST', `/v1/sessions/${id}/layers`, { id: 'l1' })
    await own.ask('POST', `/v1/sessions/${id}/layers`, { id: 'l2', parent: 'l1', sources: ['web'] })
    const [made] = (await own.chat(id, [user('Read it')])).json().choices[0].message.tool_calls
    const read = { type: 'tool_result', call_id: made.id, content: 'SECRET of the web', layer: 'l2' }
    await own.ask('POST', `/v1/sessions/${id}/events`, { events: [read] })
    await own.chat(id, [])
    const seen = async () => (await own.ask('GET', `/v1/sessions/${id}/context`)).json
    expect((await seen()).prompt).toContain('SECRET')
    expect((await seen()).sources).toContain('web')
    const { json } = await own.ask('PUT', '/v1/sources/web', { state: 'revoked' })
    expect(json).toMatchObject({ id: 'web', state: 'revoked', sessions: [{ session: id, clean_layer: 'l1' }] })
    const after = await seen()
    expect(after.prompt).not.toContain('SECRET')
    expect(after.withheld.length).toBeGreaterThan(0)
    own.seen.length = 0
    expect((await own.chat(id, [user('Go on')])).status).toBe(200)
    expect(own.seen.at(-1)?.prompt).not.toContain('SECRET')
    expect((await own.replay(id)).every(({ matches }) => matches)).toBe(true)
    expect((await own.ask('GET', '/v1/sources/web')).json.state).toBe('revoked')
    expect((await own.ask('GET', '/v1/sources/other')).status).toBe(404)
    const log = await own.events(id)
    expect(log.filter(({ type }: { type: string }) => type === 'revocation')).toHaveLength(1)
    const turns = log.filter(({ type }: { type: string }) => type === 'turn')
    expect(turns.at(-1).verdicts).toMatchObject({ web: 'revoked' })
  })
})

describe('a policy URL', () => {
  test('is asked before each compile; what it revokes is dropped and erased', async () => {
    let revoked: string[] = []
    const policy = createServer((request, response) => {
      request.resume()
      request.on('end', () => response.end(JSON.stringify({ granted: [], revoked })))
    })
    await new Promise<void>((resolve) => policy.listen(0, '127.0.0.1', resolve))
    const { port } = policy.address() as { port: number }
    try {
      const own = await house(stepping, {
        'sessions.sources': {
          policyUrl: `http://127.0.0.1:${port}/`,
          policyTtlMs: 0,
          policyMs: 60_000,
          unknown: 'granted',
        },
      })
      const id = await own.create({ tools: TOOLS })
      await step(own, id, 'clean')
      const event = { type: 'user', content: 'SECRET of the web', sources: ['web'] }
      await own.ask('POST', `/v1/sessions/${id}/events`, { events: [event] })
      await own.chat(id, [])
      expect(own.seen.at(-1)?.prompt).toContain('SECRET')
      revoked = ['web']
      await own.chat(id, [user('Go on')])
      expect(own.seen.at(-1)?.prompt).not.toContain('SECRET')
      await own.chat(id, [user('And on')])
      const log = (await own.events(id)) as { type: string; sources: string[] }[]
      expect(log.filter(({ type }) => type === 'revocation')).toHaveLength(1)
      expect((await own.replay(id)).every(({ matches }) => matches)).toBe(true)
    } finally {
      policy.close()
    }
  })
})

test('once what was cached has lapsed, what waited for a boundary takes effect', async () => {
  const own = await house(() => 'Yes.', { 'cache.idleMs': 1 })
  const id = await own.create({ events: [{ type: 'memory', label: 'plan', value: 'Plant a tree.' }] })
  await own.chat(id, [user('Hi')])
  const edit = { type: 'memory', label: 'plan', value: 'Water the tree.' }
  await own.ask('POST', `/v1/sessions/${id}/events`, { events: [edit] })
  await new Promise((resolve) => setTimeout(resolve, 20))
  await own.chat(id, [user('Again')])
  const log = (await own.events(id)) as { type: string }[]
  expect(log.filter(({ type }) => type === 'compaction')).toMatchObject([{ trigger: 'ttl', steps: [] }])
  const { messages, tail } = (await own.ask('GET', `/v1/sessions/${id}/context?at=2`)).json
  expect(messages[0].content).toContain('Water the tree.')
  expect(tail).toEqual([])
})

describe('with SQLite below it', () => {
  test('five turns with tools, eight forks, a compaction, a reset, a restart: every turn of every session is what it was; then nothing is left', async () => {
    const flags = { 'cache.memoryBytes': 0 }
    const own = await house(stepping, flags, 'sqlite')
    const id = await own.create({ system: 'Sys.', tools: TOOLS })
    for (const each of ['a', 'b', 'c', 'd', 'e']) await step(own, id, `MARKER${each}`)
    const forks = (await own.ask('POST', `/v1/sessions/${id}/fork`, { n: 8 })).json.data.map(
      (each: { id: string }) => each.id,
    )
    await step(own, forks[0], 'MARKERfork')
    await own.ask('POST', `/v1/sessions/${id}/compact`, {})
    await step(own, id, 'f')
    await own.ask('POST', `/v1/sessions/${id}/reset`, {})
    await step(own, id, 'g')
    const ids: string[] = [id, ...forks]
    const before = []
    for (const each of ids) before.push(await own.replay(each))
    expect(before.flat().every(({ matches }) => matches)).toBe(true)
    expect(before.flat().length).toBeGreaterThan(8 * 10)
    await own.program.stop(0)
    programs.length = 0

    const again = await house(stepping, flags, 'sqlite')
    for (const [i, each] of ids.entries()) expect(await again.replay(each)).toEqual(before[i])
    expect((await step(again, id, 'h')).status).toBe(200)
    for (const each of ids.toReversed()) expect((await again.ask('DELETE', `/v1/sessions/${each}`)).status).toBe(200)
    await again.program.stop(0)
    programs.length = 0
    const files = (await readdir(folder, { recursive: true, withFileTypes: true })).filter((each) => each.isFile())
    expect(files.length).toBeGreaterThan(0)
    for (const file of files) {
      const bytes = await readFile(join(file.parentPath, file.name))
      for (const text of ['MARKER', 'Step a', 'Sys.'])
        expect([file.name, bytes.includes(text)]).toEqual([file.name, false])
    }
  })
})
