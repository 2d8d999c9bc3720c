// The client on a way that fails: servers that are busy, that go away, that say nothing. Against a server that does as it is
// told, and against the program itself.

import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, describe, expect, test } from 'vitest'
import { RefrainError as ServerError } from '../core/errors.js'
import { scriptedProgram } from '../testing/scripted-program.js'
import { Refrain, RefrainError, type RefrainOptions } from './index.js'

const closing: (() => Promise<unknown>)[] = []
afterEach(async () => {
  for (const close of closing.splice(0)) await close()
})

interface Asked {
  readonly method: string
  readonly url: string
  readonly key: string | undefined
  readonly body: string
}
type Answer = (response: ServerResponse, request: IncomingMessage) => void

/** Answers each request as the next of `answers` says; the last is repeated. */
async function told(answers: readonly Answer[], options: Partial<RefrainOptions> = {}) {
  const asked: Asked[] = []
  const server: Server = createServer(async (request, response) => {
    let body = ''
    for await (const piece of request) body += piece
    const key = request.headers['idempotency-key'] as string | undefined
    asked.push({ method: request.method ?? '', url: request.url ?? '', key, body })
    answers[Math.min(asked.length, answers.length) - 1]?.(response, request)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  closing.push(async () => {
    server.closeAllConnections()
    server.close()
  })
  const { port } = server.address() as AddressInfo
  const refrain = new Refrain({ baseUrl: `http://127.0.0.1:${port}`, backoffMs: 1, ...options })
  return { refrain, session: refrain.sessions.open('ses_1'), asked, server }
}

const json =
  (value: object, status = 200, headers: Record<string, string> = {}): Answer =>
  (response) =>
    response.writeHead(status, { 'content-type': 'application/json', ...headers }).end(JSON.stringify(value))
const refused = (status: number, code: string, headers: Record<string, string> = {}) =>
  json({ error: { message: `it is ${code}`, type: 'x', param: null, code } }, status, headers)
const gone: Answer = (response) => response.destroy()
const usage = { prompt_tokens: 3, completion_tokens: 1, total_tokens: 4 }
const message = { role: 'assistant', content: 'Hi.' }
const reply = json({ id: 'c', model: 'm', choices: [{ index: 0, message, finish_reason: 'stop' }], usage })
const chunk = (delta: object, finish: string | null = null) =>
  `data: ${JSON.stringify({ id: 'c', model: 'm', choices: [{ index: 0, delta, finish_reason: finish }] })}\n\n`
const failure = (of: Promise<unknown>) =>
  of.then(
    () => expect.unreachable('it was taken'),
    (error: unknown) => error as RefrainError,
  )
const retryable = { 'x-should-retry': 'true', 'retry-after-ms': '2' }

describe('what is sent again', () => {
  test.each([
    ['busy', refused(429, 'queue_full', retryable)],
    ['shutting down', refused(503, 'draining', retryable)],
  ])('%s: everything, it was refused before it was done', async (_, busy) => {
    const { refrain, session, asked } = await told([busy, busy, json({ id: 'ses_1', data: [] })])
    expect((await refrain.sessions.create()).id).toBe('ses_1')
    expect(asked).toHaveLength(3)
    await session.fork()
  })

  test.each([
    ['the connection breaks', gone],
    ['the engine failed', refused(500, 'engine_failed', retryable)],
    ['a proxy lost it', refused(502, 'bad_gateway')],
  ])('%s: what may be done twice, under the same keys', async (_, broken) => {
    const { session, asked } = await told([broken, reply])
    expect((await session.chat('Hi')).message.content).toBe('Hi.')
    expect(asked[0]?.key).toMatch(/^[0-9a-f]{32}$/)
    expect(asked[1]).toEqual(asked[0])
    const events = await told([broken, json({ data: [] })])
    await events.session.append([
      { type: 'user', content: 'x' },
      { type: 'user', content: 'y' },
    ])
    expect(events.asked[1]).toEqual(events.asked[0])
    const keys = JSON.parse(events.asked[0]?.body ?? '').events.map(({ key }: { key: string }) => key)
    expect(new Set(keys).size).toBe(2)
  })

  test.each([
    ['the connection breaks', gone, 'unreachable'],
    ['the engine failed', refused(500, 'engine_failed', retryable), 'engine_failed'],
  ])('%s: not what would be done twice', async (_, broken, code) => {
    const { refrain, session, asked } = await told([broken])
    const calls = [() => refrain.sessions.create(), () => session.fork(), () => session.compact(), () => session.chat()]
    for (const [i, call] of calls.entries()) {
      expect((await failure(call())).code).toBe(code)
      expect(asked).toHaveLength(i + 1)
    }
  })

  test('a turn that broke off is waited for until the server has let go of it', async () => {
    const conflict = refused(409, 'conflict', { 'x-should-retry': 'false' })
    const { session, asked } = await told([gone, conflict, reply])
    expect((await session.chat('Hi')).message.content).toBe('Hi.')
    expect(asked).toHaveLength(3)
  })

  test('not for ever, and not what the server says is vain', async () => {
    const busy = await told([refused(429, 'queue_full', retryable)], { retries: 2 })
    const error = await failure(busy.session.get())
    expect([error.status, error.code, error.retryAfterMs, error.isRetryable]).toEqual([429, 'queue_full', 2, true])
    expect(busy.asked).toHaveLength(3)
    const vain = await told([refused(500, 'internal', { 'x-should-retry': 'false' })])
    expect((await failure(vain.session.get())).code).toBe('internal')
    expect(vain.asked).toHaveLength(1)
  })

  test('a longer wait than is wanted is told', async () => {
    const { session, asked } = await told([refused(429, 'rate_limited', { 'retry-after': '3600' })])
    expect((await failure(session.get())).retryAfterMs).toBe(3_600_000)
    expect(asked).toHaveLength(1)
  })

  test('Retry-After is kept to', async () => {
    const { session } = await told([refused(429, 'queue_full', { 'retry-after-ms': '120' }), json({ id: 'ses_1' })])
    const before = performance.now()
    await session.get()
    expect(performance.now() - before).toBeGreaterThanOrEqual(115)
  })

  test('where nobody listens nothing was done', async () => {
    const { refrain, server } = await told([json({ id: 'ses_1' })], { retries: 1 })
    server.close()
    const error = await failure(refrain.sessions.create())
    expect([error.status, error.code]).toEqual([0, 'unreachable'])
  })

  test('an abort ends the waiting', async () => {
    const stop = new AbortController()
    const why = new Error('enough')
    const { session } = await told([refused(429, 'queue_full', { 'retry-after-ms': '20000' })])
    const asking = session.get({ signal: stop.signal })
    setTimeout(() => stop.abort(why), 30)
    await expect(asking).rejects.toBe(why)
  })
})

describe('answers that do not come', () => {
  const silent: Answer = () => undefined

  test('a time limit, whole and in pieces', async () => {
    const { session, asked } = await told([silent])
    const whole = await failure(session.chat('Hi', {}, { timeoutMs: 40 }))
    expect([whole.code, whole.status]).toEqual(['timeout', 0])
    expect(asked).toHaveLength(1)
    const paused = await told([(response) => response.writeHead(200).write(chunk({ content: 'a' }))])
    const seen: string[] = []
    const reading = (async () => {
      for await (const delta of paused.session.stream('Hi', {}, { timeoutMs: 2000 }))
        if ('text' in delta) seen.push(delta.text)
    })()
    expect([(await failure(reading)).code, seen]).toEqual(['timeout', ['a']])
  })

  test('a comment keeps a stream alive', async () => {
    const slow: Answer = async (response) => {
      response.writeHead(200)
      for (let i = 0; i < 12; i++) {
        response.write(': keepalive\n\n')
        await new Promise((resolve) => setTimeout(resolve, 200))
      }
      const last = { id: 'c', model: 'm', choices: [], usage }
      response.end(`${chunk({ content: 'a' }, 'stop')}data: ${JSON.stringify(last)}\n\ndata: [DONE]\n\n`)
    }
    const { session } = await told([slow])
    const types: string[] = []
    for await (const { type } of session.stream('Hi', {}, { timeoutMs: 2000 })) types.push(type)
    expect(types).toEqual(['content', 'reply'])
  })

  test.each([
    ['it breaks off', (response: ServerResponse) => response.destroy(), 'cut_off'],
    ['it ends without its end', (response: ServerResponse) => response.end(), 'cut_off'],
    [
      'it says what went wrong',
      (response: ServerResponse) => response.end('data: {"error":{"message":"gone","code":"engine_failed"}}\n\n'),
      'engine_failed',
    ],
    ['it makes no sense', (response: ServerResponse) => response.end('data: {oops\n\n'), 'not_understood'],
    ['it has no usage', (response: ServerResponse) => response.end('data: [DONE]\n\n'), 'not_understood'],
  ])('%s in the middle: what was there is told, and then that', async (_, end, code) => {
    const { session, asked } = await told([
      (response) => response.writeHead(200).write(chunk({ content: 'a' }), () => setTimeout(() => end(response), 5)),
    ])
    const seen: string[] = []
    const reading = (async () => {
      for await (const delta of session.stream('Hi')) if ('text' in delta) seen.push(delta.text)
    })()
    const error = await failure(reading)
    expect(error).toBeInstanceOf(RefrainError)
    expect([error.code, error.status, seen, asked.length]).toEqual([code, 0, ['a'], 1])
  })

  test('what is no answer of a Refrain', async () => {
    const page: Answer = (response) => response.end('<html>')
    expect((await failure((await told([page])).session.get())).code).toBe('not_understood')
    const { session } = await told([(response) => response.writeHead(404).end('<html>nginx')])
    const error = await failure(session.get())
    expect([error.status, error.code, error.message]).toEqual([404, 'not_understood', 'status 404: <html>nginx'])
  })
})

test('bytes cut anywhere', async () => {
  const text = chunk({ content: 'Grün 🌳' }) + chunk({}, 'stop')
  const last = { id: 'c', model: 'm', choices: [], usage }
  const all = Buffer.from(`${text}data: ${JSON.stringify(last)}\r\n\r\ndata: [DONE]\r\n\r\n`)
  const fetch = async () =>
    new Response(
      new ReadableStream({
        start(controller) {
          for (const byte of all) controller.enqueue(Uint8Array.of(byte))
          controller.close()
        },
      }),
    )
  const session = new Refrain({ baseUrl: 'http://nowhere', fetch }).sessions.open('s')
  const seen: string[] = []
  for await (const delta of session.stream('Hi')) if ('text' in delta) seen.push(delta.text)
  expect(seen).toEqual(['Grün 🌳'])
})

describe('against the program', () => {
  const options = { template: 'chatml', toolCalls: 'hermes', reasoning: 'think' }

  test('busy: it comes again, and there is one turn', async () => {
    let refusals = 2
    const program = await scriptedProgram(
      { 'backend.options': options, 'sessions.log.store': 'memory' },
      {
        script: () => {
          if (refusals-- > 0) throw new ServerError('queue_full', 'full', { retryAfterMs: 5 })
          return 'At last.'
        },
      },
    )
    closing.push(() => program.stop(0))
    const session = await new Refrain({ baseUrl: await program.start(), backoffMs: 1 }).sessions.create()
    expect((await session.chat('Hi')).message.content).toBe('At last.')
    const types: string[] = []
    for await (const { type } of session.events()) types.push(type)
    expect(types.filter((type) => type === 'user' || type === 'assistant')).toEqual(['user', 'assistant'])
  })

  test('it goes away in the middle of a stream', async () => {
    const program = await scriptedProgram(
      { 'backend.options': { ...options, decodeTokensPerSecond: 50 }, 'sessions.log.store': 'memory' },
      { script: () => 'Long. '.repeat(400) },
    )
    const session = await new Refrain({ baseUrl: await program.start(), retries: 0 }).sessions.create()
    let stopped: Promise<void> | undefined
    const reading = (async () => {
      for await (const _ of session.stream('Hi')) stopped ??= program.stop(0)
    })()
    const error = await failure(reading)
    expect(error).toBeInstanceOf(RefrainError)
    expect(['draining', 'cut_off']).toContain(error.code)
    await stopped
    expect((await failure(session.get())).code).toBe('unreachable')
  })
})
