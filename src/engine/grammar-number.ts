// Numbers between bounds as EBNF: a comparison of decimals, digit by digit, turned into alternatives. Invariant: every
// number that the expression allows lies within the bounds, also after it was read into a double, and has no more than
// 16 digits beyond what the bounds have, so that no model can write digits for ever.

import { choice } from './grammar-text.js'

const DIGITS = 16

/** Any integer of up to 18 digits. */
export const INTEGER = '("-"? ("0" | [1-9] [0-9]{0,17}))'

/** Any JSON number of up to 16 digits before and after the point, and a small exponent. */
export const NUMBER = '("-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,16})? ([eE] [+-]? [0-9]{1,2})?)'

export interface Bounds {
  readonly minimum?: number
  readonly maximum?: number
  readonly exclusiveMinimum?: number
  readonly exclusiveMaximum?: number
}

/** One end of a range of numbers that are not negative. `fraction` has no zeros at its end. */
interface End {
  readonly whole: bigint
  readonly fraction: string
  readonly inclusive: boolean
}

/** Integers within `bounds`; undefined when there are none. */
export function integerBetween(bounds: Bounds): string | undefined {
  const low = lowest(bounds)
  const high = highest(bounds)
  const from =
    low === undefined ? undefined : ceiling(low.value) + (low.inclusive || !Number.isInteger(low.value) ? 0n : 1n)
  const to =
    high === undefined ? undefined : floor(high.value) - (high.inclusive || !Number.isInteger(high.value) ? 0n : 1n)
  if (from === undefined && to === undefined) return INTEGER
  if (from !== undefined && to !== undefined && from > to) return undefined
  const options: string[] = []
  if (from === undefined || from < 0n) {
    const nearest = to === undefined || to >= 0n ? 1n : -to
    const furthest = from === undefined ? beyond(nearest) : -from
    options.push(`"-" ${wholeBetween(nearest, furthest)}`)
  }
  if (to === undefined || to >= 0n) {
    const nearest = from === undefined || from < 0n ? 0n : from
    options.push(wholeBetween(nearest, to ?? beyond(nearest)))
  }
  return choice(options)
}

/** Numbers within `bounds`, without exponents; undefined when there are none. */
export function numberBetween(bounds: Bounds): string | undefined {
  const low = lowest(bounds)
  const high = highest(bounds)
  if (low === undefined && high === undefined) return NUMBER
  const options: (string | undefined)[] = []
  const zero: End = { whole: 0n, fraction: '', inclusive: true }
  if (low === undefined || low.value < 0) {
    // Zero has no sign here.
    const nearest =
      high !== undefined && high.value < 0 ? endOf(-high.value, high.inclusive) : { ...zero, inclusive: false }
    const furthest = low === undefined ? undefined : endOf(-low.value, low.inclusive)
    const options_ = positiveBetween(nearest, furthest)
    if (options_ !== undefined) options.push(`"-" ${options_}`)
  }
  if (high === undefined || high.value >= 0) {
    const nearest = low === undefined || low.value < 0 ? zero : endOf(low.value, low.inclusive)
    options.push(positiveBetween(nearest, high === undefined ? undefined : endOf(high.value, high.inclusive)))
  }
  const found = options.filter((option) => option !== undefined)
  return found.length === 0 ? undefined : choice(found)
}

interface Limit {
  readonly value: number
  readonly inclusive: boolean
}

function lowest({ minimum, exclusiveMinimum }: Bounds): Limit | undefined {
  if (exclusiveMinimum !== undefined && (minimum === undefined || exclusiveMinimum >= minimum)) {
    return { value: exclusiveMinimum, inclusive: false }
  }
  return minimum === undefined ? undefined : { value: minimum, inclusive: true }
}

function highest({ maximum, exclusiveMaximum }: Bounds): Limit | undefined {
  if (exclusiveMaximum !== undefined && (maximum === undefined || exclusiveMaximum <= maximum)) {
    return { value: exclusiveMaximum, inclusive: false }
  }
  return maximum === undefined ? undefined : { value: maximum, inclusive: true }
}

function ceiling(value: number): bigint {
  return BigInt(Math.ceil(value))
}

function floor(value: number): bigint {
  return BigInt(Math.floor(value))
}

/** The largest integer that is written where there is no upper bound. */
function beyond(nearest: bigint): bigint {
  return 10n ** BigInt(Math.max(18, nearest.toString().length + 2)) - 1n
}

/** The shortest decimal that reads as `value`, which is not negative. */
function endOf(value: number, inclusive: boolean): End {
  const [mantissa, exponent = '0'] = value.toString().split('e') as [string, string?]
  const [before, after = ''] = mantissa.split('.') as [string, string?]
  const shift = Number(exponent)
  const digits = before + after
  const point = before.length + shift
  const whole = point <= 0 ? '0' : digits.slice(0, point).padEnd(point, '0')
  const fraction = (point <= 0 ? digits.padStart(digits.length - point, '0') : digits.slice(point)).replace(/0+$/, '')
  return { whole: BigInt(whole), fraction, inclusive }
}

/** Integers in `[low, high]`, `0 <= low <= high`. */
function wholeBetween(low: bigint, high: bigint): string {
  const from = low.toString()
  const to = high.toString()
  if (from.length === to.length) return digitsBetween(from, to)
  const options = [digitsBetween(from, '9'.repeat(from.length))]
  const between = to.length - from.length - 1
  if (between > 0) options.push(`[1-9] ${repeat(from.length, from.length + between - 1)}`)
  options.push(digitsBetween(`1${'0'.repeat(to.length - 1)}`, to))
  return choice(options)
}

function repeat(min: number, max: number): string {
  return max === 0 ? '""' : `[0-9]{${min},${max}}`
}

function digitClass(low: number, high: number): string {
  return low === high ? `"${low}"` : `[${low}-${high}]`
}

/** Digit strings of one length in `[low, high]`. */
function digitsBetween(low: string, high: string): string {
  if (low === '') return '""'
  if (/^0*$/.test(low) && /^9*$/.test(high)) return repeat(low.length, low.length)
  const [a, b] = [Number(low[0]), Number(high[0])]
  const rest = low.length - 1
  if (a === b) return `(${digitClass(a, a)} ${digitsBetween(low.slice(1), high.slice(1))})`
  const lowFull = /^0*$/.test(low.slice(1))
  const highFull = /^9*$/.test(high.slice(1))
  const options: string[] = []
  if (!lowFull) options.push(`${digitClass(a, a)} ${digitsBetween(low.slice(1), '9'.repeat(rest))}`)
  const first = lowFull ? a : a + 1
  const last = highFull ? b : b - 1
  if (first <= last) options.push(`${digitClass(first, last)} ${repeat(rest, rest)}`)
  if (!highFull) options.push(`${digitClass(b, b)} ${digitsBetween('0'.repeat(rest), high.slice(1))}`)
  return choice(options)
}

const ANY_FRACTION = `("." [0-9]{1,${DIGITS}})?`
/** Digits that are not all zero. */
const SOME = `("0"{0,${DIGITS}} [1-9] ${repeat(0, DIGITS)})`
const REST = repeat(0, DIGITS)
const ZEROS = `"0"{0,${DIGITS}}`

/** Numbers from `low` to `high` (undefined: without bound), both not negative; undefined when there are none. */
function positiveBetween(low: End, high: End | undefined): string | undefined {
  const options: (string | undefined)[] = []
  const join = (whole: bigint, fraction: string | undefined) =>
    options.push(fraction === undefined ? undefined : `"${whole}" ${fraction}`)
  if (high !== undefined && low.whole === high.whole) join(low.whole, fractionBetween(low, high))
  else if (high === undefined || low.whole < high.whole) {
    join(low.whole, fractionFrom(low))
    const last = high === undefined ? beyond(low.whole) : high.whole - 1n
    if (low.whole + 1n <= last) options.push(`${wholeBetween(low.whole + 1n, last)} ${ANY_FRACTION}`)
    if (high !== undefined) join(high.whole, fractionTo(high))
  }
  const found = options.filter((option) => option !== undefined)
  return found.length === 0 ? undefined : choice(found)
}

/** What may stand behind the whole part of `low`: a point and digits, or nothing. */
function fractionFrom({ fraction, inclusive }: End): string {
  if (fraction === '' && inclusive) return ANY_FRACTION
  return `"." ${digitsFrom(fraction, inclusive)}`
}

function fractionTo({ fraction, inclusive }: End): string | undefined {
  if (fraction === '') return inclusive ? `("." "0"{1,${DIGITS}})?` : undefined
  return `("." ${digitsTo(fraction, inclusive)})?`
}

function fractionBetween(low: End, high: End): string | undefined {
  if (low.fraction === high.fraction) {
    if (!low.inclusive || !high.inclusive) return undefined
    return low.fraction === '' ? fractionTo(high) : `".${low.fraction}" ${ZEROS}`
  }
  // Without trailing zeros, the shorter of two that agree so far is the smaller.
  if (low.fraction > high.fraction) return undefined
  const digits = `"." ${digitsWithin(low.fraction, high.fraction, low.inclusive, high.inclusive)}`
  return low.fraction === '' && low.inclusive ? `(${digits})?` : digits
}

/** Digits behind a point that are at least `from`, or above it. */
function digitsFrom(from: string, inclusive: boolean): string {
  if (from === '') return inclusive ? REST : SOME
  const digit = Number(from[0])
  const options = [`${digitClass(digit, digit)} ${digitsFrom(from.slice(1), inclusive)}`]
  if (digit < 9) options.push(`${digitClass(digit + 1, 9)} ${REST}`)
  return choice(options)
}

/** Digits, one at least, that are at most `to`, which is not empty, or below it. */
function digitsTo(to: string, inclusive: boolean): string {
  const digit = Number(to[0])
  const options: string[] = []
  if (digit > 0) options.push(`${digitClass(0, digit - 1)} ${REST}`)
  if (to.length > 1) options.push(`${digitClass(digit, digit)} (${digitsTo(to.slice(1), inclusive)})?`)
  else if (inclusive) options.push(`${digitClass(digit, digit)} ${ZEROS}`)
  return choice(options)
}

/** Digits, one at least, between two fractions, `from < to`. */
function digitsWithin(from: string, to: string, fromToo: boolean, toToo: boolean): string {
  const [a, b] = [Number(from[0] ?? 0), Number(to[0])]
  if (a === b) {
    const rest = digitsWithin(from.slice(1), to.slice(1), fromToo, toToo)
    // Nothing more is `from` itself.
    return from.length <= 1 && fromToo ? `(${digitClass(a, a)} (${rest})?)` : `(${digitClass(a, a)} ${rest})`
  }
  const options = [`${digitClass(a, a)} ${digitsFrom(from.slice(1), fromToo)}`]
  if (a + 1 <= b - 1) options.push(`${digitClass(a + 1, b - 1)} ${REST}`)
  if (to.length > 1) options.push(`${digitClass(b, b)} (${digitsTo(to.slice(1), toToo)})?`)
  else if (toToo) options.push(`${digitClass(b, b)} ${ZEROS}`)
  return choice(options)
}
