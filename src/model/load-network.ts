// Loads an imported model into the forward pass of kernels/, a layer at a time: the weights stand in memory once, in the
// form that it multiplies with. Only shapes that it computes exactly are taken; `networkFault` says which are not.

import { type FileHandle, open, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Network, NetworkForm, NetworkMatrix } from '../native/network.js'
import { WEIGHTS_FILE } from './graph/graph.js'
import type { ModelShape } from './graph/shape.js'
import type { StoredMatrix, StoredProjection } from './graph/weights.js'
import { NETWORK_FILE, type NetworkPlan } from './network-plan.js'
import type { StoredTensor } from './onnx.js'

export interface LoadNetworkOptions {
  readonly form: NetworkForm
  readonly threads: number
  /** Whether new K and V are rounded to fp16-representable values; see ModelManifest. */
  readonly kv: 'fp16' | 'fp32'
}

/** Query heads on one KV head, and dimensions of a head, that the forward pass has room for. */
const MOST_GROUPED = 64
const MOST_HEAD_DIM = 256

/** The sizes of a model that decide whether the forward pass takes it. */
export type NetworkSizes = Pick<ModelShape, 'heads' | 'kvHeads' | 'headDim' | 'dim' | 'hiddenDim'>

/** Why kernels/ cannot compute a model of these sizes; undefined: it can. */
export function networkFault({ heads, kvHeads, headDim, dim, hiddenDim }: NetworkSizes): string | undefined {
  if (heads / kvHeads > MOST_GROUPED) return `${heads / kvHeads} query heads share a KV head`
  if (headDim % 16 !== 0 || headDim > MOST_HEAD_DIM) return `heads have ${headDim} dimensions`
  if (dim % 16 !== 0) return `rows have ${dim} values`
  if (hiddenDim % 16 !== 0) return `the feed-forward part has ${hiddenDim} values`
  return undefined
}

/** @throws Error when a file is missing or shorter than its plan. */
export async function loadNetwork(directory: string, options: LoadNetworkOptions): Promise<Network> {
  const plan = JSON.parse(await readFile(join(directory, NETWORK_FILE), 'utf8')) as NetworkPlan
  const { shape } = plan
  const file = await open(join(directory, WEIGHTS_FILE), 'r')
  const weights = new WeightsReader(file)
  try {
    const network = new options.form.Network({
      ...{ layers: shape.layers, heads: shape.heads, kvHeads: shape.kvHeads, headDim: shape.headDim },
      ...{ dim: shape.dim, hiddenDim: shape.hiddenDim, vocabSize: shape.vocabSize, positions: shape.contextLength },
      ...{ epsilon: shape.epsilon, ropeDim: shape.rope.dim, interleaved: shape.rope.interleaved },
      ...{ roundKv: options.kv === 'fp16', threads: options.threads },
    })
    for (const layer of plan.layers) {
      network.addLayer({
        attentionNorm: await weights.floats(layer.attentionNorm),
        qkv: await weights.projection(layer.qkv),
        ...(layer.headNorms && {
          queryNorm: await weights.floats(layer.headNorms.q),
          keyNorm: await weights.floats(layer.headNorms.k),
        }),
        attentionOutput: await weights.projection(layer.attentionOutput),
        feedForwardNorm: await weights.floats(layer.feedForwardNorm),
        gateUp: await weights.projection(layer.gateUp),
        down: await weights.projection(layer.down),
      })
    }
    network.finish({
      embedding: await weights.matrix(plan.embedding),
      outputNorm: await weights.floats(plan.outputNorm),
      head: [await weights.matrix(plan.head)],
      cos: await weights.floats(plan.cos),
      sin: await weights.floats(plan.sin),
    })
    return network
  } finally {
    await file.close()
  }
}

class WeightsReader {
  readonly #file: FileHandle

  constructor(file: FileHandle) {
    this.#file = file
  }

  async floats(tensor: StoredTensor): Promise<Float32Array> {
    const bytes = await this.bytes(tensor)
    return new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4)
  }

  async bytes({ name, offset, bytes }: StoredTensor): Promise<Uint8Array> {
    const buffer = new Uint8Array(bytes)
    for (let done = 0; done < bytes; ) {
      const { bytesRead } = await this.#file.read(buffer, done, bytes - done, offset + done)
      if (bytesRead === 0)
        throw new Error(`${WEIGHTS_FILE} ends within '${name}': remove its folder to import it again`)
      done += bytesRead
    }
    return buffer
  }

  async projection(parts: StoredProjection): Promise<NetworkMatrix[]> {
    const matrices: NetworkMatrix[] = []
    for (const { matrix } of parts) matrices.push(await this.matrix(matrix))
    return matrices
  }

  async matrix(stored: StoredMatrix): Promise<NetworkMatrix> {
    const { rows } = stored
    const bias = stored.bias === undefined ? undefined : await this.floats(stored.bias)
    if (stored.kind === 'dense') return { rows, block: 0, dense: await this.floats(stored.dense), bias }
    const products = []
    for (const { q, scales, zeroPoint } of stored.products) {
      products.push({ q: await this.bytes(q), scales: await this.floats(scales), zeroPoint })
    }
    const offsets = stored.offsets === undefined ? undefined : await this.floats(stored.offsets)
    return { rows, block: stored.blockSize, products, offsets, bias }
  }
}
