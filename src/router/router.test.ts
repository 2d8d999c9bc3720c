import { describe, expect, test } from 'vitest'
import type { Backend, BackendHealth } from '../backend/backend.js'
import type { Job } from '../core/request.js'
import { route } from './router.js'

const backend = (name: string, health: Partial<BackendHealth> = {}, model = 'm'): Backend => ({
  name,
  model,
  generate: () => {
    throw new Error('the router generates nothing')
  },
  health: () => ({ ready: true, notes: [], running: 0, waiting: 0, ...health }),
  close: async () => undefined,
})
const job = { model: 'm' } as Job
const limits = { queuedRequests: 2 }

describe('route', () => {
  test('only backends that have the model', () => {
    expect(route(job, [backend('a', {}, 'other'), backend('b')], limits).backend.name).toBe('b')
    expect(() => route(job, [backend('a', {}, 'other')], limits)).toThrow(
      expect.objectContaining({ code: 'model_not_found' }),
    )
  })

  test('only ready ones; when none is, their notes are said', () => {
    expect(route(job, [backend('a', { ready: false }), backend('b')], limits).backend.name).toBe('b')
    expect(() => route(job, [backend('a', { ready: false, notes: ['loading'] })], limits)).toThrow(
      expect.objectContaining({ code: 'engine_failed', message: expect.stringContaining('loading') }),
    )
  })

  test('only such with room in the queue', () => {
    expect(route(job, [backend('a', { waiting: 2 }), backend('b', { waiting: 1 })], limits).backend.name).toBe('b')
    expect(() => route(job, [backend('a', { waiting: 2 })], limits)).toThrow(
      expect.objectContaining({ code: 'queue_full', retryAfterMs: 1000 }),
    )
  })

  test('without a queue an idle backend still takes a request', () => {
    expect(route(job, [backend('a')], { queuedRequests: 0 }).backend.name).toBe('a')
  })

  test('of those the least busy, the first of equals', () => {
    const fleet = [backend('a', { running: 2 }), backend('b', { running: 1 }), backend('c', { waiting: 1 })]
    expect(route(job, fleet, limits)).toMatchObject({ backend: { name: 'b' }, reason: 'least busy' })
  })
})
