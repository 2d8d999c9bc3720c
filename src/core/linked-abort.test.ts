// Both ways to abort, and that an outer signal keeps nothing of work that is over.

import { getEventListeners } from 'node:events'
import { expect, test } from 'vitest'
import { linkAbort } from './linked-abort.js'

test('aborts with the outer reason, at once where the outer one is aborted already', () => {
  const outer = new AbortController()
  const link = linkAbort(outer.signal)
  expect(link.signal.aborted).toBe(false)
  outer.abort('gone')
  expect(link.signal.reason).toBe('gone')
  expect(linkAbort(outer.signal).signal.reason).toBe('gone')
})

test('aborts by itself and leaves the outer signal alone; unlinked, it is not listened to', () => {
  const outer = new AbortController()
  const link = linkAbort(outer.signal)
  expect(getEventListeners(outer.signal, 'abort')).toHaveLength(1)
  link.abort('own')
  expect(link.signal.reason).toBe('own')
  expect(outer.signal.aborted).toBe(false)
  link.unlink()
  expect(getEventListeners(outer.signal, 'abort')).toHaveLength(0)
})
