// The attention of prefill: many new tokens of one sequence after a past. Invariant: a row's result does not depend on
// how the prompt was cut into runs of two or more tokens, nor on the past's capacity (measured: equal to the bit), so a
// hit continues exactly as a miss would have. The operator copies the past once a layer, which only long runs repay.

import { type Dimension, float, type OnnxGraph } from '../onnx.js'
import type { Attention } from './attention.js'
import type { ModelShape } from './shape.js'

/**
 * GroupQueryAttention (com.microsoft) on K/V that are rotated already. Its joined K/V stay inside the graph: as graph
 * outputs they would be copied to the caller on every run.
 * Inputs: seqlens [b] i32: past and new tokens together, less one; total [] i32: their sum; past.{l}.k/v [b, kvHeads,
 * capacity, headDim], of which the first seqlens + 1 - n rows count. Outputs: new.{l}.k/v [b, kvHeads, n, headDim].
 */
export function prefillAttention(graph: OnnxGraph, shape: ModelShape): Attention {
  const { heads, kvHeads, headDim } = shape
  const pastDims: Dimension[] = ['b', kvHeads, 'capacity', headDim]
  const newDims: Dimension[] = ['b', kvHeads, 'n', headDim]
  const seqlens = graph.input('seqlens', 'int32', ['b'])
  const total = graph.input('total', 'int32', [])

  return (layer, { q, k, v }) => {
    for (const [letter, value] of [
      ['k', k],
      ['v', v],
    ] as const) {
      const byToken = graph.op('Reshape', [value, graph.ints(0, 0, kvHeads, headDim)])
      const outputs = [`new.${layer}.${letter}`]
      graph.node({ kind: 'Transpose', domain: '', inputs: [byToken], outputs, attributes: { perm: [0, 2, 1, 3] } })
      graph.input(`past.${layer}.${letter}`, 'float32', pastDims)
      graph.output(`new.${layer}.${letter}`, 'float32', newDims)
    }
    const output = graph.fresh('attended')
    graph.node({
      kind: 'GroupQueryAttention',
      domain: 'com.microsoft',
      inputs: [q, k, v, `past.${layer}.k`, `past.${layer}.v`, seqlens, total],
      outputs: [output, graph.fresh('joined-k'), graph.fresh('joined-v')],
      attributes: { num_heads: heads, kv_num_heads: kvHeads, scale: float(headDim ** -0.5) },
    })
    return output
  }
}
