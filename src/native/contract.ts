// The face of kernels/: moving KV rows between fp32 and fp16 and checksumming records. The fallback in TypeScript is the
// specification; both give the same bits on the same input (ties to even, subnormals kept, NaN stays NaN).

export interface Kernels {
  readonly name: 'native' | 'fallback'

  /**
   * Packs `rows` rows of `rowElements` fp32 values into consecutive fp16 (as raw bits). Row r starts at
   * `sourceOffset + r * sourceStride` (elements) and goes to `targetOffset + r * rowElements`.
   * @throws RangeError when a row lies outside either array.
   */
  packRows(
    source: Float32Array,
    sourceOffset: number,
    sourceStride: number,
    rows: number,
    rowElements: number,
    target: Uint16Array,
    targetOffset: number,
  ): void

  /** The inverse: consecutive fp16 rows at `sourceOffset` into strided fp32 rows at `targetOffset`. */
  unpackRows(
    source: Uint16Array,
    sourceOffset: number,
    rows: number,
    rowElements: number,
    target: Float32Array,
    targetOffset: number,
    targetStride: number,
  ): void

  /** CRC-32C (Castagnoli, RFC 3720) of `data`, continuing from `seed` (a previous result; 0 to start). */
  crc32c(data: Uint8Array, seed?: number): number
}
