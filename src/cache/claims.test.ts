// Single flight by itself; the door’s promises about it are in kv-cache.test.ts and model.test.ts.

import { expect, test } from 'vitest'
import type { BlockHash } from '../core/block.js'
import { Claims } from './claims.js'

const hashes = (...names: string[]) => names as BlockHash[]

test('a block has one claimant, from its claim to its commit or the claimant’s end', () => {
  const claims = new Claims<string>()
  expect(claims.claim(hashes('a', 'b', 'c'), 1, 'x')).toBe(true)
  expect(claims.claim(hashes('a', 'b', 'c'), 1, 'y')).toBe(false)
  expect(claims.claim(hashes('a', 'b', 'c'), 1, 'x')).toBe(true)
  expect(claims.claim(hashes('a', 'b', 'c'), 0, 'y')).toBe(true)
  expect(claims.size).toBe(3)
  claims.settle(hashes('b')[0]!)
  expect(claims.claim(hashes('b'), 0, 'y')).toBe(true)
  claims.release('x')
  expect(claims.claim(hashes('c'), 0, 'z')).toBe(true)
  claims.release('y')
  claims.release('y')
  claims.release('z')
  claims.settle(hashes('c')[0]!)
  expect(claims.size).toBe(0)
})
