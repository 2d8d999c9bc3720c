// Turns that are told from process to process: whatever the conversations, both ends have the same, and what goes over is
// what is new.

import fc from 'fast-check'
import { expect, test } from 'vitest'
import type { SegmentChain } from '../router/contract.js'
import type { SentTurn } from './turn-ears.js'
import { TurnHearer, TurnTeller } from './turn-wire.js'

let count = 0

function chainOf(names: readonly string[], perSegment = 100): SegmentChain {
  return {
    hashes: names.map((_, i) => names.slice(0, i + 1).join('|')),
    tokens: names.map((_, i) => (i + 1) * perSegment),
    head: Math.min(1, names.length),
    parts: ['system'],
  }
}

function turnOf(segments: SegmentChain): SentTurn {
  const key = `r${++count}`
  const about = { model: 'm', tenant: 't', salt: '', promptTokens: 5, member: 'a', at: count }
  return { ...about, key, id: key, requestClass: 'main', segments }
}

function house() {
  const heard: unknown[] = []
  const teller = new TurnTeller()
  const hearer = new TurnHearer({
    sent: (turn) => void heard.push(turn),
    settled: (turn) => void heard.push(turn),
    lost: (key) => void heard.push(`lost ${key}`),
  })
  /** Of what was told. */
  let bytes = 0
  const pass = () => {
    const told = structuredClone(teller.take())
    bytes += JSON.stringify(told).length
    hearer.hear(told)
  }
  return { heard, teller, hearer, pass, bytes: () => bytes }
}

test('what arrives is what was told, over conversations that go on, branch, change and begin anew', () => {
  const steps = fc.array(
    fc.record({ from: fc.nat(50), cut: fc.nat(3), more: fc.array(fc.constantFrom('a', 'b', 'c'), { maxLength: 4 }) }),
    { maxLength: 40 },
  )
  fc.assert(
    fc.property(steps, fc.boolean(), (all, isLost) => {
      const { heard, teller, pass } = house()
      const said: string[][] = [[]]
      const sent: SentTurn[] = []
      for (const [i, { from, cut, more }] of all.entries()) {
        const names = [...(said[from % said.length] as string[]).slice(0, from === 0 ? 0 : undefined), ...more]
        said.push(names.slice(0, Math.max(0, names.length - cut)))
        const turn = turnOf(chainOf(said.at(-1) as string[]))
        teller.sent(turn)
        // All before it arrived already.
        if (isLost && i === 7) {
          teller.take()
          teller.lost()
        } else sent.push(turn)
        if (i % 3 === 0) pass()
      }
      pass()
      expect(heard).toEqual(sent)
    }),
    { numRuns: 200 },
  )
})

test('a long conversation is told once', () => {
  const { teller, pass, bytes, heard } = house()
  const names = Array.from({ length: 200 }, (_, i) => `message ${i}`)
  teller.sent(turnOf(chainOf(names)))
  pass()
  const first = bytes()
  const last = turnOf(chainOf([...names, 'answer', 'question']))
  teller.sent(last)
  teller.settled({ key: last.key, failed: false, promptTokens: 7, completionTokens: 1, cachedTokens: 3 })
  pass()
  // Names of this test's hashes are as long as their chains.
  expect(bytes() - first).toBeLessThan(first / 20)
  expect(heard.at(-2)).toEqual(last)
  expect(heard.at(-1)).toMatchObject({ key: last.key, cachedTokens: 3 })
})

test('tokens that were estimated by another measure are told in the one of now', () => {
  const { teller, pass, heard } = house()
  teller.sent(turnOf(chainOf(['a', 'b'], 100)))
  teller.sent(turnOf(chainOf(['a', 'b', 'c'], 150)))
  pass()
  expect(heard[1]).toMatchObject({ segments: { tokens: [150, 300, 450] } })
})

test('of a process that died what was under way is lost, what was settled is not', () => {
  const { teller, hearer, pass, heard } = house()
  const [one, two, three] = [turnOf(chainOf(['a'])), turnOf(chainOf(['b'])), turnOf(chainOf(['c']))]
  for (const each of [one, two, three]) teller.sent(each)
  teller.settled({ key: one.key, failed: false })
  teller.settled({ key: two.key, failed: true })
  pass()
  hearer.gone()
  expect(heard.slice(5)).toEqual([`lost ${two.key}`, `lost ${three.key}`])
})

test('a chain whose beginning did not arrive is passed over', () => {
  const { teller, hearer, heard } = house()
  teller.sent(turnOf(chainOf(['a'])))
  teller.take()
  teller.sent(turnOf(chainOf(['a', 'b'])))
  hearer.hear(teller.take())
  expect(heard).toEqual([])
})
