// The graph against the plain fp64 forward pass, on toy models. Largest differences found when this was written: 5e-5
// with fp32 K/V; 3e-3 with fp16, where a difference in the last bit may round a K or V to its neighbour.

import { mkdtemp, open, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { openRunner } from '../../engine/runner.js'
import { Slot } from '../../engine/slot.js'
import { editGguf, type GgufEdit } from '../../testing/edit-gguf.js'
import { f32 } from '../../testing/gguf-writer.js'
import { GraphSession } from '../../testing/graph-session.js'
import { referenceLogits } from '../../testing/reference-forward.js'
import { type ToyModelOptions, writeToyModel } from '../../testing/toy-model.js'
import { Gguf } from '../gguf.js'
import type { TensorType } from '../tensor-type.js'
import { DECODE_ROWS } from './attention-decode.js'
import { type AttentionForm, buildGraph, type GraphOptions, WEIGHTS_FILE } from './graph.js'
import { type ModelShape, readShape } from './shape.js'
import { storeWeights } from './store.js'
import { claimTensors } from './tensors.js'
import { WeightsFile } from './weights.js'

const FP32_TOLERANCE = 2e-4
const FP16_TOLERANCE = 2e-2

const tokens = [1, 120, 117, 104, 117, 13, 107, 104, 111, 111, 114, 35, 119, 107, 104, 117, 104, 47, 2, 13, 200, 63, 64]

let root: string
let made = 0
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'refrain-graph-'))
})
afterAll(async () => {
  await rm(root, { recursive: true })
})

async function toy(options: ToyModelOptions, edit?: GgufEdit): Promise<string> {
  made += 1
  const path = join(root, `toy-${made}.gguf`)
  await writeToyModel(path, options)
  if (edit === undefined) return path
  await editGguf(path, `${path}-edited`, edit)
  return `${path}-edited`
}

type Kv = GraphOptions['kv']

async function build(
  path: string,
  kv: Kv,
  forms: readonly AttentionForm[],
): Promise<{ directory: string; shape: ModelShape }> {
  const directory = await mkdtemp(join(root, 'built-'))
  const gguf = await Gguf.open(path)
  const file = await open(join(directory, WEIGHTS_FILE), 'w')
  try {
    const shape = readShape(gguf)
    const weights = await storeWeights(gguf, shape, claimTensors(gguf, shape), new WeightsFile(file))
    for (const attention of forms) {
      await writeFile(join(directory, `graph-${attention}.onnx`), buildGraph(shape, weights, { attention, kv }))
    }
    return { directory, shape }
  } finally {
    await file.close()
    await gguf.close()
  }
}

async function session(path: string, kv: Kv): Promise<GraphSession> {
  const { directory, shape } = await build(path, kv, ['split'])
  return await GraphSession.open(join(directory, 'graph-split.onnx'), shape)
}

/** Logits of `tokens`, all at once. */
async function logitsOf(path: string, kv: Kv): Promise<Float32Array[]> {
  const graph = await session(path, kv)
  const { logits } = await graph.run({ ids: tokens })
  await graph.close()
  return logits
}

function difference(a: readonly Float32Array[], b: readonly Float32Array[]): number {
  expect(a.length).toBe(b.length)
  return Math.max(...a.map((row, i) => row.reduce((most, x, j) => Math.max(most, Math.abs(x - b[i]![j]!)), 0)))
}

const QUANTIZATIONS = ['F16', 'BF16', 'Q4_0', 'Q4_1', 'Q5_0', 'Q5_1', 'Q8_0', 'Q4_K', 'Q5_K', 'Q6_K'] as const

const models: [string, ToyModelOptions, GgufEdit?][] = [
  ['llama F32', { architecture: 'llama' }],
  ['qwen2 F32, output of its own', { architecture: 'qwen2', output: 'own' }],
  ['qwen3 F32, heads wider than the stream', { architecture: 'qwen3', dim: 160 }],
  ['llama with rope factors', { architecture: 'llama', ropeFactors: 'llama3' }],
  ['as many KV heads as heads', { architecture: 'llama', kvHeads: 4 }],
  ['one KV head', { architecture: 'qwen2', kvHeads: 1 }],
  ...QUANTIZATIONS.map((quantization, i): [string, ToyModelOptions] => {
    const architecture = (['llama', 'qwen2', 'qwen3'] as const)[i % 3]!
    return [`${architecture} ${quantization}`, { architecture, quantization, seed: 20 + i }]
  }),
  ['Q4_1 with a Q8_0 embedding', { architecture: 'llama', quantization: 'Q4_1', embedding: 'Q8_0' }],
  ['Q4_K with a Q6_K output', { architecture: 'qwen2', quantization: 'Q4_K', embedding: 'Q6_K', output: 'own' }],
  [
    'a type for each of q, k, v and of gate, up, as mixed quantizations have',
    { architecture: 'qwen2' },
    { retype: (name) => mixedTypes[name.replace(/^blk\.\d\./, '')] },
  ],
  [
    'q and k fused, v alone',
    { architecture: 'qwen3', quantization: 'Q4_0' },
    { retype: (name) => (name.endsWith('attn_v.weight') ? 'Q5_0' : undefined) },
  ],
]

const mixedTypes: Readonly<Record<string, TensorType>> = {
  'attn_q.weight': 'Q8_0',
  'attn_k.weight': 'Q4_1',
  'attn_v.weight': 'F16',
  'ffn_gate.weight': 'Q5_1',
  'ffn_up.weight': 'Q4_0',
}

describe('logits against the reference', () => {
  test.each(models)('%s', async (_, options, edit) => {
    const path = await toy(options, edit)
    expect(difference(await logitsOf(path, 'fp32'), await referenceLogits(path, tokens))).toBeLessThan(FP32_TOLERANCE)
  })

  test.each(['llama', 'qwen2', 'qwen3'] as const)('%s with K/V rounded to fp16', async (architecture) => {
    const path = await toy({ architecture, quantization: 'Q8_0' })
    const rounded = await logitsOf(path, 'fp16')
    const expected = await referenceLogits(path, tokens, { roundKv: true })
    expect(difference(rounded, expected)).toBeLessThan(FP16_TOLERANCE)
    // The rounding is there: unrounded logits lie elsewhere.
    expect(difference(rounded, await logitsOf(path, 'fp32'))).toBeGreaterThan(FP32_TOLERANCE)
  })

  // The reference knows neither; both are what rope factors can say, which it does know.
  test('linear rope scaling divides every frequency', async () => {
    const scaled = { 'llama.rope.scaling.type': 'linear', 'llama.rope.scaling.factor': f32(2.5) }
    const path = await toy({ architecture: 'llama' }, { metadata: scaled })
    const same = await toy({ architecture: 'llama' }, { add: [ropeFactors(new Float32Array(16).fill(2.5))] })
    expect(difference(await logitsOf(path, 'fp32'), await referenceLogits(same, tokens))).toBeLessThan(FP32_TOLERANCE)
  })

  test('rope on a part of the head leaves the rest unturned', async () => {
    const path = await toy({ architecture: 'llama' }, { metadata: { 'llama.rope.dimension_count': 16 } })
    const factors = Float32Array.from({ length: 16 }, (_, i) =>
      i < 8 ? 10000 ** ((2 * i) / 16 - (2 * i) / 32) : Number.POSITIVE_INFINITY,
    )
    const same = await toy({ architecture: 'llama' }, { add: [ropeFactors(factors)] })
    expect(difference(await logitsOf(path, 'fp32'), await referenceLogits(same, tokens))).toBeLessThan(FP32_TOLERANCE)
  })
})

function ropeFactors(values: Float32Array) {
  return { name: 'rope_freqs.weight', shape: [values.length], type: 'F32' as const, values }
}

describe('the split form', () => {
  test('a prompt in two runs gives the logits of one run', async () => {
    const graph = await session(await toy({ architecture: 'llama', quantization: 'Q4_1' }), 'fp32')
    const whole = await graph.run({ ids: tokens })
    const first = await graph.run({ ids: tokens.slice(0, 9) })
    const second = await graph.run({ ids: tokens.slice(9), past: first.past })
    expect(difference([...first.logits, ...second.logits], whole.logits)).toBeLessThan(1e-4)
    expect(second.past.length).toBe(tokens.length)
    await graph.close()
  })

  test('a tree of branches in one run gives the logits of separate runs', async () => {
    const graph = await session(await toy({ architecture: 'qwen3', quantization: 'Q8_0' }), 'fp32')
    const { past } = await graph.run({ ids: tokens, last: [0] })
    const branches = [[7, 8, 9, 10, 11], [120], [90, 91, 92]]
    const separate: Float32Array[] = []
    for (const ids of branches) separate.push(...(await graph.run({ ids, past })).logits)
    const branchOf = branches.flatMap((ids, branch) => ids.map(() => branch))
    const tree = await graph.run({
      ids: branches.flat(),
      past,
      positions: branches.flatMap((ids) => ids.map((_, i) => past.length + i)),
      sees: (row, column) => {
        const other = column - past.length
        return other < 0 || (other <= row && branchOf[other] === branchOf[row])
      },
    })
    expect(difference(tree.logits, separate)).toBeLessThan(1e-4)
    await graph.close()
  })

  test('only the rows asked for get logits', async () => {
    const graph = await session(await toy({ architecture: 'qwen2' }), 'fp32')
    const all = await graph.run({ ids: tokens })
    const some = await graph.run({ ids: tokens, last: [20, 3] })
    expect(difference(some.logits, [all.logits[20]!, all.logits[3]!])).toBeLessThan(1e-4)
    await graph.close()
  })

  test('new K/V are fp16-representable where the options say so, and only there', async () => {
    const path = await toy({ architecture: 'llama' })
    for (const kv of ['fp16', 'fp32'] as const) {
      const graph = await session(path, kv)
      const { past } = await graph.run({ ids: tokens })
      // A half has 11 significant bits: of the 23 stored in fp32 the lower 13 are zero (the toy has no subnormals).
      const bits = past.rows.flatMap((row) => [...new Uint32Array(row.buffer, row.byteOffset, row.length)])
      expect(bits.every((word) => (word & 0x1fff) === 0)).toBe(kv === 'fp16')
      await graph.close()
    }
  })
})

describe('the engine forms', () => {
  test.each([
    ['llama', 'Q4_1'],
    ['qwen2', 'Q8_0'],
    ['qwen3', 'Q6_K'],
  ] as const)('%s %s: prefill in chunks, then decode of several rows', async (architecture, quantization) => {
    const path = await toy({ architecture, quantization })
    const { directory, shape } = await build(path, 'fp32', ['prefill', 'decode', 'split'])
    const layout = { layers: shape.layers, kvHeads: shape.kvHeads, headDim: shape.headDim, dtype: 'fp32' } as const
    const options = { directory, layout, vocabSize: shape.vocabSize, decodeRows: DECODE_ROWS }
    const runner = await openRunner({ ...options, threads: 1, provider: 'cpu' })
    const prompts = [tokens, tokens.slice(3, 13), tokens.slice(0, 5)]
    const rows: { slot: Slot; id: number }[] = []
    for (const [i, prompt] of prompts.entries()) {
      const slot = new Slot(layout, [64, 128, 64][i]!)
      await runner.prefill(slot, Int32Array.from(prompt.slice(0, 3)))
      const logits = await runner.prefill(slot, Int32Array.from(prompt.slice(3)))
      const expected = (await referenceLogits(path, prompt)).at(-1)!
      expect(difference([logits], [expected])).toBeLessThan(FP32_TOLERANCE)
      rows.push({ slot, id: 40 + i })
    }
    const decoded = await runner.decode(rows)
    for (const [i, prompt] of prompts.entries()) {
      const expected = (await referenceLogits(path, [...prompt, 40 + i])).at(-1)!
      expect(difference([decoded[i]!], [expected])).toBeLessThan(FP32_TOLERANCE)
    }
    await runner.close()
  })
})

describe('equal input gives equal bytes', () => {
  async function stored(path: string, chunkElements: number): Promise<{ weights: Buffer; graph: Buffer }> {
    const gguf = await Gguf.open(path)
    const file = await open(join(root, 'stored.bin'), 'w')
    const shape = readShape(gguf)
    const sink = new WeightsFile(file)
    const weights = await storeWeights(gguf, shape, claimTensors(gguf, shape), sink, { chunkElements })
    await file.close()
    await gguf.close()
    const graph = Buffer.from(buildGraph(shape, weights, { attention: 'split', kv: 'fp16' }))
    return { weights: await readFile(join(root, 'stored.bin')), graph }
  }

  test.each(['F16', 'Q8_0', 'Q5_K'] as const)('%s, however it is cut into chunks', async (quantization) => {
    const path = await toy({ architecture: 'qwen3', quantization })
    const whole = await stored(path, 1 << 22)
    for (const chunkElements of [1, 3000]) {
      const chunked = await stored(path, chunkElements)
      expect(chunked.weights.equals(whole.weights)).toBe(true)
      expect(chunked.graph.equals(whole.graph)).toBe(true)
    }
  })
})
