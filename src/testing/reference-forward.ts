// What a model file means, computed plainly: every position attends to every earlier one, no cache, no fused kernels,
// 64-bit floats throughout. The graph is held against this. Slow on purpose and meant for short inputs; it shares the
// file reader and the dequantizers with the importer and nothing else.

import type { Architecture } from '../model/contract.js'
import { dequantize } from '../model/dequantize.js'
import { Gguf } from '../model/gguf.js'
import { roundToHalf } from '../model/half.js'

export interface ReferenceOptions {
  /** Round keys (after rope) and values to fp16-representable numbers before attention uses them. Default: no. */
  readonly roundKv?: boolean
}

interface Shape {
  readonly architecture: Architecture
  readonly layers: number
  readonly heads: number
  readonly kvHeads: number
  readonly headDim: number
  readonly eps: number
  /** Radians a position for each pair of a head. */
  readonly frequencies: Float64Array
}

type Rows = Float64Array[]
type Weight = (name: string) => Promise<Float32Array>

/** Logits at every position of `tokens`, each of the vocabulary's size. */
export async function referenceLogits(
  path: string,
  tokens: ArrayLike<number>,
  options: ReferenceOptions = {},
): Promise<Float32Array[]> {
  const gguf = await Gguf.open(path)
  try {
    return await forward(gguf, (name) => readWeight(gguf, name), { tokens, ...options })
  } finally {
    await gguf.close()
  }
}

/** The `count` tokens that greedy decoding appends to `tokens`; end tokens do not stop it. All weights stay in memory. */
export async function referenceGreedy(
  path: string,
  tokens: ArrayLike<number>,
  count: number,
  options: ReferenceOptions = {},
): Promise<number[]> {
  const gguf = await Gguf.open(path)
  try {
    const weights = new Map<string, Float32Array>()
    for (const name of gguf.tensors.keys()) weights.set(name, await readWeight(gguf, name))
    const all = Array.from(tokens)
    for (let step = 0; step < count; step++) {
      const input = { tokens: all, lastOnly: true, ...options }
      const [logits] = (await forward(gguf, async (name) => weights.get(name)!, input)) as [Float32Array]
      all.push(logits.indexOf(Math.max(...logits)))
    }
    return all.slice(tokens.length)
  } finally {
    await gguf.close()
  }
}

async function readWeight(gguf: Gguf, name: string): Promise<Float32Array> {
  const tensor = gguf.tensor(name)
  const count = tensor.shape.reduce((product, size) => product * size, 1)
  return dequantize(tensor.type, await gguf.read(tensor), count)
}

interface Input extends ReferenceOptions {
  readonly tokens: ArrayLike<number>
  /** Logits of the last position alone. */
  readonly lastOnly?: boolean
}

async function forward(gguf: Gguf, weight: Weight, input: Input): Promise<Float32Array[]> {
  const shape = await readShape(gguf)
  const embedding = await weight('token_embd.weight')
  const dim = gguf.tensor('token_embd.weight').shape[1]!
  const stream: Rows = Array.from(input.tokens, (id) => Float64Array.from(embedding.subarray(id * dim, id * dim + dim)))
  for (let layer = 0; layer < shape.layers; layer++) {
    const named: Weight = (name) => weight(`blk.${layer}.${name}`)
    const has = (name: string) => gguf.tensors.has(`blk.${layer}.${name}`)
    const normed = normRows(stream, await named('attn_norm.weight'), shape.eps)
    addRows(stream, await attention(normed, shape, named, { has, roundKv: input.roundKv === true }))
    const inner = normRows(stream, await named('ffn_norm.weight'), shape.eps)
    addRows(stream, await feedForward(inner, named))
  }
  const wanted = input.lastOnly === true ? stream.slice(-1) : stream
  const last = normRows(wanted, await weight('output_norm.weight'), shape.eps)
  const head = gguf.tensors.has('output.weight') ? await weight('output.weight') : embedding
  return multiply(head, last).map((row) => Float32Array.from(row))
}

async function readShape(gguf: Gguf): Promise<Shape> {
  const architecture = gguf.need('general.architecture', 'string') as Architecture
  const field = (name: string) => gguf.need(`${architecture}.${name}`, 'number')
  const heads = field('attention.head_count')
  const headDim = gguf.get(`${architecture}.attention.key_length`, 'number') ?? field('embedding_length') / heads
  const scaling = gguf.get(`${architecture}.rope.scaling.type`, 'string') ?? 'none'
  if (scaling !== 'none') throw new Error(`the reference knows no rope scaling '${scaling}'`)
  const base = gguf.get(`${architecture}.rope.freq_base`, 'number') ?? 10000
  const frequencies = Float64Array.from({ length: headDim / 2 }, (_, i) => base ** ((-2 * i) / headDim))
  const factors = gguf.tensors.get('rope_freqs.weight')
  if (factors !== undefined) {
    const divisors = dequantize(factors.type, await gguf.read(factors), headDim / 2)
    divisors.forEach((divisor, i) => {
      frequencies[i]! /= divisor
    })
  }
  return {
    architecture,
    layers: field('block_count'),
    heads,
    kvHeads: gguf.get(`${architecture}.attention.head_count_kv`, 'number') ?? heads,
    headDim,
    eps: field('attention.layer_norm_rms_epsilon'),
    frequencies,
  }
}

async function attention(
  x: Rows,
  shape: Shape,
  weight: Weight,
  { has, roundKv }: { readonly has: (name: string) => boolean; readonly roundKv: boolean },
): Promise<Rows> {
  const project = async (name: string) => {
    const rows = multiply(await weight(`${name}.weight`), x)
    if (has(`${name}.bias`)) {
      const bias = await weight(`${name}.bias`)
      for (const row of rows) for (let i = 0; i < row.length; i++) row[i]! += bias[i]!
    }
    return rows
  }
  const queries = await project('attn_q')
  const keys = await project('attn_k')
  const values = await project('attn_v')
  if (shape.architecture === 'qwen3') {
    normHeads(queries, await weight('attn_q_norm.weight'), shape)
    normHeads(keys, await weight('attn_k_norm.weight'), shape)
  }
  queries.forEach((row, position) => {
    rotate(row, position, shape)
  })
  keys.forEach((row, position) => {
    rotate(row, position, shape)
  })
  if (roundKv) for (const row of [...keys, ...values]) roundRow(row)
  const mixed = queries.map((query, position) => attendAt(query, keys.slice(0, position + 1), values, shape))
  return multiply(await weight('attn_output.weight'), mixed)
}

/** One position's heads: softmax of its query against all keys so far, over the values. */
function attendAt(query: Float64Array, keys: Rows, values: Rows, { heads, kvHeads, headDim }: Shape): Float64Array {
  const out = new Float64Array(query.length)
  for (let head = 0; head < heads; head++) {
    const from = head * headDim
    const kvFrom = Math.floor(head / (heads / kvHeads)) * headDim
    const scores = keys.map((key) => {
      let sum = 0
      for (let i = 0; i < headDim; i++) sum += query[from + i]! * key[kvFrom + i]!
      return sum / Math.sqrt(headDim)
    })
    const top = scores.reduce((most, score) => Math.max(most, score))
    const weights = scores.map((score) => Math.exp(score - top))
    const total = weights.reduce((sum, value) => sum + value)
    weights.forEach((value, position) => {
      const row = values[position]!
      for (let i = 0; i < headDim; i++) out[from + i]! += (value / total) * row[kvFrom + i]!
    })
  }
  return out
}

async function feedForward(x: Rows, weight: Weight): Promise<Rows> {
  const gate = multiply(await weight('ffn_gate.weight'), x)
  const up = multiply(await weight('ffn_up.weight'), x)
  const inner = gate.map((row, position) => row.map((g, i) => (g / (1 + Math.exp(-g))) * up[position]![i]!))
  return multiply(await weight('ffn_down.weight'), inner)
}

/**
 * Rotates every head of a row by its position. Llama files hold Q and K permuted so that a pair lies side by side (2i,
 * 2i + 1); Qwen files pair i with i + headDim / 2.
 */
function rotate(row: Float64Array, position: number, { architecture, headDim, frequencies }: Shape): void {
  const half = headDim / 2
  for (let from = 0; from < row.length; from += headDim) {
    for (let i = 0; i < half; i++) {
      const a = architecture === 'llama' ? from + 2 * i : from + i
      const b = architecture === 'llama' ? a + 1 : a + half
      const cos = Math.cos(position * frequencies[i]!)
      const sin = Math.sin(position * frequencies[i]!)
      const first = row[a]!
      const second = row[b]!
      row[a] = first * cos - second * sin
      row[b] = first * sin + second * cos
    }
  }
}

function normRows(rows: Rows, gain: Float32Array, eps: number): Rows {
  return rows.map((row) => {
    const out = Float64Array.from(row)
    normSpan(out, gain, eps)
    return out
  })
}

function normHeads(rows: Rows, gain: Float32Array, { headDim, eps }: Shape): void {
  for (const row of rows) {
    for (let from = 0; from < row.length; from += headDim) normSpan(row.subarray(from, from + headDim), gain, eps)
  }
}

function normSpan(span: Float64Array, gain: Float32Array, eps: number): void {
  let squares = 0
  for (let i = 0; i < span.length; i++) squares += span[i]! * span[i]!
  const scale = 1 / Math.sqrt(squares / span.length + eps)
  for (let i = 0; i < span.length; i++) span[i]! *= scale * gain[i]!
}

function roundRow(row: Float64Array): void {
  for (let i = 0; i < row.length; i++) row[i] = roundToHalf(row[i]!)
}

function addRows(rows: Rows, more: Rows): void {
  rows.forEach((row, position) => {
    for (let i = 0; i < row.length; i++) row[i]! += more[position]![i]!
  })
}

/** y = x w^T for each row of `xs`; w is row-major with as many columns as a row of `xs` has values. */
function multiply(w: Float32Array, xs: Rows): Rows {
  const cols = xs[0]?.length ?? 1
  const rows = w.length / cols
  const out = xs.map(() => new Float64Array(rows))
  for (let t = 0; t < xs.length; t += 4) multiplyFour(w, xs.slice(t, t + 4), out.slice(t, t + 4))
  return out
}

/** Up to four rows at once: each weight is loaded and widened once for them. */
function multiplyFour(w: Float32Array, xs: Rows, out: Rows): void {
  const [x0, x1 = x0, x2 = x0, x3 = x0] = xs as [Float64Array, ...Rows]
  const [y0, y1 = y0, y2 = y0, y3 = y0] = out as [Float64Array, ...Rows]
  const cols = x0.length
  const rows = w.length / cols
  for (let row = 0; row < rows; row++) {
    const base = row * cols
    let a = 0
    let b = 0
    let c = 0
    let d = 0
    for (let i = 0; i < cols; i++) {
      const weight = w[base + i]!
      a += weight * x0[i]!
      b += weight * x1[i]!
      c += weight * x2[i]!
      d += weight * x3[i]!
    }
    // Backwards: where there are fewer rows, what is left over is written over.
    y3[row] = d
    y2[row] = c
    y1[row] = b
    y0[row] = a
  }
}
