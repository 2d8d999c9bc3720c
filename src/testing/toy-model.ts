// Tiny seeded models as GGUF files: every architecture and quantization that Refrain runs, small enough for a test to
// compute by hand. The weights are scaled so that attention is sharp, layers outweigh the embedding and two logits are
// rarely close: greedy text varies, depends on the whole prefix, and does not hang on the last bit.

import type { Architecture } from '../model/contract.js'
import { TENSOR_TYPES, type TensorType } from '../model/tensor-type.js'
import { f32, type GgufInput, type TensorInput, writeGguf } from './gguf-writer.js'
import { type Random, seeded } from './random.js'
import { isPlainText, toyTokenizerMetadata, toyTokens } from './toy-vocabulary.js'

export interface ToyModelOptions {
  readonly architecture: Architecture
  /** Of every matrix; norms and biases are always F32. Default F32. */
  readonly quantization?: TensorType
  /** Of the embedding (and output) matrix; default: as `quantization`. */
  readonly embedding?: TensorType
  readonly seed?: number
  readonly layers?: number
  readonly heads?: number
  readonly kvHeads?: number
  readonly headDim?: number
  /** Width of the residual stream; default: heads * headDim. Another width only where the architecture is qwen3. */
  readonly dim?: number
  readonly ffn?: number
  readonly contextLength?: number
  readonly ropeBase?: number
  /** `llama3`: rope frequencies are divided by the factors of a tensor, as Llama 3.1 and later do. */
  readonly ropeFactors?: 'none' | 'llama3'
  /** `own`: the file has an output matrix of its own; default `tied`. */
  readonly output?: 'tied' | 'own'
  /** Further special tokens, behind the vocabulary: what quick instructions are spelled with. */
  readonly specials?: readonly string[]
}

type Settings = Required<ToyModelOptions>

/** Writes the model to `path`; equal options give equal bytes. @throws RangeError where a dimension does not fit the quantization. */
export async function writeToyModel(path: string, options: ToyModelOptions): Promise<void> {
  const settings = complete(options)
  const random = seeded(settings.seed)
  const layers = Array.from({ length: settings.layers }, (_, layer) => layerTensors(settings, layer, random))
  const tensors = [...layers.flat(), ...outerTensors(settings, random)]
  await writeGguf(path, metadata(settings), tensors)
}

function complete(options: ToyModelOptions): Settings {
  const quantization = options.quantization ?? 'F32'
  // K-quants cut rows into blocks of 256.
  const wide = TENSOR_TYPES[quantization].elements === 256
  const heads = options.heads ?? 4
  const headDim = options.headDim ?? (wide ? 64 : 32)
  return {
    architecture: options.architecture,
    quantization,
    embedding: options.embedding ?? quantization,
    seed: options.seed ?? 1,
    layers: options.layers ?? 2,
    heads,
    kvHeads: options.kvHeads ?? 2,
    headDim,
    dim: options.dim ?? heads * headDim,
    ffn: options.ffn ?? (wide ? 256 : 128),
    contextLength: options.contextLength ?? 4096,
    ropeBase: options.ropeBase ?? 10000,
    ropeFactors: options.ropeFactors ?? 'none',
    output: options.output ?? 'tied',
    specials: options.specials ?? [],
  }
}

function metadata(settings: Settings): Record<string, GgufInput> {
  const { architecture: arch, heads, headDim, dim } = settings
  if (dim !== heads * headDim && arch !== 'qwen3') throw new RangeError(`${arch} has dim = heads * headDim`)
  return {
    'general.architecture': arch,
    'general.name': `toy ${arch} ${settings.quantization} ${settings.seed}`,
    'general.alignment': 32,
    [`${arch}.block_count`]: settings.layers,
    [`${arch}.context_length`]: settings.contextLength,
    [`${arch}.embedding_length`]: dim,
    [`${arch}.feed_forward_length`]: settings.ffn,
    [`${arch}.attention.head_count`]: heads,
    [`${arch}.attention.head_count_kv`]: settings.kvHeads,
    [`${arch}.attention.layer_norm_rms_epsilon`]: f32(1e-5),
    [`${arch}.rope.freq_base`]: f32(settings.ropeBase),
    ...(arch === 'llama' && {
      'llama.rope.dimension_count': headDim,
      'llama.vocab_size': toyTokens().length + settings.specials.length,
    }),
    ...(arch === 'qwen3' && { 'qwen3.attention.key_length': headDim, 'qwen3.attention.value_length': headDim }),
    ...toyTokenizerMetadata(arch === 'llama' ? 'smollm' : 'qwen2', settings.specials),
  }
}

function layerTensors(settings: Settings, layer: number, random: Random): TensorInput[] {
  const { dim, ffn, quantization } = settings
  const queries = settings.heads * settings.headDim
  const keys = settings.kvHeads * settings.headDim
  const matrix = (name: string, rows: number, cols: number, gain: number): TensorInput => ({
    name: `blk.${layer}.${name}.weight`,
    shape: [rows, cols],
    type: quantization,
    values: normals(random, rows * cols, gain / Math.sqrt(cols)),
  })
  const vector = (name: string, size: number, mean: number, spread: number): TensorInput => ({
    name: `blk.${layer}.${name}`,
    shape: [size],
    type: 'F32',
    values: normals(random, size, spread).map((value) => value + mean),
  })
  const tensors = [
    vector('attn_norm.weight', dim, 1, 0.1),
    matrix('attn_q', queries, dim, 1.5),
    matrix('attn_k', keys, dim, 1.5),
    matrix('attn_v', keys, dim, 1),
    matrix('attn_output', dim, queries, 4),
    vector('ffn_norm.weight', dim, 1, 0.1),
    matrix('ffn_gate', ffn, dim, 1.5),
    matrix('ffn_up', ffn, dim, 1.5),
    matrix('ffn_down', dim, ffn, 4),
  ]
  if (settings.architecture === 'qwen2') {
    tensors.push(vector('attn_q.bias', queries, 0, 0.5), vector('attn_k.bias', keys, 0, 0.5))
    tensors.push(vector('attn_v.bias', keys, 0, 0.3))
  }
  if (settings.architecture === 'qwen3') {
    tensors.push(vector('attn_q_norm.weight', settings.headDim, 1.5, 0.2))
    tensors.push(vector('attn_k_norm.weight', settings.headDim, 1.5, 0.2))
  }
  return tensors
}

function outerTensors(settings: Settings, random: Random): TensorInput[] {
  const { dim, headDim, embedding: type } = settings
  const size = toyTokens().length + settings.specials.length
  const table = (name: string): TensorInput => ({
    name,
    shape: [size, dim],
    type,
    // Logits spread by about 5 over plain text and less over the rest, so that answers are mostly readable.
    values: normals(random, size * dim, 5 / Math.sqrt(dim)).map((value, i) =>
      isPlainText(Math.floor(i / dim)) ? value : 0.3 * value,
    ),
  })
  const norm = normals(random, dim, 0.1).map((value) => value + 1)
  const tensors: TensorInput[] = [
    table('token_embd.weight'),
    { name: 'output_norm.weight', shape: [dim], type: 'F32', values: norm },
  ]
  if (settings.output === 'own') tensors.push(table('output.weight'))
  if (settings.ropeFactors === 'llama3') {
    // 1 for the fast frequencies, up to 8 for the slow ones.
    const factors = Float32Array.from({ length: headDim / 2 }, (_, i) => 1 + 7 * Math.min(1, (3 * i) / headDim) ** 2)
    tensors.push({ name: 'rope_freqs.weight', shape: [headDim / 2], type: 'F32', values: factors })
  }
  return tensors
}

function normals(random: Random, count: number, spread: number): Float32Array {
  const values = new Float32Array(count)
  for (let i = 0; i < count; i++) values[i] = spread * random.normal()
  return values
}
