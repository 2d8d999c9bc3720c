// A real process, a real disk, kill -9 in mid-write: the next owner finds what was flushed, and nothing wrong.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readdir, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { build } from 'vite'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { WRITER_BLOCK_BYTES, WRITER_BLOCKS } from '../testing/cache-writer.js'
import { ask, expectRight, serve, straightPrompt } from '../testing/toy-blocks.js'
import { openKvCache } from './kv-cache.js'

let root: string
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'refrain-kill-'))
  // Node 20 runs no TypeScript, and dist/ may be older than the sources.
  await build({
    ...{ configFile: false, logLevel: 'silent', root: fileURLToPath(new URL('../..', import.meta.url)) },
    build: {
      ...{ ssr: true, outDir: join(root, 'program'), emptyOutDir: true, target: 'node20' },
      rollupOptions: {
        input: fileURLToPath(new URL('../testing/cache-writer.ts', import.meta.url)),
        output: { entryFileNames: 'cache-writer.mjs' },
      },
    },
    ssr: { noExternal: true },
  })
})
afterAll(() => rm(root, { recursive: true, force: true }))

function open(folder: string) {
  return openKvCache({
    ...{ blockBytes: WRITER_BLOCK_BYTES, memoryBytes: 64 * WRITER_BLOCK_BYTES, restore: 'always' },
    disk: { folder, capacityBytes: 1024 * WRITER_BLOCK_BYTES, keepFreeBytes: 0 },
  })
}

test.each([2, 5, 9])('after %i prompts', async (enough) => {
  const folder = join(root, `cache${enough}`)
  const child = spawn(process.execPath, [join(root, 'program', 'cache-writer.mjs'), folder], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const ended = once(child, 'exit')
  const flushed: number[] = []
  for await (const line of createInterface({ input: child.stdout! })) {
    if (line === 'owned') await expect(open(folder)).rejects.toThrow(`belongs to process ${child.pid}`)
    else flushed.push(Number(line))
    if (flushed.length >= enough) child.kill('SIGKILL')
  }
  expect(await ended).toEqual([null, 'SIGKILL'])

  expect((await stat(folder)).mode & 0o777).toBe(0o700)
  for (const name of await readdir(folder)) {
    if (name.endsWith('.kv')) expect((await stat(join(folder, name))).mode & 0o777).toBe(0o600)
  }
  const cache = await open(folder)
  for (const seed of flushed) {
    const lease = await ask(cache, straightPrompt(seed, WRITER_BLOCKS))
    expect(lease.found).toEqual({ memory: 0, disk: WRITER_BLOCKS })
    expectRight(lease)
    lease.release()
  }
  // What was being written is there, or missing; `serve` looks at its bytes.
  for (let seed = 1; seed < flushed.at(-1)! + 5; seed++) await serve(cache, straightPrompt(seed, WRITER_BLOCKS))
  await cache.close()
})
