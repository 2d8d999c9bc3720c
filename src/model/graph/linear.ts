// Products of activations with stored matrices, exact: quantized weights are sums of 4-bit products (MatMulNBits) and
// block offsets. accuracy_level 1 is the kernel that computes in fp32 and is fast for one row and for many; level 4
// quantizes activations, which makes a row depend on how many rows run with it. Activations are [tokens, cols], because
// Gemm, which adds the offsets' product onto the main one in a single pass, knows two dimensions only.

import type { OnnxGraph } from '../onnx.js'
import type { ModelWeights, StoredMatrix, StoredProduct, StoredProjection } from './weights.js'

/** A value [tokens, cols] that several matrices multiply; its block sums are computed once. */
export class Activation {
  readonly value: string
  readonly #graph: OnnxGraph
  readonly #cols: number
  readonly #sums = new Map<number, string>()

  constructor(graph: OnnxGraph, value: string, cols: number) {
    this.#graph = graph
    this.value = value
    this.#cols = cols
  }

  /** [tokens, cols / blockSize]: what offsets multiply, since sum(x * offset) = offset * sum(x) within a block. */
  blockSums(blockSize: number): string {
    const known = this.#sums.get(blockSize)
    if (known !== undefined) return known
    const graph = this.#graph
    const blocks = graph.op('Reshape', [this.value, graph.ints(-1, this.#cols / blockSize, blockSize)])
    const sums = graph.op('ReduceSum', [blocks, graph.ints(-1)], { keepdims: 0 })
    this.#sums.set(blockSize, sums)
    return sums
  }
}

export class Linear {
  readonly #graph: OnnxGraph
  readonly #fills: ModelWeights['fills']

  constructor(graph: OnnxGraph, fills: ModelWeights['fills']) {
    this.#graph = graph
    this.#fills = fills
  }

  /** Every result of a projection, [tokens, size] each, in order. */
  project(x: Activation, projection: StoredProjection): string[] {
    return projection.flatMap(({ matrix, sizes }) => {
      const whole = this.multiply(x, matrix)
      return sizes.length === 1 ? [whole] : this.#graph.split(whole, sizes, 1)
    })
  }

  /** x w^T + bias, [tokens, rows]. */
  multiply(x: Activation, matrix: StoredMatrix): string {
    const graph = this.#graph
    if (matrix.kind === 'dense') {
      const bias = matrix.bias === undefined ? [] : [graph.weight(matrix.bias)]
      return graph.op('Gemm', [x.value, graph.weight(matrix.dense), ...bias], { transB: 1 })
    }
    const terms = matrix.products.map((product, i) => this.#product(x, matrix, product, i === 0))
    const sum = terms.reduce((total, term) => graph.op('Add', [total, term]))
    if (matrix.offsets === undefined) return sum
    // One pass over the result: a MatMul and an Add took twice the time (512 x 576 x 3072: 5.9 ms against 2.8).
    return graph.op('Gemm', [x.blockSums(matrix.blockSize), graph.weight(matrix.offsets), sum], { transB: 1 })
  }

  /** Rows `ids` [tokens] of the matrix as fp32 [tokens, cols]: exact, since no rounding to fp16 lies between. */
  gather(matrix: StoredMatrix, ids: string): string {
    const graph = this.#graph
    if (matrix.kind === 'dense') return graph.op('Gather', [graph.weight(matrix.dense), ids])
    const { rows, cols, blockSize } = matrix
    const terms = matrix.products.map((product) => {
      const inputs = [graph.weight(product.q, [rows, cols / 2]), ids, graph.weight(product.scales)]
      if (product.zeroPoint !== 8) inputs.push(this.#zeroPoints(matrix, blockSize, product.zeroPoint))
      return graph.contrib('GatherBlockQuantized', inputs, {
        bits: 4,
        block_size: blockSize,
        gather_axis: 0,
        quantize_axis: 1,
      })
    })
    const sum = terms.reduce((total, term) => graph.op('Add', [total, term]))
    if (matrix.offsets === undefined) return sum
    const offsets = graph.op('Unsqueeze', [graph.op('Gather', [graph.weight(matrix.offsets), ids]), graph.ints(-1)])
    const blocks = graph.op('Reshape', [sum, graph.ints(-1, cols / blockSize, blockSize)])
    return graph.op('Reshape', [graph.op('Add', [blocks, offsets]), graph.ints(-1, cols)])
  }

  #product(
    x: Activation,
    matrix: StoredMatrix & { kind: 'quantized' },
    product: StoredProduct,
    first: boolean,
  ): string {
    const graph = this.#graph
    const { rows, cols, blockSize } = matrix
    const inputs = [
      x.value,
      graph.weight(product.q, [rows, cols / blockSize, blockSize / 2]),
      graph.weight(product.scales),
    ]
    const bias = first ? matrix.bias : undefined
    if (product.zeroPoint !== 8) inputs.push(this.#zeroPoints(matrix, blockSize, product.zeroPoint))
    if (bias !== undefined) {
      while (inputs.length < 5) inputs.push('')
      inputs.push(graph.weight(bias))
    }
    const attributes = { K: cols, N: rows, bits: 4, block_size: blockSize, accuracy_level: 1 }
    return graph.contrib('MatMulNBits', inputs, attributes)
  }

  /** [rows, ceil(blocks / 2)] bytes, each two equal zero points. */
  #zeroPoints({ rows, cols }: StoredMatrix, blockSize: number, zeroPoint: number): string {
    const region = this.#fills.get(zeroPoint * 17)
    const rowBytes = Math.ceil(cols / blockSize / 2)
    if (region === undefined) throw new Error(`no fill for zero point ${zeroPoint}`)
    const name = `zero-point-${zeroPoint}[${rows},${rowBytes}]`
    return this.#graph.weight({ ...region, name, dims: [rows, rowBytes], bytes: rows * rowBytes })
  }
}
