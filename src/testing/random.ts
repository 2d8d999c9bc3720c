// Seeded random numbers, so that a toy model or a test's data is the same file everywhere. Not for anything secret.

export interface Random {
  /** Uniform in [0, 1). */
  next(): number
  /** Uniform whole number in [0, limit). */
  below(limit: number): number
  /** Standard normal. */
  normal(): number
}

/** A generator whose sequence depends on `seed` alone (splitmix32, 32 bits of state). */
export function seeded(seed: number): Random {
  let state = seed | 0
  const next = (): number => {
    state = (state + 0x9e3779b9) | 0
    let mixed = state ^ (state >>> 16)
    mixed = Math.imul(mixed, 0x21f0aaad)
    mixed ^= mixed >>> 15
    mixed = Math.imul(mixed, 0x735a2d97)
    return ((mixed ^ (mixed >>> 15)) >>> 0) / 2 ** 32
  }
  return {
    next,
    below: (limit) => Math.floor(next() * limit),
    normal: () => Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next()),
  }
}
