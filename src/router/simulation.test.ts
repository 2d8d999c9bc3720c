// The scenarios that public routers were measured by, in virtual time: what is prefilled against the least possible, who
// does how much, and how long the slow ones wait. They hold whatever the members are assumed to do before they are observed.

import { describe, expect, test } from 'vitest'
import { AFFINITY, BENCH_FLEET, HOT_HEAD, SKEW, simulate, type Workload } from '../testing/fleet-simulation.js'
import { createFleetRouter } from './fleet-router.js'
import { ROUTER_DEFAULTS } from './options.js'

const create = (parts: Parameters<typeof createFleetRouter>[1]) => createFleetRouter(ROUTER_DEFAULTS, parts)
const random = (parts: Parameters<typeof createFleetRouter>[1]) =>
  createFleetRouter({ ...ROUTER_DEFAULTS, weights: { random: 1 } }, parts)

describe.each([2000, 8000, 20_000])('members that are taken to do %i tokens a second, and do 2000', (assumedRate) => {
  const fleet = { ...BENCH_FLEET, assumedRate }

  test.each([
    ['a session header', true],
    ['none', false],
  ])('four heads on four members, with %s: nothing is computed twice', (_, named) => {
    const found = simulate({ ...AFFINITY, named }, fleet, create)
    expect(found.prefilledOverIdeal).toBe(1)
    expect(found.moves).toBe(0)
    expect(found.ttftMs.p95).toBeLessThanOrEqual(1000)
    expect(found.requests).toEqual([72, 72, 72, 72])
  })

  test.each([
    ['a session header', true],
    ['none', false],
  ])('heads of 12, 6, 4 and 2 sessions, with %s: the large one is copied once', (_, named) => {
    const found = simulate({ ...SKEW, named }, fleet, create)
    expect(found.prefilledOverIdeal).toBeLessThanOrEqual(1.02)
    expect(found.moves).toBe(0)
    expect(found.ttftMs.p95).toBeLessThanOrEqual(1250)
    expect(found.wallMs).toBeLessThanOrEqual(14_300)
  })

  test('a head that all share is everywhere, and everybody does the same', () => {
    const found = simulate(HOT_HEAD, { ...fleet, cacheShare: 1 / 2 }, create)
    expect(found.prefilledOverIdeal).toBeLessThanOrEqual(1.21)
    expect(found.requests).toEqual([48, 48, 48, 48])
    expect(found.ttftMs.p95).toBeLessThanOrEqual(2400)
    expect(found.wallMs).toBeLessThanOrEqual(10_100)
  })

  test('a head whose sessions come one by one spreads, too', () => {
    const found = simulate({ ...HOT_HEAD, staggerMs: 100 }, { ...fleet, cacheShare: 1 / 2 }, create)
    expect(found.prefilledOverIdeal).toBeLessThanOrEqual(1.25)
    expect(Math.min(...found.requests)).toBeGreaterThan(24)
  })

  test('no member is left without sessions while another has those of two heads', () => {
    const two: Workload = { ...AFFINITY, sessions: 8, heads: [0, 1, 2, 3, 4, 5, 6, 7], staggerMs: 700 }
    const found = simulate(two, fleet, create)
    // The last sessions end at different times.
    expect(found.idleMs).toBeLessThan(1000)
    expect(found.requests).toEqual([24, 24, 24, 24])
  })
})

test('sessions that begin anywhere, by the random baseline, compute a third more', () => {
  expect(simulate({ ...AFFINITY, named: false }, BENCH_FLEET, random).prefilledOverIdeal).toBeGreaterThan(1.3)
})

test('a member that goes is replaced for its sessions alone; back and empty, it is used at once', () => {
  let reusedAfterMs = Number.POSITIVE_INFINITY
  const backAt = 12_000
  const many: Workload = { ...AFFINITY, sessions: 16, turns: 60, headChars: 4096, turnChars: 800, staggerMs: 10 }
  const fast = { ...BENCH_FLEET, cacheShare: 1, tokensPerSecond: 20_000, decodeMs: 200 }
  const found = simulate(many, fast, create, {
    begun: ([, victim], clock) => {
      const { requests } = victim!
      expect(requests).toBe(0)
      clock.after(6000, () => {
        victim!.state = 'down'
        victim!.clear()
      })
      clock.after(backAt, () => {
        victim!.state = 'up'
        const before = victim!.requests
        const look = () => {
          if (victim!.requests > before) reusedAfterMs = clock.now() - backAt
          else clock.after(1, look)
        }
        look()
      })
    },
  })
  expect(reusedAfterMs).toBeLessThan(300)
  const stayed = found.visits.filter((ids) => ids[0] !== 'up1' && new Set(ids.slice(0, 25)).size === 1)
  expect(stayed.length).toBe(12)
})
