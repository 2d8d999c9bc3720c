// Sessions on disk: torn and garbled files, growth, age, and a disk that fails.

import {
  appendFileSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { note } from '../core/signals.js'
import { ManualClock } from '../testing/manual-clock.js'
import { openSessionLog } from './session-log.js'
import type { SessionRecord } from './session-store.js'

let root: string
let now = 1_000_000
const clock = new ManualClock()
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'refrain-session-log-'))
})
afterEach(() => rmSync(root, { recursive: true, force: true }))

const path = () => join(root, 'router', 'sessions.log')
const opened = (more: { max?: number; ttlMs?: number } = {}) =>
  openSessionLog({ folder: join(root, 'router'), max: 1000, ttlMs: 60_000, clock, dateNow: () => now, ...more })
const record = (key: string, member = 'up0'): SessionRecord => ({
  key,
  member,
  scope: 'scope',
  tail: `tail of ${key}`,
  tokens: 1234,
  head: 'head',
  headTokens: 1000,
})

test('what was put is there after it was opened anew, the last state of each', async () => {
  const log = await opened()
  log.put(record('a'))
  log.put(record('b'))
  log.put(record('c'))
  log.put(record('a', 'up1'))
  log.remove('b')
  await log.close()
  expect([...(await opened()).records()]).toEqual([record('c'), record('a', 'up1')])
  expect(statSync(path()).mode & 0o777).toBe(0o600)
})

test('it is written half a second later, without being asked', async () => {
  const log = await opened()
  log.put(record('a'))
  clock.advance(499)
  log.put(record('b'))
  await clock.advanceSlowly(2)
  await log.flush()
  expect([...(await opened()).records()].map(({ key }) => key)).toEqual(['a', 'b'])
})

test('cut anywhere, it gives the sessions in front of the cut, and takes new ones', async () => {
  const log = await opened()
  const keys = Array.from({ length: 8 }, (_, i) => `session ${i}`)
  for (const key of keys) log.put(record(key))
  await log.close()
  const whole = readFileSync(path())
  for (let cut = 0; cut < whole.length; cut += 7) {
    writeFileSync(path(), whole)
    truncateSync(path(), cut)
    const torn = await opened()
    const complete = whole.subarray(0, cut).toString().split('\n').length - 1
    const found = [...torn.records()].map(({ key }) => key)
    expect([keys.slice(0, complete), keys.slice(0, complete + 1)]).toContainEqual(found)
    torn.put(record('new'))
    await torn.close()
    expect([...(await opened()).records()].map(({ key }) => key)).toEqual([...found, 'new'])
  }
})

test('garbage in it is passed over', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(fc.oneof(fc.string(), fc.json())), async (lines) => {
      rmSync(root, { recursive: true, force: true })
      mkdirSync(join(root, 'router'), { recursive: true })
      writeFileSync(path(), `${lines.join('\n')}\n`)
      const log = await opened()
      log.put(record('a'))
      await log.close()
      expect([...(await opened()).records()]).toContainEqual(record('a'))
    }),
    { numRuns: 30 },
  )
})

test('old sessions and those over the bound are left out', async () => {
  const log = await opened()
  log.put(record('old'))
  now += 50_000
  for (const key of ['a', 'b', 'c']) log.put(record(key))
  await log.close()
  now += 20_000
  expect([...(await opened({ max: 2 })).records()].map(({ key }) => key)).toEqual(['b', 'c'])
  expect([...(await opened()).records()].map(({ key }) => key)).toEqual(['a', 'b', 'c'])
})

test('it does not grow without bound', async () => {
  const log = await opened()
  for (let round = 0; round < 30; round++) {
    for (let i = 0; i < 500; i++) log.put(record(`session ${i}`, `up${round}`))
    await log.flush()
  }
  expect(statSync(path()).size).toBeLessThan(1.2 * 1024 * 1024)
  await log.close()
  const records = [...(await opened()).records()]
  expect(records.length).toBe(500)
  expect(new Set(records.map(({ member }) => member))).toEqual(new Set(['up29']))
})

test('a disk that fails is said once, and nothing else', async () => {
  const said: string[] = []
  const end = note.subscribe(({ text }) => said.push(text))
  mkdirSync(path(), { recursive: true })
  const log = await opened()
  log.put(record('a'))
  await log.flush()
  log.put(record('b'))
  await log.close()
  end()
  expect(said).toEqual([expect.stringMatching(/^cannot read .*sessions\.log: sessions may be lost$/)])
  expect([...log.records()].length).toBe(2)
})

test('a writer of an older form is passed over', async () => {
  await (await opened()).close()
  appendFileSync(path(), '[1,"key","member"]\n{"key":1}\n')
  expect([...(await opened()).records()]).toEqual([])
})
