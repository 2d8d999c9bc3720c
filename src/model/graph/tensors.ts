// Which tensors of a GGUF the graph needs, by role. Every tensor is claimed once with the shape that it must have; what
// is missing, misshapen or left over is refused before anything is written: a tensor that nobody uses (experts, an extra
// norm, a bias) means that the file's network is not the one that the graph computes.

import type { Gguf, GgufTensor } from '../gguf.js'
import { ModelError } from '../model-error.js'
import { type ModelShape, unsupported } from './shape.js'

/** Matrices of one type, stored as one with their rows one after the other. */
export interface FusedMatrices {
  readonly tensors: readonly GgufTensor[]
  /** As many as tensors, or none. */
  readonly biases: readonly GgufTensor[]
}

export interface LayerTensors {
  readonly attentionNorm: GgufTensor
  readonly qkv: readonly FusedMatrices[]
  readonly headNorms: { readonly q: GgufTensor; readonly k: GgufTensor } | undefined
  readonly attentionOutput: readonly FusedMatrices[]
  readonly feedForwardNorm: GgufTensor
  readonly gateUp: readonly FusedMatrices[]
  readonly down: readonly FusedMatrices[]
}

export interface ModelTensors {
  readonly embedding: GgufTensor
  readonly layers: readonly LayerTensors[]
  readonly outputNorm: GgufTensor
  /** undefined: the embedding serves as the head. */
  readonly head: GgufTensor | undefined
  /** Llama 3's divisors of the rope frequencies. */
  readonly ropeFactors: GgufTensor | undefined
}

/** @throws ModelError `bad-file` for a missing or misshapen tensor, `unsupported` for one left over. */
export function claimTensors(gguf: Gguf, shape: ModelShape): ModelTensors {
  const claims = new Claims(gguf)
  const { dim, hiddenDim, vocabSize } = shape
  const [queryDim, kvDim] = [shape.heads * shape.headDim, shape.kvHeads * shape.headDim]
  const layers = Array.from({ length: shape.layers }, (_, l): LayerTensors => {
    const name = (role: string) => `blk.${l}.${role}`
    return {
      attentionNorm: claims.vector(name('attn_norm.weight'), dim),
      qkv: claims.matrices([name('attn_q'), name('attn_k'), name('attn_v')], [queryDim, kvDim, kvDim], dim),
      headNorms:
        shape.architecture === 'qwen3'
          ? {
              q: claims.vector(name('attn_q_norm.weight'), shape.headDim),
              k: claims.vector(name('attn_k_norm.weight'), shape.headDim),
            }
          : undefined,
      attentionOutput: claims.matrices([name('attn_output')], [dim], queryDim),
      feedForwardNorm: claims.vector(name('ffn_norm.weight'), dim),
      // Not fused: cutting the wide result in two copies it. 128 tokens of SmolLM2: 439 ms against 470 of CPU time; one
      // token: 29.5 against 31.2 (q, k and v gain nothing from being apart: 423 to 447, 29.7 to 32.8).
      gateUp: [
        ...claims.matrices([name('ffn_gate')], [hiddenDim], dim),
        ...claims.matrices([name('ffn_up')], [hiddenDim], dim),
      ],
      down: claims.matrices([name('ffn_down')], [dim], hiddenDim),
    }
  })
  const tensors: ModelTensors = {
    embedding: claims.claim('token_embd.weight', [vocabSize, dim]),
    layers,
    outputNorm: claims.vector('output_norm.weight', dim),
    head: claims.has('output.weight') ? claims.claim('output.weight', [vocabSize, dim]) : undefined,
    ropeFactors: claims.has('rope_freqs.weight') ? claims.vector('rope_freqs.weight', shape.rope.dim / 2) : undefined,
  }
  claims.finish()
  return tensors
}

class Claims {
  readonly #gguf: Gguf
  readonly #claimed = new Set<string>()

  constructor(gguf: Gguf) {
    this.#gguf = gguf
  }

  has(name: string): boolean {
    return this.#gguf.tensors.has(name)
  }

  claim(name: string, dims: readonly number[]): GgufTensor {
    const tensor = this.#gguf.tensor(name)
    if (tensor.shape.join() !== dims.join()) {
      const found = `[${tensor.shape.join(', ')}], not [${dims.join(', ')}]`
      throw new ModelError('bad-file', `${this.#gguf.path}: tensor '${name}' has the shape ${found}`)
    }
    this.#claimed.add(name)
    return tensor
  }

  vector(name: string, size: number): GgufTensor {
    return this.claim(name, [size])
  }

  /** `roles[i]` has `rows[i]` rows; neighbours fuse where their types agree and both or neither have a bias. */
  matrices(roles: readonly string[], rows: readonly number[], cols: number): FusedMatrices[] {
    const groups: { tensors: GgufTensor[]; biases: GgufTensor[] }[] = []
    for (const [i, role] of roles.entries()) {
      const size = rows[i] as number
      const tensor = this.claim(`${role}.weight`, [size, cols])
      const bias = this.has(`${role}.bias`) ? this.vector(`${role}.bias`, size) : undefined
      const group = groups.at(-1)
      if (group?.tensors[0]?.type === tensor.type && group.biases.length > 0 === (bias !== undefined)) {
        group.tensors.push(tensor)
        if (bias !== undefined) group.biases.push(bias)
      } else {
        groups.push({ tensors: [tensor], biases: bias === undefined ? [] : [bias] })
      }
    }
    return groups
  }

  finish(): void {
    const left = [...this.#gguf.tensors.keys()].filter((name) => !this.#claimed.has(name))
    if (left.length === 0) return
    const more = left.length > 1 ? ` (and ${left.length - 1} more that nothing uses)` : ''
    throw unsupported(this.#gguf, `the tensor '${left[0]}'${more}`)
  }
}
