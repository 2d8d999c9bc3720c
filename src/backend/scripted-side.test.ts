// The scripted backend's cache treats side requests, dead branches and checkpoints as the engine's does.

import { describe, expect, test } from 'vitest'
import type { BlockHash } from '../core/block.js'
import { ManualClock } from '../testing/manual-clock.js'
import { ScriptedCache } from './scripted-cache.js'

const chain = (name: string, count: number) => Array.from({ length: count }, (_, i) => `${name}${i}` as BlockHash)

function cacheOf(capacity: number) {
  const cache = new ScriptedCache(capacity, new ManualClock())
  const serve = (hashes: readonly BlockHash[], by: 'session' | 'side' = 'session') => {
    const hits = cache.acquire(hashes, hashes.length, by)
    cache.commit(hashes, hits, hashes.length, by)
    return hits
  }
  const held = (hashes: readonly BlockHash[]) => cache.acquire(hashes, hashes.length, 'side')
  return { cache, serve, held }
}

describe('a side request', () => {
  test('hits, and makes nothing of a session leave', () => {
    const { cache, serve, held } = cacheOf(6)
    serve(chain('a', 5))
    expect(serve([...chain('a', 5), ...chain('x', 3)], 'side')).toBe(5)
    expect(held([...chain('a', 5), ...chain('x', 3)])).toBe(6)
    expect(cache.size).toBe(6)
  })

  test('leaves first, and for the next one', () => {
    const { serve, held } = cacheOf(6)
    serve(chain('a', 3))
    serve(chain('x', 3), 'side')
    serve(chain('y', 3), 'side')
    expect([held(chain('x', 3)), held(chain('y', 3)), held(chain('a', 3))]).toEqual([0, 3, 3])
    serve(chain('b', 3))
    expect([held(chain('y', 3)), held(chain('a', 3)), held(chain('b', 3))]).toEqual([0, 3, 3])
  })

  test('leaves what a session uses to the session', () => {
    const { serve, held } = cacheOf(6)
    serve(chain('x', 3), 'side')
    expect(serve(chain('x', 3))).toBe(3)
    serve(chain('a', 3))
    serve(chain('y', 3), 'side')
    expect(held(chain('x', 3))).toBe(3)
  })
})

test('a dead branch goes first with what follows it, children before parents', () => {
  const { cache, serve, held } = cacheOf(8)
  const generated = chain('a', 4)
  serve(generated)
  serve(chain('b', 3))
  expect(cache.demote(generated.slice(1, 3))).toBe(3)
  serve(chain('c', 3))
  expect([held(generated), held(chain('b', 3)), held(chain('c', 3))]).toEqual([2, 3, 3])
})
