// Moves the tensors of a GGUF into weights.bin in the forms that the graph multiplies with, a chunk of rows at a time.
// Invariant: exact. A quantized weight becomes 4-bit products and offsets that sum to the very value that it stands for
// (decompose.ts); other types become fp32, which holds each of their values.

import { decompose } from '../decompose.js'
import { dequantize } from '../dequantize.js'
import type { Gguf, GgufTensor } from '../gguf.js'
import type { StoredTensor } from '../onnx.js'
import { tensorBytes } from '../tensor-type.js'
import { ropeTable } from './rope.js'
import type { ModelShape } from './shape.js'
import type { FusedMatrices, LayerTensors, ModelTensors } from './tensors.js'
import type { LayerWeights, ModelWeights, StoredMatrix, StoredProjection, WeightsFile } from './weights.js'

/** Bounds memory, and how long an abort or a timer waits. */
const CHUNK_ELEMENTS = 4 << 20

export interface StoreOptions {
  readonly signal?: AbortSignal
  /** Told after each chunk, with bytes of the GGUF. */
  readonly onProgress?: (doneBytes: number, totalBytes: number) => void
  /** Weights that are decomposed at a time; it changes memory and time, never what is written. */
  readonly chunkElements?: number
}

/** Writes every weight. @throws the signal's reason when aborted; the file is then of no use. */
export async function storeWeights(
  gguf: Gguf,
  shape: ModelShape,
  tensors: ModelTensors,
  file: WeightsFile,
  options: StoreOptions = {},
): Promise<ModelWeights> {
  return await new Store(gguf, file, options).model(shape, tensors)
}

class Store {
  readonly #gguf: Gguf
  readonly #file: WeightsFile
  readonly #options: StoreOptions
  readonly #totalBytes: number
  #doneBytes = 0
  /** Zero point -> the most bytes that one matrix needs of it. */
  readonly #fillBytes = new Map<number, number>()

  constructor(gguf: Gguf, file: WeightsFile, options: StoreOptions) {
    this.#gguf = gguf
    this.#file = file
    this.#options = options
    this.#totalBytes = [...gguf.tensors.values()].reduce((sum, tensor) => sum + tensor.bytes, 0)
  }

  async model(shape: ModelShape, tensors: ModelTensors): Promise<ModelWeights> {
    const embedding = await this.#matrix({ tensors: [tensors.embedding], biases: [] })
    const layers: LayerWeights[] = []
    for (const layer of tensors.layers) layers.push(await this.#layer(layer))
    const outputNorm = await this.#vector(tensors.outputNorm)
    const head = tensors.head === undefined ? embedding : await this.#matrix({ tensors: [tensors.head], biases: [] })
    const factors = tensors.ropeFactors === undefined ? undefined : await this.#values(tensors.ropeFactors)
    const table = ropeTable(shape.rope, shape.contextLength, factors)
    const dims = [shape.contextLength, shape.rope.dim / 2]
    const cos = await this.#file.append('rope.cos', dims, table.cos)
    const sin = await this.#file.append('rope.sin', dims, table.sin)
    return { embedding, layers, outputNorm, head, cos, sin, fills: await this.#fills() }
  }

  async #layer(tensors: LayerTensors): Promise<LayerWeights> {
    const { headNorms } = tensors
    return {
      attentionNorm: await this.#vector(tensors.attentionNorm),
      qkv: await this.#projection(tensors.qkv),
      headNorms: headNorms && { q: await this.#vector(headNorms.q), k: await this.#vector(headNorms.k) },
      attentionOutput: await this.#projection(tensors.attentionOutput),
      feedForwardNorm: await this.#vector(tensors.feedForwardNorm),
      gateUp: await this.#projection(tensors.gateUp),
      down: await this.#projection(tensors.down),
    }
  }

  async #projection(groups: readonly FusedMatrices[]): Promise<StoredProjection> {
    const parts: StoredProjection[number][] = []
    for (const group of groups) {
      parts.push({ matrix: await this.#matrix(group), sizes: group.tensors.map((tensor) => rowsOf(tensor)) })
    }
    return parts
  }

  async #matrix(group: FusedMatrices): Promise<StoredMatrix> {
    const first = group.tensors[0] as GgufTensor
    const name = group.tensors.map((tensor) => tensor.name).join('+')
    const target = new MatrixTarget(this.#file, name, {
      rows: group.tensors.reduce((sum, tensor) => sum + rowsOf(tensor), 0),
      cols: first.shape[1] as number,
    })
    for (const tensor of group.tensors) {
      for await (const chunk of this.#chunks(tensor)) await target.write(tensor.type, chunk.raw, chunk.rows)
    }
    const bias = group.biases.length === 0 ? undefined : await this.#biases(name, group.biases)
    const matrix = target.finish(bias)
    if (matrix.kind === 'quantized') this.#noteZeroPoints(matrix)
    return matrix
  }

  async *#chunks(tensor: GgufTensor): AsyncGenerator<{ raw: Uint8Array; rows: number }> {
    const [rows, cols] = tensor.shape as [number, number]
    const rowBytes = tensorBytes(tensor.type, cols)
    const step = Math.max(1, Math.floor((this.#options.chunkElements ?? CHUNK_ELEMENTS) / cols))
    for (let row = 0; row < rows; row += step) {
      this.#options.signal?.throwIfAborted()
      const count = Math.min(step, rows - row)
      const bytes = count * rowBytes
      yield { raw: await this.#gguf.read({ ...tensor, offset: tensor.offset + row * rowBytes, bytes }), rows: count }
      this.#progress(bytes)
    }
  }

  async #biases(name: string, biases: readonly GgufTensor[]): Promise<StoredTensor> {
    const values: number[] = []
    for (const bias of biases) values.push(...(await this.#values(bias)))
    return await this.#file.append(`${name}.bias`, [values.length], Float32Array.from(values))
  }

  async #vector(tensor: GgufTensor): Promise<StoredTensor> {
    return await this.#file.append(tensor.name, tensor.shape, await this.#values(tensor))
  }

  async #values(tensor: GgufTensor): Promise<Float32Array> {
    const values = dequantize(tensor.type, await this.#gguf.read(tensor), tensor.shape[0] as number)
    this.#progress(tensor.bytes)
    return values
  }

  #progress(bytes: number): void {
    this.#doneBytes += bytes
    this.#options.onProgress?.(this.#doneBytes, this.#totalBytes)
  }

  #noteZeroPoints(matrix: StoredMatrix & { kind: 'quantized' }): void {
    const bytes = matrix.rows * Math.ceil(matrix.cols / matrix.blockSize / 2)
    for (const { zeroPoint } of matrix.products) {
      if (zeroPoint !== 8) this.#fillBytes.set(zeroPoint, Math.max(bytes, this.#fillBytes.get(zeroPoint) ?? 0))
    }
  }

  async #fills(): Promise<Map<number, StoredTensor>> {
    const fills = new Map<number, StoredTensor>()
    for (const [zeroPoint, bytes] of this.#fillBytes) {
      const data = new Uint8Array(bytes).fill(zeroPoint * 17)
      fills.set(zeroPoint, await this.#file.append(`zero-point-${zeroPoint}`, [bytes], data))
    }
    return fills
  }
}

/** A matrix that arrives by chunks of rows; its regions are reserved when the first shows what they are. */
class MatrixTarget {
  readonly #file: WeightsFile
  readonly #name: string
  readonly #size: { readonly rows: number; readonly cols: number }
  #regions: StoredMatrix | undefined
  #row = 0

  constructor(file: WeightsFile, name: string, size: { rows: number; cols: number }) {
    this.#file = file
    this.#name = name
    this.#size = size
  }

  async write(type: GgufTensor['type'], raw: Uint8Array, rows: number): Promise<void> {
    const { cols } = this.#size
    const parts = decompose(type, raw, rows, cols)
    if (parts === undefined) {
      const values = dequantize(type, raw, rows * cols)
      this.#regions ??= { kind: 'dense', bias: undefined, ...this.#size, dense: this.#reserve('w', 'float32', cols) }
      if (this.#regions.kind === 'dense') await this.#file.fill(this.#regions.dense, this.#row * cols * 4, values)
    } else {
      const { blockSize } = parts
      const blocks = cols / blockSize
      this.#regions ??= {
        kind: 'quantized',
        bias: undefined,
        ...this.#size,
        blockSize,
        products: parts.products.map(({ zeroPoint }, i) => ({
          q: this.#reserve(`q${i}`, 'uint8', cols / 2),
          scales: this.#reserve(`s${i}`, 'float32', blocks),
          zeroPoint,
        })),
        offsets: parts.offsets && this.#reserve('offsets', 'float32', blocks),
      }
      if (this.#regions.kind === 'quantized') await this.#fillQuantized(this.#regions, parts)
    }
    this.#row += rows
  }

  finish(bias: StoredTensor | undefined): StoredMatrix {
    if (this.#regions === undefined || this.#row !== this.#size.rows) throw new Error(`${this.#name} is incomplete`)
    return { ...this.#regions, bias }
  }

  #reserve(part: string, type: 'uint8' | 'float32', rowElements: number): StoredTensor {
    return this.#file.reserve(`${this.#name}.${part}`, type, [this.#size.rows, rowElements])
  }

  async #fillQuantized(
    regions: StoredMatrix & { kind: 'quantized' },
    parts: NonNullable<ReturnType<typeof decompose>>,
  ): Promise<void> {
    const { cols } = this.#size
    const blockBytes = (cols / regions.blockSize) * 4
    for (const [i, { q, scales }] of regions.products.entries()) {
      const part = parts.products[i] as (typeof parts.products)[number]
      await this.#file.fill(q, (this.#row * cols) / 2, part.q)
      await this.#file.fill(scales, this.#row * blockBytes, part.scales)
    }
    if (regions.offsets !== undefined && parts.offsets !== undefined) {
      await this.#file.fill(regions.offsets, this.#row * blockBytes, parts.offsets)
    }
  }
}

function rowsOf(tensor: GgufTensor): number {
  return tensor.shape[0] as number
}
