// Token buckets of tenants: what is let in, and when the next one is.

import { describe, expect, test } from 'vitest'
import { RefrainError } from '../core/errors.js'
import { ManualClock } from '../testing/manual-clock.js'
import { createTenantLimits, type TenantLimit } from './tenant-limits.js'

function limitsOf(all: TenantLimit, own: Record<string, Partial<TenantLimit>> = {}) {
  const clock = new ManualClock()
  const limits = createTenantLimits({ all, own: new Map(Object.entries(own)), clock })
  const refusedFor = (tenant: string, tokens: number): number | undefined => {
    try {
      limits.take(tenant, tokens)
      return undefined
    } catch (error) {
      expect(error).toBeInstanceOf(RefrainError)
      expect((error as RefrainError).code).toBe('rate_limited')
      return (error as RefrainError).retryAfterMs
    }
  }
  return { clock, limits, refusedFor }
}

describe('requests', () => {
  test('as many as fit a minute at once, then one each share of it', () => {
    const { clock, refusedFor } = limitsOf({ requestsPerMinute: 6, tokensPerMinute: 0 })
    for (let i = 0; i < 6; i++) expect(refusedFor('a', 1e9)).toBeUndefined()
    expect(refusedFor('a', 1)).toBe(10_000)
    clock.advance(9_999)
    expect(refusedFor('a', 1)).toBe(1)
    clock.advance(1)
    expect(refusedFor('a', 1)).toBeUndefined()
    expect(refusedFor('a', 1)).toBe(10_000)
  })

  test('of one tenant do not count for another, and one may have limits of its own', () => {
    const { refusedFor } = limitsOf({ requestsPerMinute: 1, tokensPerMinute: 0 }, { big: { requestsPerMinute: 0 } })
    expect(refusedFor('a', 1)).toBeUndefined()
    expect(refusedFor('a', 1)).toBe(60_000)
    expect(refusedFor('b', 1)).toBeUndefined()
    for (let i = 0; i < 100; i++) expect(refusedFor('big', 1)).toBeUndefined()
  })
})

describe('tokens', () => {
  test('prompts count at once, answers when they are over; a debt is waited for', () => {
    const { clock, limits, refusedFor } = limitsOf({ requestsPerMinute: 0, tokensPerMinute: 6000 })
    expect(refusedFor('a', 4000)).toBeUndefined()
    limits.settle('a', 3000)
    expect(refusedFor('a', 1000)).toBe(20_000)
    clock.advance(20_000)
    expect(refusedFor('a', 1000)).toBeUndefined()
  })

  test('an estimate that was too high is given back, and no more than a minute is kept', () => {
    const { limits, refusedFor } = limitsOf({ requestsPerMinute: 0, tokensPerMinute: 6000 })
    expect(refusedFor('a', 6000)).toBeUndefined()
    limits.settle('a', -3000)
    expect(refusedFor('a', 3000)).toBeUndefined()
    limits.settle('a', -100_000)
    expect(refusedFor('a', 6000)).toBeUndefined()
    expect(refusedFor('a', 1)).toBe(10)
  })

  test('a prompt that is larger than all of a minute passes when the bucket is full', () => {
    const { clock, refusedFor } = limitsOf({ requestsPerMinute: 0, tokensPerMinute: 6000 })
    expect(refusedFor('a', 60)).toBeUndefined()
    expect(refusedFor('a', 12_000)).toBe(600)
    clock.advance(600)
    expect(refusedFor('a', 12_000)).toBeUndefined()
    expect(refusedFor('a', 60)).toBe(60_600)
  })

  test('what is refused takes nothing', () => {
    const { refusedFor } = limitsOf({ requestsPerMinute: 2, tokensPerMinute: 600 })
    expect(refusedFor('a', 500)).toBeUndefined()
    for (let i = 0; i < 5; i++) expect(refusedFor('a', 500)).toBeGreaterThan(0)
    expect(refusedFor('a', 100)).toBeUndefined()
  })
})
