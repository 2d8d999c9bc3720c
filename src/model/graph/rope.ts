// The table of angles that rotary embedding looks up by position, with what stretches them: linear scaling and the
// per-frequency factors of Llama 3 files. Computed in fp64 and rounded once.

import type { ModelShape } from './shape.js'

export interface RopeTable {
  /** [positions, dim / 2] */
  readonly cos: Float32Array
  readonly sin: Float32Array
}

/** `factors` is the tensor rope_freqs.weight, [dim / 2]: each frequency is divided by its own. */
export function ropeTable(rope: ModelShape['rope'], positions: number, factors: Float32Array | undefined): RopeTable {
  const half = rope.dim / 2
  if (factors !== undefined && factors.length !== half) {
    throw new RangeError(`rope_freqs.weight has ${factors.length} factors for ${half} frequencies`)
  }
  const frequencies = Array.from({ length: half }, (_, i) => {
    return rope.base ** ((-2 * i) / rope.dim) / (factors?.[i] ?? 1) / rope.scale
  })
  const cos = new Float32Array(positions * half)
  const sin = new Float32Array(positions * half)
  for (let position = 0; position < positions; position++) {
    for (let i = 0; i < half; i++) {
      const angle = position * (frequencies[i] as number)
      cos[position * half + i] = Math.cos(angle)
      sin[position * half + i] = Math.sin(angle)
    }
  }
  return { cos, sin }
}
