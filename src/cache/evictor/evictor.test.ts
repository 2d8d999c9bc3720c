// The conformance of all kinds of evictors, and what tells them apart.

import { describe, expect, test } from 'vitest'
import { kindNamed } from '../../core/kind.js'
import type { Priority } from '../../core/request.js'
import type { Candidate } from './evictor.js'
import * as evictors from './index.js'

const block = (priority: Priority, usedTick: number, bornTick = usedTick): Candidate => ({
  priority,
  usedTick,
  bornTick,
})

describe.each(Object.entries(evictors))('%s', (_, kind) => {
  const make = () => kind.create({}, undefined)

  test('names nobody when nobody is offered', () => {
    expect(make().victim('interactive')).toBeUndefined()
  })

  test('names only who is offered, until withdrawn', () => {
    const evictor = make()
    const blocks = [3, 1, 2].map((tick) => block('interactive', tick))
    for (const one of blocks) evictor.offer(one)
    for (const one of blocks) evictor.offer(one)
    expect(evictor.size).toBe(3)
    const seen = new Set()
    for (;;) {
      const victim = evictor.victim('interactive')
      if (victim === undefined) break
      expect(evictor.victim('interactive')).toBe(victim)
      seen.add(victim)
      evictor.withdraw(victim)
      evictor.withdraw(victim)
    }
    expect(seen).toEqual(new Set(blocks))
    expect(evictor.size).toBe(0)
  })

  test.each(['auxiliary', 'background'] as const)('lets no %s newcomer displace an interactive block', (priority) => {
    const evictor = make()
    evictor.offer(block('interactive', 1))
    expect(evictor.victim(priority)).toBeUndefined()
    const auxiliary = block('auxiliary', 2)
    evictor.offer(auxiliary)
    expect(evictor.victim(priority)).toBe(auxiliary)
  })

  test('takes the staler of two that differ in nothing else', () => {
    const evictor = make()
    const [old, young] = [block('interactive', 1), block('interactive', 2)]
    evictor.offer(young)
    evictor.offer(old)
    expect(evictor.victim('interactive')).toBe(old)
  })
})

describe('kinds differ', () => {
  const bornFirst = block('interactive', 9, 1)
  const usedFirst = block('interactive', 3, 2)
  const background = block('background', 12, 12)
  test.each([
    ['fifo', bornFirst],
    ['lru', usedFirst],
    ['priority-lru', background],
  ] as const)('%s', (name, victim) => {
    const evictor = kindNamed(evictors, name, 'evictor').create({}, undefined)
    for (const one of [bornFirst, usedFirst, background]) evictor.offer(one)
    expect(evictor.victim('interactive')).toBe(victim)
  })
})
