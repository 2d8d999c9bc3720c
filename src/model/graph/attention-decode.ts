// The attention of decoding: one new token for each of up to DECODE_ROWS sequences, each with a past of its own length
// in buffers of its own. Everything but the products with the past is computed for all rows at once. Nothing is copied
// or padded to the longest: a row costs what its own capacity costs. Rows that are not in use have no elements.

import { type Dimension, float, type OnnxGraph } from '../onnx.js'
import type { Attention } from './attention.js'
import type { ModelShape } from './shape.js'

/** Sequences in one decode run at most. */
export const DECODE_ROWS = 8

/**
 * Inputs: rows [R] i64: 1 for a row in use, 0 for others, those in use first; for each row i mask.{i} [u, 1, 1,
 * capacity_i + 1] f32, added to its scores (u = 1 in use, 0 not), and past.{l}.k.{i} / past.{l}.v.{i} [u, kvHeads,
 * capacity_i, headDim]. Outputs: new.{l}.k/v [b, kvHeads, 1, headDim].
 */
export function decodeAttention(graph: OnnxGraph, shape: ModelShape): Attention {
  const { heads, kvHeads, headDim } = shape
  const group = heads / kvHeads
  const each = Array.from({ length: DECODE_ROWS }, (_, i) => i)
  const rows = graph.input('rows', 'int64', [DECODE_ROWS])
  const masks = each.map((i) => graph.input(`mask.${i}`, 'float32', [`u${i}`, 1, 1, `c${i}+1`]))
  const parts = each.map((i) => {
    const capacity = graph.op('Shape', [`past.0.k.${i}`], { start: 2, end: 3 })
    return graph.op('Concat', [capacity, graph.ints(1)], { axis: 0 })
  })
  const newDims: Dimension[] = ['b', kvHeads, 1, headDim]

  // Shapes that inference can't find, said by hand: without them the runtime's memory planner compares every buffer with
  // every other, and the session of a 30-layer model takes seconds to open.
  const shaped = (value: string, dims: Dimension[]) => {
    graph.shape(value, 'float32', dims)
    return value
  }
  const split = (value: string, by: string, count: number, axis: number): string[] => {
    const outputs = Array.from({ length: count }, () => graph.fresh('part'))
    graph.node({ kind: 'Split', domain: '', inputs: [value, by], outputs, attributes: { axis } })
    return outputs
  }

  return (layer, { q, k, v }) => {
    const queries = graph.op('Reshape', [q, graph.ints(-1, kvHeads, group, headDim)])
    for (const [letter, value] of [
      ['k', k],
      ['v', v],
    ] as const) {
      const inputs = [value, graph.ints(-1, kvHeads, 1, headDim)]
      graph.node({ kind: 'Reshape', domain: '', inputs, outputs: [`new.${layer}.${letter}`], attributes: {} })
      graph.output(`new.${layer}.${letter}`, 'float32', newDims)
      for (const i of each) {
        graph.input(`past.${layer}.${letter}.${i}`, 'float32', [`u${i}`, kvHeads, `c${i}`, headDim])
      }
    }
    const scaled = { transB: 1, alpha: float(headDim ** -0.5) }
    const onNew = split(graph.contrib('FusedMatMul', [queries, `new.${layer}.k`], scaled), rows, DECODE_ROWS, 0)
    const query = split(queries, rows, DECODE_ROWS, 0)
    const outputs: string[] = []
    const shares: string[] = []
    for (const i of each) {
      const dims = (last: Dimension): Dimension[] => [`u${i}`, kvHeads, group, last]
      const past = { k: `past.${layer}.k.${i}`, v: `past.${layer}.v.${i}` }
      const onRow = shaped(query[i] as string, dims(headDim))
      const onPast = shaped(graph.contrib('FusedMatMul', [onRow, past.k], scaled), dims(`c${i}`))
      const fresh = shaped(onNew[i] as string, dims(1))
      const scores = shaped(graph.op('Concat', [onPast, fresh], { axis: 3 }), dims(`c${i}+1`))
      const masked = shaped(graph.op('Add', [scores, masks[i] as string]), dims(`c${i}+1`))
      const weights = shaped(graph.op('Softmax', [masked], { axis: -1 }), dims(`c${i}+1`))
      const [before, share] = split(weights, parts[i] as string, 2, 3) as [string, string]
      outputs.push(shaped(graph.op('MatMul', [shaped(before, dims(`c${i}`)), past.v]), dims(headDim)))
      shares.push(shaped(share, dims(1)))
    }
    const fromPast = graph.op('Concat', outputs, { axis: 0 })
    const fromNew = graph.op('Mul', [graph.op('Concat', shares, { axis: 0 }), `new.${layer}.v`])
    return graph.op('Reshape', [graph.op('Add', [fromPast, fromNew]), graph.ints(-1, 1, heads * headDim)])
  }
}
