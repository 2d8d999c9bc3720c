// What is on disk after each answer, and going on with it: after a Ctrl-C, a crash in mid-line, with other flags.

import { appendFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { createResults, type ResultsHead, readResults, resumeResults } from './results.js'

let folder: string
let path: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'refrain-results-'))
  path = join(folder, 'r.jsonl')
})
afterEach(() => rmSync(folder, { recursive: true }))

const head: ResultsHead = {
  ...{ refrain_replay: 1, trace: 't', digest: 'd', settings: { api: 'chat', sessions: 2 }, began: 'now' },
  targets: [{ name: 'a', url: 'http://a', model: 'm', wordsPerToken: 1 }],
}
const line = (i: number, more = {}) => ({ target: 'a', i, at: i, ttft: 1, wall: 2, out: 3, ...more })

describe('results', () => {
  test('are there after each line, and the last one of a request counts', () => {
    const results = createResults(path, head)
    results.add(line(0, { error: 'x' }))
    results.add(line(1))
    results.add(line(0))
    expect(readResults(path).lines).toEqual([line(0), line(1)])
    expect(results.lines).toEqual([line(0), line(1)])
    results.close()
  })

  test('are never written over', () => {
    createResults(path, head).close()
    expect(() => createResults(path, head)).toThrow(/is there already: go on with it/)
  })

  test('a line that a crash cut is forgotten, and what comes next stands on a line of its own', () => {
    const first = createResults(path, head)
    first.add(line(0))
    first.close()
    appendFileSync(path, '{"target":"a","i":1,"at"')
    const second = resumeResults(path, head)
    expect([second.lines, second.resumed]).toEqual([[line(0)], 1])
    second.add(line(1))
    second.close()
    const { lines, resumed } = readResults(path)
    expect([lines, resumed]).toEqual([[line(0), line(1)], 1])
    for (const each of readFileSync(path, 'utf8').trim().split('\n')) JSON.parse(each)
  })

  test.each([
    ['another trace', { ...head, digest: 'e' }, /of another trace/],
    ['other settings', { ...head, settings: { api: 'chat', sessions: 3 } }, /was begun with sessions 2, not 3/],
    ['more settings', { ...head, settings: { ...head.settings, shrink: 2 } }, /was begun with shrink none, not 2/],
  ])('are not gone on with for %s', (_, wanted, complaint) => {
    createResults(path, head).close()
    expect(() => resumeResults(path, wanted)).toThrow(complaint)
  })

  test('what is no file of results is refused by name and line', () => {
    expect(() => readResults(path)).toThrow(/there is no .*r\.jsonl/)
    writeFileSync(path, '{"a": 1}\n')
    expect(() => readResults(path)).toThrow(/no file of replay results/)
    writeFileSync(path, `${JSON.stringify(head)}\n{"target": 3}\n`)
    expect(() => readResults(path)).toThrow(/r\.jsonl:2: it is no result/)
  })
})
