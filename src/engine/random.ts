// The sampler's random numbers: xoshiro128** seeded through splitmix32. Invariant: the same seed and choice give the same
// stream on every machine, so that a seeded request can be repeated; without a seed the stream comes from the system.

import { randomBytes } from 'node:crypto'

/** Uniform numbers in [0, 1) with 53 random bits. */
export type Random = () => number

/** xoshiro128** 1.1 (Blackman and Vigna, https://prng.di.unimi.it) over four 32-bit words, not all zero. */
function xoshiro(state: Uint32Array): Random {
  let [a, b, c, d] = state as unknown as [number, number, number, number]
  const next = (): number => {
    const scaled = Math.imul(b, 5)
    const result = Math.imul((scaled << 7) | (scaled >>> 25), 9)
    const shifted = b << 9
    c ^= a
    d ^= b
    b ^= c
    a ^= d
    c ^= shifted
    d = (d << 11) | (d >>> 21)
    return result >>> 0
  }
  return () => ((next() >>> 5) * 67_108_864 + (next() >>> 6)) / 9_007_199_254_740_992
}

/** A stream for `choice` of a request. `seed` may be any safe integer; undefined: unpredictable. */
export function createRandom(seed: number | undefined, choice: number): Random {
  const state = new Uint32Array(4)
  if (seed === undefined) {
    const bytes = randomBytes(16)
    for (let i = 0; i < 4; i++) state[i] = bytes.readUInt32LE(i * 4)
  } else {
    // Each part goes through the mixer before the next is added, so that (1, 0) and (0, 1) do not meet.
    let mixed = splitmix(seed >>> 0)
    mixed = splitmix(mixed ^ (Math.floor(seed / 4_294_967_296) >>> 0))
    mixed = splitmix(mixed ^ (choice >>> 0))
    for (let i = 0; i < 4; i++) {
      mixed = splitmix(mixed)
      state[i] = mixed
    }
  }
  if (state.every((word) => word === 0)) state[0] = 1
  return xoshiro(state)
}

/** One step of splitmix32: adds the golden ratio, then mixes all bits. */
function splitmix(value: number): number {
  let z = (value + 0x9e3779b9) | 0
  z = Math.imul(z ^ (z >>> 16), 0x21f0aaad)
  z = Math.imul(z ^ (z >>> 15), 0x735a2d97)
  return (z ^ (z >>> 15)) >>> 0
}
