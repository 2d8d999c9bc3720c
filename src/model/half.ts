// 16-bit floats as bits: IEEE half (F16) and bfloat16 (BF16), to fp32 and back. Tables and plain arithmetic, because
// Node 20 has no Float16Array. Used where weights are read; KV rows take the kernels in native/.

const scratch = new Float32Array(1)
const scratchBits = new Uint32Array(scratch.buffer)

let table: Float32Array | undefined

/** fp32 value of every half, indexed by its 16 bits; built at first use (256 KB). */
export function halfTable(): Float32Array {
  if (table !== undefined) return table
  const made = new Float32Array(65536)
  for (let bits = 0; bits < 65536; bits++) {
    const sign = bits & 0x8000 ? -1 : 1
    const exponent = (bits >> 10) & 31
    const mantissa = bits & 0x3ff
    if (exponent === 31) made[bits] = mantissa === 0 ? sign * Number.POSITIVE_INFINITY : Number.NaN
    else if (exponent === 0) made[bits] = sign * mantissa * 2 ** -24
    else made[bits] = sign * (1 + mantissa / 1024) * 2 ** (exponent - 15)
  }
  table = made
  return made
}

/** The half nearest to `value`, ties to even, as bits; beyond the range: infinity. */
export function halfBits(value: number): number {
  scratch[0] = value
  const bits = scratchBits[0]!
  const sign = (bits >>> 16) & 0x8000
  const magnitude = bits & 0x7fffffff
  if (magnitude > 0x7f800000) return sign | 0x7e00
  // 65520 and more rounds to infinity.
  if (magnitude >= 0x477ff000) return sign | 0x7c00
  if (magnitude < 0x38800000) {
    // Below 2^-14 halves are multiples of 2^-24: scaled to integers, the rounding is that of integers.
    scratchBits[0] = magnitude
    return sign | roundEven(scratch[0]! * 2 ** 24)
  }
  // The bias moves from 127 to 15; adding half an ulp less one, plus the last kept bit, rounds ties to even.
  return sign | ((magnitude - 0x38000000 + 0xfff + ((magnitude >>> 13) & 1)) >>> 13)
}

/** `value` rounded to the nearest half, as a number. */
export function roundToHalf(value: number): number {
  return halfTable()[halfBits(value)]!
}

/** The bfloat16 nearest to `value`, ties to even, as bits. */
export function bfloat16Bits(value: number): number {
  scratch[0] = value
  const bits = scratchBits[0]!
  if ((bits & 0x7fffffff) > 0x7f800000) return (bits >>> 16) | 0x40
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16
}

function roundEven(value: number): number {
  const floor = Math.floor(value)
  const rest = value - floor
  if (rest < 0.5 || (rest === 0.5 && floor % 2 === 0)) return floor
  return floor + 1
}
