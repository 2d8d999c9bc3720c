// Plain quantizers for every tensor type, for files that tests write. Round to nearest with scales from the block's
// extremes: valid encodings of about the quality of the real ones, written from the layouts drawn in model/dequantize.ts
// and sharing no code with the readers, so that writing and reading check each other.

import { bfloat16Bits, halfBits, halfTable } from '../model/half.js'
import { TENSOR_TYPES, type TensorType, tensorBytes } from '../model/tensor-type.js'

type BlockWriter = (values: Float32Array, from: number, out: Uint8Array, at: number) => void

/** `values` as blocks of `type`; their number must be a multiple of the type's block. */
export function quantize(type: TensorType, values: Float32Array): Uint8Array {
  if (type === 'F32') return new Uint8Array(values.slice().buffer)
  const { elements, bytes } = TENSOR_TYPES[type]
  if (values.length % elements !== 0) throw new RangeError(`${values.length} values are no whole blocks of ${type}`)
  const out = new Uint8Array(tensorBytes(type, values.length))
  const write = WRITERS[type]
  for (let from = 0, at = 0; from < values.length; from += elements, at += bytes) write(values, from, out, at)
  return out
}

const WRITERS: Readonly<Record<Exclude<TensorType, 'F32'>, BlockWriter>> = {
  F16: (values, from, out, at) => put16(out, at, halfBits(values[from]!)),
  BF16: (values, from, out, at) => put16(out, at, bfloat16Bits(values[from]!)),
  Q4_0: (values, from, out, at) => writeSymmetric(values, from, out, { at, bits: 4 }),
  Q5_0: (values, from, out, at) => writeSymmetric(values, from, out, { at, bits: 5 }),
  Q4_1: (values, from, out, at) => writeAffine(values, from, out, { at, bits: 4 }),
  Q5_1: (values, from, out, at) => writeAffine(values, from, out, { at, bits: 5 }),
  Q8_0: (values, from, out, at) => {
    const d = putHalf(out, at, largest(values, from, 32) / 127)
    for (let i = 0; i < 32; i++) out[at + 2 + i] = level(values[from + i]!, d, -127, 127) & 255
  },
  Q4_K: (values, from, out, at) => writeRuns(values, from, out, { at, bits: 4 }),
  Q5_K: (values, from, out, at) => writeRuns(values, from, out, { at, bits: 5 }),
  Q6_K: writeSix,
}

interface Place {
  readonly at: number
  readonly bits: 4 | 5
}

function writeSymmetric(values: Float32Array, from: number, out: Uint8Array, { at, bits }: Place): void {
  const centre = bits === 4 ? 8 : 16
  const d = putHalf(out, at, largest(values, from, 32) / (centre - 1))
  const levels = Array.from({ length: 32 }, (_, i) => level(values[from + i]!, d, -centre, centre - 1) + centre)
  putLevels(out, at + 2, levels, bits)
}

function writeAffine(values: Float32Array, from: number, out: Uint8Array, { at, bits }: Place): void {
  const block = values.subarray(from, from + 32)
  const top = bits === 4 ? 15 : 31
  const least = Math.min(...block)
  const d = putHalf(out, at, (Math.max(...block) - least) / top)
  const m = putHalf(out, at + 2, least)
  const levels = Array.from(block, (value) => level(value - m, d, 0, top))
  putLevels(out, at + 4, levels, bits)
}

/** 32 levels: fifth bits first where there are any, then nibbles, element i beside element i + 16. */
function putLevels(out: Uint8Array, at: number, levels: readonly number[], bits: 4 | 5): void {
  if (bits === 5) {
    for (let i = 0; i < 32; i++) out[at + (i >> 3)]! |= (levels[i]! >> 4) << (i & 7)
  }
  const nibbles = bits === 5 ? at + 4 : at
  for (let i = 0; i < 16; i++) out[nibbles + i] = (levels[i]! & 15) | ((levels[i + 16]! & 15) << 4)
}

function writeRuns(values: Float32Array, from: number, out: Uint8Array, { at, bits }: Place): void {
  const top = bits === 4 ? 15 : 31
  const spans: number[] = []
  const depths: number[] = []
  for (let run = 0; run < 8; run++) {
    const block = values.subarray(from + run * 32, from + run * 32 + 32)
    // Minimums are subtracted and unsigned: a run of positive values keeps the minimum 0.
    const least = Math.min(0, ...block)
    spans.push((Math.max(...block) - least) / top)
    depths.push(-least)
  }
  const d = putHalf(out, at, Math.max(0, ...spans) / 63)
  const dmin = putHalf(out, at + 2, Math.max(...depths) / 63)
  const scales = spans.map((span) => level(span, d, 0, 63))
  const mins = depths.map((depth) => level(depth, dmin, 0, 63))
  for (let run = 0; run < 4; run++) {
    out[at + 4 + run] = scales[run]! | ((scales[run + 4]! >> 4) << 6)
    out[at + 8 + run] = mins[run]! | ((mins[run + 4]! >> 4) << 6)
    out[at + 12 + run] = (scales[run + 4]! & 15) | ((mins[run + 4]! & 15) << 4)
  }
  const nibbles = at + (bits === 5 ? 48 : 16)
  for (let i = 0; i < 256; i++) {
    const run = i >> 5
    const value = level(values[from + i]! + dmin * mins[run]!, d * scales[run]!, 0, top)
    out[nibbles + (run >> 1) * 32 + (i & 31)]! |= (value & 15) << ((run & 1) * 4)
    if (bits === 5) out[at + 16 + (i & 31)]! |= (value >> 4) << run
  }
}

function writeSix(values: Float32Array, from: number, out: Uint8Array, at: number): void {
  const spans = Array.from({ length: 16 }, (_, run) => largest(values, from + run * 16, 16) / 31)
  const d = putHalf(out, at + 208, Math.max(...spans) / 127)
  const scales = spans.map((span) => level(span, d, 0, 127))
  for (let run = 0; run < 16; run++) out[at + 192 + run] = scales[run]!
  for (let i = 0; i < 256; i++) {
    const value = level(values[from + i]!, d * scales[i >> 4]!, -32, 31) + 32
    const side = i >> 7
    const inner = i & 127
    out[at + side * 64 + (inner & 63)]! |= (value & 15) << (inner >= 64 ? 4 : 0)
    out[at + 128 + side * 32 + (inner & 31)]! |= (value >> 4) << ((inner >> 5) * 2)
  }
}

function largest(values: Float32Array, from: number, count: number): number {
  let most = 0
  for (let i = 0; i < count; i++) most = Math.max(most, Math.abs(values[from + i]!))
  return most
}

/** The multiple of `step` nearest to `value`, as its factor, within the limits; 0 where the step is 0. */
function level(value: number, step: number, least: number, most: number): number {
  if (step === 0) return 0
  return Math.max(least, Math.min(most, Math.round(value / step)))
}

function put16(out: Uint8Array, at: number, bits: number): void {
  out[at] = bits & 255
  out[at + 1] = bits >> 8
}

/** Stores `value` as a half and returns what was stored, so that levels are chosen for the scale that is read back. */
function putHalf(out: Uint8Array, at: number, value: number): number {
  const bits = halfBits(value)
  put16(out, at, bits)
  return halfTable()[bits]!
}
