// Token buckets: how many requests and tokens a tenant may ask for in a minute. Invariant: what is refused takes nothing;
// an answer's tokens are only known when it is over and may leave a bucket in debt, which later requests wait for.

import type { Clock } from '../core/clock.js'
import { RefrainError } from '../core/errors.js'
import type { GenerateEvent } from '../core/events.js'

/** 0: no limit. */
export interface TenantLimit {
  readonly requestsPerMinute: number
  readonly tokensPerMinute: number
}

export interface TenantLimitsOptions {
  readonly all: TenantLimit
  /** Those that a tenant has of its own, by its name. */
  readonly own: ReadonlyMap<string, Partial<TenantLimit>>
  readonly clock: Clock
}

export interface TenantLimits {
  /** @throws RefrainError `rate_limited`, with the time until the request would be let in. */
  take(tenant: string, promptTokens: number): void
  /** What it turned out to be: the answer's tokens, and what the prompt's estimate was short of or too high. */
  settle(tenant: string, tokens: number): void
}

/** The limits of a config; undefined where nobody has any. */
export function limitsIn(
  { limits, tenants }: { readonly limits: TenantLimit; readonly tenants: readonly NamedLimit[] },
  clock: Clock,
): TenantLimits | undefined {
  const { requestsPerMinute, tokensPerMinute } = limits
  const some = [limits, ...tenants].some((each) => (each.requestsPerMinute ?? 0) + (each.tokensPerMinute ?? 0) > 0)
  if (!some) return undefined
  const own = new Map(tenants.map((tenant) => [tenant.name, tenant]))
  return createTenantLimits({ all: { requestsPerMinute, tokensPerMinute }, own, clock })
}

interface NamedLimit extends Partial<TenantLimit> {
  readonly name: string
}

/** The events of an answer, whose tokens are settled when it is over, however it ends. */
export async function* metered(
  events: AsyncIterable<GenerateEvent>,
  settle: (tokens: number) => void,
): AsyncGenerator<GenerateEvent, void> {
  let tokens = 0
  try {
    for await (const event of events) {
      if (event.type === 'token') tokens += event.ids.length
      yield event
    }
  } finally {
    settle(tokens)
  }
}

const MINUTE_MS = 60_000

interface Bucket {
  readonly size: number
  /** Below 0: in debt. */
  left: number
  filledAt: number
}

interface Buckets {
  readonly requests: Bucket | undefined
  readonly tokens: Bucket | undefined
}

export function createTenantLimits({ all, own, clock }: TenantLimitsOptions): TenantLimits {
  const tenants = new Map<string, Buckets>()

  const bucketOf = (size: number): Bucket | undefined =>
    size === 0 ? undefined : { size, left: size, filledAt: clock.now() }
  const bucketsOf = (tenant: string): Buckets => {
    const known = tenants.get(tenant)
    if (known !== undefined) return known
    const mine = own.get(tenant)
    const { requestsPerMinute = all.requestsPerMinute, tokensPerMinute = all.tokensPerMinute } = mine ?? all
    const buckets = { requests: bucketOf(requestsPerMinute), tokens: bucketOf(tokensPerMinute) }
    tenants.set(tenant, buckets)
    return buckets
  }
  const fill = (bucket: Bucket) => {
    const now = clock.now()
    bucket.left = Math.min(bucket.size, bucket.left + ((now - bucket.filledAt) / MINUTE_MS) * bucket.size)
    bucket.filledAt = now
  }
  /** Until `amount` is there; a request that is larger than the bucket passes when that is full. */
  const waitMs = (bucket: Bucket, amount: number) => {
    fill(bucket)
    const missing = Math.min(amount, bucket.size) - bucket.left
    return missing <= 0 ? 0 : Math.ceil((missing / bucket.size) * MINUTE_MS)
  }

  return {
    take(tenant, promptTokens) {
      const { requests, tokens } = bucketsOf(tenant)
      const forRequest = requests === undefined ? 0 : waitMs(requests, 1)
      const forTokens = tokens === undefined ? 0 : waitMs(tokens, promptTokens)
      const retryAfterMs = Math.max(forRequest, forTokens)
      if (retryAfterMs > 0) {
        const which = forRequest >= forTokens ? `${requests?.size} requests` : `${tokens?.size} tokens`
        throw new RefrainError('rate_limited', `the tenant's ${which} a minute are used up`, { retryAfterMs })
      }
      if (requests !== undefined) requests.left -= 1
      if (tokens !== undefined) tokens.left -= promptTokens
    },
    settle(tenant, amount) {
      const { tokens } = bucketsOf(tenant)
      if (tokens === undefined) return
      fill(tokens)
      tokens.left = Math.min(tokens.size, tokens.left - amount)
    },
  }
}
