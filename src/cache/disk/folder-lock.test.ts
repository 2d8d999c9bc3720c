// The lock on real folders: one owner, gone with its process, in folders with long names too.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { lockFolder } from './folder-lock.js'

let root: string
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'refrain-lock-'))
})
afterEach(() => rm(root, { recursive: true, force: true }))

describe.each([
  ['a short folder', 'cache'],
  ['a folder longer than a socket address', 'long-'.repeat(40)],
])('%s', (_, name) => {
  const folder = async () => {
    await mkdir(join(root, name), { recursive: true })
    return join(root, name)
  }

  test('has one owner at a time', async () => {
    const path = await folder()
    const release = await lockFolder(path)
    await expect(lockFolder(path)).rejects.toThrow(new RegExp(`belongs to process ${process.pid}.*stop it`))
    await release()
    const again = await lockFolder(path)
    await again()
    expect(await readdir(path)).toEqual([])
  })

  test('is free again when its owner was killed', async () => {
    const path = await folder()
    // The dead owner is plain JavaScript: what it leaves behind is all that counts.
    const script = `
      const { createServer } = require('node:net')
      process.chdir(process.argv[1])
      createServer().listen('owner-1-abc.sock', () => process.stdout.write('up'))`
    const child = spawn(process.execPath, ['-e', script, path], { stdio: ['ignore', 'pipe', 'inherit'] })
    await once(child.stdout!, 'data')
    await expect(lockFolder(path)).rejects.toThrow('belongs to process 1')
    child.kill('SIGKILL')
    await once(child, 'exit')
    expect(await readdir(path)).toEqual(['owner-1-abc.sock'])
    const release = await lockFolder(path)
    expect(await readdir(path)).toHaveLength(1)
    await release()
  })
})

test('of twenty openers at once at most one owns the folder, and then one can', async () => {
  const results = await Promise.allSettled(Array.from({ length: 20 }, () => lockFolder(root)))
  const owners = results.flatMap((result) => (result.status === 'fulfilled' ? [result.value] : []))
  expect(owners.length).toBeLessThanOrEqual(1)
  for (const release of owners) await release()
  const release = await lockFolder(root)
  await release()
})

test('a folder that is not there is an error that says so', async () => {
  await expect(lockFolder(join(root, 'absent'))).rejects.toThrow('cannot be locked')
})
