// A process that fills a cache folder until it is killed: `node cache-writer.js FOLDER`. It prints `owned` once it owns the
// folder and a line per flushed prompt, so that whoever kills it knows what must survive.

import { openKvCache } from '../cache/kv-cache.js'
import { serve, straightPrompt } from './toy-blocks.js'

/** Bytes of a block, and blocks of a prompt, that writer and reader agree on. */
export const WRITER_BLOCK_BYTES = 64 * 1024
export const WRITER_BLOCKS = 12

/** Fills the folder; never returns. */
export async function fill(folder: string): Promise<never> {
  const cache = await openKvCache({
    ...{ blockBytes: WRITER_BLOCK_BYTES, memoryBytes: 64 * WRITER_BLOCK_BYTES, restore: 'always' },
    disk: { folder, capacityBytes: 1024 * WRITER_BLOCK_BYTES, keepFreeBytes: 0 },
  })
  process.stdout.write('owned\n')
  for (let seed = 1; ; seed++) {
    await serve(cache, straightPrompt(seed, WRITER_BLOCKS))
    // Every third prompt is still being written while the next ones come.
    if (seed % 3 === 0) continue
    await cache.flush()
    process.stdout.write(`${seed}\n`)
  }
}

const [, script, folder] = process.argv
if (script?.includes('cache-writer') && folder !== undefined) await fill(folder)
