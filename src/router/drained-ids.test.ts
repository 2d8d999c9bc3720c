// The file of drained members: written whole, and never in the way.

import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { DrainedIds } from './drained-ids.js'

let folder = ''
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'refrain-drained-'))
})
afterEach(() => rmSync(folder, { recursive: true, force: true }))

test('what was added is there when it is opened again, what was removed is not', () => {
  const path = join(folder, 'fleet', 'drained.json')
  const ids = new DrainedIds(path)
  for (const id of ['http://a', 'http://b', 'http://b']) ids.add(id)
  ids.remove('http://a')
  const again = new DrainedIds(path)
  expect(['http://a', 'http://b'].map((id) => again.has(id))).toEqual([false, true])
  expect(readdirSync(join(folder, 'fleet'))).toEqual(['drained.json'])
})

test('a file that is broken is empty, one that cannot be written keeps nothing from running', () => {
  const path = join(folder, 'drained.json')
  for (const text of [
    '{"version":1,"dra',
    'null',
    '{"version":2,"drained":["a"]}',
    '{"version":1,"drained":{"a":1}}',
  ]) {
    writeFileSync(path, text)
    expect(new DrainedIds(path).has('a')).toBe(false)
  }
  mkdirSync(`${path}.new`)
  const ids = new DrainedIds(path)
  ids.add('a')
  expect(ids.has('a')).toBe(true)
})
