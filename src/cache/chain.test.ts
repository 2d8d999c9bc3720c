// Chains name prefixes: equal parts and tokens give equal hashes, anything else gives others; a missing part is refused.

import { createHash } from 'node:crypto'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import type { Root } from '../core/block.js'
import { chainOf, createChainMemo, makeRoot, nextHash, type RootParts } from './chain.js'

const PARTS: RootParts = {
  weightsDigest: 'aa',
  tokenizerDigest: 'bb',
  layout: { layers: 30, kvHeads: 3, headDim: 64, dtype: 'fp16' },
  rounding: 'fp16',
  arithmetic: 'onnx',
  tenantSalt: 'default',
}

describe('makeRoot', () => {
  test('is the same in every process', () => {
    expect(makeRoot(PARTS)).toBe('403a7806d49369b292384c72bc3a6cc2')
    expect(makeRoot({ ...PARTS })).toBe(makeRoot(PARTS))
  })

  test('changes with every part', () => {
    const others: Partial<RootParts>[] = [
      { weightsDigest: 'ab' },
      { tokenizerDigest: 'bc' },
      { layout: { ...PARTS.layout, layers: 31 } },
      { layout: { ...PARTS.layout, kvHeads: 4 } },
      { layout: { ...PARTS.layout, headDim: 128 } },
      { layout: { ...PARTS.layout, dtype: 'fp32' } },
      { rounding: 'none' },
      { arithmetic: 'native-1' },
      { tenantSalt: 'other' },
      { adapter: '' },
      { adapter: 'x' },
      { cacheSalt: '' },
      { cacheSalt: 'x' },
    ]
    const roots = [PARTS, ...others.map((other) => ({ ...PARTS, ...other }))].map(makeRoot)
    expect(new Set(roots).size).toBe(roots.length)
  })

  test('does not let one part run into the next', () => {
    expect(makeRoot({ ...PARTS, weightsDigest: 'aab', tokenizerDigest: 'b' })).not.toBe(
      makeRoot({ ...PARTS, weightsDigest: 'aa', tokenizerDigest: 'bb' }),
    )
  })

  test.each(['weightsDigest', 'tokenizerDigest', 'layout', 'rounding', 'arithmetic', 'tenantSalt'] as const)(
    'refuses no %s',
    (part) => {
      expect(() => makeRoot({ ...PARTS, [part]: undefined } as unknown as RootParts)).toThrow(part)
      if (part !== 'layout') expect(() => makeRoot({ ...PARTS, [part]: '' } as RootParts)).toThrow(part)
    },
  )

  test.each(['layers', 'kvHeads', 'headDim'] as const)('refuses a layout without %s', (part) => {
    for (const value of [undefined, 0, -1, 1.5, Number.NaN]) {
      const layout = { ...PARTS.layout, [part]: value } as RootParts['layout']
      expect(() => makeRoot({ ...PARTS, layout })).toThrow(part)
    }
  })
})

describe('chainOf', () => {
  const root = makeRoot(PARTS)
  const tokens = Int32Array.from({ length: 64 * 3 + 17 }, (_, i) => i * 7919)

  test('has a hash per full block, each over its parent and its tokens', () => {
    const { hashes } = chainOf(root, tokens)
    expect(hashes).toHaveLength(3)
    const bytes = Buffer.concat([Buffer.from(root, 'hex'), Buffer.from(tokens.buffer, 0, 256)])
    expect(hashes[0]).toBe(createHash('sha256').update(bytes).digest('hex').slice(0, 32))
    expect(hashes[1]).toBe(nextHash(hashes[0]!, tokens.subarray(64, 128)))
    expect(chainOf(root, tokens.subarray(0, 63)).hashes).toEqual([])
  })

  test('shares hashes exactly as far as the tokens are shared', () => {
    const other = tokens.slice()
    other[64 + 5]!++
    const [a, b] = [chainOf(root, tokens).hashes, chainOf(root, other).hashes]
    expect(b[0]).toBe(a[0])
    expect(b[1]).not.toBe(a[1])
    expect(b[2]).not.toBe(a[2])
  })

  test('of two tenants share nothing', () => {
    const other = chainOf(makeRoot({ ...PARTS, tenantSalt: 'other' }), tokens).hashes
    expect(chainOf(root, tokens).hashes.filter((hash) => other.includes(hash))).toEqual([])
  })

  test('of 100,000 tokens takes milliseconds', () => {
    const long = Int32Array.from({ length: 100_000 }, (_, i) => i)
    chainOf(root, long)
    const best = Math.min(
      ...[1, 2, 3].map(() => {
        const started = performance.now()
        chainOf(root, long)
        return performance.now() - started
      }),
    )
    // 5 ms on the machine of engine-facts; the bound only tells it from something quadratic.
    expect(best).toBeLessThan(100)
  })
})

describe('createChainMemo', () => {
  const root = makeRoot(PARTS)
  const other = makeRoot({ ...PARTS, tenantSalt: 'other' })

  test('gives what chainOf gives, whatever came before', () => {
    // Each step takes over a part of an earlier prompt and goes on differently, as turns, branches and edits do.
    const step = fc.record({
      from: fc.integer({ min: 0, max: 5 }),
      keep: fc.double({ min: 0, max: 1, noNaN: true }),
      more: fc.integer({ min: 0, max: 4000 }),
      seed: fc.integer(),
      tenant: fc.boolean(),
    })
    fc.assert(
      fc.property(fc.array(step, { maxLength: 20 }), fc.constantFrom(64e6, 40_000), (steps, maxBytes) => {
        const memo = createChainMemo(maxBytes)
        const prompts = [new Int32Array(64 * 66)]
        for (const { from, keep, more, seed, tenant } of steps) {
          const base = prompts.at(-1 - (from % prompts.length))!
          const kept = Math.round(keep * base.length)
          const tokens = new Int32Array(kept + more)
          tokens.set(base.subarray(0, kept))
          for (let i = kept; i < tokens.length; i++) tokens[i] = Math.imul(seed, i) >>> 8
          prompts.push(tokens)
          const mine = tenant ? root : other
          expect(memo(mine, tokens)).toEqual(chainOf(mine, tokens))
        }
      }),
      { numRuns: 60 },
    )
  })

  test('does not believe tokens that changed in place', () => {
    const memo = createChainMemo(64e6)
    const tokens = Int32Array.from({ length: 64 * 100 }, (_, i) => i * 31)
    const before = memo(root, tokens)
    expect(memo(root, tokens).hashes[99]).toBe(before.hashes[99])
    tokens[64 * 50]!++
    expect(memo(root, tokens)).toEqual(chainOf(root, tokens))
    tokens[64 * 50]!--
    expect(memo(root, tokens)).toEqual(before)
  })
})

test('nextHash refuses what is no block or no hash', () => {
  expect(() => nextHash('00' as Root, new Int32Array(64))).toThrow(RangeError)
  expect(() => nextHash(makeRoot(PARTS), new Int32Array(63))).toThrow(RangeError)
})
