// Stored weights to fp32: the meaning of every tensor type that is read, and the reference for decompose.ts. Blocks lie
// one after another along a row; a block of 32 or 256 elements has its scales in front (Q6_K: behind) of its quants.
//
//   Q4_0  d:f16 q[16]                          d (q - 8)          low nibbles are elements 0-15, high ones 16-31
//   Q4_1  d:f16 m:f16 q[16]                    d q + m
//   Q5_0  d:f16 h:u32 q[16]                    d (q - 16)         bit i of h is the fifth bit of element i
//   Q5_1  d:f16 m:f16 h:u32 q[16]              d q + m
//   Q8_0  d:f16 q:i8[32]                       d q
//   Q4_K  d:f16 dmin:f16 s[12] q[128]          d s q - dmin m     8 runs of 32; s holds 8 scales and 8 minimums of 6 bits
//   Q5_K  d:f16 dmin:f16 s[12] h[32] q[128]    d s q - dmin m     bit r of h[i] is the fifth bit of element i of run r
//   Q6_K  l[128] h[64] s:i8[16] d:f16          d s (q - 32)       16 runs of 16; h holds two bits an element
//
// Source: the block structures in ggml-common.h of the ggml repository.

import { halfTable } from './half.js'
import { TENSOR_TYPES, type TensorType, tensorBytes } from './tensor-type.js'

type Reader = (raw: Uint8Array, out: Float32Array) => void

/**
 * The first `count` values of `raw`, which holds whole blocks of `type`; `count` is a multiple of the type's block.
 * @throws RangeError where `raw` is shorter than that: a fault of the caller's, since the header was checked.
 */
export function dequantize(type: TensorType, raw: Uint8Array, count: number): Float32Array {
  if (count % TENSOR_TYPES[type].elements !== 0 || raw.length < tensorBytes(type, count)) {
    throw new RangeError(`${raw.length} bytes do not hold ${count} values of ${type}`)
  }
  const out = new Float32Array(count)
  READERS[type](raw, out)
  return out
}

const READERS: Readonly<Record<TensorType, Reader>> = {
  F32: readF32,
  F16: (raw, out) => {
    const half = halfTable()
    for (let i = 0, at = 0; i < out.length; i++, at += 2) out[i] = half[raw[at]! | (raw[at + 1]! << 8)]!
  },
  BF16: (raw, out) => {
    const bits = new Uint32Array(out.buffer)
    for (let i = 0, at = 0; i < bits.length; i++, at += 2) bits[i] = (raw[at]! << 16) | (raw[at + 1]! << 24)
  },
  Q4_0: (raw, out) => readNibbles(raw, out, { bytes: 18, min: false, high: false, bias: 8 }),
  Q4_1: (raw, out) => readNibbles(raw, out, { bytes: 20, min: true, high: false, bias: 0 }),
  Q5_0: (raw, out) => readNibbles(raw, out, { bytes: 22, min: false, high: true, bias: 16 }),
  Q5_1: (raw, out) => readNibbles(raw, out, { bytes: 24, min: true, high: true, bias: 0 }),
  Q8_0: readQ8,
  Q4_K: (raw, out) => readRuns(raw, out, { bytes: 144, quants: 16, high: undefined }),
  Q5_K: (raw, out) => readRuns(raw, out, { bytes: 176, quants: 48, high: 16 }),
  Q6_K: readQ6,
}

function readF32(raw: Uint8Array, out: Float32Array): void {
  new Uint8Array(out.buffer).set(raw.subarray(0, out.byteLength))
}

interface NibbleLayout {
  readonly bytes: number
  readonly min: boolean
  readonly high: boolean
  readonly bias: number
}

function readNibbles(raw: Uint8Array, out: Float32Array, layout: NibbleLayout): void {
  const half = halfTable()
  const { bytes, min, high, bias } = layout
  const quants = bytes - 16
  for (let to = 0, at = 0; to < out.length; to += 32, at += bytes) {
    const d = half[raw[at]! | (raw[at + 1]! << 8)]!
    const m = min ? half[raw[at + 2]! | (raw[at + 3]! << 8)]! : 0
    const bits = high ? readU32(raw, at + quants - 4) : 0
    for (let i = 0; i < 16; i++) {
      const byte = raw[at + quants + i]!
      const low = (byte & 15) | (((bits >>> i) & 1) << 4)
      const upper = (byte >> 4) | (((bits >>> (i + 16)) & 1) << 4)
      out[to + i] = d * (low - bias) + m
      out[to + i + 16] = d * (upper - bias) + m
    }
  }
}

function readQ8(raw: Uint8Array, out: Float32Array): void {
  const half = halfTable()
  for (let to = 0, at = 0; to < out.length; to += 32, at += 34) {
    const d = half[raw[at]! | (raw[at + 1]! << 8)]!
    for (let i = 0; i < 32; i++) out[to + i] = d * ((raw[at + 2 + i]! << 24) >> 24)
  }
}

interface RunLayout {
  readonly bytes: number
  /** Offset of the nibbles. */
  readonly quants: number
  /** Offset of the fifth bits. */
  readonly high: number | undefined
}

function readRuns(raw: Uint8Array, out: Float32Array, layout: RunLayout): void {
  const half = halfTable()
  const { bytes, quants, high } = layout
  for (let to = 0, at = 0; to < out.length; to += 256, at += bytes) {
    const d = half[raw[at]! | (raw[at + 1]! << 8)]!
    const dmin = half[raw[at + 2]! | (raw[at + 3]! << 8)]!
    for (let run = 0; run < 8; run++) {
      const scale = d * runScale(raw, at + 4, run)
      const min = dmin * runMin(raw, at + 4, run)
      const nibbles = at + quants + (run >> 1) * 32
      const shift = (run & 1) * 4
      for (let i = 0; i < 32; i++) {
        const low = (raw[nibbles + i]! >> shift) & 15
        const fifth = high === undefined ? 0 : ((raw[at + high + i]! >> run) & 1) << 4
        out[to + run * 32 + i] = scale * (low | fifth) - min
      }
    }
  }
}

function readQ6(raw: Uint8Array, out: Float32Array): void {
  const half = halfTable()
  for (let to = 0, at = 0; to < out.length; to += 256, at += 210) {
    const d = half[raw[at + 208]! | (raw[at + 209]! << 8)]!
    for (let i = 0; i < 256; i++) {
      // Within each half of 128: 64 bytes of nibbles (low: elements 0-63, high: 64-127), 32 bytes of four bit pairs.
      const side = i >> 7
      const inner = i & 127
      const low = (raw[at + side * 64 + (inner & 63)]! >> ((inner >> 6) << 2)) & 15
      const high = (raw[at + 128 + side * 32 + (inner & 31)]! >> ((inner >> 5) << 1)) & 3
      const scale = (raw[at + 192 + (i >> 4)]! << 24) >> 24
      out[to + i] = d * scale * ((low | (high << 4)) - 32)
    }
  }
}

/** Little-endian, unsigned, at any alignment. */
export function readU32(raw: Uint8Array, at: number): number {
  return (raw[at]! | (raw[at + 1]! << 8) | (raw[at + 2]! << 16) | (raw[at + 3]! << 24)) >>> 0
}

/** The 6-bit scale of run 0..7 of a Q4_K or Q5_K block whose 12 packed bytes start at `at`. */
export function runScale(raw: Uint8Array, at: number, run: number): number {
  if (run < 4) return raw[at + run]! & 63
  return (raw[at + run + 4]! & 15) | ((raw[at + run - 4]! >> 6) << 4)
}

/** The 6-bit minimum of run 0..7, packed beside the scales. */
export function runMin(raw: Uint8Array, at: number, run: number): number {
  if (run < 4) return raw[at + run + 4]! & 63
  return (raw[at + run + 4]! >> 4) | ((raw[at + run]! >> 6) << 4)
}
