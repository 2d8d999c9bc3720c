// The tensor types of GGUF files: how many elements share a block and how many bytes a block takes. A type that is not
// in TENSOR_TYPES is known by name at most, so that a refusal can name it. Layouts stand in dequantize.ts.

interface TensorTypeFacts {
  /** Number in the file. */
  readonly id: number
  /** Elements in a block, along the innermost dimension. */
  readonly elements: number
  /** Bytes of a block. */
  readonly bytes: number
}

/** Every type that Refrain reads. */
export const TENSOR_TYPES = {
  F32: { id: 0, elements: 1, bytes: 4 },
  F16: { id: 1, elements: 1, bytes: 2 },
  Q4_0: { id: 2, elements: 32, bytes: 18 },
  Q4_1: { id: 3, elements: 32, bytes: 20 },
  Q5_0: { id: 6, elements: 32, bytes: 22 },
  Q5_1: { id: 7, elements: 32, bytes: 24 },
  Q8_0: { id: 8, elements: 32, bytes: 34 },
  Q4_K: { id: 12, elements: 256, bytes: 144 },
  Q5_K: { id: 13, elements: 256, bytes: 176 },
  Q6_K: { id: 14, elements: 256, bytes: 210 },
  BF16: { id: 30, elements: 1, bytes: 2 },
} as const satisfies Record<string, TensorTypeFacts>

export type TensorType = keyof typeof TENSOR_TYPES

const byId = new Map<number, TensorType>(
  Object.entries(TENSOR_TYPES).map(([name, facts]) => [facts.id, name as TensorType]),
)

// Names of what is refused, from the enumeration in ggml.h.
const unread: Readonly<Record<number, string>> = {
  9: 'Q8_1',
  10: 'Q2_K',
  11: 'Q3_K',
  15: 'Q8_K',
  16: 'IQ2_XXS',
  17: 'IQ2_XS',
  18: 'IQ3_XXS',
  19: 'IQ1_S',
  20: 'IQ4_NL',
  21: 'IQ3_S',
  22: 'IQ2_S',
  23: 'IQ4_XS',
  24: 'I8',
  25: 'I16',
  26: 'I32',
  27: 'I64',
  28: 'F64',
  29: 'IQ1_M',
  34: 'TQ1_0',
  35: 'TQ2_0',
  39: 'MXFP4',
}

/** The type with this number in a GGUF file; undefined: not one that is read. */
export function tensorTypeOf(id: number): TensorType | undefined {
  return byId.get(id)
}

/** How a type that is not read is called, for messages. */
export function unreadTypeName(id: number): string {
  return unread[id] ?? `number ${id}`
}

/** Bytes of `elements` values of `type`; `elements` is a multiple of the type's block. */
export function tensorBytes(type: TensorType, elements: number): number {
  const facts = TENSOR_TYPES[type]
  return (elements / facts.elements) * facts.bytes
}
