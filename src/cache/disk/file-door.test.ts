// The door to the machine’s own file system.

import { chmod, mkdtemp, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { systemFiles } from './file-door.js'

let root: string
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'refrain-files-'))
})
afterEach(() => rm(root, { recursive: true, force: true }))

test('files and folders are their owner’s alone', async () => {
  const folder = join(root, 'a', 'b')
  await systemFiles.makeFolder(folder)
  const file = await systemFiles.create(join(folder, 'x'))
  await file.close()
  expect((await stat(folder)).mode & 0o777).toBe(0o700)
  expect((await stat(join(folder, 'x'))).mode & 0o777).toBe(0o600)
  await chmod(folder, 0o755)
  await systemFiles.makeFolder(folder)
  expect((await stat(folder)).mode & 0o777).toBe(0o755)
})

test('pieces are written and read in turn, at their position', async () => {
  const path = join(root, 'x')
  const file = await systemFiles.create(path)
  await file.write([Buffer.from('abc'), Buffer.alloc(0), Buffer.from('defg')], 2)
  expect(await file.size()).toBe(9)
  const [a, b] = [Buffer.alloc(4), Buffer.alloc(10)]
  expect(await file.read([a, b], 1)).toBe(8)
  expect(a.toString('latin1')).toBe('\0abc')
  expect(b.subarray(0, 4).toString()).toBe('defg')
  await file.truncate(4)
  await file.sync()
  expect(await file.size()).toBe(4)
  await file.close()
  await expect(systemFiles.create(path)).rejects.toMatchObject({ code: 'EEXIST' })
  await expect(systemFiles.open(join(root, 'y'))).rejects.toMatchObject({ code: 'ENOENT' })
  expect(await systemFiles.list(root)).toEqual(['x'])
  await systemFiles.syncFolder(root)
  expect(await systemFiles.freeBytes(root)).toBeGreaterThan(0)
  await systemFiles.unlink(path)
  expect(await systemFiles.list(root)).toEqual([])
})
