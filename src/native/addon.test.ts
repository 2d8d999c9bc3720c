// What stands in for the addon when it is absent or broken: a reason, never a throw; and that threads share it.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { Worker } from 'node:worker_threads'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { loadAddon } from './addon.js'
import { largeBuffer } from './large-memory.js'

let folder: string
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'refrain-addon-'))
})
afterAll(() => rmSync(folder, { recursive: true }))

const built = 'forms' in loadAddon()

test('an absent file is a reason that says what to run', () => {
  expect(loadAddon(join(folder, 'none.node'))).toEqual({ reason: expect.stringContaining('npm run build') })
})

test('a file that is no library is a reason', () => {
  const path = join(folder, 'broken.node')
  writeFileSync(path, 'not a library')
  expect(loadAddon(path)).toEqual({ reason: expect.stringContaining('do not load') })
})

test('a library of other sources is a reason', () => {
  const path = join(folder, 'other.cjs')
  writeFileSync(path, 'module.exports = { forms: [{ name: "old" }] }')
  expect(loadAddon(path)).toEqual({ reason: expect.stringContaining('other sources') })
})

test.skipIf(!built)('wrong types are a TypeError (needs build/, a compiler)', () => {
  const addon = loadAddon()
  if (!('forms' in addon)) throw new Error(addon.reason)
  const [kernels] = addon.forms
  const doubles = new Float64Array(8) as unknown as Float32Array
  expect(() => kernels!.packRows(doubles, 0, 8, 1, 8, new Uint16Array(8), 0)).toThrow(TypeError)
  expect(() => kernels!.crc32c('text' as unknown as Uint8Array)).toThrow(TypeError)
})

test.skipIf(!built)('memory that is asked for in large pages is zeroed, of any size (needs build/, a compiler)', () => {
  const addon = loadAddon()
  if (!('forms' in addon)) throw new Error(addon.reason)
  expect(() => addon.askLargePages(new Uint8Array(8) as unknown as ArrayBuffer)).toThrow(TypeError)
  for (const bytes of [0, 1, 4096, 5 * 2 ** 20 + 3]) {
    const buffer = largeBuffer(bytes)
    expect(buffer.byteLength).toBe(bytes)
    expect(new Uint8Array(buffer).every((byte) => byte === 0)).toBe(true)
  }
})

test.skipIf(!built)('loads in a worker thread beside the main one (needs build/, a compiler)', async () => {
  const path = fileURLToPath(new URL('../../build/refrain_kernels.node', import.meta.url))
  const source = `
    const { parentPort, workerData } = require('node:worker_threads')
    parentPort.postMessage(require(workerData).forms[0].crc32c(Buffer.from('123456789')))`
  const worker = new Worker(source, { eval: true, workerData: path })
  const crc = await new Promise((resolve, reject) => worker.once('message', resolve).once('error', reject))
  await worker.terminate()
  expect(crc).toBe(0xe3069283)
})
