// Sessions and what they ask of their members: bounds, age, and sums that stay right.

import { describe, expect, test } from 'vitest'
import { SessionTable } from './session-table.js'

const OPTIONS = { max: 100, ttlMs: 10_000, activeMs: 1000 }
const add = (table: SessionTable, key: string, usedAt = 0) =>
  table.add({ key, member: 'a', scope: 's', head: 'h', tail: `${key} 0`, tokens: 1000, usedAt })

describe('what active sessions ask of a member', () => {
  test('is their growth, as long as they come again at once', () => {
    const table = new SessionTable(OPTIONS)
    const session = add(table, 'x')
    for (let turn = 0; turn < 20; turn++) {
      const tokens = 1000 + turn * 500
      table.turn(session, 'a', { now: turn * 100, tail: `x ${turn}`, tokens, head: 'h' })
      session.waitedMs = 99
      table.over(session, turn * 100 + 99)
    }
    expect(table.residents('a').demand).toBeGreaterThan(450)
    expect(table.residents('a').demand).toBeLessThan(500)
  })

  test('is next to nothing where they mostly do something else', () => {
    const table = new SessionTable({ ...OPTIONS, activeMs: 60_000 })
    const session = add(table, 'x')
    for (let turn = 0; turn < 20; turn++) {
      table.turn(session, 'a', { now: turn * 10_000, tail: `x ${turn}`, tokens: 1000 + turn * 500, head: 'h' })
      session.waitedMs = 100
      table.over(session, turn * 10_000 + 5000)
    }
    expect(table.residents('a').demand).toBeLessThan(10)
  })

  test('moves with them, ends with them, and ends when they rest', () => {
    const table = new SessionTable(OPTIONS)
    const [x, y] = [add(table, 'x'), add(table, 'y')]
    const turn = (session: typeof x, member: string, now: number) =>
      table.turn(session, member, { now, tail: `${session.key} ${now}`, tokens: 1000, head: session.key })
    turn(x, 'a', 0)
    turn(y, 'a', 0)
    expect([table.residents('a').sessions, table.residents('a').heads.size]).toEqual([2, 2])
    turn(y, 'b', 100)
    expect([table.residents('a').sessions, table.residents('b').sessions]).toEqual([1, 1])
    table.over(x, 100)
    table.over(y, 200)
    table.over(y, 200)
    table.sweep(1101)
    expect([table.residents('a').sessions, table.residents('a').demand, table.residents('b').sessions]).toEqual([
      0, 0, 1,
    ])
    table.remove('y')
    expect([table.residents('b').sessions, table.residents('b').heads.size]).toEqual([0, 0])
  })

  test('counts one whose answer takes long', () => {
    const table = new SessionTable(OPTIONS)
    const session = add(table, 'x')
    table.turn(session, 'a', { now: 0, tail: 'x 1', tokens: 1000, head: 'h' })
    table.sweep(5000)
    expect(table.residents('a').sessions).toBe(1)
    table.over(session, 5000)
    table.sweep(7000)
    expect(table.residents('a').sessions).toBe(0)
  })
})

describe('bounds', () => {
  test('by count: the oldest go, and are told of; those under way stay', () => {
    const dropped: string[] = []
    const table = new SessionTable(OPTIONS, ({ key }) => dropped.push(key))
    const busy = add(table, 'busy')
    table.turn(busy, 'a', { now: 0, tail: 'b', tokens: 1000, head: 'h' })
    for (let i = 0; i < 300; i++) add(table, `s${i}`, i)
    expect(table.size).toBeLessThanOrEqual(101)
    expect(table.has(busy)).toBe(true)
    expect(dropped.length).toBe(301 - table.size)
    expect(table.get('s299', 300)).toBeDefined()
    expect(table.get('s0', 300)).toBeUndefined()
  })

  test('by age', () => {
    const table = new SessionTable(OPTIONS)
    add(table, 'x')
    expect(table.get('x', 10_000)).toBeDefined()
    expect(table.get('x', 10_001)).toBeUndefined()
    add(table, 'y')
    add(table, 'z', 20_000)
    expect(table.size).toBe(1)
  })

  test('of none: nothing is remembered', () => {
    const table = new SessionTable({ ...OPTIONS, max: 0 })
    const session = add(table, 'x')
    table.turn(session, 'a', { now: 0, tail: 'x', tokens: 1, head: 'h' })
    table.over(session, 1)
    table.sweep(9000)
    expect([table.size, table.has(session), table.residents('a').sessions]).toEqual([0, false, 0])
  })
})
