import fc from 'fast-check'
import { expect, test } from 'vitest'
import { Roster, type Seated } from './roster.js'

test('whoever joined and has not left is in it, once, whatever came between', () => {
  const steps = fc.array(fc.record({ who: fc.nat(9), joins: fc.boolean() }), { maxLength: 200 })
  fc.assert(
    fc.property(steps, (all) => {
      const people: Seated[] = Array.from({ length: 10 }, () => ({ seat: -1 }))
      const roster = new Roster<Seated>()
      const expected = new Set<Seated>()
      for (const { who, joins } of all) {
        const one = people[who] as Seated
        if (joins) {
          roster.add(one)
          expected.add(one)
        } else expect(roster.delete(one)).toBe(expected.delete(one))
        expect(roster.size).toBe(expected.size)
        expect(new Set(roster.list())).toEqual(expected)
      }
      for (const one of people) expect(one.seat >= 0).toBe(expected.has(one))
    }),
  )
})
