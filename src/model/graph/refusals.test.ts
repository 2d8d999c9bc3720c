// What an import refuses, and by which name. Each case is a sound toy model with one thing changed.

import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { editGguf, type GgufEdit } from '../../testing/edit-gguf.js'
import { f32, i32s } from '../../testing/gguf-writer.js'
import { writeToyModel } from '../../testing/toy-model.js'
import type { Architecture } from '../contract.js'
import { Gguf } from '../gguf.js'
import { ModelError } from '../model-error.js'
import { readShape } from './shape.js'
import { claimTensors } from './tensors.js'

let folder: string
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'refrain-refusals-'))
  for (const architecture of ['llama', 'qwen2', 'qwen3'] as const) {
    await writeToyModel(join(folder, `${architecture}.gguf`), { architecture, layers: 1 })
  }
})
afterAll(async () => {
  await rm(folder, { recursive: true })
})

/** Reads the edited model as an import does, up to the first write. */
async function read(architecture: Architecture, edit: GgufEdit) {
  const path = join(folder, 'edited.gguf')
  await editGguf(join(folder, `${architecture}.gguf`), path, edit)
  const gguf = await Gguf.open(path)
  try {
    const shape = readShape(gguf)
    return { shape, tensors: claimTensors(gguf, shape) }
  } finally {
    await gguf.close()
  }
}

const vector = (name: string, size: number) => ({
  name,
  shape: [size],
  type: 'F32' as const,
  values: new Float32Array(size),
})

const unsupported: [string, Architecture, GgufEdit, string][] = [
  ['another architecture', 'llama', { metadata: { 'general.architecture': 'gemma3' } }, "the architecture 'gemma3'"],
  ['experts', 'llama', { metadata: { 'llama.expert_count': 8 } }, "'llama.expert_count' = 8"],
  [
    'a window',
    'qwen2',
    { metadata: { 'qwen2.attention.sliding_window': 512 } },
    "'qwen2.attention.sliding_window' = 512",
  ],
  ['yarn', 'qwen3', { metadata: { 'qwen3.rope.scaling.type': 'yarn' } }, "'qwen3.rope.scaling.type' = yarn"],
  ['a factor on attention', 'llama', { metadata: { 'llama.rope.scaling.attn_factor': f32(1.5) } }, 'attn_factor'],
  ['V heads of another size', 'llama', { metadata: { 'llama.attention.value_length': 16 } }, 'attention.value_length'],
  ['KV heads by layer', 'llama', { metadata: { 'llama.attention.head_count_kv': i32s([2, 1]) } }, 'head_count_kv'],
  [
    'heads that share no KV head evenly',
    'llama',
    { metadata: { 'llama.attention.head_count_kv': 3 } },
    '4 query heads on 3',
  ],
  ['rope wider than a head', 'llama', { metadata: { 'llama.rope.dimension_count': 64 } }, 'rope.dimension_count'],
  ['an embedding model', 'qwen3', { metadata: { 'qwen3.pooling_type': 3 } }, "'qwen3.pooling_type' = 3"],
  ['soft caps', 'llama', { metadata: { 'llama.final_logit_softcapping': f32(30) } }, 'final_logit_softcapping'],
  [
    'a norm that nothing uses',
    'llama',
    { add: [vector('blk.0.attn_q_norm.weight', 32)] },
    "'blk.0.attn_q_norm.weight'",
  ],
  ['a bias of the head', 'llama', { add: [vector('output.bias', 300)] }, "the tensor 'output.bias' is not supported"],
]

const damaged: [string, Architecture, GgufEdit, string][] = [
  ['a missing tensor', 'llama', { drop: ['blk.0.ffn_up.weight'] }, "no tensor 'blk.0.ffn_up.weight'"],
  ['a missing head norm', 'qwen3', { drop: ['blk.0.attn_k_norm.weight'] }, "no tensor 'blk.0.attn_k_norm.weight'"],
  [
    'a matrix of another shape',
    'llama',
    { metadata: { 'llama.feed_forward_length': 64 } },
    'has the shape [128, 128], not [64, 128]',
  ],
  ['a missing key', 'llama', { metadata: { 'llama.block_count': undefined } }, "no metadata key 'llama.block_count'"],
  ['no layers', 'llama', { metadata: { 'llama.block_count': 0 } }, "'llama.block_count' is 0"],
  ['a key of another kind', 'llama', { metadata: { 'llama.context_length': 'long' } }, "'llama.context_length'"],
]

describe.each([
  ['unsupported', unsupported],
  ['bad-file', damaged],
] as const)('%s', (fault, cases) => {
  test.each(cases)('%s', async (_, architecture, edit, named) => {
    const refusal = await read(architecture, edit).then(
      () => undefined,
      (error: unknown) => error,
    )
    expect(refusal).toBeInstanceOf(ModelError)
    expect((refusal as ModelError).message).toContain(named)
    expect((refusal as ModelError).fault).toBe(fault)
  })
})

describe('accepted', () => {
  test.each<[string, Architecture, GgufEdit]>([
    ['no experts, said so', 'llama', { metadata: { 'llama.expert_count': 0 } }],
    ['a window as wide as the context', 'qwen2', { metadata: { 'qwen2.attention.sliding_window': 4096 } }],
    ['no scaling, said so', 'llama', { metadata: { 'llama.rope.scaling.type': 'none' } }],
  ])('%s', async (_, architecture, edit) => {
    expect((await read(architecture, edit)).shape.architecture).toBe(architecture)
  })

  test('a bias on any matrix', async () => {
    const { tensors } = await read('llama', { add: [vector('blk.0.attn_output.bias', 128)] })
    expect(tensors.layers[0]?.attentionOutput[0]?.biases[0]?.name).toBe('blk.0.attn_output.bias')
  })

  test('what the shape says', async () => {
    const { shape } = await read('qwen2', { metadata: { 'qwen2.rope.freq_base': f32(1e6) } })
    expect(shape).toMatchObject({ architecture: 'qwen2', layers: 1, heads: 4, kvHeads: 2, headDim: 32, dim: 128 })
    expect(shape.rope).toEqual({ base: 1e6, dim: 32, scale: 1, interleaved: false })
  })
})
