// The weights of a model as they lie in weights.bin, written once and shared by every form of the graph. Invariant:
// regions are reserved whole and filled by rows, so that memory stays bounded by a chunk and not by the largest tensor;
// every region starts on a page, which lets ONNX Runtime map it.
//
//   | q of blk.0.attn_qkv | scales | offsets | q of ... | norms | cos | sin | fill of 0x00 |
//   ^ 4096                ^ 4096   ^ 4096

import type { FileHandle } from 'node:fs/promises'
import type { ElementType, StoredTensor } from '../onnx.js'

const PAGE_BYTES = 4096
const ELEMENT_BYTES: Readonly<Record<ElementType, number>> = { float32: 4, uint8: 1, int32: 4, int64: 8, float16: 2 }

/** One 4-bit product of a matrix: w = scale * (q - zeroPoint). q is [rows, cols / 2] bytes, low nibble first. */
export interface StoredProduct {
  readonly q: StoredTensor
  /** [rows, cols / blockSize] */
  readonly scales: StoredTensor
  /** 0..15, the same for every block. */
  readonly zeroPoint: number
}

/** A matrix that multiplies activations from the right, transposed: y = x w^T + bias, w [rows, cols]. */
export type StoredMatrix = {
  readonly rows: number
  readonly cols: number
  /** [rows] */
  readonly bias: StoredTensor | undefined
} & (
  | { readonly kind: 'dense'; readonly dense: StoredTensor }
  /** The sum of the products, plus `offsets` [rows, cols / blockSize] added to every weight of a block. */
  | {
      readonly kind: 'quantized'
      readonly products: readonly StoredProduct[]
      readonly offsets: StoredTensor | undefined
      readonly blockSize: number
    }
)

/** Matrices that share their input; neighbours of one type are fused, `sizes` says how each result is cut. */
export type StoredProjection = readonly { readonly matrix: StoredMatrix; readonly sizes: readonly number[] }[]

export interface LayerWeights {
  readonly attentionNorm: StoredTensor
  /** Results: q, k, v. */
  readonly qkv: StoredProjection
  /** Per-head norms of q and k [headDim], before rope (Qwen 3). */
  readonly headNorms: { readonly q: StoredTensor; readonly k: StoredTensor } | undefined
  readonly attentionOutput: StoredProjection
  readonly feedForwardNorm: StoredTensor
  /** Results: gate, up. */
  readonly gateUp: StoredProjection
  readonly down: StoredProjection
}

export interface ModelWeights {
  readonly embedding: StoredMatrix
  readonly layers: readonly LayerWeights[]
  readonly outputNorm: StoredTensor
  /** The embedding itself where the model ties them. */
  readonly head: StoredMatrix
  /** [contextLength, ropeDim / 2] */
  readonly cos: StoredTensor
  readonly sin: StoredTensor
  /** Regions of one repeated byte, which serve as constant zero points: byte -> region. */
  readonly fills: ReadonlyMap<number, StoredTensor>
}

/** Writes weights.bin front to back. Not for concurrent use. */
export class WeightsFile {
  readonly #file: FileHandle
  #end = 0

  constructor(file: FileHandle) {
    this.#file = file
  }

  /** Bytes up to the end of the last region. */
  get bytes(): number {
    return this.#end
  }

  /** A region for a tensor, to be filled by `fill`. */
  reserve(name: string, type: ElementType, dims: readonly number[]): StoredTensor {
    const offset = Math.ceil(this.#end / PAGE_BYTES) * PAGE_BYTES
    const bytes = dims.reduce((product, size) => product * size, ELEMENT_BYTES[type])
    this.#end = offset + bytes
    return { name, type, dims, offset, bytes }
  }

  /** Writes `data` at byte `at` of a reserved region. @throws RangeError when it would leave the region. */
  async fill(tensor: StoredTensor, at: number, data: Uint8Array | Float32Array): Promise<void> {
    if (at + data.byteLength > tensor.bytes) throw new RangeError(`data leaves the region of ${tensor.name}`)
    const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength)
    for (let done = 0; done < bytes.length; ) {
      const { bytesWritten } = await this.#file.write(bytes, done, bytes.length - done, tensor.offset + at + done)
      done += bytesWritten
    }
  }

  /** A whole tensor at once. */
  async append(name: string, dims: readonly number[], data: Float32Array | Uint8Array): Promise<StoredTensor> {
    const tensor = this.reserve(name, data instanceof Uint8Array ? 'uint8' : 'float32', dims)
    if (tensor.bytes !== data.byteLength)
      throw new RangeError(`${name} has ${data.byteLength} bytes, not ${tensor.bytes}`)
    await this.fill(tensor, 0, data)
    return tensor
  }
}
