// What an erasure says where the cache could not do all of it.

import { expect, test } from 'vitest'
import type { CacheControl } from './backend/backend.js'
import type { CacheErased } from './cache/contract.js'
import { eraseCached } from './compose-sessions.js'
import type { BlockHash } from './core/block.js'

const hashes = ['0'.repeat(32) as BlockHash]
const cacheThat = (erased: CacheErased) => ({ erase: async () => erased }) as unknown as CacheControl

test('blocks that may still be there are not told as gone', async () => {
  await expect(eraseCached(cacheThat({ blocks: 3, complete: true }), { hashes })).resolves.toBeUndefined()
  await expect(eraseCached(cacheThat({ blocks: 2, complete: false }), { hashes })).rejects.toMatchObject({
    code: 'storage_failed',
    retryAfterMs: expect.any(Number),
  })
})

test('where nothing is cached there is nothing to erase', async () => {
  await expect(eraseCached(undefined, { hashes })).resolves.toBeUndefined()
})
