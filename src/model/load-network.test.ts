// The forward pass of kernels/ against the plain fp64 one, for every architecture and quantization, and its forms against
// each other: the same bits. Activations have 15 bits there, so that logits of these toys lie up to 2e-3 off.

import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Slot } from '../engine/slot.js'
import { type NetworkForm, networkForms } from '../native/network.js'
import { openImported } from '../testing/imported-model.js'
import { referenceLogits } from '../testing/reference-forward.js'
import { type ToyModelOptions, writeToyModel } from '../testing/toy-model.js'
import { networkFault } from './load-network.js'

const TOLERANCE = 5e-3

const tokens = [1, 120, 117, 104, 117, 13, 107, 104, 111, 111, 114, 35, 119, 107, 104, 117, 104, 47, 2, 13, 200, 63, 64]
const forms = networkForms()

let folder: string
let made = 0
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'refrain-network-'))
})
afterAll(async () => await rm(folder, { recursive: true }))

async function toy(options: ToyModelOptions): Promise<string> {
  const path = join(folder, `toy-${made++}.gguf`)
  await writeToyModel(path, options)
  return path
}

/** Logits behind all tokens, of a prefill in two parts, and the K/V that it left. */
async function run(path: string, form: NetworkForm, kv: 'fp16' | 'fp32') {
  const { runner, layout } = await openImported(path, folder, { provider: 'native', form, kv })
  const slot = new Slot(layout, 64)
  await runner.prefill(slot, Int32Array.from(tokens.slice(0, 9)))
  const logits = Float32Array.from(await runner.prefill(slot, Int32Array.from(tokens.slice(9))))
  await runner.close()
  return { logits, rows: [...slot.k, ...slot.v] }
}

const difference = (a: Float32Array, b: Float32Array) =>
  a.reduce((most, x, i) => Math.max(most, Math.abs(x - b[i]!)), 0)

describe.skipIf(forms.length === 0)('the native forward pass (needs build/, a compiler)', () => {
  test.each([
    { architecture: 'llama', quantization: 'Q4_0' },
    { architecture: 'llama', quantization: 'Q4_1' },
    { architecture: 'llama', quantization: 'Q5_0' },
    { architecture: 'llama', quantization: 'F16' },
    { architecture: 'qwen2', quantization: 'Q5_1' },
    { architecture: 'qwen2', quantization: 'Q8_0' },
    { architecture: 'qwen2', quantization: 'BF16' },
    { architecture: 'qwen3', quantization: 'Q4_K' },
    { architecture: 'qwen3', quantization: 'Q5_K' },
    { architecture: 'qwen3', quantization: 'Q6_K' },
    { architecture: 'qwen3', quantization: 'F32', dim: 160 },
  ] as const)('$architecture $quantization: agrees with a forward pass that knows no cache', async (options) => {
    const path = await toy(options)
    const expected = (await referenceLogits(path, tokens)).at(-1)!
    const [fast, ...others] = forms
    const { logits, rows } = await run(path, fast!, 'fp32')
    expect(difference(logits, expected)).toBeLessThan(TOLERANCE)
    // Not to the bit: the comparison is one of two computations.
    expect(logits).not.toEqual(expected)
    for (const form of others) expect(await run(path, form, 'fp32')).toEqual({ logits, rows })
  })

  test('new K and V are what fp16 can hold, where they are rounded', async () => {
    const path = await toy({ architecture: 'llama', quantization: 'Q4_1' })
    for (const kv of ['fp16', 'fp32'] as const) {
      const { rows } = await run(path, forms[0]!, kv)
      const bits = rows.flatMap((row) => [...new Uint32Array(row.buffer, row.byteOffset, row.length)])
      expect(bits.every((word) => (word & 0x1fff) === 0)).toBe(kv === 'fp16')
    }
  })

  test('threads share the work and change nothing', async () => {
    const path = await toy({ architecture: 'llama', quantization: 'Q4_1', layers: 3 })
    const { directory, manifest } = await openImported(path, folder)
    const { loadNetwork } = await import('./load-network.js')
    const { networkRunner } = await import('../engine/network-runner.js')
    const { layers, kvHeads, headDim, vocabSize } = manifest
    const layout = { layers, kvHeads, headDim, dtype: 'fp16' } as const
    const ids = Int32Array.from({ length: 700 }, (_, i) => 3 + ((i * 79) % 240))
    const all: Float32Array[][] = []
    for (const threads of [1, 2, 5]) {
      const network = await loadNetwork(directory, { form: forms[0]!, threads, kv: 'fp16' })
      const runner = networkRunner(network, { layout, vocabSize, decodeRows: 8 })
      const slot = new Slot(layout, 1024)
      await runner.prefill(slot, ids)
      const decoded: Float32Array[] = []
      for (let i = 0; i < 20; i++) decoded.push(Float32Array.from((await runner.decode([{ slot, id: 9 + i }]))[0]!))
      all.push(decoded)
      await runner.close()
    }
    const [alone, ...shared] = all
    for (const decoded of shared) expect(decoded).toEqual(alone)
  })

  describe('refuses, and computes nothing', () => {
    const shape = {
      ...{ layers: 1, heads: 2, kvHeads: 1, headDim: 16, dim: 32, hiddenDim: 32, vocabSize: 8, positions: 16 },
      ...{ epsilon: 1e-5, ropeDim: 16, interleaved: true, roundKv: true, threads: 2 },
    }
    const dense = (rows: number, cols: number) => [{ rows, block: 0, dense: new Float32Array(rows * cols).fill(0.01) }]
    const layer = {
      ...{ attentionNorm: new Float32Array(32).fill(1), feedForwardNorm: new Float32Array(32).fill(1) },
      ...{ qkv: dense(64, 32), attentionOutput: dense(32, 32), gateUp: dense(64, 32), down: dense(32, 32) },
    }
    const ends = {
      ...{ embedding: dense(8, 32)[0]!, outputNorm: new Float32Array(32).fill(1), head: dense(8, 32) },
      ...{ cos: new Float32Array(128).fill(1), sin: new Float32Array(128) },
    }
    const create = () => new forms[0]!.Network(shape)
    const built = () => {
      const network = create()
      network.addLayer(layer)
      network.finish(ends)
      return network
    }
    const slot = () => ({ k: [new Float32Array(16 * 16)], v: [new Float32Array(16 * 16)], capacity: 16 })
    const logits = new Float32Array(8)
    // id, slot, sees, extra, extras, row, wantsLogits
    const token = (...fields: number[]) => Int32Array.from(fields)
    const none = new Int32Array(0)

    test.each([
      ['heads that do not share evenly', { heads: 3, kvHeads: 2 }],
      ['a head of 24', { headDim: 24 }],
      ['no threads', { threads: 0 }],
      ['a rope beyond the head', { ropeDim: 32 }],
    ])('a shape with %s', (_, other) => {
      expect(() => new forms[0]!.Network({ ...shape, ...other })).toThrow(RangeError)
    })

    test('weights of another size, and a layer too few', () => {
      expect(() => create().addLayer({ ...layer, down: dense(32, 16) })).toThrow(/dense has 512 elements, not 1024/)
      expect(() => create().addLayer({ ...layer, qkv: dense(48, 32) })).toThrow(/qkv has another number of rows/)
      expect(() => create().finish(ends)).toThrow(/a layer is missing/)
      expect(() => create().forward(token(1, 0, 1, 0, 0, 0, 1), none, [slot()], logits)).toThrow(/not built/)
    })

    test.each([
      ['an id beyond the vocabulary', token(8, 0, 1, 0, 0, 0, 1)],
      ['a negative id', token(-1, 0, 1, 0, 0, 0, 1)],
      ['a slot that is not there', token(1, 1, 1, 0, 0, 0, 1)],
      ['a row beyond the slot', token(1, 0, 1, 0, 0, 16, 1)],
      ['more rows than the slot has', token(1, 0, 17, 0, 0, 0, 1)],
      ['extra rows that are not there', token(1, 0, 1, 0, 1, 0, 1)],
      ['nothing that it sees', token(1, 0, 0, 0, 0, 0, 1)],
    ])('%s', (_, tokens) => {
      expect(() => built().forward(tokens, none, [slot()], logits)).toThrow(RangeError)
    })

    test('a slot or logits that are too small', () => {
      const one = token(1, 0, 1, 0, 0, 0, 1)
      expect(() => built().forward(one, none, [{ ...slot(), k: [new Float32Array(255)] }], logits)).toThrow(/too small/)
      expect(() => built().forward(one, none, [slot()], new Float32Array(7))).toThrow(/logits has too few/)
      built().forward(one, none, [slot()], logits)
      expect(logits.every(Number.isFinite)).toBe(true)
    })
  })
})

describe('networkFault', () => {
  const sizes = { heads: 9, kvHeads: 3, headDim: 64, dim: 576, hiddenDim: 1536 }
  test('takes the sizes of SmolLM2, and names what it does not take', () => {
    expect(networkFault(sizes)).toBeUndefined()
    expect(networkFault({ ...sizes, headDim: 40 })).toMatch(/heads have 40/)
    expect(networkFault({ ...sizes, headDim: 512 })).toMatch(/512/)
    expect(networkFault({ ...sizes, heads: 128, kvHeads: 1 })).toMatch(/128 query heads/)
    expect(networkFault({ ...sizes, dim: 100 })).toMatch(/rows have 100/)
  })
})
