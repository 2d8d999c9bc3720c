// The sampler against a plain one that sorts everything, its statistics, and its promises: seeds, ties, faults.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import type { Sampling } from '../core/request.js'
import { createSampler, type SamplerContext } from './sampler.js'

const NEUTRAL: Sampling = {
  temperature: 1,
  topP: 1,
  topK: 0,
  minP: 0,
  repetitionPenalty: 1,
  presencePenalty: 0,
  frequencyPenalty: 0,
  logitBias: {},
}

function samplerOf(sampling: Partial<Sampling>, context: Partial<SamplerContext> & { vocabSize: number }) {
  return createSampler(
    { ...NEUTRAL, ...sampling },
    { promptTokens: new Int32Array(), choice: 0, requestId: 'test', ...context },
  )
}

function maskOf(allowed: readonly number[], vocabSize: number): Int32Array {
  const mask = new Int32Array((vocabSize + 31) >> 5)
  for (const id of allowed) mask[id >> 5]! |= 1 << (id & 31)
  return mask
}

/** The specification: probabilities after every step, computed the slow way. */
function probabilities(row: readonly number[], sampling: Sampling, history: { prompt: number[]; output: number[] }) {
  const logits = row.map((logit, id) => {
    let value = Math.fround(logit + (sampling.logitBias[id] ?? 0))
    const count = history.output.filter((other) => other === id).length
    if (count > 0 || history.prompt.includes(id)) {
      value = value > 0 ? value / sampling.repetitionPenalty : value * sampling.repetitionPenalty
    }
    if (count > 0) value -= count * sampling.frequencyPenalty + sampling.presencePenalty
    return Math.fround(value)
  })
  let kept = logits.map((_, id) => id).sort((a, b) => logits[b]! - logits[a]! || a - b)
  const best = logits[kept[0]!]!
  const weight = (id: number) => Math.exp((logits[id]! - best) / sampling.temperature)
  if (sampling.topK > 0) kept = kept.slice(0, sampling.topK)
  const total = kept.reduce((sum, id) => sum + weight(id), 0)
  let mass = 0
  kept = kept.filter((_, i) => {
    const before = mass
    mass += weight(kept[i]!)
    return i === 0 || before < sampling.topP * total
  })
  kept = kept.filter((id) => weight(id) >= sampling.minP)
  const sum = kept.reduce((acc, id) => acc + weight(id), 0)
  const result = row.map(() => 0)
  for (const id of kept) result[id] = weight(id) / sum
  return result
}

/** Chi-square of `draws` draws in its standard deviations; tokens of under five expected ones count as one. Seeds are fixed. */
function deviation(expected: readonly number[], draw: () => number, draws: number): number {
  const seen = expected.map(() => 0)
  for (let i = 0; i < draws; i++) seen[draw()]!++
  let statistic = 0
  let cells = -1
  let restSeen = 0
  let restExpected = 0
  for (let id = 0; id < seen.length; id++) {
    const want = expected[id]! * draws
    if (want === 0) expect(seen[id], `token ${id} is cut off`).toBe(0)
    if (want < 5) {
      restSeen += seen[id]!
      restExpected += want
      continue
    }
    statistic += (seen[id]! - want) ** 2 / want
    cells++
  }
  if (restExpected >= 5) {
    statistic += (restSeen - restExpected) ** 2 / restExpected
    cells++
  }
  return cells < 1 ? 0 : (statistic - cells) / Math.sqrt(2 * cells)
}

/** A reproducible row: a few likely tokens over a noisy floor, as models give. */
function rowOf(size: number, seed: number): number[] {
  let state = seed
  const next = () => {
    state = (Math.imul(state, 1664525) + 1013904223) | 0
    return (state >>> 8) / 2 ** 24
  }
  return Array.from({ length: size }, () => Math.fround((next() + next() + next() - 1.5) * 6 + (next() < 0.05 ? 4 : 0)))
}

describe('the distribution', () => {
  const cases: Record<string, Partial<Sampling>> = {
    plain: {},
    'low temperature': { temperature: 0.4 },
    'high temperature': { temperature: 1.7 },
    top_p: { topP: 0.8 },
    top_k: { topK: 17 },
    min_p: { minP: 0.05 },
    'all three': { temperature: 0.9, topK: 40, topP: 0.9, minP: 0.02 },
    'bias and penalties': {
      logitBias: { 3: 5, 9: -100 },
      repetitionPenalty: 1.3,
      presencePenalty: 0.5,
      frequencyPenalty: 0.4,
    },
  }
  for (const [name, settings] of Object.entries(cases)) {
    test(`${name} matches the plain computation`, () => {
      const row = rowOf(300, 11)
      const history = { prompt: [1, 2, 3, 50], output: [3, 3, 7, 120] }
      const sampler = samplerOf(
        { ...settings, seed: 42 },
        { vocabSize: row.length, promptTokens: Int32Array.from(history.prompt) },
      )
      for (const id of history.output) sampler.accept(id)
      const expected = probabilities(row, { ...NEUTRAL, ...settings }, history)
      const draw = () => sampler.sample(Float32Array.from(row)).id
      expect(Math.abs(deviation(expected, draw, 20_000))).toBeLessThan(5)
    })
  }

  test('choices are independent of each other', () => {
    const row = rowOf(16, 5)
    const one = samplerOf({ seed: 9 }, { vocabSize: 16, choice: 0 })
    const two = samplerOf({ seed: 9 }, { vocabSize: 16, choice: 1 })
    const p = probabilities(row, NEUTRAL, { prompt: [], output: [] })
    const joint = p.flatMap((a) => p.map((b) => a * b))
    const draw = () => one.sample(Float32Array.from(row)).id * 16 + two.sample(Float32Array.from(row)).id
    expect(Math.abs(deviation(joint, draw, 20_000))).toBeLessThan(5)
  })
})

test('the candidates are exactly those of the plain computation', () => {
  const settings = fc.record({
    temperature: fc.double({ min: 0.05, max: 5, noNaN: true }),
    topK: fc.integer({ min: 0, max: 70 }),
    topP: fc.double({ min: 0, max: 1, noNaN: true }),
    minP: fc.oneof(fc.constant(0), fc.double({ min: 0, max: 1, noNaN: true })),
  })
  // Halves make ties, which is where cuts go wrong.
  const row = fc.array(
    fc.integer({ min: -30, max: 30 }).map((n) => n / 2),
    { minLength: 1, maxLength: 60 },
  )
  fc.assert(
    fc.property(settings, row, fc.nat(), (partial, logits, seed) => {
      const sampling = { ...NEUTRAL, ...partial }
      const expected = probabilities(logits, sampling, { prompt: [], output: [] })
      const sampler = samplerOf({ ...sampling, seed }, { vocabSize: logits.length })
      for (let i = 0; i < 20; i++) {
        const { id } = sampler.sample(Float32Array.from(logits))
        // A cumulated mass that meets top_p, or a weight that meets min_p, to the last bit may fall to either side.
        const near = (value: number) =>
          probabilities(
            logits,
            { ...sampling, topP: value, minP: sampling.minP * (1 - 1e-9) },
            { prompt: [], output: [] },
          )
        expect(expected[id]! > 0 || near(Math.min(1, sampling.topP + 1e-9))[id]! > 0).toBe(true)
      }
    }),
    { numRuns: 300, seed: 7 },
  )
})

describe('greedy', () => {
  test('temperature 0 takes the best and of equals the lowest id', () => {
    const sampler = samplerOf({ temperature: 0 }, { vocabSize: 7 })
    expect(sampler.sample(Float32Array.of(1, 5, 2, 5, -1, 5, 0)).id).toBe(1)
    expect(sampler.sample(Float32Array.of(-3, -3, -3, -3, -3, -3, -2)).id).toBe(6)
    expect(sampler.sample(Float32Array.of(-0, 0, -0, 0, 0, 0, 0)).id).toBe(0)
  })

  test('a temperature too small to divide by is greedy, and never NaN', () => {
    for (const temperature of [1e-320, 1e-9, 1e-5, 1e-4]) {
      const sampler = samplerOf({ temperature, seed: 1 }, { vocabSize: 3 })
      expect(sampler.sample(Float32Array.of(3e38, -3e38, 1)).id).toBe(0)
    }
  })

  test('bias and penalties change who is best', () => {
    const biased = samplerOf({ temperature: 0, logitBias: { 2: 100 } }, { vocabSize: 3 })
    expect(biased.sample(Float32Array.of(3, 2, 1)).id).toBe(2)
    const repeated = samplerOf(
      { temperature: 0, repetitionPenalty: 2 },
      { vocabSize: 3, promptTokens: Int32Array.of(0) },
    )
    expect(repeated.sample(Float32Array.of(3, 2, 1)).id).toBe(1)
    expect(repeated.sample(Float32Array.of(-1, -1.5, -3)).id).toBe(1)
    const frequent = samplerOf({ temperature: 0, frequencyPenalty: 0.6 }, { vocabSize: 3 })
    frequent.accept(0)
    expect(frequent.sample(Float32Array.of(3, 2, 1)).id).toBe(0)
    frequent.accept(0)
    expect(frequent.sample(Float32Array.of(3, 2, 1)).id).toBe(1)
  })
})

describe('the mask', () => {
  test('holds for greedy and drawn tokens alike', () => {
    const row = rowOf(101, 3)
    const allowed = [5, 31, 32, 63, 64, 100]
    const mask = maskOf(allowed, row.length)
    const best = allowed.reduce((a, b) => (row[b]! > row[a]! ? b : a))
    expect(samplerOf({ temperature: 0 }, { vocabSize: 101 }).sample(Float32Array.from(row), mask).id).toBe(best)
    const sampler = samplerOf({ seed: 4, temperature: 2 }, { vocabSize: 101 })
    const seen = new Set<number>()
    for (let i = 0; i < 2000; i++) seen.add(sampler.sample(Float32Array.from(row), mask).id)
    expect([...seen].sort((a, b) => a - b)).toEqual(allowed)
    const narrow = samplerOf({ seed: 4, topK: 3, topP: 0.99 }, { vocabSize: 101 })
    for (let i = 0; i < 200; i++) expect(allowed).toContain(narrow.sample(Float32Array.from(row), mask).id)
  })

  test('one allowed token is always it; none is a fault', () => {
    const sampler = samplerOf({ seed: 1 }, { vocabSize: 40 })
    expect(sampler.sample(new Float32Array(40), maskOf([39], 40)).id).toBe(39)
    expect(() => sampler.sample(new Float32Array(40), maskOf([], 40))).toThrow('allows no token')
    expect(() => sampler.sample(new Float32Array(40), new Int32Array(1))).toThrow('a mask of 1 words')
  })
})

describe('logprobs', () => {
  test('are those of the row before bias, penalties, mask and temperature', () => {
    const row = [2, 1, 0, -1]
    const norm = Math.log(row.reduce((sum, x) => sum + Math.exp(x), 0))
    const sampler = samplerOf(
      { temperature: 0, logitBias: { 3: 50 } },
      { vocabSize: 4, topLogprobs: 2, promptTokens: Int32Array.of(0) },
    )
    const { id, logprob, top } = sampler.sample(Float32Array.from(row))
    expect(id).toBe(3)
    expect(logprob).toBeCloseTo(-1 - norm, 6)
    expect(top.map((token) => token.id)).toEqual([0, 1])
    expect(top[0]!.logprob).toBeCloseTo(2 - norm, 6)
  })

  test('the top is sorted, ties by id, and no longer than asked', () => {
    fc.assert(
      fc.property(fc.array(fc.integer({ min: -4, max: 4 }), { minLength: 1 }), fc.nat(20), (logits, count) => {
        const sampler = samplerOf({ temperature: 0 }, { vocabSize: logits.length, topLogprobs: count })
        const { top } = sampler.sample(Float32Array.from(logits))
        const ids = logits.map((_, id) => id).sort((a, b) => logits[b]! - logits[a]! || a - b)
        expect(top.map((token) => token.id)).toEqual(ids.slice(0, count))
      }),
    )
  })

  test('are absent unless asked for', () => {
    expect(samplerOf({}, { vocabSize: 2 }).sample(Float32Array.of(1, 2))).toMatchObject({ logprob: undefined, top: [] })
  })
})

describe('seeds', () => {
  const row = rowOf(500, 8)
  const stream = (seed: number | undefined, choice: number) => {
    const sampler = samplerOf({ ...(seed === undefined ? {} : { seed }) }, { vocabSize: 500, choice })
    return Array.from({ length: 40 }, () => sampler.sample(Float32Array.from(row)).id).join()
  }

  test('repeat a request, and tell choices, seeds and their high halves apart', () => {
    const streams = [stream(7, 0), stream(7, 1), stream(8, 0), stream(7 + 2 ** 40, 0), stream(-7, 0), stream(0, 0)]
    expect(stream(7, 0)).toBe(streams[0])
    expect(new Set(streams).size).toBe(streams.length)
  })

  test('are not needed', () => {
    expect(stream(undefined, 0)).not.toBe(stream(undefined, 0))
  })
})

describe('faults', () => {
  test.each([Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY])('a logit of %s is named', (bad) => {
    for (let at = 0; at < 6; at++) {
      const logits = Float32Array.of(1, 2, 3, 4, 5, 6)
      logits[at] = bad
      const sampler = samplerOf({ temperature: 0 }, { vocabSize: 6 })
      expect(() => sampler.sample(logits)).toThrow(`request test: logit ${at} (${bad}) is not finite`)
    }
  })

  test('a row of another length, and a bias beyond the vocabulary', () => {
    expect(() => samplerOf({}, { vocabSize: 3 }).sample(new Float32Array(4))).toThrow('4 logits for 3 tokens')
    expect(() => samplerOf({ logitBias: { 3: 1 } }, { vocabSize: 3 })).toThrow('logit_bias names token 3')
  })
})
