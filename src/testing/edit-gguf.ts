// Changes a GGUF file for tests: metadata added or dropped, tensors added, dropped, or stored as another type. What is
// not mentioned stays; integers become uint32 and other numbers float32, which readers of the format take alike.

import { dequantize } from '../model/dequantize.js'
import { Gguf, type GgufValue } from '../model/gguf.js'
import type { TensorType } from '../model/tensor-type.js'
import { f32, type GgufInput, i32s, type TensorInput, writeGguf } from './gguf-writer.js'

export interface GgufEdit {
  /** undefined drops the key. */
  readonly metadata?: Readonly<Record<string, GgufInput | undefined>>
  /** The type of a tensor, by name; undefined: as it is. */
  readonly retype?: (name: string) => TensorType | undefined
  readonly drop?: readonly string[]
  readonly add?: readonly TensorInput[]
}

/** Writes `from` with the changes to `to`. */
export async function editGguf(from: string, to: string, edit: GgufEdit): Promise<void> {
  const gguf = await Gguf.open(from)
  try {
    const tensors: TensorInput[] = []
    for (const tensor of gguf.tensors.values()) {
      if (edit.drop?.includes(tensor.name)) continue
      const count = tensor.shape.reduce((product, size) => product * size, 1)
      const values = dequantize(tensor.type, await gguf.read(tensor), count)
      tensors.push({ name: tensor.name, shape: tensor.shape, type: edit.retype?.(tensor.name) ?? tensor.type, values })
    }
    const metadata = new Map<string, GgufInput>()
    for (const [key, value] of gguf.metadata) metadata.set(key, inputOf(value))
    for (const [key, value] of Object.entries(edit.metadata ?? {})) {
      if (value === undefined) metadata.delete(key)
      else metadata.set(key, value)
    }
    await writeGguf(to, Object.fromEntries(metadata), [...tensors, ...(edit.add ?? [])])
  } finally {
    await gguf.close()
  }
}

function inputOf(value: GgufValue): GgufInput {
  if (typeof value === 'number') return Number.isInteger(value) ? value : f32(value)
  if (typeof value === 'string' || typeof value === 'boolean') return value
  if (typeof value === 'bigint') throw new RangeError('64-bit integers are not edited')
  if (value.every((item) => typeof item === 'string')) return value
  return i32s(value.map(Number))
}
