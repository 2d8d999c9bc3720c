// Answers of HTTP/1.1, whole and in pieces, good and bad: what is told of them, and what is refused.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { AnswerReader } from './answer-reader.js'
import type { IncomingHeaders } from './contract.js'

interface Told {
  status: number
  headers: IncomingHeaders
  body: string
  ends: number
  clean: boolean
  keepsAlive: boolean
}

function read(pieces: readonly string[], { method = 'POST', closes = false } = {}): Told {
  const told: Told = { status: 0, headers: {}, body: '', ends: 0, clean: true, keepsAlive: false }
  const reader = new AnswerReader()
  reader.begin(method, {
    head(status, headers) {
      told.status = status
      told.headers = headers
    },
    data(bytes) {
      told.body += bytes.toString('latin1')
    },
    end() {
      told.ends++
    },
    fail() {
      throw new Error('a reader throws, it does not fail')
    },
  })
  for (const piece of pieces) {
    const bytes = Buffer.from(piece, 'latin1')
    if (!reader.read(bytes)) told.clean = false
    // The buffer belongs to the connection: what was told is no part of it.
    bytes.fill(0x21)
  }
  if (closes) reader.closed()
  told.keepsAlive = reader.keepsAlive
  return told
}

const chunked = (chunks: readonly string[], trailer = '') =>
  `${chunks.map((chunk) => `${chunk.length.toString(16)}\r\n${chunk}\r\n`).join('')}0\r\n${trailer}\r\n`

const LENGTH = 'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\ncontent-length: 5\r\n\r\nhello'
const CHUNKED = `HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n${chunked(['data: 1\n\n', 'data: 22\n\n'])}`

describe('an answer', () => {
  test('by its length', () => {
    expect(read([LENGTH])).toEqual({
      status: 200,
      headers: { 'content-type': 'application/json', 'content-length': '5' },
      body: 'hello',
      ends: 1,
      clean: true,
      keepsAlive: true,
    })
  })

  test('in chunks, with an extension and a trailer', () => {
    expect(read([CHUNKED])).toMatchObject({ body: 'data: 1\n\ndata: 22\n\n', ends: 1, keepsAlive: true })
    const text =
      'HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n3;a=b\r\nabc\r\nA\r\n0123456789\r\n0\r\nx: y\r\n\r\n'
    expect(read([text])).toMatchObject({ body: 'abc0123456789', ends: 1, clean: true })
  })

  test('up to the close', () => {
    const text = 'HTTP/1.1 200 OK\r\n\r\nabc'
    expect(read([text])).toMatchObject({ body: 'abc', ends: 0 })
    expect(read([text], { closes: true })).toMatchObject({ body: 'abc', ends: 1, keepsAlive: false })
  })

  test('that is cut off does not end with the close', () => {
    expect(read([LENGTH.slice(0, -1)], { closes: true })).toMatchObject({ body: 'hell', ends: 0 })
    expect(read([CHUNKED.slice(0, -2)], { closes: true })).toMatchObject({ ends: 0 })
  })

  test.each([
    ['HTTP/1.1 204 No Content\r\n\r\n', 'POST'],
    ['HTTP/1.1 304 Not Modified\r\ncontent-length: 10\r\n\r\n', 'POST'],
    ['HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n', 'HEAD'],
    ['HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n', 'POST'],
  ])('without a body: %j to %s', (text, method) => {
    expect(read([text], { method })).toMatchObject({ body: '', ends: 1, clean: true })
  })

  test('behind a word in between', () => {
    const text = `HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n${LENGTH}`
    expect(read([text])).toMatchObject({ status: 200, body: 'hello', ends: 1 })
  })

  test('in any pieces is the same', () => {
    fc.assert(
      fc.property(
        fc.constantFrom(LENGTH, CHUNKED, `HTTP/1.1 100 Continue\r\n\r\n${CHUNKED}`),
        fc.array(fc.nat(200), { maxLength: 12 }),
        (text, cuts) => {
          const at = [0, ...cuts.map((cut) => cut % text.length), text.length].sort((a, b) => a - b)
          const pieces = at.slice(1).map((end, i) => text.slice(at[i], end))
          expect(read(pieces.filter((piece) => piece !== ''))).toEqual(read([text]))
        },
      ),
    )
  })

  test('with another one behind it is not clean', () => {
    expect(read([`${LENGTH}HTTP/1.1 200 OK\r\n`])).toMatchObject({ ends: 1, clean: false, body: 'hello' })
    expect(read([`${CHUNKED}x`])).toMatchObject({ ends: 1, clean: false })
  })
})

describe('the connection goes on', () => {
  const answer = (line: string, header: string) => `${line} 200 OK\r\ncontent-length: 0\r\n${header}\r\n`
  test.each([
    ['HTTP/1.1', '', true],
    ['HTTP/1.1', 'Connection: close\r\n', false],
    ['HTTP/1.0', '', false],
    ['HTTP/1.0', 'connection: Keep-Alive\r\n', true],
    ['HTTP/1.1', 'transfer-encoding: chunked\r\n', false],
  ])('%s %j: %s', (line, header, keepsAlive) => {
    expect(read([answer(line, header), '0\r\n\r\n'])).toMatchObject({ keepsAlive })
  })

  test('for as long as the server says', () => {
    const reader = new AnswerReader()
    reader.begin('GET', { head: () => undefined, data: () => undefined, end: () => undefined, fail: () => undefined })
    reader.read(Buffer.from(answer('HTTP/1.1', 'keep-alive: timeout=5, max=100\r\n')))
    expect(reader.idleMs).toBe(5000)
  })
})

describe('headers', () => {
  test('that are repeated are a list, and a length that is repeated is one', () => {
    const text = 'HTTP/1.1 200 OK\r\nA: 1\r\na:  2 \r\ncontent-length: 2\r\nContent-Length: 2\r\n\r\nok'
    expect(read([text])).toMatchObject({ headers: { a: ['1', '2'], 'content-length': '2' }, body: 'ok' })
  })

  test('whose names every object has are passed over', () => {
    const text = 'HTTP/1.1 200 OK\r\n__proto__: x\r\nconstructor: y\r\ncontent-length: 2\r\n\r\nok'
    expect(read([text])).toMatchObject({ headers: { 'content-length': '2' }, body: 'ok', ends: 1 })
  })
})

describe('no answer', () => {
  const body = (text: string) => `HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n${text}`
  test.each([
    ['another protocol', 'SSH-2.0-OpenSSH_9.6\r\n\r\n'],
    ['a version that is not ours', 'HTTP/2.0 200 OK\r\n\r\n'],
    ['a status that is none', 'HTTP/1.1 20 OK\r\n\r\n'],
    ['a change of protocol', 'HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n'],
    ['a header without a colon', 'HTTP/1.1 200 OK\r\nnothing\r\n\r\n'],
    ['a folded header', 'HTTP/1.1 200 OK\r\na: 1\r\n b: 2\r\n\r\n'],
    ['two lengths', 'HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n'],
    ['a length that is none', 'HTTP/1.1 200 OK\r\ncontent-length: 2, 2\r\n\r\n'],
    ['a coding that is not known', 'HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n'],
    ['a chunk without a size', body('\r\nabc')],
    ['a chunk of another size', body('2\r\nabc\r\n')],
    ['a size that is too large', body('1111111111111\r\n')],
    ['a head without an end', `HTTP/1.1 200 OK\r\na: ${'x'.repeat(70_000)}`],
    ['a size without an end', body(`2;${'x'.repeat(70_000)}`)],
    ['a trailer without an end', body(`0\r\n${'x: y\r\n'.repeat(20_000)}`)],
  ])('%s', (_, text) => {
    expect(() => read([text])).toThrow('the answer is no HTTP/1.1')
  })

  test('garbage is refused or read, and ends at most once', () => {
    fc.assert(
      fc.property(fc.array(fc.string({ unit: 'binary', maxLength: 60 })), (pieces) => {
        try {
          expect(read(['HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n', ...pieces]).ends).toBeLessThan(2)
        } catch (error) {
          expect(String(error)).toContain('the answer is no HTTP/1.1')
        }
      }),
    )
  })
})
