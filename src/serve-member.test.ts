import { expect, test } from 'vitest'
import { passedHeaders } from './serve-member.js'

test('of what a backend says of its answer, only what a header may have goes on', () => {
  const headers = {
    ...{ 'content-type': 'text/event-stream', 'x-upstream': 'up0', 'x-list': ['a', 'b'], 'x-latin': 'caf\xe9' },
    ...{ 'x-control': 'a\x01', 'x-line': 'a\nb', 'x-delete': '\x7f', 'x-wide': 'a€', 'x-hidden': ['a', '\x00'] },
    ...{ connection: 'close', 'transfer-encoding': 'chunked', 'content-length': '3', 'x-request-id': 'theirs' },
  }
  expect(passedHeaders(headers)).toEqual({
    'content-type': 'text/event-stream',
    'x-upstream': 'up0',
    'x-list': 'a, b',
    'x-latin': 'caf\xe9',
  })
})
