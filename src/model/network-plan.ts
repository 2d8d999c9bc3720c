// network.json: where the tensors of a model lie in weights.bin, by role, for engines that read them themselves. Written by
// the import beside the graphs, whose own names say the same to ONNX Runtime.

import type { ModelShape } from './graph/shape.js'
import type { LayerWeights, ModelWeights, StoredMatrix } from './graph/weights.js'

/** The file's name, beside weights.bin. */
export const NETWORK_FILE = 'network.json'

export interface NetworkPlan {
  readonly shape: ModelShape
  readonly embedding: StoredMatrix
  readonly layers: readonly LayerWeights[]
  readonly outputNorm: ModelWeights['outputNorm']
  readonly head: StoredMatrix
  readonly cos: ModelWeights['cos']
  readonly sin: ModelWeights['sin']
}

/** The text of network.json. */
export function networkPlan(shape: ModelShape, weights: ModelWeights): string {
  const { embedding, layers, outputNorm, head, cos, sin } = weights
  const plan: NetworkPlan = { shape, embedding, layers, outputNorm, head, cos, sin }
  return `${JSON.stringify(plan)}\n`
}
