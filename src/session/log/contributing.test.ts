// The rule where there are more sets of sources than are told apart, and the numbers by which sets are stored.

import fc from 'fast-check'
import { expect, test } from 'vitest'
import { contextSources, contribute, type NamedSources, RESTS_ON_NOTHING, type Rests } from './contributing.js'
import type { EventBody } from './event.js'
import { SourceSets } from './source-sets.js'

const nothing: NamedSources = { call: () => undefined, layer: () => undefined, artifact: () => undefined }
const after = (rests: Rests, body: EventBody, sources: readonly string[] = []) =>
  contribute(rests, { body, sources }, nothing)
const saying = (rests: Rests, sources: readonly string[]) => after(rests, { kind: 'user', content: '' }, sources).rests

test('over many sets nothing is lost, and what is revoked is gone', () => {
  const all = Array.from({ length: 700 }, (_, i) => `source ${String(i).padStart(3, '0')}`)
  let rests = RESTS_ON_NOTHING
  for (const source of all) rests = saying(rests, [source])
  expect(rests.body.length).toBeLessThanOrEqual(256)
  expect(contextSources(rests)).toEqual(all)
  const gone = [all[3]!, all[650]!]
  rests = after(rests, { kind: 'revocation', sources: gone }).rests
  expect(contextSources(rests)).toEqual(all.filter((source) => !gone.includes(source)))
  rests = after(rests, { kind: 'policy', snapshot: { retention: '', revoked: [all[5]!], shared: {} } }).rests
  const { sources } = after(rests, { kind: 'assistant', content: '' })
  expect(sources).toEqual(all.filter((source) => ![...gone, all[5]].includes(source)))
})

test('what a reset names stays with its sources; where nobody knows them, all stay', () => {
  const rests = saying(saying(RESTS_ON_NOTHING, ['a']), ['b'])
  const named: NamedSources = { ...nothing, artifact: (locator) => (locator === 'known' ? ['a'] : undefined) }
  const reset = (artifacts: string[]) =>
    contextSources(contribute(rests, { body: { kind: 'reset', artifacts } }, named).rests)
  expect(reset([])).toEqual([])
  expect(reset(['known'])).toEqual(['a'])
  expect(reset(['known', 'unknown'])).toEqual(['a', 'b'])
})

test('shared memory brings its sources along', () => {
  const shared = { m: { label: 'M', value: 'v', sources: ['crm'] }, n: { label: 'N', value: 'v' } }
  const { rests } = after(RESTS_ON_NOTHING, { kind: 'policy', snapshot: { retention: '', revoked: [], shared } })
  expect(after(rests, { kind: 'assistant', content: '' }).sources).toEqual(['crm'])
})

test('stored sets come back as they were, and those of an append that failed do not', () => {
  const set = fc.uniqueArray(fc.constantFrom(...'abcdefgh'), { maxLength: 8 }).map((sources) => sources.sort())
  fc.assert(
    fc.property(fc.array(fc.record({ sets: fc.array(set, { maxLength: 3 }), fails: fc.boolean() })), (appends) => {
      const written = new SourceSets()
      const stored: string[] = []
      const numbers = new Map<number, readonly string[]>()
      for (const { sets, fails } of appends) {
        const given = sets.map((each) => [written.number(each), each] as const)
        if (fails) {
          written.forget()
          continue
        }
        for (const [number, each] of given) numbers.set(number, each)
        for (const fresh of written.keep()) {
          expect(fresh.number).toBe(stored.length + 1)
          stored.push(fresh.stored)
        }
      }
      const read = new SourceSets()
      read.load(stored)
      for (const [number, each] of numbers) {
        expect(read.of(number)).toEqual(each)
        expect(read.number(each)).toBe(number)
      }
      expect(read.keep()).toEqual([])
    }),
  )
})
