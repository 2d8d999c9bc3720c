// Numbers between bounds: the expression, read as a regular expression, allows exactly what lies within.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { type Bounds, integerBetween, numberBetween } from './grammar-number.js'

/** These expressions use nothing that a regular expression spells otherwise, but for quotes and spaces. */
function toRegExp(expression: string): RegExp {
  const source = expression.replace(/"([^"]*)"/g, (_, text: string) => `(?:${text.replace(/[.+-]/g, '\\$&')})`)
  return new RegExp(`^(?:${source.replace(/\s+/g, '')})$`)
}

function within(value: number, { minimum, maximum, exclusiveMinimum, exclusiveMaximum }: Bounds): boolean {
  return (
    !(minimum !== undefined && value < minimum) &&
    !(maximum !== undefined && value > maximum) &&
    !(exclusiveMinimum !== undefined && value <= exclusiveMinimum) &&
    !(exclusiveMaximum !== undefined && value >= exclusiveMaximum)
  )
}

const bound = fc.option(
  fc.oneof(
    fc.integer({ min: -1200, max: 1200 }),
    fc.integer({ min: -12000, max: 12000 }).map((n) => n / 1000),
    fc.constantFrom(0, -0.5, 0.1, 1e-7, 1.5e21, -2e-3, 99.999, 100),
  ),
  { nil: undefined },
)
const bounds = fc.record({ minimum: bound, maximum: bound, exclusiveMinimum: bound, exclusiveMaximum: bound })

describe('numbers between bounds', () => {
  test('integers: exactly those within', () => {
    fc.assert(
      fc.property(bounds, fc.array(fc.integer({ min: -1300, max: 1300 })), (limits, values) => {
        const expression = integerBetween(limits)
        const regex = expression === undefined ? undefined : toRegExp(expression)
        const edges = Object.values(limits).flatMap((at) =>
          at === undefined ? [] : [Math.floor(at), Math.ceil(at), Math.floor(at) + 1, Math.ceil(at) - 1],
        )
        for (const value of [...values, ...edges].filter((n) => Math.abs(n) < 1e15)) {
          expect(regex?.test(`${value + 0}`) ?? false, `${value}`).toBe(within(value, limits))
        }
      }),
      { numRuns: 2000 },
    )
  })

  test('decimals: exactly those within', () => {
    const decimal = fc.tuple(fc.boolean(), fc.nat(1300), fc.option(fc.stringMatching(/^\d{1,5}$/), { nil: undefined }))
    fc.assert(
      fc.property(bounds, fc.array(decimal), (limits, values) => {
        const expression = numberBetween(limits)
        const regex = expression === undefined ? undefined : toRegExp(expression)
        const texts = values.map(
          ([negative, whole, fraction]) =>
            `${negative ? '-' : ''}${whole}${fraction === undefined ? '' : `.${fraction}`}`,
        )
        const edges = Object.values(limits).flatMap((at) =>
          at === undefined || /e/.test(`${at}`)
            ? []
            : [`${at}`, `${at}${Number.isInteger(at) ? '.' : ''}01`, `${at}${Number.isInteger(at) ? '.' : ''}0`],
        )
        for (const text of [...texts, ...edges].filter((one) => !/^-0(\.0*)?$/.test(one))) {
          expect(regex?.test(text) ?? false, text).toBe(within(Number(text), limits))
        }
      }),
      { numRuns: 3000 },
    )
  })

  test('no bounds: any integer, any number', () => {
    for (const text of ['0', '-1', '12345', '999999999999999999'])
      expect(toRegExp(integerBetween({})!).test(text)).toBe(true)
    for (const text of ['0', '-1.5', '1e9', '2.50E-3']) expect(toRegExp(numberBetween({})!).test(text)).toBe(true)
    for (const text of ['', '-', '01', '1.', '.5', '1e', '+1'])
      expect(toRegExp(numberBetween({})!).test(text)).toBe(false)
  })

  test('bounds that nothing meets', () => {
    expect(integerBetween({ minimum: 3.2, maximum: 3.8 })).toBeUndefined()
    expect(integerBetween({ exclusiveMinimum: 3, exclusiveMaximum: 4 })).toBeUndefined()
    expect(numberBetween({ minimum: 3, exclusiveMaximum: 3 })).toBeUndefined()
    expect(numberBetween({ minimum: 2, maximum: 1 })).toBeUndefined()
  })
})
