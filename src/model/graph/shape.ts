// What a GGUF's metadata says about the network, checked: everything that the graph would compute differently from what
// the file means is refused by the name of its key or tensor. Nothing is ignored that changes the output.

import type { Architecture } from '../contract.js'
import type { Gguf } from '../gguf.js'
import { ModelError } from '../model-error.js'

export interface ModelShape {
  readonly architecture: Architecture
  readonly layers: number
  readonly heads: number
  readonly kvHeads: number
  readonly headDim: number
  readonly dim: number
  /** Width of the feed-forward part. */
  readonly hiddenDim: number
  readonly vocabSize: number
  readonly contextLength: number
  readonly epsilon: number
  readonly rope: {
    readonly base: number
    /** Dimensions of a head that turn; the rest passes through. */
    readonly dim: number
    /** Positions are divided by it (linear scaling); 1: none. */
    readonly scale: number
    /** Pairs are (0, 1), (2, 3), ... as in the permuted weights of llama files; else (0, dim/2), (1, dim/2 + 1), ... */
    readonly interleaved: boolean
  }
}

/** Keys below the architecture's name that change the computation, and the values at which they do not. */
const REFUSED: Readonly<
  Record<string, (value: unknown, shape: { contextLength: number; headDim: number }) => boolean>
> = {
  expert_count: isZero,
  expert_used_count: isZero,
  'attention.sliding_window': (value, shape) => value === 0 || Number(value) >= shape.contextLength,
  'attention.value_length': (value, shape) => value === shape.headDim,
  'attention.scale': isZero,
  'attention.causal': (value) => value === true,
  'attention.clamp_kqv': isZero,
  'attention.max_alibi_bias': isZero,
  attn_logit_softcapping: isZero,
  final_logit_softcapping: isZero,
  logit_scale: isZeroOrOne,
  residual_scale: isZeroOrOne,
  embedding_scale: isZeroOrOne,
  pooling_type: isZero,
  use_parallel_residual: (value) => value === false,
  'rope.scaling.attn_factor': isZeroOrOne,
  'rope.scaling.yarn_log_multiplier': isZero,
}

function isZero(value: unknown): boolean {
  return value === 0
}

function isZeroOrOne(value: unknown): boolean {
  return value === 0 || value === 1
}

/** @throws ModelError `unsupported`, naming the key, or `bad-file`. */
export function readShape(gguf: Gguf): ModelShape {
  const architecture = readArchitecture(gguf)
  const key = (name: string) => `${architecture}.${name}`
  const dim = positive(gguf, key('embedding_length'))
  const heads = positive(gguf, key('attention.head_count'))
  const kvHeads = gguf.metadata.has(key('attention.head_count_kv'))
    ? positive(gguf, key('attention.head_count_kv'))
    : heads
  if (heads % kvHeads !== 0) throw unsupported(gguf, `${heads} query heads on ${kvHeads} KV heads`)
  const headDim = gguf.get(key('attention.key_length'), 'number') ?? dim / heads
  if (!Number.isInteger(headDim) || headDim % 2 !== 0) throw unsupported(gguf, `heads of ${headDim} dimensions`)
  const contextLength = positive(gguf, key('context_length'))
  for (const [name, harmless] of Object.entries(REFUSED)) {
    const value = gguf.metadata.get(key(name))
    if (value !== undefined && !harmless(value, { contextLength, headDim })) {
      throw unsupported(gguf, `'${key(name)}' = ${String(value)}`)
    }
  }
  return {
    architecture,
    layers: positive(gguf, key('block_count')),
    heads,
    kvHeads,
    headDim,
    dim,
    hiddenDim: positive(gguf, key('feed_forward_length')),
    vocabSize: gguf.tensor('token_embd.weight').shape[0] as number,
    contextLength,
    epsilon: gguf.need(key('attention.layer_norm_rms_epsilon'), 'number'),
    rope: readRope(gguf, architecture, headDim),
  }
}

function readArchitecture(gguf: Gguf): Architecture {
  const name = gguf.need('general.architecture', 'string')
  if (name === 'llama' || name === 'qwen2' || name === 'qwen3') return name
  throw unsupported(gguf, `the architecture '${name}' (general.architecture); llama, qwen2 and qwen3 are`)
}

function readRope(gguf: Gguf, architecture: Architecture, headDim: number): ModelShape['rope'] {
  const key = (name: string) => `${architecture}.rope.${name}`
  const dim = gguf.get(key('dimension_count'), 'number') ?? headDim
  if (!Number.isInteger(dim) || dim <= 0 || dim % 2 !== 0 || dim > headDim) {
    throw unsupported(gguf, `'${key('dimension_count')}' = ${dim} in heads of ${headDim}`)
  }
  const scaling =
    gguf.get(key('scaling.type'), 'string') ?? (gguf.metadata.has(key('scale_linear')) ? 'linear' : 'none')
  if (scaling !== 'none' && scaling !== 'linear') throw unsupported(gguf, `'${key('scaling.type')}' = ${scaling}`)
  const factor = gguf.get(key('scaling.factor'), 'number') ?? gguf.get(key('scale_linear'), 'number') ?? 1
  return {
    base: gguf.get(key('freq_base'), 'number') ?? 10000,
    dim,
    scale: scaling === 'linear' && factor !== 0 ? factor : 1,
    interleaved: architecture === 'llama',
  }
}

function positive(gguf: Gguf, key: string): number {
  const value = gguf.metadata.get(key)
  if (Array.isArray(value)) throw unsupported(gguf, `'${key}' with a value for each layer`)
  const number = gguf.need(key, 'number')
  if (!Number.isInteger(number) || number <= 0) throw new ModelError('bad-file', `${gguf.path}: '${key}' is ${number}`)
  return number
}

export function unsupported(gguf: Gguf, what: string): ModelError {
  return new ModelError('unsupported', `${gguf.path}: ${what} is not supported`)
}
