// The attention that any run can use: a batch of sequences, each with a past of the same length, and a mask that says who
// sees whom. Masks and positions are inputs, so chunked prefill, batches and trees of branches are the same graph.

import { type Dimension, float, type OnnxGraph } from '../onnx.js'
import type { Attention } from './attention.js'
import type { ModelShape } from './shape.js'

/**
 * Scores against the past and against the new tokens are computed apart and joined for the softmax alone, so that the
 * past is read in place and never copied. Query heads of one KV head are stacked as rows of one matrix product.
 * Inputs: mask [b, 1, n, t + n], added to scores; past.{l}.k/v [b, kvHeads, t, headDim]. Outputs: new.{l}.k/v
 * [b, kvHeads, n, headDim].
 */
export function splitAttention(graph: OnnxGraph, shape: ModelShape): Attention {
  const { heads, kvHeads, headDim } = shape
  const group = heads / kvHeads
  const pastDims: Dimension[] = ['b', kvHeads, 't', headDim]
  const newDims: Dimension[] = ['b', kvHeads, 'n', headDim]
  const mask = graph.input('mask', 'float32', ['b', 1, 'n', 'tn'])
  const batch = graph.op('Shape', ['input_ids'], { start: 0, end: 1 })
  const tokens = graph.op('Shape', ['input_ids'], { start: 1, end: 2 })
  const past = graph.op('Shape', ['past.0.k'], { start: 2, end: 3 })
  const parts = graph.op('Concat', [past, tokens], { axis: 0 })
  const total = graph.op('Add', [past, tokens])
  const byHead = graph.op('Concat', [batch, graph.ints(heads), tokens, total], { axis: 0 })
  const byKvHead = graph.op('Concat', [batch, graph.ints(kvHeads), graph.ints(-1), total], { axis: 0 })

  return (layer, { q, k, v }) => {
    const stacked = graph.op('Transpose', [graph.op('Reshape', [q, graph.ints(0, 0, kvHeads, group, headDim)])], {
      perm: [0, 2, 3, 1, 4],
    })
    const queries = graph.op('Reshape', [stacked, graph.ints(0, kvHeads, -1, headDim)])
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
    const scores = ['past', 'new'].map((side) =>
      graph.contrib('FusedMatMul', [queries, `${side}.${layer}.k`], { transB: 1, alpha: float(headDim ** -0.5) }),
    )
    const joined = graph.op('Reshape', [graph.op('Concat', scores, { axis: 3 }), byHead])
    const weights = graph.op('Softmax', [graph.op('Add', [joined, mask])], { axis: -1 })
    const [onPast, onNew] = [graph.fresh('on-past'), graph.fresh('on-new')]
    const rows = graph.op('Reshape', [weights, byKvHead])
    graph.node({ kind: 'Split', domain: '', inputs: [rows, parts], outputs: [onPast, onNew], attributes: { axis: 3 } })
    const output = graph.op('Add', [
      graph.op('MatMul', [onPast, `past.${layer}.v`]),
      graph.op('MatMul', [onNew, `new.${layer}.v`]),
    ])
    const unstacked = graph.op('Reshape', [output, graph.ints(0, kvHeads, group, -1, headDim)])
    return graph.op('Transpose', [unstacked], { perm: [0, 3, 1, 2, 4] })
  }
}
