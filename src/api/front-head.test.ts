import { describe, expect, test } from 'vitest'
import { hasRecordings, lowerHeaders, recordings } from '../testing/recordings.js'
import { HeadReader } from './front-head.js'

/** A head with these headers, whose body is `length` bytes. */
function headOf(path: string, headers: Readonly<Record<string, string>>, length: number): Buffer {
  const lines = Object.entries(headers).map(([name, value]) =>
    name.toLowerCase() === 'content-length' ? `${name}: ${length}` : `${name}: ${value}`,
  )
  return Buffer.from(`POST ${path} HTTP/1.1\r\n${lines.join('\r\n')}\r\n\r\n{`, 'latin1')
}

describe.skipIf(!hasRecordings)('heads of real clients (needs ../shared/fixtures)', () => {
  const posts = recordings().filter(({ method }) => method === 'POST')

  test('are all read here', () => {
    expect(posts.length).toBeGreaterThan(100)
    const readers = new Map<string, HeadReader>()
    for (const [i, recording] of posts.entries()) {
      const reader = readers.get(recording.client) ?? new HeadReader()
      readers.set(recording.client, reader)
      const { 'content-length': _, ...headers } = lowerHeaders(recording)
      const head = reader.read(headOf(recording.path, recording.headers, i))
      expect(head, recording.name).toMatchObject({ url: recording.path, length: i, headers })
    }
  })
})

test('a head that says the same as the last one is the same, but for its length', () => {
  const reader = new HeadReader()
  const read = (length: number, more = '') =>
    reader.read(Buffer.from(`POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: ${length}\r\nx-a: 1\r\n${more}\r\n`))
  const [first, second, other] = [read(7), read(1234567), read(7, 'x-b: 2\r\n')]
  expect([first?.length, second?.length, other?.length]).toEqual([7, 1234567, 7])
  expect(second?.headers).toBe(first?.headers)
  expect(other?.headers).toEqual({ host: 'a', 'x-a': '1', 'x-b': '2' })
  expect(second?.end).toBe((first?.end ?? 0) + 6)
})
