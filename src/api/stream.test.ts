// What a stream does on a real socket while nothing is said, when the client goes, reads too slowly, or the server goes.

import { connect, type Socket } from 'node:net'
import { afterEach, describe, expect, test } from 'vitest'
import type { ComposeOptions, Program } from '../compose.js'
import { type RequestSettled, requestSettled } from '../core/signals.js'
import { ManualClock } from '../testing/manual-clock.js'
import { chat, payloadsOf, post, scriptedProgram } from '../testing/scripted-program.js'

let program: Program | undefined
const sockets: Socket[] = []
afterEach(async () => {
  for (const socket of sockets.splice(0)) socket.destroy()
  await program?.stop(0)
  program = undefined
})

async function serving(flags: Record<string, unknown>, options: ComposeOptions = {}): Promise<URL> {
  program = await scriptedProgram(flags, options)
  return new URL(await program.start())
}

function settled(): Promise<RequestSettled> {
  return new Promise((resolve) => {
    const stop = requestSettled.subscribe((request) => {
      stop()
      resolve(request)
    })
  })
}

/** A raw request whose answer is read by hand. */
function send(url: URL, body: object): { socket: Socket; text: () => string } {
  const payload = JSON.stringify(body)
  const socket = connect(Number(url.port), url.hostname)
  sockets.push(socket)
  let text = ''
  socket.on('data', (bytes) => {
    text += bytes
  })
  socket.write(
    `POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n` +
      `content-length: ${Buffer.byteLength(payload)}\r\n\r\n${payload}`,
  )
  return { socket, text: () => text }
}

async function until(condition: () => boolean): Promise<void> {
  for (let i = 0; i < 10_000 && !condition(); i++) await new Promise((resolve) => setTimeout(resolve, 2))
  expect(condition()).toBe(true)
}

const turns = async (count = 20) => {
  for (let i = 0; i < count; i++) await new Promise((resolve) => setImmediate(resolve))
}

describe('silence', () => {
  test('after 5 s the status line and comments, then the answer', async () => {
    const clock = new ManualClock()
    const url = await serving({ 'backend.options': { prefillTokensPerSecond: 1, answer: 'late' } }, { clock })
    const { text } = send(url, chat('x'.repeat(12), { stream: true }))
    await until(() => clock.waiting >= 2)
    await clock.advanceSlowly(4900)
    await turns()
    expect(text()).toBe('')
    await clock.advanceSlowly(100)
    await until(() => text().includes(': keepalive'))
    expect(text()).toMatch(/^HTTP\/1\.1 200 OK\r\n/)
    expect(text()).not.toContain('x-refrain-cache')
    await clock.advanceSlowly(5000)
    await until(() => text().split(': keepalive').length === 3)
    await clock.advanceSlowly(20_000)
    await until(() => text().includes('[DONE]'))
    expect(text()).toContain('"content":"lat"')
  })

  test('a failure in front of the first event has its own status, one after that is in-band and without [DONE]', async () => {
    const clock = new ManualClock()
    const url = await serving(
      { 'backend.options': { prefillTokensPerSecond: 1 } },
      {
        clock,
        script: () => {
          throw new Error('a fault of our own')
        },
      },
    )
    const early = send(url, chat('x', { stream: true }))
    await until(() => clock.waiting >= 2)
    await clock.advanceSlowly(4000)
    await until(() => clock.waiting >= 1)
    expect(early.text()).toBe('')
    await clock.advanceSlowly(4000)
    await until(() => early.text().includes('server_error'))
    const late = early.text()
    expect(late).toMatch(/^HTTP\/1\.1 200 OK/)
    expect(late).toContain('data: {"error":{"message":"A fault of the server itself; the log has the details."')
    expect(late).not.toContain('[DONE]')
    expect(late).not.toContain('a fault of our own')

    await program?.stop(0)
    program = await scriptedProgram(
      {},
      {
        script: () => {
          throw new Error('a fault of our own')
        },
      },
    )
    const refused = await post(program, '/v1/chat/completions', chat('x', { stream: true }))
    expect(refused.status).toBe(500)
    expect(refused.json().error).toMatchObject({ code: 'internal', type: 'server_error' })
    expect(refused.headers['x-should-retry']).toBe('false')
  })
})

describe('a client that goes', () => {
  test.each([
    ['while it waits in the queue', { maxRunning: 1, decodeTokensPerSecond: 20 }, true],
    ['while its prompt is computed', { prefillTokensPerSecond: 20 }, false],
    ['while its answer is written', { decodeTokensPerSecond: 20 }, false],
  ])('%s stops its own work and nothing else', async (_, backend, first) => {
    const url = await serving({ 'backend.options': { answer: 'word '.repeat(400), ...backend } })
    const health = () => fetch(new URL('/ready', url)).then((reply) => reply.json() as Promise<Record<string, number>>)
    const other = first ? send(url, chat('other', { stream: true })) : undefined
    if (other !== undefined) await until(() => other.text().includes('data:'))
    const going = send(url, chat('going '.repeat(40), { stream: true }))
    for (let i = 0; i < 5000 && ((await health())[first ? 'waiting' : 'running'] ?? 0) === 0; i++);
    const ended = settled()
    going.socket.destroy()
    expect(await ended).toMatchObject({ status: 499, error: 'client_gone' })
    for (let i = 0; i < 4000 && ((await health())[first ? 'waiting' : 'running'] ?? 0) > 0; i++) {
      await new Promise((resolve) => setTimeout(resolve, 5))
    }
    expect(await health()).toMatchObject({ running: first ? 1 : 0, waiting: 0 })
    if (other !== undefined) expect(other.socket.destroyed).toBe(false)
  })

  test('a request that is not streamed is stopped too', async () => {
    const url = await serving({ 'backend.options': { answer: 'word '.repeat(400), decodeTokensPerSecond: 20 } })
    const { socket } = send(url, chat())
    await turns()
    const ended = settled()
    setTimeout(() => socket.destroy(), 100)
    expect(await ended).toMatchObject({ status: 499 })
  })

  test('what was computed of a cancelled prefill stays', async () => {
    const clock = new ManualClock()
    const url = await serving({ 'backend.options': { prefillTokensPerSecond: 512, answer: 'a' } }, { clock })
    const prompt = 'p'.repeat(6000)
    const { socket } = send(url, chat(prompt, { stream: true }))
    await until(() => clock.waiting >= 2)
    await clock.advanceSlowly(2000)
    const ended = settled()
    socket.destroy()
    await ended
    const again = send(url, chat(prompt, { stream: true }))
    await until(() => clock.waiting >= 2)
    await clock.advanceSlowly(4000)
    await until(() => again.text().includes('[DONE]'))
    expect(again.text()).toContain('memory=1024')
  })
})

test('a slow reader is cut off once more than unsentBytes wait', async () => {
  const url = await serving({ 'limits.unsentBytes': 100_000 }, { script: () => 'many words '.repeat(100_000) })
  const { socket, text } = send(url, chat('go on', { stream: true }))
  await until(() => text().length > 0)
  socket.pause()
  expect(await settled()).toMatchObject({ status: 408, error: 'slow_reader' })
})

describe('drain', () => {
  test('running streams finish, new requests get 503 with Retry-After', async () => {
    const url = await serving({ 'backend.options': { answer: 'word '.repeat(20), decodeTokensPerSecond: 100 } })
    const running = send(url, chat('a', { stream: true }))
    await until(() => running.text().includes('data:'))
    const stopped = program!.stop(10_000)
    const refused = await fetch(new URL('/v1/chat/completions', url), {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(chat()),
    })
    expect(refused.status).toBe(503)
    expect(refused.headers.get('retry-after')).toBe('2')
    expect(((await refused.json()) as { error: object }).error).toMatchObject({ code: 'draining' })
    expect((await fetch(new URL('/ready', url))).status).toBe(503)
    await stopped
    program = undefined
    await until(() => running.text().includes('[DONE]'))
  })

  test('what is not done in time is ended in-band', async () => {
    const url = await serving({ 'backend.options': { answer: 'word '.repeat(4000), decodeTokensPerSecond: 50 } })
    const running = send(url, chat('a', { stream: true }))
    await until(() => running.text().includes('data:'))
    await program!.stop(50)
    program = undefined
    await until(() => running.text().includes('"draining"'))
    expect(running.text()).not.toContain('[DONE]')
  })
})

test('forced usage stands in streams that did not ask', async () => {
  program = await scriptedProgram({ 'server.forceUsage': true }, { script: () => 'ok' })
  const reply = await post(program, '/v1/chat/completions', chat('a', { stream: true }))
  expect(payloadsOf(reply.text).filter((payload) => payload.usage)).toHaveLength(1)
  expect(payloadsOf(reply.text).at(-2)).toMatchObject({ choices: [], usage: { prompt_tokens: 7 } })
})
