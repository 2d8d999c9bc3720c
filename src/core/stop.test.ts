// A stop is taken for an AbortSignal by code that asks no more of one than this.

import { describe, expect, test } from 'vitest'
import { Stop } from './stop.js'

describe.each([
  ['AbortController', () => new AbortController()],
  ['Stop', () => new Stop()],
])('%s', (_, make) => {
  test('aborts once, with its reason, and tells who still listens', () => {
    const stop = make()
    const heard: string[] = []
    const gone = () => heard.push('gone')
    stop.signal.addEventListener('abort', () => heard.push('a'))
    stop.signal.addEventListener('abort', gone, { once: true })
    stop.signal.addEventListener('abort', () => heard.push('b'))
    stop.signal.removeEventListener('abort', gone)
    stop.signal.throwIfAborted()
    expect(stop.signal.aborted).toBe(false)
    const reason = new Error('enough')
    stop.abort(reason)
    stop.abort(new Error('again'))
    expect(heard).toEqual(['a', 'b'])
    expect(stop.signal.aborted).toBe(true)
    expect(stop.signal.reason).toBe(reason)
    expect(() => stop.signal.throwIfAborted()).toThrow(reason)
    stop.signal.addEventListener('abort', () => heard.push('late'))
    expect(heard).toEqual(['a', 'b'])
  })
})
