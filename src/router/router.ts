// Job x fleet -> placement: filter, then pick. Pure: it reads each backend's health and changes nothing. Invariant: it
// never sees a prompt's text. Step 7 of a request's path.

import type { Backend } from '../backend/backend.js'
import { RefrainError } from '../core/errors.js'
import type { Job } from '../core/request.js'

/** Where a job goes, and why. */
export interface Placement {
  readonly backend: Backend
  readonly reason: string
}

export interface RouteLimits {
  /** limits.queuedRequests */
  readonly queuedRequests: number
}

/**
 * The least busy backend that has the job's model, is ready and has room in its queue.
 * @throws RefrainError `model_not_found`, `engine_failed` (none is ready), `queue_full`.
 */
export function route(job: Job, fleet: readonly Backend[], limits: RouteLimits): Placement {
  const able = fleet.filter((backend) => backend.model === job.model)
  if (able.length === 0) throw new RefrainError('model_not_found', `no backend has the model '${job.model}'`)
  const seen = able.map((backend) => ({ backend, health: backend.health() }))
  const ready = seen.filter(({ health }) => health.ready)
  if (ready.length === 0) {
    const why = seen.flatMap(({ health }) => health.notes).join('; ')
    throw new RefrainError('engine_failed', `no backend is ready${why && `: ${why}`}`, { retryAfterMs: 1000 })
  }
  // Without a queue the backend itself knows whether it can start one more.
  const roomy = ready.filter(({ health }) => health.waiting < Math.max(1, limits.queuedRequests))
  if (roomy.length === 0) {
    const waiting = Math.min(...ready.map(({ health }) => health.waiting))
    throw new RefrainError('queue_full', `${waiting} requests are waiting already`, { retryAfterMs: 1000 })
  }
  const load = ({ health }: (typeof roomy)[number]) => health.running + health.waiting
  const best = roomy.reduce((a, b) => (load(b) < load(a) ? b : a))
  return { backend: best.backend, reason: roomy.length === 1 ? 'only choice' : 'least busy' }
}
