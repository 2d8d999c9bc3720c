// The attention of decoding: one new token for each of up to DECODE_ROWS sequences, each with a past of its own length
// in buffers of its own. Everything but the products with the past is computed for all rows at once. Nothing is copied
// or padded to the longest: a row costs what its own capacity costs. Rows that are not in use have no elements.

import { type Dimension, float, type OnnxGraph } from '../onnx.js'
import type { Attention } from './attention.js'
import type { ModelShape } from './shape.js'

/** Sequences in one decode run at most. */
export const DECODE_ROWS = 8

/**
 * A run takes the smallest of these that its rows fit: rows that are not in use still cost the start of each operator,
 * which for one row of eight is nearly half of a step (bench/engine.ts).
 */
const WIDTHS = [1, 4, DECODE_ROWS] as const

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
  const sizes = WIDTHS.map((width) =>
    width === DECODE_ROWS ? rows : graph.op('Slice', [rows, graph.ints(0), graph.ints(width)]),
  )
  const inUse = graph.op('Shape', ['input_ids'], { start: 0, end: 1 })
  const fits = WIDTHS.map((width) => graph.op('Less', [inUse, graph.ints(width + 1)]))
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
  const scaled = { transB: 1, alpha: float(headDim ** -0.5) }

  /** One row: what the past gives it [u, kvHeads, group, headDim], and the weight of its own new token [.., 1]. */
  const attendPast = (layer: number, i: number, { query, onNew }: { query: string; onNew: string }) => {
    const dims = (last: Dimension): Dimension[] => [`u${i}`, kvHeads, group, last]
    const onPast = shaped(graph.contrib('FusedMatMul', [query, `past.${layer}.k.${i}`], scaled), dims(`c${i}`))
    const scores = shaped(graph.op('Concat', [onPast, onNew], { axis: 3 }), dims(`c${i}+1`))
    const masked = shaped(graph.op('Add', [scores, masks[i] as string]), dims(`c${i}+1`))
    const weights = shaped(graph.op('Softmax', [masked], { axis: -1 }), dims(`c${i}+1`))
    const [before, share] = split(weights, parts[i] as string, 2, 3) as [string, string]
    const fromPast = graph.op('MatMul', [shaped(before, dims(`c${i}`)), `past.${layer}.v.${i}`])
    return { fromPast: shaped(fromPast, dims(headDim)), share: shaped(share, dims(1)) }
  }

  const attendWide = (layer: number, step: number, { queries, onNew }: { queries: string; onNew: string }): string => {
    const width = WIDTHS[step] as number
    const dims = (i: number, last: Dimension): Dimension[] => [`u${i}`, kvHeads, group, last]
    const query = width === 1 ? [queries] : split(queries, sizes[step] as string, width, 0)
    const fresh = width === 1 ? [onNew] : split(onNew, sizes[step] as string, width, 0)
    const past = each.slice(0, width).map((i) => {
      // A whole value has its shape already.
      if (width > 1) shaped(query[i] as string, dims(i, headDim))
      if (width > 1) shaped(fresh[i] as string, dims(i, 1))
      return attendPast(layer, i, { query: query[i] as string, onNew: fresh[i] as string })
    })
    const joined = (values: readonly string[]) =>
      width === 1 ? (values[0] as string) : graph.op('Concat', values, { axis: 0 })
    const fromNew = graph.op('Mul', [joined(past.map(({ share }) => share)), `new.${layer}.v`])
    return graph.op('Add', [joined(past.map(({ fromPast }) => fromPast)), fromNew])
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
    const onNew = graph.contrib('FusedMatMul', [queries, `new.${layer}.k`], scaled)
    const from = (step: number): string => {
      if (step === WIDTHS.length - 1) return attendWide(layer, step, { queries, onNew })
      const narrow = () => attendWide(layer, step, { queries, onNew })
      return graph.either(fits[step] as string, 'float32', narrow, () => from(step + 1))
    }
    return graph.op('Reshape', [from(0), graph.ints(-1, 1, heads * headDim)])
  }
}
