// Streams as clients get them: framed as HTTP asks for, by whichever version; ended once; kept alive while nothing comes.

import { createServer, type ServerResponse } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { afterEach, describe, expect, test } from 'vitest'
import { systemClock } from '../core/clock.js'
import { ManualClock } from '../testing/manual-clock.js'
import { ForwardStream } from './forward-stream.js'

const ends: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ends.splice(0)) await end()
})

type Serve = (stream: ForwardStream, response: ServerResponse) => void

/** What `serve` writes to a client of HTTP `version`, byte for byte. */
async function answered(serve: Serve, { version = '1.1', clock = systemClock } = {}): Promise<string> {
  const server = createServer((_, response) => {
    const onSlow = () => undefined
    const options = { response, clock, keepaliveMs: 1000, keepalive: ': keepalive\n\n', unsentBytes: 1 << 20, onSlow }
    serve(new ForwardStream(options, { 'x-request-id': 'r1' }), response)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', () => resolve()))
  ends.push(() => server.close())
  const socket = connect((server.address() as AddressInfo).port, '127.0.0.1')
  socket.write(`GET / HTTP/${version}\r\nhost: x\r\nconnection: close\r\n\r\n`)
  let text = ''
  for await (const bytes of socket) text += (bytes as Buffer).toString('latin1')
  return text
}

/** The body that chunks are, and nothing behind it. */
function unframed(answer: string): string {
  let body = answer.slice(answer.indexOf('\r\n\r\n') + 4)
  let whole = ''
  for (;;) {
    const [, size = ''] = /^([0-9a-f]+)\r\n/.exec(body) ?? []
    const length = Number.parseInt(size, 16)
    const from = size.length + 2
    expect(body.slice(from + length, from + length + 2)).toBe('\r\n')
    whole += body.slice(from, from + length)
    body = body.slice(from + length + 2)
    if (length === 0) break
  }
  expect(body).toBe('')
  return whole
}

const LARGE = `data: ${'x'.repeat(40_000)}\n\n`
const DONE = 'data: [DONE]\n\n'

describe('what is written', () => {
  test.each<[string, Serve, string]>([
    [
      'pieces, large ones among them',
      (stream) => {
        stream.write(Buffer.from('data: 1\n\n'))
        stream.write(Buffer.from(LARGE))
        stream.write('data: 2\n\n')
        stream.end('')
      },
      `data: 1\n\n${LARGE}data: 2\n\n`,
    ],
    ['an end with a text', (stream) => stream.end('data: bye\n\n'), 'data: bye\n\n'],
    ['nothing', (stream) => stream.end(''), ''],
    [
      'a last event with the end behind it',
      (stream) => {
        stream.write(Buffer.from(`data: 1\n\n${DONE}`))
        stream.end('')
      },
      `data: 1\n\n${DONE}`,
    ],
    [
      'a last event that is not, in order',
      (stream) => {
        stream.write(Buffer.from(DONE))
        stream.write(Buffer.from('data: more\n\n'))
        stream.end('data: bye\n\n')
      },
      `${DONE}data: more\n\ndata: bye\n\n`,
    ],
  ])('%s', async (_, serve, body) => {
    const answer = await answered(serve)
    expect(answer).toMatch(/^HTTP\/1\.1 200 OK\r\n(.+\r\n)*transfer-encoding: chunked\r\n/i)
    expect(answer).toContain('\r\nx-request-id: r1\r\n')
    expect(unframed(answer)).toBe(body)
    const plain = await answered(serve, { version: '1.0' })
    expect(plain).not.toMatch(/chunked/i)
    expect(plain.slice(plain.indexOf('\r\n\r\n') + 4)).toBe(body)
  })

  test('a last event goes out without the end', async () => {
    const seen: number[] = []
    await answered((stream, response) => {
      stream.write(Buffer.from(DONE))
      // Behind this turn of the loop.
      setTimeout(() => {
        seen.push(response.socket?.bytesWritten ?? 0)
        stream.end('')
        setTimeout(() => seen.push(response.socket?.bytesWritten ?? 0), 1)
      }, 5)
    })
    expect(seen[0]).toBeGreaterThan(DONE.length)
  })
})

test("headers of a backend's go on, but for those that every stream has", async () => {
  const answer = await answered((stream) => {
    stream.open({ 'content-type': 'text/event-stream', 'x-other': 'y', 'x-request-id': 'theirs' })
    stream.end('')
  })
  expect(answer.match(/content-type/gi)).toHaveLength(1)
  expect(answer).toContain('x-other: y\r\n')
  expect(answer).not.toContain('theirs')
})

test('silence is broken every time, and no more once it ends', async () => {
  const clock = new ManualClock()
  const answer = await answered(
    (stream) => {
      clock.advance(1001)
      stream.write(Buffer.from('data: 1\n\n'))
      clock.advance(600)
      clock.advance(600)
      stream.end('')
      clock.advance(5000)
    },
    { clock },
  )
  expect(unframed(answer)).toBe(': keepalive\n\ndata: 1\n\n: keepalive\n\n')
})
