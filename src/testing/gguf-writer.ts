// Writes GGUF v3 files for tests: metadata in the given order, tensors quantized on the way, everything aligned to 32
// bytes. The same input gives the same bytes. The format is drawn in model/gguf-header.ts; no code is shared with it.

import { writeFile } from 'node:fs/promises'
import type { TensorType } from '../model/tensor-type.js'
import { TENSOR_TYPES } from '../model/tensor-type.js'
import { quantize } from './quantize.js'

/** A number is written as uint32; `f32`, `i32` and `u64` say otherwise. */
export type GgufInput = string | boolean | number | Typed | readonly string[] | TypedArray

interface Typed {
  readonly type: 'f32' | 'i32' | 'u64'
  readonly value: number
}

interface TypedArray {
  readonly type: 'i32[]' | 'f32[]'
  readonly values: readonly number[]
}

export const f32 = (value: number): Typed => ({ type: 'f32', value })
export const i32 = (value: number): Typed => ({ type: 'i32', value })
export const u64 = (value: number): Typed => ({ type: 'u64', value })
export const i32s = (values: readonly number[]): TypedArray => ({ type: 'i32[]', values })
export const f32s = (values: readonly number[]): TypedArray => ({ type: 'f32[]', values })

export interface TensorInput {
  readonly name: string
  /** Outermost dimension first: `[rows, cols]`. */
  readonly shape: readonly number[]
  readonly type: TensorType
  /** Row-major, as many as the shape says. */
  readonly values: Float32Array
}

const ALIGNMENT = 32

/** The bytes of a GGUF file with this content. @throws RangeError where a tensor's values do not fit its shape or type. */
export function encodeGguf(metadata: Readonly<Record<string, GgufInput>>, tensors: readonly TensorInput[]): Buffer {
  const entries = Object.entries(metadata)
  const head: Buffer[] = [Buffer.from('GGUF'), int(3, 4), int(tensors.length, 8), int(entries.length, 8)]
  for (const [key, value] of entries) head.push(text(key), ...encodeValue(value))
  const data: Buffer[] = []
  let offset = 0
  for (const tensor of tensors) {
    const body = encodeTensor(tensor)
    head.push(text(tensor.name), int(tensor.shape.length, 4))
    for (const size of [...tensor.shape].reverse()) head.push(int(size, 8))
    head.push(int(TENSOR_TYPES[tensor.type].id, 4), int(offset, 8))
    data.push(body, padding(body.length))
    offset += body.length + padding(body.length).length
  }
  const header = Buffer.concat(head)
  return Buffer.concat([header, padding(header.length), ...data])
}

/** Writes `encodeGguf` of the same arguments to `path`. */
export async function writeGguf(
  path: string,
  metadata: Readonly<Record<string, GgufInput>>,
  tensors: readonly TensorInput[],
): Promise<void> {
  await writeFile(path, encodeGguf(metadata, tensors))
}

function encodeTensor({ name, shape, type, values }: TensorInput): Buffer {
  const count = shape.reduce((product, size) => product * size, 1)
  const block = TENSOR_TYPES[type].elements
  if (count !== values.length) throw new RangeError(`'${name}' has ${values.length} values for [${shape.join(', ')}]`)
  if (shape.at(-1)! % block !== 0) throw new RangeError(`'${name}' has rows of ${shape.at(-1)}; ${type} takes ${block}`)
  const raw = quantize(type, values)
  return Buffer.from(raw.buffer, raw.byteOffset, raw.byteLength)
}

function encodeValue(value: GgufInput): Buffer[] {
  if (typeof value === 'string') return [int(8, 4), text(value)]
  if (typeof value === 'boolean') return [int(7, 4), int(value ? 1 : 0, 1)]
  if (typeof value === 'number') return [int(4, 4), int(value, 4)]
  if (isTexts(value)) return [int(9, 4), int(8, 4), int(value.length, 8), ...value.map(text)]
  switch (value.type) {
    case 'i32':
      return [int(5, 4), signed(value.value)]
    case 'f32':
      return [int(6, 4), float(value.value)]
    case 'u64':
      return [int(10, 4), int(value.value, 8)]
    case 'i32[]':
      return [int(9, 4), int(5, 4), int(value.values.length, 8), ...value.values.map(signed)]
    case 'f32[]':
      return [int(9, 4), int(6, 4), int(value.values.length, 8), ...value.values.map(float)]
  }
}

function isTexts(value: GgufInput): value is readonly string[] {
  return Array.isArray(value)
}

function text(value: string): Buffer {
  const bytes = Buffer.from(value)
  return Buffer.concat([int(bytes.length, 8), bytes])
}

/** Little-endian and unsigned, in `bytes` bytes. */
function int(value: number, bytes: 1 | 4 | 8): Buffer {
  const out = Buffer.alloc(bytes)
  if (bytes === 8) out.writeBigUInt64LE(BigInt(value))
  else out.writeUIntLE(value, 0, bytes)
  return out
}

function signed(value: number): Buffer {
  const out = Buffer.alloc(4)
  out.writeInt32LE(value)
  return out
}

function float(value: number): Buffer {
  const out = Buffer.alloc(4)
  out.writeFloatLE(value)
  return out
}

function padding(length: number): Buffer {
  return Buffer.alloc((ALIGNMENT - (length % ALIGNMENT)) % ALIGNMENT)
}
