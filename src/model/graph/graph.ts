// Builds the graph of a model from its stored weights. Pure: the same shape, weights and options give the same bytes.
// Several forms are built from one set of weights; they differ in how attention is computed and what K/V they give.
//
// Inputs   input_ids [b, n] i64 | pos [b, n] i64 | last [b, m] i64: rows that need logits | attention's own
// Outputs  logits [b, m, vocab] f32 | attention's own

import { float, OnnxGraph } from '../onnx.js'
import { decodeAttention } from './attention-decode.js'
import { prefillAttention } from './attention-prefill.js'
import { splitAttention } from './attention-split.js'
import { Activation, Linear } from './linear.js'
import type { ModelShape } from './shape.js'
import type { LayerWeights, ModelWeights } from './weights.js'

const forms = { split: splitAttention, prefill: prefillAttention, decode: decodeAttention } as const

/** Which inputs a form has for K/V and masks: see its file, attention-<form>.ts. */
export type AttentionForm = keyof typeof forms

export interface GraphOptions {
  readonly attention: AttentionForm
  /**
   * fp16: new K (after rope) and V are rounded to fp16-representable values before this run's attention uses them and
   * before they go out, so that a tier stores them in half the bytes without loss. fp32: unrounded.
   */
  readonly kv: 'fp16' | 'fp32'
}

/** The name of the weights file that graphs refer to; it lies beside them. */
export const WEIGHTS_FILE = 'weights.bin'

/** The bytes of an .onnx file. */
export function buildGraph(shape: ModelShape, weights: ModelWeights, options: GraphOptions): Uint8Array {
  const graph = new OnnxGraph(shape.architecture, WEIGHTS_FILE)
  const linear = new Linear(graph, weights.fills)
  const ids = graph.input('input_ids', 'int64', ['b', 'n'])
  graph.input('pos', 'int64', ['b', 'n'])
  const last = graph.input('last', 'int64', ['b', 'm'])
  graph.output('logits', 'float32', ['b', 'm', shape.vocabSize])
  const batch = graph.op('Shape', [ids], { start: 0, end: 1 })
  const tokens = graph.op('Shape', [ids], { start: 1, end: 2 })
  const byToken = graph.op('Concat', [batch, tokens, graph.ints(-1)], { axis: 0 })
  const attention = forms[options.attention](graph, shape)
  const context = { graph, shape, linear, weights, options, byToken }

  // Between attentions the batch is one list of tokens: [b * n, dim].
  let x = linear.gather(weights.embedding, graph.op('Reshape', [ids, graph.ints(-1)]))
  let normed = rmsNorm(context, x, graph.weight((weights.layers[0] as LayerWeights).attentionNorm))
  for (const [l, stored] of weights.layers.entries()) {
    const attended = attendOut(context, stored, attention(l, project(context, stored, normed)))
    const afterAttention = addNorm(context, x, attended, graph.weight(stored.feedForwardNorm))
    const fed = feedForward(context, stored, afterAttention.normed)
    const following = weights.layers[l + 1]?.attentionNorm ?? weights.outputNorm
    ;({ x, normed } = addNorm(context, afterAttention.x, fed, graph.weight(following)))
  }
  head(context, normed, last)
  return graph.encode()
}

interface LayerContext {
  readonly graph: OnnxGraph
  readonly shape: ModelShape
  readonly linear: Linear
  readonly weights: ModelWeights
  readonly options: GraphOptions
  /** The shape [b, n, -1], int64. */
  readonly byToken: string
}

/** q and k after norms and rope, k and v rounded where the options say so. */
function project(context: LayerContext, stored: LayerWeights, normed: string): { q: string; k: string; v: string } {
  const { graph, shape, linear, options } = context
  const x = new Activation(graph, normed, shape.dim)
  let [q, k, v] = linear.project(x, stored.qkv) as [string, string, string]
  if (stored.headNorms !== undefined) {
    q = headNorm(context, q, shape.heads, graph.weight(stored.headNorms.q))
    k = headNorm(context, k, shape.kvHeads, graph.weight(stored.headNorms.k))
  }
  q = rope(context, q, shape.heads)
  k = rope(context, k, shape.kvHeads)
  v = graph.op('Reshape', [v, context.byToken])
  return options.kv === 'fp32' ? { q, k, v } : { q, k: roundToHalf(graph, k), v: roundToHalf(graph, v) }
}

/** The output projection of the heads' results, [tokens, dim]. */
function attendOut({ graph, shape, linear }: LayerContext, stored: LayerWeights, heads: string): string {
  const cols = shape.heads * shape.headDim
  const flat = graph.op('Reshape', [heads, graph.ints(-1, cols)])
  return linear.project(new Activation(graph, flat, cols), stored.attentionOutput)[0] as string
}

/** Logits of the rows that `last` names, and of no others: the vocabulary is the largest matrix. */
function head({ graph, shape, linear, weights, byToken }: LayerContext, normed: string, last: string): void {
  const perSequence = graph.op('Reshape', [normed, byToken])
  const indices = graph.op('Unsqueeze', [last, graph.ints(-1)])
  const rows = graph.op('GatherND', [perSequence, indices], { batch_dims: 1 })
  const flat = graph.op('Reshape', [rows, graph.ints(-1, shape.dim)])
  const logits = linear.multiply(new Activation(graph, flat, shape.dim), weights.head)
  const sizes = graph.op('Concat', [graph.op('Shape', [last]), graph.ints(-1)], { axis: 0 })
  graph.node({ kind: 'Reshape', domain: '', inputs: [logits, sizes], outputs: ['logits'] })
}

/** down(silu(gate) * up), [tokens, dim]. QuickGelu is x * sigmoid(alpha x), at alpha 1 the same as silu. */
function feedForward({ graph, shape, linear }: LayerContext, stored: LayerWeights, normed: string): string {
  const [gate, up] = linear.project(new Activation(graph, normed, shape.dim), stored.gateUp) as [string, string]
  const hidden = graph.op('Mul', [graph.contrib('QuickGelu', [gate], { alpha: float(1) }), up])
  return linear.project(new Activation(graph, hidden, shape.hiddenDim), stored.down)[0] as string
}

/** Rotates per position; the operator wants [b, n, heads * headDim]. */
function rope({ graph, shape, weights, byToken }: LayerContext, value: string, heads: number): string {
  const inputs = [graph.op('Reshape', [value, byToken]), 'pos', graph.weight(weights.cos), graph.weight(weights.sin)]
  // 0 means that the whole head turns.
  const turning = shape.rope.dim === shape.headDim ? 0 : shape.rope.dim
  const attributes = { interleaved: shape.rope.interleaved ? 1 : 0, num_heads: heads, rotary_embedding_dim: turning }
  return graph.contrib('RotaryEmbedding', inputs, attributes)
}

function headNorm(context: LayerContext, value: string, heads: number, scale: string): string {
  const { graph, shape } = context
  const byHead = graph.op('Reshape', [value, graph.ints(-1, heads, shape.headDim)])
  return rmsNorm(context, byHead, scale)
}

function roundToHalf(graph: OnnxGraph, value: string): string {
  return graph.op('Cast', [graph.op('Cast', [value], { to: 10 })], { to: 1 })
}

function rmsNorm({ graph, shape }: LayerContext, value: string, scale: string): string {
  return graph.op('SimplifiedLayerNormalization', [value, scale], { epsilon: float(shape.epsilon), axis: -1 })
}

/** The residual sum x + y, and its norm. */
function addNorm({ graph, shape }: LayerContext, x: string, y: string, scale: string): { x: string; normed: string } {
  const [normed, sum] = [graph.fresh('normed'), graph.fresh('residual')]
  graph.node({
    kind: 'SkipSimplifiedLayerNormalization',
    domain: 'com.microsoft',
    inputs: [x, y, scale],
    outputs: [normed, '', '', sum],
    attributes: { epsilon: float(shape.epsilon) },
  })
  return { x: sum, normed }
}
