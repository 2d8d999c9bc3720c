// The client against a server that listens: sessions, turns whole and in pieces, what is made of them, and what it is told
// when it asks for what cannot be.

import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import type { Program } from '../compose.js'
import type { Job } from '../core/request.js'
import { SECTIONS } from '../session/compaction/check.js'
import { scriptedProgram } from '../testing/scripted-program.js'
import { type Delta, Refrain, type RefrainError, type Session, type ToolDefinition } from './index.js'

const TOOLS: ToolDefinition[] = [
  {
    type: 'function',
    function: { name: 'look', parameters: { type: 'object', properties: { at: { type: 'string' } } } },
  },
]
const call = (at: string) => `<tool_call>\n{"name": "look", "arguments": {"at": "${at}"}}\n</tool_call>`
const SUMMARY = SECTIONS.map((section) => `## ${section}\nnone`).join('\n')

let program: Program
let url: string
let refrain: Refrain
let script: (string | ((job: Job) => string))[] = []

beforeAll(async () => {
  program = await scriptedProgram(
    {
      'backend.options': { template: 'chatml', toolCalls: 'hermes', reasoning: 'think' },
      'sessions.log.store': 'memory',
      'sessions.lifecycle': { results: { batchChars: 5000, singleChars: 2000, previewChars: 100 } },
      tenants: [
        { name: 'a', key: 'key-of-a-1' },
        { name: 'b', key: 'key-of-b-1' },
      ],
    },
    {
      script: (job) => {
        if (job.request.requestClass === 'compaction') return SUMMARY
        const next = script.shift() ?? 'Yes.'
        return typeof next === 'string' ? next : next(job)
      },
    },
  )
  url = await program.start()
  refrain = new Refrain({ baseUrl: `${url}/v1`, apiKey: 'key-of-a-1', retries: 0 })
})
afterAll(() => program.stop(0))
beforeEach(() => {
  script = []
})

async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const list: T[] = []
  for await (const item of items) list.push(item)
  return list
}
const typesOf = async (session: Session) => (await all(session.events())).map(({ type }) => type)
const failure = (of: Promise<unknown>) =>
  of.then(
    () => expect.unreachable('it was taken'),
    (error: unknown) => error as RefrainError,
  )

describe('a session', () => {
  test('is made, talked in, read, listed, erased', async () => {
    script = ['Hello.', `Let me look. ${call('tree')}`, 'It is green.']
    const session = await refrain.sessions.create({ system: 'Be brief.', tools: TOOLS, metadata: { of: 'a test' } })
    const hello = await session.chat('Hi')
    expect(hello).toMatchObject({ message: { role: 'assistant', content: 'Hello.' }, finish_reason: 'stop' })
    const looks = await session.chat('What is the tree like?')
    const [made] = looks.tool_calls
    expect(made?.function).toEqual({ name: 'look', arguments: '{"at": "tree"}' })
    const done = await session.chat([{ role: 'tool', tool_call_id: made?.id ?? '', content: 'green' }])
    expect(done.message.content).toBe('It is green.')
    expect(done.usage.prompt_tokens_details.cached_tokens).toBeGreaterThan(0)
    const state = await session.get()
    expect(state).toMatchObject({ id: session.id, turns: 3, busy: false, metadata: { of: 'a test' } })
    expect((await all(refrain.sessions.list())).map(({ id }) => id)).toContain(session.id)
    const seen = await session.context(2)
    expect(seen).toMatchObject({ turn: 2, matches: true })
    expect(seen.messages.at(-1)).toEqual({ role: 'user', content: 'What is the tree like?' })
    expect((await session.context()).messages.at(-1)?.content).toBe('It is green.')
    expect((await session.series()).map(({ turn }) => turn)).toEqual([1, 2, 3])
    await session.delete()
    expect((await failure(session.get())).code).toMatch(/^(erased|not_found)$/)
  })

  test('pages its events, whatever the page', async () => {
    const events = Array.from({ length: 25 }, (_, i) => ({ type: 'user', content: `${i} ü 😀` }) as const)
    const session = await refrain.sessions.create({ events })
    for (const page of [1, 7, 26, 1000]) {
      const read = await all(session.events({ page }))
      expect(read.map(({ position }) => position)).toEqual(Array.from({ length: 26 }, (_, i) => i + 1))
    }
    const [, , last] = await all(session.events({ from: 24 }))
    expect(last).toMatchObject({ type: 'user', content: '24 ü 😀' })
  })

  test('lists page by page, none twice', async () => {
    const ids = []
    for (let i = 0; i < 5; i++) ids.push((await refrain.sessions.create()).id)
    const listed = (await all(refrain.sessions.list({ page: 2 }))).map(({ id }) => id)
    expect(new Set(listed).size).toBe(listed.length)
    for (const id of ids) expect(listed).toContain(id)
  })

  test('forks n ways, forks of forks too, each on its own', async () => {
    script = ['One.', 'Left.', 'Right.', 'Deep.']
    const session = await refrain.sessions.create({ system: 'A system text. '.repeat(40) })
    await session.chat('a')
    const [left, right] = await session.fork({ n: 2 })
    await left?.chat('b')
    await right?.chat('c')
    const [deep] = (await left?.fork({ at: 3 })) ?? []
    await deep?.chat('d')
    const said = (await deep?.context())?.messages.map(({ content }) => content).slice(1)
    expect(said).toEqual(['a', 'd', 'Deep.'])
    for (const [each, turns] of [
      [left, 2],
      [right, 2],
      [deep, 1],
    ] as const) {
      for (let turn = 1; turn <= turns; turn++) expect((await each?.context(turn))?.matches).toBe(true)
    }
    const refused = await failure(session.delete())
    expect([refused.status, refused.code]).toEqual([409, 'conflict'])
    for (const each of [deep, left, right, session]) await each?.delete()
  })

  test('is shortened, begun anew, brought up, explained, asked on the side', async () => {
    const session = await refrain.sessions.create({ system: 'Sys.', tools: TOOLS })
    for (let i = 0; i < 6; i++) {
      script = [call('x'), `Seen. ${'words that matter little '.repeat(20)}`]
      const [made] = (await session.chat(`Step ${i}`)).tool_calls
      await session.chat([{ role: 'tool', tool_call_id: made?.id ?? '', content: 'green leaves '.repeat(60) }])
    }
    const shorter = await session.compact()
    expect(shorter.steps).toEqual(['summary'])
    expect(shorter.chars_after).toBeLessThan(shorter.chars_before)
    expect((await failure(session.compact())).code).toBe('compaction_rejected')
    expect((await failure(session.compact({ strategy: 'magic' }))).param).toBe('strategy')
    expect((await session.resume()).prompt_tokens).toBeGreaterThan(100)
    expect((await session.reset()).type).toBe('reset')
    expect((await session.context()).prompt).not.toContain('Step 0')
    const turns = await session.turns()
    expect(turns.length).toBeGreaterThanOrEqual(12)
    expect((await session.turn(2)).session).toBe(session.id)
    expect((await refrain.explain.turns(session.id)).length).toBe(turns.length)
    expect((await refrain.explain.turn(session.id, 1)).turn).toBe(1)
    expect((await refrain.explain.sessions()).map((each) => each.session)).toContain(session.id)
    const before = await typesOf(session)
    const { results } = await session.quick([
      { task: 'title' },
      { task: 'custom', instruction: 'Hurry?', choices: ['yes', 'no'] },
    ])
    expect(results.map(({ task }) => task)).toEqual(['title', 'custom'])
    expect(await typesOf(session)).toEqual(before)
  })

  test('stores results that are too long, reads them on, keeps named ones over a reset', async () => {
    script = [call('x'), 'Seen.']
    const session = await refrain.sessions.create({ tools: TOOLS })
    const [made] = (await session.chat('Look.')).tool_calls
    await session.chat([{ role: 'tool', tool_call_id: made?.id ?? '', content: '0123456789'.repeat(900) }])
    const stub = (await all(session.events())).find(({ spilled }) => spilled)
    const locator = stub?.spilled?.locator ?? ''
    expect(await session.result(locator, { offset: 8995, length: 50 })).toMatchObject({ content: '56789', chars: 9000 })
    expect((await failure(session.result('res_none'))).status).toBe(404)
    await session.reset({ artifacts: [locator] })
    expect((await session.context()).prompt).toContain(locator)
    expect((await failure(session.reset({ artifacts: ['none'] }))).param).toBe('artifacts[0]')
  })
})

describe('sources and memory', () => {
  test('layers rest on sources; what is revoked goes, and the last clean layer is named', async () => {
    const session = await refrain.sessions.create()
    await session.layer({ id: 'l1' })
    await session.layer({ id: 'l2', parent: 'l1', sources: ['web/1 ü'] })
    await session.append([
      { type: 'user', content: 'Read it.' },
      { type: 'tool_call', call_id: 'c', name: 'read' },
      { type: 'tool_result', call_id: 'c', content: 'SECRET', layer: 'l2' },
    ])
    expect((await session.context()).prompt).toContain('SECRET')
    expect((await refrain.sources.grant('web/1 ü')).state).toBe('granted')
    const { sessions } = await refrain.sources.revoke('web/1 ü')
    expect(sessions).toEqual([{ session: session.id, clean_layer: 'l1' }])
    expect((await session.context()).prompt).not.toContain('SECRET')
    expect((await refrain.sources.get('web/1 ü')).state).toBe('revoked')
  })

  test('blocks are shared', async () => {
    await refrain.memory.put({ id: 'team', label: 'team', value: 'We are three.', limit_tokens: 50 })
    expect(await refrain.memory.get('team')).toMatchObject({ value: 'We are three.' })
    expect((await refrain.memory.list()).map(({ id }) => id)).toContain('team')
    const event = { type: 'memory', label: 'team', value: 'We are three.', shared: 'team' } as const
    const session = await refrain.sessions.create({ events: [event] })
    expect((await session.context()).prompt).toContain('We are three.')
    const tooLong = refrain.memory.put({ id: 'team', label: 'team', value: 'x'.repeat(500), limit_tokens: 50 })
    expect((await failure(tooLong)).code).toBe('memory_limit')
  })
})

describe('a turn in pieces', () => {
  const answers = [
    'Grün ist der Baum 🌳🌲, und 字 auch.',
    `<think>Hm.</think>First. ${call('a')}\n${call('b')}`,
    call('only'),
    '',
  ]
  test.each(answers)('%j: the pieces are the whole, calls are whole', async (answer) => {
    const session = await refrain.sessions.create({ tools: TOOLS })
    const [other] = await session.fork()
    script = [answer, answer]
    const whole = await other?.chat('Go.')
    const deltas = await all(session.stream('Go.'))
    const reply = deltas.at(-1)
    if (reply?.type !== 'reply') return expect.unreachable('the last delta is no reply')
    const sum = (type: Delta['type']) =>
      deltas.map((each) => (each.type === type && 'text' in each ? each.text : '')).join('')
    expect(sum('content')).toBe(whole?.message.content ?? '')
    expect(sum('reasoning')).toBe(whole?.message.reasoning_content ?? '')
    const calls = deltas.flatMap((each) => (each.type === 'tool_call' ? [each.call] : []))
    expect(calls).toEqual(reply.reply.tool_calls)
    expect(calls.map((each) => each.function)).toEqual(whole?.tool_calls.map((each) => each.function))
    const { message, finish_reason, usage } = reply.reply
    const shown = ({ content, reasoning_content }: typeof message) => [content, reasoning_content]
    expect([shown(message), finish_reason]).toEqual([whole && shown(whole.message), whole?.finish_reason])
    expect(usage.completion_tokens).toBe(whole?.usage.completion_tokens)
  })

  test('leaving the loop, or aborting, ends the turn; the session takes the next', async () => {
    const session = await refrain.sessions.create()
    const long = 'many words '.repeat(200_000)
    const ended = () =>
      expect
        .poll(() => all(session.events()), { timeout: 10_000 })
        .toContainEqual(expect.objectContaining({ outcome: 'cancelled' }))
    script = [long]
    for await (const _ of session.stream('a')) break
    await ended()
    script = [long]
    const stop = new AbortController()
    const why = new Error('enough')
    const reading = (async () => {
      for await (const _ of session.stream('b', {}, { signal: stop.signal })) stop.abort(why)
    })()
    await expect(reading).rejects.toBe(why)
    await expect.poll(async () => (await session.get()).busy).toBe(false)
    script = ['Done.']
    expect((await session.chat('c')).message.content).toBe('Done.')
    const aborted = session.chat('d', {}, { signal: AbortSignal.abort(why) })
    await expect(aborted).rejects.toBe(why)
  })

  test('side questions come with it', async () => {
    const session = await refrain.sessions.create()
    const deltas = await all(session.stream('Go.', { quick: { tasks: [{ task: 'title' }] } }))
    const last = deltas.at(-1)
    expect(last?.type === 'reply' && last.reply.quick.map(({ task }) => task)).toEqual(['title'])
  })
})

describe('what goes wrong', () => {
  test('two writers: one is told where the log stands, and nothing is lost', async () => {
    const session = await refrain.sessions.create()
    const { position } = await session.get()
    await session.append([{ type: 'user', content: 'first' }], { expected_position: position })
    const late = await failure(session.append([{ type: 'user', content: 'second' }], { expected_position: position }))
    expect([late.status, late.code, late.position]).toEqual([409, 'conflict', position + 1])
    const turn = await failure(session.chat('third', { expected_position: position }))
    expect([turn.code, turn.position, turn.param]).toEqual(['conflict', position + 1, 'expected_position'])
    await session.append([{ type: 'user', content: 'second' }], { expected_position: late.position ?? 0 })
    const log = await all(session.events())
    expect(log.flatMap((event) => (event.type === 'user' ? [event.content] : []))).toEqual(['first', 'second'])
  })

  test('a key is one event, and one turn', async () => {
    const session = await refrain.sessions.create()
    const event = { type: 'user', content: 'x', key: 'k' } as const
    const [first] = await session.append([event])
    const [again] = await session.append([event])
    expect(again).toEqual(first)
    script = ['One.', 'Two.']
    const one = await session.chat('Go.', {}, { key: 'turn-1' })
    const two = await session.chat('Go.', {}, { key: 'turn-1' })
    expect(two.message).toEqual(one.message)
  })

  test.each([
    ['an id that is none', 'ses_1', 404],
    ['an id with a slash', '../../v1/models', 404],
    ['a session that is not there', `ses_${'0'.repeat(32)}`, 404],
  ])('%s', async (_, id, status) => {
    expect((await failure(refrain.sessions.get(id))).status).toBe(status)
    const turn = await failure(refrain.sessions.open(id).chat('Hi'))
    expect([400, 404]).toContain(turn.status)
  })

  test('somebody else’s session is one that is not there, whatever is asked', async () => {
    const session = await refrain.sessions.create({ system: 'Mine.' })
    await session.chat('Hi')
    const other = new Refrain({ baseUrl: url, apiKey: 'key-of-b-1', retries: 0 })
    const theirs = other.sessions.open(session.id)
    const asked = [
      ...[theirs.get(), theirs.chat('x'), theirs.append([{ type: 'user', content: 'x' }]), all(theirs.events())],
      ...[theirs.context(), theirs.context(1), theirs.series(), theirs.fork(), theirs.compact(), theirs.reset()],
      ...[theirs.resume(), theirs.layer({ id: 'l' }), theirs.result('r'), theirs.quick([{ task: 'title' }])],
      ...[theirs.turns(), theirs.turn(1), theirs.delete(), all(theirs.stream('x'))],
    ]
    const statuses = (await Promise.all(asked.map(failure))).map(({ status }) => status)
    expect(statuses).toEqual(asked.map(() => 404))
    expect(await all(other.sessions.list())).toEqual([])
    expect((await session.get()).turns).toBe(1)
    const noKey = await failure(new Refrain({ baseUrl: url, retries: 0 }).sessions.create())
    expect([noKey.status, noKey.code]).toEqual([401, 'unauthorized'])
  })

  test('a field is named', async () => {
    const session = await refrain.sessions.create()
    const wrong = await failure(session.append([{ type: 'memory', label: '', value: 'x' }]))
    expect([wrong.status, wrong.param, wrong.isRetryable]).toEqual([400, 'events[0].label', false])
  })
})
