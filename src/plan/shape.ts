// The shape of a model's KV: which layers there are and what each keeps. Invariant: a shape that is checked has at least
// one layer and positive whole numbers; an unknown key is refused with its path. Shapes are YAML in models/shapes, or made
// from a model's own files (shape-sources.ts).

import { type TSchema, Type } from 'typebox'
import { Value } from 'typebox/value'
import { parse } from 'yaml'
import { UsageError } from '../core/usage-error.js'
import { bytesPerToken, type DataType, type KvBytes, type Layer, layerBytes, type Widths } from './layer.js'

export interface KvShape {
  readonly name: string
  /** Where the numbers are from, and what they leave out. */
  readonly note?: string
  /** Longest session that the model takes. */
  readonly contextLength?: number
  readonly dtype: DataType
  readonly layers: readonly (Layer & { readonly count: number })[]
}

const strict = { additionalProperties: false }
const whole = Type.Integer({ minimum: 1 })
const entry = { dim: whole, entryBytes: Type.Optional(whole) }
const index = Type.Optional(Type.Object(entry, strict))
const heads = { kvHeads: whole, headDim: whole, valueDim: Type.Optional(whole) }

const LAYERS: Readonly<Record<Layer['kind'], TSchema>> = {
  full: Type.Object({ kind: Type.Literal('full'), count: whole, ...heads }, strict),
  latent: Type.Object({ kind: Type.Literal('latent'), count: whole, ...entry, index }, strict),
  sliding: Type.Object({ kind: Type.Literal('sliding'), count: whole, window: whole, ...heads }, strict),
  state: Type.Object({ kind: Type.Literal('state'), count: whole, stateBytes: whole }, strict),
  compressed: Type.Object(
    { kind: Type.Literal('compressed'), count: whole, window: whole, ratio: Type.Optional(whole), ...entry, index },
    strict,
  ),
}

export const DATA_TYPES = ['fp32', 'bf16', 'fp16', 'fp8'] as const

const SHAPE = Type.Object(
  {
    name: Type.String({ minLength: 1 }),
    note: Type.Optional(Type.String()),
    contextLength: Type.Optional(whole),
    dtype: Type.Enum([...DATA_TYPES]),
    // Each is checked against the schema of its own kind, which gives better messages than a union.
    layers: Type.Array(Type.Unknown(), { minItems: 1 }),
  },
  strict,
)

/** The shape in the YAML (or JSON) text of the file `path`. @throws UsageError naming the path and what is wrong there. */
export function parseShape(text: string, path: string): KvShape {
  let data: unknown
  try {
    data = parse(text)
  } catch (error) {
    throw new UsageError(`${path}: it is not YAML: ${(error as Error).message}`)
  }
  complain(path, '', SHAPE, data)
  for (const [i, layer] of (data as KvShape).layers.entries()) {
    const kind = (layer as { kind?: unknown } | null)?.kind
    if (typeof kind !== 'string' || !Object.hasOwn(LAYERS, kind)) {
      throw new UsageError(`${path}: layers[${i}].kind must be one of ${Object.keys(LAYERS).join(', ')}`)
    }
    complain(path, `layers[${i}]`, LAYERS[kind as Layer['kind']], layer)
  }
  return data as KvShape
}

function complain(path: string, at: string, schema: TSchema, value: unknown): void {
  if (Value.Check(schema, value)) return
  const [first] = Value.Errors(schema, value)
  const where = `${at}${(first?.instancePath ?? '').replaceAll('/', '.')}`.replace(/^\./, '') || 'the shape'
  const names = first?.keyword === 'required' ? ` (${first.params.requiredProperties.join(', ')})` : ''
  throw new UsageError(`${path}: ${where} ${first?.message ?? 'is wrong'}${names}`)
}

/** The data type to count in, and whether packed sizes count: they do unless another type is asked for. */
export function widthsOf(shape: KvShape, dtype?: DataType): Widths {
  return { dtype: dtype ?? shape.dtype, packed: dtype === undefined || dtype === shape.dtype }
}

/** Bytes of one session of `tokens`, over all layers. */
export function sessionBytes(shape: KvShape, tokens: number, widths: Widths): KvBytes {
  const sum = { entries: 0, index: 0, state: 0 }
  for (const layer of shape.layers) {
    const bytes = layerBytes(layer, tokens, widths)
    sum.entries += layer.count * bytes.entries
    sum.index += layer.count * bytes.index
    sum.state += layer.count * bytes.state
  }
  return sum
}

export const totalBytes = ({ entries, index, state }: KvBytes): number => entries + index + state

/** Bytes that a token of a long session adds, over all layers. */
export function tokenBytes(shape: KvShape, widths: Widths): number {
  return shape.layers.reduce((sum, layer) => sum + layer.count * bytesPerToken(layer, widths), 0)
}
