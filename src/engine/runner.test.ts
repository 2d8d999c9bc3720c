// What every runner is held to, on a toy model: the facts that the cache's exactness stands on, to the bit where they are so.
// The forward pass of kernels/ gives all of them to the bit, and runs in each form that this processor has.

import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { chooseKernels } from '../native/index.js'
import { networkForms } from '../native/network.js'
import type { Provider } from '../provider.js'
import { type ImportedModel, type OpenImportedOptions, openImported } from '../testing/imported-model.js'
import { referenceLogits } from '../testing/reference-forward.js'
import { writeToyModel } from '../testing/toy-model.js'
import type { TreeToken } from './contract.js'
import { capacityClass, Slot } from './slot.js'

const ids = Int32Array.from({ length: 300 }, (_, i) => 3 + ((i * 79) % 240))
const maxDifference = (a: Float32Array, b: Float32Array) =>
  a.reduce((max, x, i) => Math.max(max, Math.abs(x - b[i]!)), 0)

const kinds = [
  { name: 'onnx-cpu', provider: 'onnx-cpu' as Provider, form: undefined },
  ...networkForms().map((form) => ({ name: `native (${form.name})`, provider: 'native' as Provider, form })),
]

let folder: string
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'refrain-runner-'))
  await writeToyModel(join(folder, 'toy.gguf'), { architecture: 'llama', quantization: 'Q4_1' })
})
afterAll(async () => await rm(folder, { recursive: true }))

describe.each(kinds)('$name', ({ provider, form }) => {
  const isNative = provider === 'native'
  const open = async (options: OpenImportedOptions = {}) =>
    await openImported(join(folder, 'toy.gguf'), folder, { provider, ...(form && { form }), ...options })

  let model: ImportedModel
  beforeAll(async () => {
    model = await open()
  })
  afterAll(async () => await model.runner.close())

  /** Equal to the bit, or within `drift` where the kernels of few rows are others. */
  const expectClose = (a: Float32Array, b: Float32Array, drift: number) => {
    if (isNative) expect(a).toEqual(b)
    else expect(maxDifference(a, b)).toBeLessThan(drift)
  }

  const slotOf = (capacity = 512) => new Slot(model.layout, capacity)

  /** Prefills `ids` cut at `cuts`; the last logits. */
  async function prefill(slot: Slot, cuts: readonly number[], upTo = ids.length): Promise<Float32Array> {
    let logits = new Float32Array(0)
    let start = slot.length
    for (const end of [...cuts, upTo]) {
      logits = Float32Array.from(await model.runner.prefill(slot, ids.subarray(start, end)))
      start = end
    }
    return logits
  }

  describe('prefill', () => {
    test('is the same to the bit however it is cut into runs of two or more tokens, in any capacity', async () => {
      const whole = slotOf()
      const expected = await prefill(whole, [])
      for (const cuts of [[177], [64], [64, 128, 256], [2], [298], [100, 102, 250]]) {
        for (const capacity of [capacityClass(300, 4096), 1024]) {
          const slot = slotOf(capacity)
          expect(await prefill(slot, cuts)).toEqual(expected)
          for (const row of [0, 150, 299]) {
            const at = (s: Slot) => s.v[1]!.subarray(row * model.layout.headDim, (row + 1) * model.layout.headDim)
            expect(at(slot)).toEqual(at(whole))
          }
        }
      }
    })

    test('agrees with a forward pass that knows no cache', async () => {
      const reference = await referenceLogits(join(folder, 'toy.gguf'), [...ids.subarray(0, 70)], { roundKv: true })
      const logits = await prefill(slotOf(), [40], 70)
      // fp16 rounding of K/V turns tiny differences of summing order into steps of the last fp16 bit.
      expect(maxDifference(logits, reference[69]!)).toBeLessThan(0.05)
    })

    test.skipIf(!isNative)('of one token is the same to the bit too', async () => {
      const expected = await prefill(slotOf(), [])
      expect(await prefill(slotOf(), [1, 2, 65, 299])).toEqual(expected)
    })

    test('refuses what does not fit the slot', async () => {
      await expect(model.runner.prefill(slotOf(64), ids)).rejects.toThrow(RangeError)
    })
  })

  describe('decode', () => {
    test('continues like prefill, within the drift of one-row kernels', async () => {
      const slot = slotOf()
      await prefill(slot, [], 200)
      let logits = new Float32Array(0)
      for (let i = 200; i < 210; i++)
        logits = Float32Array.from((await model.runner.decode([{ slot, id: ids[i]! }]))[0]!)
      expect(slot.length).toBe(210)
      expectClose(logits, await prefill(slotOf(), [], 210), 0.05)
    })

    test('gives every row its own past, whatever their lengths and capacities', async () => {
      const lengths = [10, 200, 77, 64, 2, 299, 130, 65]
      const build = async (length: number) => {
        const slot = slotOf(capacityClass(length + 1, 4096))
        await prefill(slot, [], length)
        return slot
      }
      const slots: Slot[] = []
      for (const length of lengths) slots.push(await build(length))
      const batch = (await model.runner.decode(slots.map((slot, i) => ({ slot, id: 5 + i })))).map((x) =>
        Float32Array.from(x),
      )
      for (const [i, length] of lengths.entries()) {
        const [alone] = await model.runner.decode([{ slot: await build(length), id: 5 + i }])
        expectClose(batch[i]!, alone!, 0.02)
      }
    })

    test('grows without a seam from one capacity to the next', async () => {
      const small = slotOf(64)
      await prefill(small, [], 60)
      const large = slotOf(128)
      large.copyFrom(small, 60)
      const [a] = await model.runner.decode([{ slot: small, id: 9 }])
      const expected = Float32Array.from(a!)
      const [b] = await model.runner.decode([{ slot: large, id: 9 }])
      expectClose(expected, b!, 1e-4)
    })
  })

  describe('a block that went through a tier', () => {
    test.each(['native', 'fallback'] as const)('is the same to the bit (%s kernels)', async (which) => {
      const kernels = chooseKernels(which === 'native' ? 'auto' : 'fallback')
      const whole = slotOf()
      const expected = await prefill(whole, [])
      const { layers, kvHeads, headDim } = model.layout
      const bytes = [0, 1, 2, 3].map((index) => {
        const block = new Uint8Array(64 * layers * 2 * kvHeads * headDim * 2)
        whole.writeBlock(index, block, kernels)
        return block
      })
      const restored = slotOf(1024)
      for (const [i, block] of bytes.entries()) restored.readBlock(i, block, ids.subarray(i * 64, i * 64 + 64), kernels)
      expect(restored.length).toBe(256)
      expect(await prefill(restored, [])).toEqual(expected)
    })

    test('unrounded, where the layout keeps fp32', async () => {
      const exact = await open({ kv: 'fp32' })
      const whole = new Slot(exact.layout, 512)
      const expected = Float32Array.from(await exact.runner.prefill(whole, ids))
      const { layers, kvHeads, headDim } = exact.layout
      const restored = new Slot(exact.layout, 512)
      for (let i = 0; i < 4; i++) {
        const block = new Uint8Array(64 * layers * 2 * kvHeads * headDim * 4)
        whole.writeBlock(i, block, chooseKernels('auto'))
        restored.readBlock(i, block, ids.subarray(i * 64, i * 64 + 64), chooseKernels('auto'))
      }
      expect(Float32Array.from(await exact.runner.prefill(restored, ids.subarray(256)))).toEqual(expected)
      await exact.runner.close()
    })
  })

  describe('a tree of branches', () => {
    /** A chain of tokens behind the slot's rows, laid out from `row` on; the last one's logits. */
    const chain = (tokens: readonly number[], sees: number, row: number): TreeToken[] =>
      tokens.map((id, i) => ({
        ...{ id, sees, row: row + i, wantsLogits: i === tokens.length - 1 },
        behind: Array.from({ length: i }, (_, before) => row + before),
      }))

    const suffixes = [
      [9, 8, 7],
      [40, 41],
      [200, 3, 77, 5],
    ]

    test('gives each branch what a run of its own would, within the drift of summing order', async () => {
      const slot = slotOf()
      await prefill(slot, [], 200)
      const tokens = suffixes.flatMap((suffix, i) => chain(suffix, 200 - i, 400 + 10 * i))
      const together = (await model.runner.tree!(slot, tokens)).map((row) => Float32Array.from(row))
      expect(slot.length).toBe(200)
      for (const [i, suffix] of suffixes.entries()) {
        const alone = slotOf()
        await prefill(alone, [], 200 - i)
        const expected = await model.runner.prefill(alone, Int32Array.from(suffix))
        expectClose(together[i]!, expected, 0.05)
      }
    })

    test('goes on from rows that earlier runs left, wherever they lie', async () => {
      const slot = slotOf()
      await prefill(slot, [], 100)
      const rows = [511, 300, 450, 302]
      const step = async (i: number, id: number) => {
        const token = { id, sees: 100, behind: rows.slice(0, i), row: rows[i]!, wantsLogits: true }
        return Float32Array.from((await model.runner.tree!(slot, [token]))[0]!)
      }
      let last = new Float32Array(0)
      for (const [i, id] of [9, 8, 7, 6].entries()) last = await step(i, id)
      const alone = slotOf()
      await prefill(alone, [], 100)
      expectClose(last, await model.runner.prefill(alone, Int32Array.of(9, 8, 7, 6)), 0.05)
    })

    test('leaves the rows of the prompt as they are, to the bit', async () => {
      const slot = slotOf()
      await prefill(slot, [], 200)
      await model.runner.tree!(
        slot,
        suffixes.flatMap((suffix, i) => chain(suffix, 200, 400 + 10 * i)),
      )
      expect(await prefill(slot, [])).toEqual(await prefill(slotOf(), []))
    })

    test('is absent where it was not asked for', async () => {
      const { runner } = await open({ trees: false })
      expect(runner.tree).toBeUndefined()
      await runner.close()
    })
  })
})
