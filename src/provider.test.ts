// Who computes: how it is chosen, and the native forward pass of the real SmolLM2-135M against the reference that was
// computed from the same file, dequantized, in fp32. The latter runs where the weights were pulled and it is at hand.

import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Runner, TreeToken } from './engine/contract.js'
import { capacityClass, Slot } from './engine/slot.js'
import { fastNetwork } from './native/network.js'
import { arithmeticOf, chooseProvider } from './provider.js'
import { openImported } from './testing/imported-model.js'
import { sharesImports } from './testing/shared-imports.js'
import {
  argmax,
  referenceWeights,
  type SmolLm2Reference,
  smolLm2Reference,
  surprise,
} from './testing/smollm2-reference.js'

const SMOLLM2 = { heads: 9, kvHeads: 3, headDim: 64, dim: 576, hiddenDim: 1536 }
const hasFast = fastNetwork() !== undefined

describe('chooseProvider', () => {
  test('auto takes the native forward pass where this processor has a fast form', () => {
    const chosen = chooseProvider({ provider: 'auto', kernels: 'auto' }, SMOLLM2)
    expect(chosen.provider).toBe(hasFast ? 'native' : 'onnx-cpu')
    expect(chosen.because).not.toBe('')
  })

  test('auto takes ONNX Runtime for other sizes, and without native kernels', () => {
    const wish = { provider: 'auto', kernels: 'auto' } as const
    expect(chooseProvider(wish, { ...SMOLLM2, headDim: 40 }).provider).toBe('onnx-cpu')
    const without = chooseProvider({ provider: 'auto', kernels: 'fallback' }, SMOLLM2)
    expect(without).toEqual({ provider: 'onnx-cpu', because: 'engine.kernels is fallback' })
  })

  test('cpu is ONNX Runtime', () => {
    expect(chooseProvider({ provider: 'cpu', kernels: 'auto' }, SMOLLM2).provider).toBe('onnx-cpu')
  })

  test('native where it cannot be is an error that says why; so is a kind that nobody knows', () => {
    const native = { provider: 'native', kernels: 'auto' } as const
    expect(() => chooseProvider(native, { ...SMOLLM2, dim: 100 })).toThrow(/engine.provider is native, but/)
    expect(() => chooseProvider({ ...native, provider: 'tpu' }, SMOLLM2)).toThrow(/known are auto, native, cpu/)
  })

  test('KV of one provider has another root than the other’s', () => {
    expect(arithmeticOf('native')).not.toBe(arithmeticOf('onnx-cpu'))
  })
})

describe.skipIf(referenceWeights === undefined)(
  'SmolLM2-135M (needs `refrain pull smollm2-135m-instruct` and ../shared)',
  () => {
    let folder: string
    let reference: SmolLm2Reference
    beforeAll(async () => {
      folder = await mkdtemp(join(tmpdir(), 'refrain-provider-'))
      reference = smolLm2Reference()
    })
    afterAll(async () => await rm(folder, { recursive: true }))

    // What ONNX Runtime gives is held by src/model/graph/smollm2.test.ts.
    describe.skipIf(!hasFast)('the native forward pass (needs AVX-512 with VNNI)', () => {
      let runner: Runner
      const slotFor = (tokens: number) => new Slot(runner.layout, capacityClass(tokens, 8192))
      beforeAll(async () => {
        runner = (
          await openImported(referenceWeights as string, await sharesImports(join(folder, 'data')), {
            provider: 'native',
          })
        ).runner
      }, 60_000)
      afterAll(async () => await runner.close())

      test('perplexity within a thousandth of the reference', async () => {
        const { token_ids: ids, ppl } = reference.perplexity
        const slot = slotFor(ids.length)
        let sum = 0
        for (let start = 0; start < ids.length; start += 64) {
          const chunk = ids.slice(start, start + 64)
          const tokens = chunk.map((id, i): TreeToken => {
            const behind = Array.from({ length: i }, (_, before) => start + before)
            return { id, sees: start, behind, row: start + i, wantsLogits: true }
          })
          const logits = await runner.tree!(slot, tokens)
          for (const [i, row] of logits.entries()) {
            const next = ids[start + i + 1]
            if (next !== undefined) sum += surprise(row, next)
          }
          slot.advance(Int32Array.from(chunk))
        }
        expect(Math.abs(Math.exp(sum / (ids.length - 1)) / ppl - 1)).toBeLessThan(1e-3)
      }, 60_000)

      test('every greedy token of the chats', async () => {
        for (const { token_ids: ids, greedy_ids: expected } of reference.chats) {
          const slot = slotFor(ids.length + expected.length)
          const out = [argmax(await runner.prefill(slot, Int32Array.from(ids)))]
          while (out.length < expected.length) {
            const [logits] = await runner.decode([{ slot, id: out.at(-1)! }])
            out.push(argmax(logits!))
          }
          expect(out).toEqual(expected)
        }
      }, 60_000)
    })
  },
)
